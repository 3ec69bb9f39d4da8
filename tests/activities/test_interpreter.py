"""How a person calls ferret's programs again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from activities.interpreter import ROOT, command


def test_what_lies_below_the_folder_is_named_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`.venv/bin/python client.py`, as a person would type it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))

    assert command("client.py", "watch", "RUN") == ".venv/bin/python client.py watch RUN"


def test_what_lies_elsewhere_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line works from wherever it was printed, blanks in a path or not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/my tools/python")

    assert command("worker.py") == f"'/opt/my tools/python' {ROOT / 'worker.py'}"


@pytest.mark.parametrize(("program", "lacks"), [("client.py", "structlog"), ("worker.py", "structlog")])
def test_a_python_without_the_packages_is_told_in_one_line(program: str, lacks: str) -> None:
    """Exit code 2, the environment to activate, no traceback."""
    # -S leaves out the folder of installed packages.
    answer = subprocess.run([sys.executable, "-S", program], cwd=ROOT, env={}, capture_output=True, text=True)

    assert (answer.returncode, answer.stdout) == (2, "")
    (line,) = answer.stderr.splitlines()
    assert f"packages are not in this Python ({sys.executable} lacks {lacks})" in line
    assert line.endswith("activate the environment: . .venv/bin/activate")
