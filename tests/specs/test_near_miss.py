"""Unknown keys: kept as notes with a warning, unless they are a known key misspelt."""

from __future__ import annotations

import json

import pytest

from specs.loader import load_task
from specs.near_miss import known_keys, near_miss
from specs.schema import Baseline, Budget, Config, Problem, Task
from tests.specs.conftest import SMALL, Write, the_error


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("scorring", "scoring"),
        ("scorign", "scoring"),
        ("Scoring", "scoring"),
        ("nmae", "name"),
        ("constraint", "constraints"),
        ("stage-gate", "stage_gate"),
        ("stageGate", "stage_gate"),
        ("base_line", "baseline"),
        ("config", "configs"),
        ("reference", "references"),
        ("lang", "language"),
        ("budgets", "budget"),
    ],
)
def test_a_misspelt_top_level_key_is_recognised(key: str, meant: str) -> None:
    """Letters left out, swapped or doubled, another case or dash, a beginning of the word."""
    assert near_miss(key, known_keys(Task)) == meant


@pytest.mark.parametrize(
    ("key", "meant"),
    [("max_iteration", "max_iterations"), ("max_iters", "max_iterations"), ("max_minutes", "max_wall_minutes")],
)
def test_a_misspelt_budget_is_recognised(key: str, meant: str) -> None:
    """A limit that is silently none would cost real money."""
    assert near_miss(key, known_keys(Budget)) == meant


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (Baseline, "command"),
        (Baseline, "pre_measured"),
        (Baseline, "notes"),
        (Baseline, "measured_on_b200_jun_2026"),
        (Config, "baseline_tflops"),
        (Config, "target_tflops"),
        (Problem, "math_contract"),
        (Problem, "notes"),
        (Problem, "weight_layout"),
        (Task, "author"),
        (Task, "x"),
        (Task, "s" * 100_000),
    ],
)
def test_a_key_of_its_own_meaning_is_no_near_miss(block: type[Task], key: str) -> None:
    """Older task files have keys that mean something else, and they must load."""
    assert near_miss(key, known_keys(block)) is None


def test_a_near_miss_is_an_error_with_line_and_the_key_meant(write: Write) -> None:
    """It would otherwise be ignored in silence."""
    problem = the_error(write(f"{SMALL}scorring: focus\n"))
    assert (problem.line, problem.field) == (14, "scorring")
    assert problem.message.startswith("unknown key 'scorring'; did you mean 'scoring'?")


def test_a_near_miss_of_a_required_key_is_told_once(write: Write) -> None:
    """Not a second time as missing."""
    problem = the_error(write(SMALL.replace("description", "descripton")))
    assert (problem.line, problem.field) == (6, "problem.descripton")


def test_a_near_miss_within_a_list_has_its_path(write: Write) -> None:
    """The second config's `target_rato`, by index."""
    problem = the_error(write(SMALL.replace("{N: 4096}", "{N: 4096}\n    target_rato: 1.5")))
    assert (problem.line, problem.field) == (14, "configs[1].target_rato")


def test_a_key_like_one_that_is_there_is_a_note(write: Write) -> None:
    """With the real key present nothing is lost, so it is only a warning."""
    loaded = load_task(write(f"{SMALL}scoring: min_ratio\nscorring: old\n"))
    assert loaded.task.notes == {"scorring": "old"}
    assert [(w.severity, w.line) for w in loaded.warnings] == [("warning", 15)]


def test_unknown_keys_become_notes_by_dotted_path(write: Write) -> None:
    """At every level, whatever they hold, each with a warning that has its line."""
    text = (
        SMALL.replace("source: a loop", "source: a loop\n  command: run me\n  pre_measured: {1: 30.5, 8: .inf}")
        .replace("y = x + 1", "y = x + 1\n  math_contract: {accumulator: f32}")
        .replace("{N: 4096}", "{N: 4096}\n    baseline_tflops: 31.0")
    )
    loaded = load_task(write(text))
    assert loaded.task.notes == {
        "problem.math_contract": {"accumulator": "f32"},
        "baseline.command": "run me",
        "baseline.pre_measured": {"1": 30.5, "8": "inf"},
        "configs[1].baseline_tflops": 31.0,
    }
    assert [w.line for w in loaded.warnings] == [7, 10, 11, 17]
    assert all(w.severity == "warning" and "kept as a note" in w.message for w in loaded.warnings)


def test_notes_travel_as_json(write: Write) -> None:
    """A task with notes survives the trip through a history unchanged."""
    task = load_task(write(f"{SMALL}extra: {{a: .nan, b: [1, {{2: x}}], c: 2026-04-12, d: null}}\n")).task
    assert Task.model_validate(json.loads(task.model_dump_json())) == task


def test_notes_written_by_the_user_stay_a_note(write: Write) -> None:
    """A key `notes` at the top is no way to set the notes themselves."""
    assert load_task(write(f"{SMALL}notes: mine\n")).task.notes == {"notes": "mine"}


def test_keys_of_args_and_shapes_are_free(write: Write) -> None:
    """A config may have an argument called `nmae`."""
    text = SMALL.replace("{N: 64}", "{N: 64, nmae: 1, scorring: 2}").replace(
        "baseline:", "  shapes: {2I_r: 3}\nbaseline:"
    )
    loaded = load_task(write(text))
    assert loaded.warnings == []
    assert loaded.task.problem.shapes == {"2I_r": 3}
