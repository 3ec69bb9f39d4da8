"""Booking a round: numbers, champion, stage and stalls follow from the results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specs.dialogue import Mode
from specs.outcomes import BlobRef, Ending, Iteration, Stage
from specs.plan import Plan
from specs.schema import Model, Provider
from tests.fakes import write_task
from workflows import ledger
from workflows.ledger import Slot, next_round, settle
from workflows.state import DeviceClaim, IterationResult, RunState, Submission

SHA = "ab" * 32
BLOB = {"sha256": SHA, "size": 1}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    loaded = write_task(tmp_path, ["// one"], search={"width": 2, "stall_after": 2}, stage_gate={"ratio": 0.9})
    return Plan.of(loaded.task, loaded.digest)


@pytest.fixture
def thinking(plan: Plan) -> Plan:
    """The same with a model for its optimiser."""
    return plan.model_copy(update={"model": Model()})


@pytest.fixture
def state(plan: Plan) -> RunState:
    return RunState(budget=plan.budget, device=DeviceClaim(queue="q", description="d"))


def measurement(score: float, gain: float | None) -> dict[str, Any]:
    timing = {"median_us": 10.0, "q1_us": 9.0, "q3_us": 11.0, "samples": 5}
    ratio = {"value": score, "low": score, "high": score}
    configs = [{"config": name, "baseline": timing, "candidate": timing, "ratio": ratio} for name in ("small", "large")]
    return {
        "library": SHA, "configs": configs, "score": ratio, "geomean": score, "device": {"name": "cpu"},
        "gain": gain and {"value": gain, "low": gain, "high": gain},
    }  # fmt: skip


def result(
    index: int, ending: Ending, score: float = 0.5, gain: float | None = None, normal: str = SHA
) -> IterationResult:
    measured = ending in (Ending.WIN, Ending.SLOWER)
    walk = {
        "build": {"status": "built", "key": SHA, "library": BLOB},
        "verdict": {"passed": True, "library": SHA, "gate": SHA, "cases": 1},
        "measurement": measurement(score, gain),
    }
    iteration = {
        "index": index, "version": "v000" if ending is Ending.WIN else "a000", "stage": "REPRODUCE", "ending": ending,
        "reason": "because", "proposal": {"source": BLOB, "normal": normal, "origin": "optimizer", "label": "x"},
    }  # fmt: skip
    return IterationResult.model_validate(
        {
            "index": index, "ending": ending, "reason": "because", "label": "x",
            "iteration": iteration | (walk if measured else {}),
        }
    )  # fmt: skip


def slot(index: int) -> Slot:
    return Slot(index=index, submission=None, script_position=index, use_seed=False)


def book(plan: Plan, state: RunState, *results: IterationResult) -> list[Iteration]:
    return settle(plan, state, [slot(one.index) for one in results], results, seconds=1.0)


def test_wins_and_attempts_have_numbers_of_their_own(plan: Plan, state: RunState) -> None:
    """In order of index, also within a round."""
    booked = book(plan, state, result(0, Ending.REFUSED), result(1, Ending.WIN))
    booked += book(plan, state, result(2, Ending.BUILD_FAILED))
    assert [iteration.version for iteration in booked] == ["a001", "v001", "a002"]
    assert (state.next_index, state.wins, state.attempts) == (3, 1, 2)


def test_of_two_wins_the_larger_gain_is_crowned(plan: Plan, state: RunState) -> None:
    """The gain counts, not the bare score: it was taken against the champion in the same rounds."""
    booked = book(plan, state, result(0, Ending.WIN, 0.81, gain=1.2), result(1, Ending.WIN, 0.80, gain=1.3))
    assert [(one.version, one.ending) for one in booked] == [("a001", Ending.SLOWER), ("v001", Ending.WIN)]
    assert state.champion is not None
    assert state.champion.index == 1


def test_of_two_equal_wins_the_first_is_crowned(plan: Plan, state: RunState) -> None:
    """So that a replayed round ends the same way."""
    book(plan, state, result(0, Ending.WIN, 0.8), result(1, Ending.WIN, 0.8))
    assert state.champion is not None
    assert state.champion.index == 0


def test_the_stage_gate_opens_on_a_win_and_never_closes(plan: Plan, state: RunState) -> None:
    """A later champion of another shape cannot take the run back."""
    book(plan, state, result(0, Ending.WIN, 0.5))
    assert state.stage is Stage.REPRODUCE
    book(plan, state, result(1, Ending.WIN, 0.95, gain=1.9))
    assert state.stage.value == "OPTIMIZE"


def test_stalls_are_counted_since_the_last_win(plan: Plan, state: RunState) -> None:
    """Every stall_after iterations; a win starts afresh."""
    stalls = []
    for index, ending in enumerate([Ending.WIN, *[Ending.REFUSED] * 4, Ending.WIN]):
        book(plan, state, result(index, ending, 0.5 + index / 10, gain=None))
        stalls.append(state.stalls)
    assert stalls == [0, 0, 1, 1, 2, 0]


def test_a_repeated_source_remembers_its_first_answer(plan: Plan, state: RunState) -> None:
    """Not the duplicate's own number."""
    book(plan, state, result(0, Ending.WIN))
    book(plan, state, result(1, Ending.DUPLICATE))
    assert ledger.tried(state) == {SHA[: ledger.TRIED_LENGTH]: "v001"}


def test_the_end_of_the_script_is_no_iteration(plan: Plan, state: RunState) -> None:
    """It takes no number and no budget."""
    nothing = IterationResult(index=0, ending=Ending.NO_PROPOSAL, reason="all played", label="", exhausted=True)
    assert book(plan, state, nothing) == []
    assert (state.exhausted, state.next_index, state.script_position, state.attempts) == (True, 0, 0, 0)


def test_a_model_that_hands_nothing_in_may_be_asked_again(thinking: Plan, state: RunState) -> None:
    """Unlike a script that is played out; the attempt counts."""
    book(thinking, state, result(0, Ending.NO_PROPOSAL))
    assert (state.exhausted, state.attempts, state.since_win) == (False, 1, 1)


def test_after_a_stall_a_model_thinks_alone_and_then_pivots(thinking: Plan, state: RunState) -> None:
    """Research is no attempt that failed: it does not make the next stall come sooner."""
    modes = []
    for index, ending in enumerate(
        [Ending.REFUSED, Ending.REFUSED, Ending.RESEARCHED, Ending.REFUSED, Ending.REFUSED, Ending.RESEARCHED]
    ):
        book(thinking, state, result(index, ending))
        modes.append((state.mode.value, len(next_round(thinking, state))))
    assert modes == [("improve", 2), ("research", 1), ("pivot", 2), ("improve", 2), ("research", 1), ("pivot", 2)]
    assert (state.since_win, state.attempts) == (4, 6)


def test_a_win_forgets_the_research_before_it(thinking: Plan, state: RunState) -> None:
    """The lever has been pulled; the next stall gets a research turn of its own."""
    book(thinking, state, result(0, Ending.REFUSED), result(1, Ending.REFUSED))
    lever = BlobRef.model_validate(BLOB)
    book(thinking, state, result(2, Ending.RESEARCHED).model_copy(update={"lever": lever}))
    assert (state.lever, state.mode) == (lever, Mode.PIVOT)
    book(thinking, state, result(3, Ending.WIN))
    assert (state.lever, state.researched, state.mode) == (None, 0, Mode.IMPROVE)


def test_a_script_never_researches(plan: Plan, state: RunState) -> None:
    """It does not read what came of it."""
    for index in range(4):
        book(plan, state, result(index, Ending.REFUSED))
    assert (state.stalls, state.mode) == (2, Mode.IMPROVE)


def test_notes_of_siblings_side_by_side_are_the_winners(thinking: Plan, state: RunState) -> None:
    """Otherwise those of the last one that has some."""
    first, second = (BlobRef(sha256=digit * 64, size=1) for digit in "12")
    one = result(0, Ending.WIN).model_copy(update={"notes": first})
    other = result(1, Ending.REFUSED).model_copy(update={"notes": second})
    book(thinking, state, one, other)
    assert state.notes == first
    book(thinking, state, result(2, Ending.REFUSED), result(3, Ending.REFUSED).model_copy(update={"notes": second}))
    assert state.notes == second


@pytest.mark.parametrize("field", ["over_budget", "gave_up"])
def test_what_no_iteration_can_mend_ends_the_search(thinking: Plan, state: RunState, field: str) -> None:
    """In the words of the iteration that met it; the champion stays."""
    book(thinking, state, result(0, Ending.WIN))
    book(thinking, state, result(1, Ending.UNREVIEWED).model_copy(update={field: "no money left"}))
    assert state.stop_reason == "no money left"
    assert state.champion is not None
    assert state.champion.version == "v001"


def test_a_parameter_search_is_told_what_came_of_its_settings(plan: Plan, state: RunState) -> None:
    """Nobody else carries it."""
    book(plan, state, result(0, Ending.WIN, 0.5), result(1, Ending.REFUSED))
    assert ledger.searched(plan, state) == ()
    tune = plan.model_copy(update={"model": Model(provider=Provider.TUNE)})
    assert [(one.label, one.score) for one in ledger.searched(tune, state)] == [("x", 0.5), ("x", None)]


def test_a_win_that_was_not_reviewed_may_be_handed_in_again(thinking: Plan, state: RunState) -> None:
    """It was never answered."""
    book(thinking, state, result(0, Ending.UNREVIEWED))
    assert ledger.tried(state) == {}


def test_a_round_takes_people_first_and_never_more_than_the_budget(plan: Plan, state: RunState) -> None:
    """The optimiser fills what is left of the width."""
    state.submissions = [Submission.model_validate({"source": BLOB, "label": "mine"})]
    slots = next_round(plan, state)
    assert [(one.submission is not None, one.script_position) for one in slots] == [(True, 0), (False, 0)]
    state.attempts = plan.budget.max_iterations - 1
    assert len(next_round(plan, state)) == 1


def test_an_exhausted_optimiser_leaves_only_people(plan: Plan, state: RunState) -> None:
    """A late submission is still judged."""
    state.exhausted = True
    assert next_round(plan, state) == []
    state.submissions = [Submission.model_validate({"source": BLOB, "label": "mine"})]
    assert len(next_round(plan, state)) == 1


def test_a_round_has_waited_as_long_as_each_of_its_iterations() -> None:
    """Paused and queued count alike; while one sibling works, the time is worked time."""
    patient = result(0, Ending.SLOWER).model_copy(update={"paused_s": 30.0, "queue_wait_s": 5.0})
    busy = result(1, Ending.SLOWER).model_copy(update={"queue_wait_s": 2.0})
    assert ledger.waited_s([patient]) == 35.0
    assert ledger.waited_s([patient, busy]) == 2.0
    assert ledger.waited_s([]) == 0.0
