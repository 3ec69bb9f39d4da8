"""The search: it finds what is good, repeats nothing, says why it ends, and the same past gives the same next."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.tune import PATIENCE_PER_PARAMETER, Trial, next_assignment, obstacle, why_over
from specs.loader import load_task
from specs.schema import Language
from specs.tuning import Assignment, Space, label, space
from tests.fakes import write_task

ROOT = Path(__file__).parents[2]
TASK = ROOT / "specs" / "tasks" / "skinny-gemm-f32-cpu-tune.yaml"
SMALL = "int A = 1;  // ferret:tune A 1 2 4\nint B = x;  // ferret:tune B x y\n// ferret:tune-when A <= 4\n"
EIGHTS = "".join(f"int P{k} = 0;  // ferret:tune P{k} 0 1 2 3 4 5 6 7\n" for k in range(3))


def of(source: str) -> Space:
    return space(source, Language.CPP)


def walk(tunable: Space, score: Any, past: list[Trial], steps: int = 1000) -> list[Trial]:
    """What a run does: propose, find out, propose again."""
    for _ in range(steps):
        chosen = next_assignment(tunable, past, "task")
        if chosen is None:
            break
        found = score(chosen)
        past.append(Trial(chosen, found, failed=found is None))
    return past


def hill(assignment: Assignment) -> float:
    """Best at 5 5 5, and every step counts."""
    return 2.0 - 0.1 * sum(abs(int(value) - 5) for value in assignment.values())


def test_every_combination_is_tried_once_and_then_it_is_over() -> None:
    """The start counts as tried; nothing that a condition forbids is proposed."""
    tunable = of(SMALL.replace("A <= 4", "A <= 2"))
    past = walk(tunable, lambda one: 1.0, [Trial(tunable.start, 1.0)])
    tried = [label(trial.assignment) for trial in past]
    assert sorted(tried) == sorted(f"A={a} B={b}" for a, b in itertools.product((1, 2), "xy"))
    assert next_assignment(tunable, past, "task") is None
    assert why_over(tunable, past) == "all 4 combinations were tried"


def test_the_same_past_gives_the_same_proposal() -> None:
    """A retry of the activity proposes what the first attempt did; another task begins elsewhere."""
    tunable = of(EIGHTS)
    past = [Trial(tunable.start, 1.0)]
    assert next_assignment(tunable, past, "task") == next_assignment(tunable, past, "task")
    assert len({label(next_assignment(tunable, past, f"task {n}") or {}) for n in range(5)}) > 1


def test_siblings_of_one_round_propose_different_combinations() -> None:
    """Each knows only how many come before it, and finds out which."""
    tunable = of(EIGHTS)
    past = walk(tunable, hill, [Trial(tunable.start, hill(tunable.start))], steps=6)
    round_ = [next_assignment(tunable, past, "task", ahead) for ahead in range(4)]
    assert len({label(one) for one in round_ if one is not None}) == 4
    assert round_[2] == next_assignment(tunable, past, "task", 2)


def test_siblings_share_what_is_left() -> None:
    """One combination left, and two who ask: the second gets none."""
    tunable = of(SMALL)
    past = [Trial(one, 1.0) for one in tunable.combinations[1:]]
    assert next_assignment(tunable, past, "task", 0) == tunable.combinations[0]
    assert next_assignment(tunable, past, "task", 1) is None
    assert why_over(tunable, past) is None


def test_the_search_learns_from_scores() -> None:
    """On a hill of 512 combinations it is near the top after 30."""
    tunable = of(EIGHTS)
    past = walk(tunable, hill, [Trial(tunable.start, hill(tunable.start))], steps=30)
    assert max(trial.score or 0 for trial in past) >= 1.8


def test_the_search_keeps_away_from_what_fails() -> None:
    """Half of the space does not build: fewer than half of the later proposals are there."""
    tunable = of(EIGHTS)
    past = walk(tunable, lambda one: None if int(one["P0"]) < 4 else 1.0, [Trial(tunable.start, None, failed=True)], 24)
    late = past[12:]
    assert sum(trial.failed for trial in late) < len(late) / 2


def test_no_better_score_for_long_ends_the_search() -> None:
    """So many in a row for each parameter; a better one begins the count anew."""
    tunable = of(EIGHTS)
    patience = 3 * PATIENCE_PER_PARAMETER
    flat = [Trial(one, 1.0) for one in tunable.combinations[: patience + 1]]
    assert why_over(tunable, flat[:-1]) is None
    assert why_over(tunable, flat) == f"no better score within {patience} combinations"
    assert next_assignment(tunable, flat, "task") is None
    assert why_over(tunable, [*flat, Trial(tunable.combinations[-1], 1.1)]) is None
    failed = [Trial(one, None, failed=True) for one in tunable.combinations[:patience]]
    assert why_over(tunable, failed) is not None


def test_optuna_is_loaded_by_a_search_alone() -> None:
    """Who starts a run, or replays one, does not wait for it."""
    code = "import sys, activities.propose, activities.tune; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_search_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """optuna likes to talk."""
    next_assignment(of(SMALL), [], "task")
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- what cannot be tuned


def tuned(folder: Path, seed: str | None) -> str | None:
    more: dict[str, Any] = {} if seed is None else {"seed": "seed.cpp"}
    folder.mkdir()
    if seed is not None:
        (folder / "seed.cpp").write_text(seed)
    loaded = write_task(folder, [], model={"provider": "tune"}, **more)
    return obstacle(loaded.task, folder)


def test_a_seed_that_can_be_tuned_is_no_obstacle(tmp_path: Path) -> None:
    """And no other provider needs marks."""
    assert tuned(tmp_path / "tuned", SMALL) is None
    scripted = write_task(tmp_path / "scripted", ["// one"], seed="seed.cpp").task
    assert obstacle(scripted, tmp_path / "scripted") is None


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (None, "none given; provider 'tune' needs a kernel with parameters marked in it"),
        (
            "int A = 1;",
            "'seed.cpp' cannot be tuned: no parameter is marked; accepted: // ferret:tune NAME v1 v2 ...",
        ),
        (
            "int A = 1;  // ferret:tune A 1",
            "'seed.cpp' cannot be tuned: line 1: 'A' has 1 values; at least 2 are needed",
        ),
    ],
)
def test_a_seed_that_cannot_be_tuned_is_told_before_a_run(tmp_path: Path, seed: str | None, said: str) -> None:
    """In one line."""
    assert tuned(tmp_path / "task", seed) == said


def test_the_shipped_task_can_be_tuned() -> None:
    """Its start is one of the combinations, so that its score teaches the search something."""
    loaded = load_task(TASK)
    assert (loaded.warnings, loaded.check_files(), obstacle(loaded.task, TASK.parent)) == ([], [], None)
    assert loaded.task.seed is not None
    tunable = of(loaded.resolve(loaded.task.seed).read_text())
    assert 60 <= len(tunable.combinations) <= 300
    assert tunable.start in tunable.combinations
