"""What this version refuses to run, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.runnable import need_compiler, obstacles, refuse_unrunnable
from specs.errors import UserError
from tests.fakes import write_task


def found(folder: Path, **overrides: Any) -> list[tuple[str, str]]:
    task = write_task(folder, ["// one"], **overrides).task
    return [(".".join(map(str, at)), message) for at, message in obstacles(task)]


def test_a_complete_task_has_no_obstacle(tmp_path: Path) -> None:
    """A package that is installed is none."""
    assert found(tmp_path, build={"flags": ["-I{package:numpy}/include"]}) == []


@pytest.mark.parametrize(
    ("overrides", "field", "message"),
    [
        ({"gate": None}, "gate", "none given; a gate folder is needed: this version does not write gates"),
        ({"interface": None}, "interface", "none given; the function that every candidate exports is needed"),
        ({"baseline": {"source": "memcpy"}}, "baseline.program", "none given; a source file to time against is needed"),
        ({"harness": "self_contained"}, "harness", "'self_contained' is not available in this version; accepted: gate"),
        ({"language": "cuda", "gpu": "H200"}, "language", "'cuda' cannot be built by this version; accepted: cpp"),
        ({"language": "triton", "gpu": "H200"}, "language", "'triton' cannot be built by this version; accepted: cpp"),
        (
            {"model": {"provider": "anthropic"}},
            "model.provider",
            "'anthropic' is not available in this version; accepted: scripted",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, overrides: dict[str, Any], field: str, message: str) -> None:
    """With the field, and with what is accepted there."""
    assert found(tmp_path, **overrides) == [(field, message)]


@pytest.mark.parametrize("field", ["build.flags", "build.production_flags", "baseline.flags"])
def test_a_package_that_is_not_installed_is_named(tmp_path: Path, field: str) -> None:
    """Wherever flags are given."""
    block, key = field.split(".")
    given: dict[str, Any] = {"build": {}, "baseline": {"source": "memcpy", "program": "baseline.cpp"}}
    given[block][key] = ["-L{package:no_such_package}/lib"]
    ((where, message),) = found(tmp_path, **given)
    assert where == field
    assert "package 'no_such_package' is not installed; accepted:" in message


def test_several_obstacles_are_told_together(tmp_path: Path) -> None:
    """Nobody has to start a run three times to learn three things."""
    assert [field for field, _ in found(tmp_path, gate=None, interface=None)] == ["gate", "interface"]


def test_a_language_that_cannot_be_built_is_told_alone(tmp_path: Path) -> None:
    """Everything else would be about a build that cannot be."""
    assert [field for field, _ in found(tmp_path, language="cuda", gpu="H200", gate=None)] == ["language"]


def test_the_worker_refuses_with_field_and_words(tmp_path: Path) -> None:
    """For a run that some other client has started."""
    task = write_task(tmp_path, ["// one"], gate=None).task
    with pytest.raises(UserError, match=r"^gate: none given; a gate folder is needed"):
        refuse_unrunnable(task)


def test_a_missing_compiler_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run on this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"g\+\+ is not on PATH; C\+\+ kernels need it"):
        need_compiler(write_task(tmp_path, ["// one"]).task)
