"""What the documents show works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

import client
from kernels.harness import __main__ as harness
from kernels.harness import admission, gate
from specs.loader import load_task

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "authoring-a-task.md").read_text()
README = (ROOT / "README.md").read_text()


def block(language: str, beginning: str) -> str:
    found = re.search(rf"(?s)```{language}\n({re.escape(beginning)}.*?)```", GUIDE)
    assert found is not None
    return found[1]


def test_the_gate_of_the_guide_is_usable_for_its_interface(tmp_path: Path) -> None:
    """Locked, loaded, rehearsed and admitted, with the interface that the guide shows."""
    smallest, interface = block("yaml", "name:"), block("yaml", "problem:")
    kept = [part for part in re.split(r"(?m)^(?=[a-z])", smallest) if not part.startswith("problem:")]
    path = tmp_path / "task.yaml"
    path.write_text("".join(kept) + interface)
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "gate.yaml").write_text(block("yaml", "# gate/gate.yaml"))
    (tmp_path / "gate" / "reference.py").write_text(block("python", "# gate/reference.py"))
    task = load_task(path).task
    lock = gate.lock(task, tmp_path / "gate")
    loaded = gate.load(task, tmp_path / "gate", lock)
    gate.rehearse(loaded)
    assert admission.admit(loaded, lock).why_not == ""
    assert set(loaded.limits) == {"rstd", "y"}


PROGRAMS = {"python client.py ": client.app, "python -m kernels.harness ": harness.app}
SHOWN = [
    (beginning, line.removeprefix(beginning))
    for line in re.findall(r"(?m)^(python (?:client\.py|-m kernels\.harness) .*)$", README + GUIDE)
    for beginning in PROGRAMS
    if line.startswith(beginning)
]


@pytest.mark.parametrize(("beginning", "words"), SHOWN, ids=[words.split("#")[0] for _, words in SHOWN])
def test_every_command_shown_is_one(beginning: str, words: str) -> None:
    """With its options and as many words as it takes; every file of this checkout that it names is there."""
    name, *rest = shlex.split(words, comments=True)
    group = typer.main.get_group(PROGRAMS[beginning])
    parsed = group.commands[name].make_context(name, list(rest))
    assert parsed.info_name == name
    named = [word for word in rest if word.startswith(("specs/", "kernels/", "benchmarks/", "tests/"))]
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_every_command_of_the_harness_stands_in_the_readme() -> None:
    """But for the one that activities ask."""
    commands = set(typer.main.get_group(harness.app).commands) - {"serve"}
    assert len(commands) > 8
    assert {name for name in commands if f"python -m kernels.harness {name} " not in README.replace("\n", " ")} == set()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README + GUIDE))))
def test_every_linked_file_is_there(link: str) -> None:
    """Seen from the README or from docs/."""
    assert (ROOT / link).exists() or (ROOT / "docs" / link).exists()


def test_every_command_of_the_client_stands_in_the_readme() -> None:
    """A command nobody can find is a command nobody has."""
    source = (ROOT / "client.py").read_text()
    commands = set(re.findall(r"@app\.command\((?:name=)?\"([a-z]+)\"", source))
    commands |= set(re.findall(r"@app\.command\(\)\n(?:async )?def ([a-z]+)\(", source))
    assert len(commands) > 15
    assert {name for name in commands if f"client.py {name}" not in README} == set()
