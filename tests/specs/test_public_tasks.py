"""Task files of the public ferret load unchanged, with the meaning they were written with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specs.loader import load_task
from specs.schema import Harness, Language
from tests.specs.conftest import Write

FOLDER = Path(__file__).parents[3] / "shared" / "ferret-tasks"
FILES = sorted(FOLDER.glob("*.yaml"))

needs_files = pytest.mark.skipif(not FILES, reason="the public task files are not beside this checkout")
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def _raw(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(path.read_text())
    return raw


@needs_files
@each_file
def test_a_public_task_means_what_it_says(path: Path) -> None:
    """Every value as plain YAML has it, the documented defaults where it has none."""
    raw, task = _raw(path), load_task(path).task
    assert (task.name, task.gpu, task.arch, task.precision) == (raw["name"], raw["gpu"], raw["arch"], raw["precision"])
    assert task.problem.description == raw["problem"]["description"]
    assert task.problem.shapes == raw["problem"].get("shapes", {})
    assert task.baseline.source == raw["baseline"]["source"]
    assert task.baseline.reference_commit == raw["baseline"].get("reference_commit")
    assert [(c.name, c.args, c.target_ratio, c.weight) for c in task.configs] == [
        (c["name"], c["args"], c.get("target_ratio", 0.95), c.get("weight", 1)) for c in raw["configs"]
    ]
    assert task.scoring.value == raw.get("scoring", "min_ratio")
    gate = raw.get("stage_gate", {})
    assert (task.stage_gate.ratio, task.stage_gate.strict) == (gate.get("ratio", 0.9), gate.get("strict", False))
    budget = raw.get("budget", {})
    assert task.budget.max_iterations == budget.get("max_iterations", 100)
    assert task.budget.max_wall_minutes == budget.get("max_wall_minutes", 120)
    for key in ("references", "constraints", "hints"):
        assert getattr(task, key) == tuple(raw.get(key, ()))
    assert task.output.result_keys == tuple(raw["output"]["result_keys"])
    assert (task.harness, task.language) == (Harness.GATE, Language.CUDA)


@needs_files
@each_file
def test_what_a_public_task_says_beyond_the_schema_is_kept(path: Path) -> None:
    """Each unknown key of a block is a note with its value, and a warning with its line."""
    raw, loaded = _raw(path), load_task(path)
    known = {"problem": {"description", "shapes"}, "baseline": {"source", "reference_commit"}}
    extra = {f"{block}.{key}": raw[block][key] for block in known for key in raw[block] if key not in known[block]}
    assert loaded.task.notes == extra
    assert {w.field for w in loaded.warnings} == set(extra)
    lines = path.read_text().splitlines()
    for warning in loaded.warnings:
        assert warning.line is not None
        assert lines[warning.line - 1].strip().startswith(f"{warning.field.split('.')[-1]}:")


@needs_files
def test_some_public_task_has_notes_and_some_lacks_a_stage_gate() -> None:
    """The two tests above really meet the cases they are for."""
    assert any(load_task(path).task.notes for path in FILES)
    assert any("stage_gate" not in _raw(path) for path in FILES)


def test_a_task_whose_problem_has_no_shapes_loads(write: Write) -> None:
    """The smallest form: a description is all that a problem needs."""
    task = load_task(
        write(
            "name: t\ngpu: B200\narch: sm_100a\nprecision: BF16\nproblem:\n  description: d\n"
            "baseline:\n  source: s\nconfigs:\n  - name: c\n    args: {M: 1}\n"
        )
    ).task
    assert task.problem.shapes == {}
    assert (task.configs[0].target_ratio, task.configs[0].weight) == (0.95, 1)
