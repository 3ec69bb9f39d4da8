"""The run as a whole, against a real server and a scripted harness."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from git import Repo
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, CancelledError

from activities import deliver
from specs.errors import StoreError
from specs.outcomes import Ending, Origin, Stage
from tests.fakes import FakeHarness, Running, is_alive, kernel, running
from workflows import visibility
from workflows.iteration import IterationWorkflow
from workflows.optimization import OptimizationWorkflow
from workflows.state import BudgetExtension, CandidateSubmission, Hint, Phase, RunResult, StopRequest

STORY = [
    kernel("ratio 0.5", "slow_start"),
    kernel("fails", "typo"),
    kernel("wrong", "dropped_tail"),
    kernel("ratio 0.8", "better"),
    kernel("wrong when timed", "cheat"),
    kernel("ratio 0.7", "slower"),
    kernel("ratio 1.2", "best"),
]

TWO = [kernel("ratio 1.2", "first"), kernel("ratio 1.5", "second")]


async def failure_of(run: Running) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await run.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


def delivered(result: RunResult) -> Path:
    assert result.delivery is not None
    return Path(result.delivery.folder)


async def test_a_run_plays_the_script_and_delivers_the_best(temporal: Client, tmp_path: Path) -> None:
    """Wins and attempts are numbered apart, and the last win is accepted and delivered."""
    async with running(temporal, tmp_path, STORY) as run:
        result = await run.result()
        assert await run.endings() == [
            ("v001", "win"),
            ("a001", "build_failed"),
            ("a002", "refused"),
            ("v002", "win"),
            ("a003", "refused"),
            ("a004", "slower"),
            ("v003", "win"),
        ]
    assert (result.outcome, result.wins, result.attempts) == ("accepted", 3, 4)
    assert (delivered(result) / "kernel.cpp").read_text() == STORY[-1]
    figures = json.loads((delivered(result) / "result.json").read_text())["summary"]
    assert figures["acceptance"]["measurement"]["score"]["value"] == 1.2
    assert figures["gate_digest"] == result.gate_digest


async def test_the_record_has_a_commit_an_iteration_and_a_tag_a_win(temporal: Client, tmp_path: Path) -> None:
    """The git repository tells the same story as the history."""
    async with running(temporal, tmp_path, STORY) as run:
        result = await run.result()
    assert result.delivery is not None
    repo = Repo(result.delivery.record)
    assert [str(commit.summary).split(":")[0] for commit in repo.iter_commits(reverse=True)] == [
        "v001", "a001", "a002", "v002", "a003", "a004", "v003",
    ]  # fmt: skip
    assert sorted(tag.name for tag in repo.tags) == ["v001", "v002", "v003"]


async def test_the_seed_is_the_first_candidate_and_runs_alone(temporal: Client, tmp_path: Path) -> None:
    """Whatever the width, later gains are measured against the seed."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "slow.cpp").write_text(kernel("ratio 0.3", "seed"))
    script = [kernel("ratio 0.6", "one"), kernel("ratio 0.9", "two")]
    async with running(temporal, tmp_path, script, overrides={"seed": "slow.cpp", "search": {"width": 2}}) as run:
        await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert [(line.index, line.version, line.origin) for line in history] == [
        (0, "v001", Origin.SEED),
        (1, "a001", Origin.OPTIMIZER),
        (2, "v002", Origin.OPTIMIZER),
    ]


async def test_the_baseline_is_judged_as_one(temporal: Client, tmp_path: Path) -> None:
    """It may bring the vendor's libraries, which no candidate may."""
    async with running(temporal, tmp_path, [kernel("ratio 1.2")]) as run:
        await run.result()
    roles = [entry["request"]["role"] for entry in run.harness.log() if entry["kind"] == "judge"]
    assert roles == ["baseline", "candidate", "candidate"]


async def test_the_stage_gate_opens_once_and_for_good(temporal: Client, tmp_path: Path) -> None:
    """An iteration carries the stage it began in; the gate opens at stage_gate.ratio."""
    script = [kernel("ratio 0.5", "a"), kernel("ratio 0.95", "b"), kernel("ratio 0.4", "c")]
    async with running(temporal, tmp_path, script, overrides={"stage_gate": {"ratio": 0.9}}) as run:
        await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert [line.stage for line in history] == [Stage.REPRODUCE, Stage.REPRODUCE, Stage.OPTIMIZE]


async def test_a_source_tried_before_is_answered_without_a_build(temporal: Client, tmp_path: Path) -> None:
    """Comments and white space do not make a new idea; the answer is what came of the old one."""
    script = [
        kernel("ratio 0.5", "a"),
        "// again\n" + kernel("ratio 0.5", "a").replace("; void", ";\n\n  void /* x */"),
    ]
    async with running(temporal, tmp_path, script) as run:
        await run.result()
        line = (await run.handle.query(OptimizationWorkflow.history))[-1]
        built = [entry for entry in run.harness.log() if entry["kind"] == "build"]
    assert line.ending is Ending.DUPLICATE
    assert "as v001, which ended as win" in line.reason
    # the baseline, the first candidate, and that candidate once more with production flags
    assert [entry["request"]["production"] for entry in built] == [False, False, True]


async def test_two_stalls_in_optimize_end_the_search(temporal: Client, tmp_path: Path) -> None:
    """Twice stall_after iterations without a win after the stage gate: the rest of the script is not played."""
    script = [kernel("ratio 0.95", "good"), *(kernel("ratio 0.5", f"poor{n}") for n in range(9))]
    async with running(temporal, tmp_path, script, overrides={"search": {"stall_after": 2}}) as run:
        result = await run.result()
    assert (result.wins, result.attempts) == (1, 4)
    assert "no win in 4 iterations" in result.reason


async def test_stalls_in_reproduce_do_not_end_the_search(temporal: Client, tmp_path: Path) -> None:
    """Before the stage gate only the budget or the optimiser ends it; below its targets it is best effort."""
    script = [kernel("ratio 0.5", "start"), *(kernel("ratio 0.4", f"poor{n}") for n in range(5))]
    async with running(temporal, tmp_path, script, overrides={"search": {"stall_after": 2}}) as run:
        result = await run.result()
    assert (result.wins, result.attempts, result.outcome) == (1, 5, "best effort")


async def test_the_budget_of_iterations_ends_the_search(temporal: Client, tmp_path: Path) -> None:
    """max_iterations counts wins and attempts."""
    async with running(temporal, tmp_path, STORY, overrides={"budget": {"max_iterations": 3}}) as run:
        result = await run.result()
    assert (result.iterations, result.reason) == (3, "the budget of 3 iterations is used up")


async def test_width_two_keeps_the_better_of_two_wins(temporal: Client, tmp_path: Path) -> None:
    """Both ran against the same champion; the one that gained more is the new one, the other an attempt."""
    script = [kernel("ratio 0.5", "a"), kernel("ratio 0.6", "b"), kernel("ratio 0.9", "c"), kernel("ratio 0.8", "d")]
    async with running(temporal, tmp_path, script, overrides={"search": {"width": 2, "stall_after": 50}}) as run:
        result = await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert [(line.label, line.version) for line in history] == [
        ("00.cpp", "a001"),
        ("01.cpp", "v001"),
        ("02.cpp", "v002"),
        ("03.cpp", "a002"),
    ]
    assert "iteration 2 of the same round won by more" in history[3].reason
    assert result.champion is not None
    assert result.champion.score == 0.9


async def test_without_a_correct_kernel_there_is_a_report_but_no_kernel(temporal: Client, tmp_path: Path) -> None:
    """The run completes and says so."""
    async with running(temporal, tmp_path, [kernel("wrong")]) as run:
        result = await run.result()
    assert (result.outcome, result.champion) == ("no kernel", None)
    assert sorted(path.name for path in delivered(result).iterdir()) == ["report.html", "result.json"]


async def test_acceptance_falls_back_to_the_win_before(temporal: Client, tmp_path: Path) -> None:
    """A champion that fails on held-out cases is not delivered; the previous one is, if it passes."""
    flawed = kernel("ratio 1.4; fake: wrong when held out", "flawed")
    async with running(temporal, tmp_path, [kernel("ratio 1.1", "sound"), flawed]) as run:
        result = await run.result()
    assert result.champion is not None
    assert (result.champion.version, result.outcome) == ("v001", "accepted")
    assert (delivered(result) / "kernel.cpp").read_text() == kernel("ratio 1.1", "sound")


async def test_continue_as_new_loses_nothing(temporal: Client, tmp_path: Path) -> None:
    """Numbers, champion and history go on over the seam."""
    async with running(temporal, tmp_path, STORY, history_events_limit=60) as run:
        result = await run.result()
        runs = [one.run_id async for one in temporal.list_workflows(f"WorkflowId = '{run.handle.id}'")]
        endings = await run.endings()
    assert len(runs) > 1
    assert (result.wins, result.attempts) == (3, 4)
    assert [version for version, _ in endings] == ["v001", "a001", "a002", "v002", "a003", "a004", "v003"]


# ---------------------------------------------------------------- failures


async def test_a_machine_failure_is_retried(temporal: Client, tmp_path: Path) -> None:
    """A busy device and a gate process that dies cost time, never the candidate its verdict."""

    def trouble(harness: FakeHarness) -> None:
        harness.refuse("judge", "DeviceBusy", "another process holds the device", retryable=True)
        harness.die("measure")

    async with running(temporal, tmp_path, [kernel("ratio 1.2")], before=trouble) as run:
        result = await run.result()
    assert (result.wins, result.attempts) == (1, 0)


async def test_a_changed_gate_ends_the_run_with_the_files_name(temporal: Client, tmp_path: Path) -> None:
    """Nothing judged by it can be trusted, so nothing is delivered."""
    async with running(temporal, tmp_path, STORY, before=lambda harness: harness.hold("build", "typo")) as run:
        await run.held("build")
        reference = next((run.settings.bundles).glob("*/gate/reference.py"))
        reference.chmod(0o644)
        reference.write_text("# a kinder reference\n")
        run.harness.release("build")
        failure = await failure_of(run)
    assert failure.type == "GateTampered"
    assert "reference.py was changed" in failure.message
    assert not (run.settings.run_folder(run.handle.id) / "delivered").exists()


async def test_a_gate_that_does_not_fit_fails_at_once(temporal: Client, tmp_path: Path) -> None:
    """What the harness calls not retryable is asked once."""

    def refuse(harness: FakeHarness) -> None:
        harness.refuse("lock_gate", "GateError", "gate.yaml lists no tensor y", retryable=False)

    async with running(temporal, tmp_path, STORY, before=refuse) as run:
        failure = await failure_of(run)
        assert run.harness.asked("lock_gate") == 1
    assert (failure.type, failure.message) == ("GateError", "gate.yaml lists no tensor y")


async def test_a_gate_process_that_ends_without_a_reply_is_asked_twice(temporal: Client, tmp_path: Path) -> None:
    """A reference.py that exits will do so again: the run fails soon, and says what happened."""
    async with running(temporal, tmp_path, STORY, before=lambda harness: harness.leave("lock_gate")) as run:
        failure = await failure_of(run)
        assert run.harness.asked("lock_gate") == 2
    assert failure.type == "GateError"
    assert "the gate process ended with status 0 and without a reply" in failure.message


async def test_a_gate_process_that_ended_once_does_not_fail_the_run(temporal: Client, tmp_path: Path) -> None:
    """The second attempt tells an accident from a habit."""
    script = [kernel("ratio 1.2")]
    async with running(temporal, tmp_path, script, before=lambda harness: harness.leave("judge", 1)) as run:
        result = await run.result()
    assert result.outcome == "accepted"


async def test_results_of_the_siblings_of_a_failed_iteration_are_booked(temporal: Client, tmp_path: Path) -> None:
    """In a round side by side one fails for good: what the other found is kept, and then the search ends."""
    two = {"search": {"width": 2}}
    async with running(temporal, tmp_path, TWO, overrides=two, before=lambda h: h.hold("build", "second")) as run:
        await run.held("build")
        while run.harness.asked("measure") < 2:  # the baseline, then the first of the two
            await asyncio.sleep(0.02)
        run.harness.refuse("judge", "InternalError", "the disk is on fire", retryable=False)
        run.harness.release("build")
        result = await run.result()
        assert await run.endings() == [("v001", "win")]
    assert result.outcome == "accepted"
    assert "the disk is on fire" in result.reason


async def test_a_machine_that_stays_broken_ends_the_search_with_the_best(temporal: Client, tmp_path: Path) -> None:
    """What the run has is accepted and delivered, and the reason names the machine."""
    async with running(temporal, tmp_path, TWO, before=lambda harness: harness.hold("measure", "first")) as run:
        await run.held("measure")
        run.harness.refuse("build", "InternalError", "the disk is on fire", retryable=False)
        run.harness.release("measure")
        result = await run.result()
    assert result.champion is not None
    assert result.champion.version == "v001"
    assert "the disk is on fire" in result.reason


async def test_a_lost_device_is_replaced_and_the_baseline_measured_again(temporal: Client, tmp_path: Path) -> None:
    """A step that nobody picks up in time moves to another device."""
    async with running(
        temporal, tmp_path, [kernel("ratio 1.2")], extra_devices=1, serve_first_device=False, device_patience_s=1
    ) as run:
        result = await run.result()
        status = await run.status()
    assert status.device == "fake device 1"
    assert result.outcome == "accepted"


# ---------------------------------------------------------------- cancel


async def test_cancel_ends_the_processes_and_still_delivers_the_best(temporal: Client, tmp_path: Path) -> None:
    """In the middle of a measurement: nothing of it is left, and the best so far is exported."""
    async with running(temporal, tmp_path, TWO, before=lambda harness: harness.hold("measure", "second")) as run:
        await run.held("measure")
        processes = run.harness.held_processes("measure")
        assert all(is_alive(pid) for pid in processes)
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert (await run.handle.describe()).status is WorkflowExecutionStatus.CANCELED
        assert not any(is_alive(pid) for pid in processes)
    folder = run.settings.run_folder(run.handle.id) / "delivered"
    assert (folder / "kernel.cpp").read_text() == TWO[0]
    assert json.loads((folder / "result.json").read_text())["summary"]["outcome"] == "cancelled"


@pytest.mark.parametrize("step", ["lock_gate", "build", "judge", "measure"])
async def test_cancel_at_any_step_ends_as_cancelled(temporal: Client, tmp_path: Path, step: str) -> None:
    """A cancel is never taken for a failure of the step it lands in; whoever sees the end sees the phase with it."""
    async with running(temporal, tmp_path, STORY, before=lambda harness: harness.hold(step)) as run:
        await run.held(step)
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
        assert isinstance(caught.value.cause, CancelledError)
        described = await run.handle.describe()
        assert described.typed_search_attributes.get(visibility.PHASE) == "cancelled"
        assert (await run.status()).phase is Phase.CANCELLED
        query = f"WorkflowId = '{run.handle.id}' AND ExecutionStatus = 'Canceled'"
        listed = [one async for one in temporal.list_workflows(query)]
        while not listed:  # the list of runs lags behind
            listed = [one async for one in temporal.list_workflows(query)]
        assert listed[0].typed_search_attributes.get(visibility.PHASE) == "cancelled"


async def test_a_cancelled_run_that_cannot_deliver_is_still_cancelled(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person wanted an end: trouble with the report does not make a failure of it."""

    def broken(summary: object) -> str:
        raise StoreError("no room")

    monkeypatch.setattr(deliver, "render", broken)
    monkeypatch.setitem(deliver.OPTIONS, "retry_policy", RetryPolicy(maximum_attempts=1))
    async with running(temporal, tmp_path, STORY, before=lambda harness: harness.hold("judge", "slow_start")) as run:
        await run.held("judge")
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
    assert isinstance(caught.value.cause, CancelledError)


async def test_an_iteration_cancelled_by_hand_does_not_end_the_run(temporal: Client, tmp_path: Path) -> None:
    """Cancelling the child alone gives up that candidate."""
    async with running(temporal, tmp_path, TWO, before=lambda harness: harness.hold("build", "first")) as run:
        await run.held("build")
        await run.client.get_workflow_handle(f"{run.handle.id}/iter-000").cancel()
        await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert (history[0].version, history[0].reason) == ("a001", "this iteration was cancelled by hand")
    assert history[1].version == "v001"


# ---------------------------------------------------------------- messages


async def test_pause_holds_between_two_steps_and_is_not_charged(temporal: Client, tmp_path: Path) -> None:
    """The build in progress ends; the judge is not asked until the run is resumed."""
    async with running(temporal, tmp_path, TWO[:1], before=lambda harness: harness.hold("build", "first")) as run:
        await run.held("build")
        assert (await run.handle.execute_update(OptimizationWorkflow.pause)).phase is Phase.PAUSED
        judged = run.harness.asked("judge")
        run.harness.release("build")
        child = run.client.get_workflow_handle_for(IterationWorkflow.run, f"{run.handle.id}/iter-000")
        async with asyncio.timeout(30):
            while (await child.query(IterationWorkflow.step)).step != "judging":
                await asyncio.sleep(0.02)
        assert run.harness.asked("judge") == judged
        await run.handle.execute_update(OptimizationWorkflow.resume)
        result = await run.result()
        iteration = await child.result()
    assert result.wins == 1
    assert iteration.paused_s > 0  # which ledger.waited_s takes off


async def test_stop_ends_the_iteration_at_its_next_step_and_delivers(temporal: Client, tmp_path: Path) -> None:
    """The step in progress is finished, the next is not begun, and the best is accepted."""
    async with running(temporal, tmp_path, TWO, before=lambda harness: harness.hold("build", "second")) as run:
        await run.held("build")
        await run.handle.execute_update(OptimizationWorkflow.stop, StopRequest(reason="time for lunch"))
        run.harness.release("build")
        result = await run.result()
        endings = await run.endings()
    assert endings == [("v001", "win"), ("a001", "stopped")]
    assert (result.outcome, result.reason) == ("accepted", "time for lunch")


async def test_a_submitted_kernel_goes_before_the_optimisers_next(temporal: Client, tmp_path: Path) -> None:
    """A person's kernel is judged like any other, and carries its origin."""
    mine = kernel("ratio 1.4", "mine")
    async with running(
        temporal, tmp_path, [kernel("ratio 1.1", "a"), kernel("ratio 1.2", "b")], before=lambda h: h.hold("lock_gate")
    ) as run:
        source = await run.store.put(mine.encode())
        submission = CandidateSubmission(source=source, label="by hand")
        await run.handle.execute_update(OptimizationWorkflow.submit_candidate, submission)
        run.harness.release("lock_gate")
        await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert [(line.label, line.origin) for line in history] == [
        ("by hand", Origin.PERSON),
        ("00.cpp", Origin.OPTIMIZER),
        ("01.cpp", Origin.OPTIMIZER),
    ]
    assert [line.ending for line in history] == [Ending.WIN, Ending.SLOWER, Ending.SLOWER]


async def test_a_submission_that_is_in_no_store_is_answered_and_the_run_goes_on(
    temporal: Client, tmp_path: Path
) -> None:
    """A client with another store must not stop the run."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        elsewhere = CandidateSubmission.model_validate({"source": {"sha256": "ab" * 32, "size": 5}, "label": "lost"})
        await run.handle.execute_update(OptimizationWorkflow.submit_candidate, elsewhere)
        run.harness.release("lock_gate")
        result = await run.result()
        history = await run.handle.query(OptimizationWorkflow.history)
    assert history[0].ending is Ending.NO_PROPOSAL
    assert "'lost' is not in the worker's store" in history[0].reason
    assert result.wins == 1


async def test_an_extended_budget_is_used(temporal: Client, tmp_path: Path) -> None:
    """One iteration more is one iteration more."""
    script = [kernel(f"ratio 0.{n}", f"k{n}") for n in range(3, 8)]
    async with running(
        temporal, tmp_path, script, overrides={"budget": {"max_iterations": 1}}, before=lambda h: h.hold("lock_gate")
    ) as run:
        extension = BudgetExtension(iterations=1, wall_minutes=5)
        status = await run.handle.execute_update(OptimizationWorkflow.extend_budget, extension)
        run.harness.release("lock_gate")
        result = await run.result()
    assert (status.budget.max_iterations, result.iterations) == (2, 2)


async def test_a_hint_is_kept_for_the_optimiser(temporal: Client, tmp_path: Path) -> None:
    """It stands in the status and in the next iteration's input."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        await run.handle.execute_update(OptimizationWorkflow.add_hint, Hint(text=" try a bigger tile "))
        run.harness.release("lock_gate")
        await run.result()
        child = await run.client.get_workflow_handle(f"{run.handle.id}/iter-000").fetch_history()
    started = child.events[0].workflow_execution_started_event_attributes
    assert json.loads(started.input.payloads[0].data)["hints"] == ["try a bigger tile"]


async def test_signals_do_what_the_updates_do(temporal: Client, tmp_path: Path) -> None:
    """For the Temporal UI and CLI, which can send signals without a client of ours."""
    async with running(temporal, tmp_path, STORY, before=lambda h: h.hold("lock_gate")) as run:
        await run.held("lock_gate")
        await run.handle.signal(OptimizationWorkflow.request_pause)
        await run.reaches(Phase.PAUSED)
        await run.handle.signal(OptimizationWorkflow.request_resume)
        await run.handle.signal(OptimizationWorkflow.request_stop)
        run.harness.release("lock_gate")
        result = await run.result()
    assert (result.outcome, result.iterations) == ("no kernel", 0)
