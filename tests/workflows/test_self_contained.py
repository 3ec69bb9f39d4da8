"""A run of self-contained programs as a workflow: it survives what any run survives, and stays self-reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError

from activities.deliver import ResultFile
from specs.outcomes import SELF_REPORTED, Stage
from tests.fakes import SELF_CONTAINED, kernel, running
from workflows.optimization import OptimizationWorkflow
from workflows.state import CandidateSubmission, Phase

SCRIPT = [kernel("ratio 0.5", "a"), kernel("fails", "b"), kernel("wrong", "c"), kernel("ratio 1.2", "d")]
STORY = [("v001", "win"), ("a001", "build_failed"), ("a002", "refused"), ("v002", "win")]


async def test_a_run_goes_its_way_without_gate_and_baseline(temporal: Client, tmp_path: Path) -> None:
    """Nothing is locked, judged or timed; stages and champions go by what programs say."""
    async with running(temporal, tmp_path, SCRIPT, overrides=SELF_CONTAINED) as run:
        result = await run.result()
        assert await run.endings() == STORY
        status = await run.status()
    assert {kind for kind in ("lock_gate", "judge", "measure") if run.harness.asked(kind)} == set()
    assert run.harness.asked("run_program") == 4  # three programs that were built, and the acceptance
    assert (result.outcome, result.standing, status.standing) == (f"accepted ({SELF_REPORTED})",) + (SELF_REPORTED,) * 2
    assert status.stage is Stage.OPTIMIZE


async def test_continue_as_new_keeps_device_and_champion(temporal: Client, tmp_path: Path) -> None:
    """However often."""
    async with running(temporal, tmp_path, SCRIPT, overrides=SELF_CONTAINED, history_events_limit=10) as run:
        result = await run.result()
        assert await run.endings() == STORY
    assert result.champion is not None
    assert (result.champion.version, result.champion.standing) == ("v002", SELF_REPORTED)


async def test_width_takes_the_best_of_a_round(temporal: Client, tmp_path: Path) -> None:
    """By the score that each reports."""
    script = [kernel("ratio 0.9", "a"), kernel("ratio 1.3", "b")]
    async with running(temporal, tmp_path, script, overrides={**SELF_CONTAINED, "search": {"width": 2}}) as run:
        await run.result()
        assert await run.endings() == [("a001", "slower"), ("v001", "win")]


async def test_a_cancelled_run_exports_the_best_so_far_with_its_label(temporal: Client, tmp_path: Path) -> None:
    """Source, result and report, as after any other end."""
    hold = running(temporal, tmp_path, SCRIPT, overrides=SELF_CONTAINED, before=lambda h: h.hold("run_program", "*d ="))
    async with hold as run:
        await run.held("run_program")
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        folder = run.settings.run_folder(run.handle.id) / "delivered"
    summary = ResultFile.model_validate_json((folder / "result.json").read_bytes()).summary
    assert (summary.outcome, summary.standing) == (f"cancelled ({SELF_REPORTED})", SELF_REPORTED)
    assert (folder / "kernel.cpp").read_text() == SCRIPT[0]


async def test_a_device_that_goes_silent_is_claimed_anew(temporal: Client, tmp_path: Path) -> None:
    """Without a baseline that would have to be timed again."""
    silent = running(
        temporal,
        tmp_path,
        SCRIPT[:1],
        overrides=SELF_CONTAINED,
        extra_devices=1,
        serve_first_device=False,
        device_patience_s=1,
    )
    async with silent as run:
        result = await run.result()
        assert await run.endings() == STORY[:1]
        assert (await run.status()).phase is Phase.DONE
    assert result.baseline is None
    assert run.harness.asked("run_program") == 2  # the program, and once more at acceptance


async def test_a_submitted_program_is_run_like_any_other(temporal: Client, tmp_path: Path) -> None:
    """And labelled like any other."""
    hold = running(temporal, tmp_path, SCRIPT[:1], overrides=SELF_CONTAINED, before=lambda h: h.hold("run_program"))
    async with hold as run:
        await run.held("run_program")
        source = await run.store.put(kernel("ratio 2.0", "mine").encode())
        given = CandidateSubmission(source=source, label="mine.cpp")
        await run.handle.execute_update(OptimizationWorkflow.submit_candidate, given)
        run.harness.release("run_program")
        await run.result()
        lines = await run.handle.query(OptimizationWorkflow.history)
    assert [(line.label, line.standing) for line in lines][-1] == ("mine.cpp", SELF_REPORTED)
