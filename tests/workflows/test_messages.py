"""What a run refuses to be told, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowUpdateFailedError

from activities.bundle import MAX_SOURCE_BYTES
from tests.fakes import Running, kernel, running
from workflows.messages import MAX_HINT_BYTES, MAX_HINTS_BYTES, MAX_SUBMISSIONS
from workflows.optimization import OptimizationWorkflow as Run
from workflows.state import BudgetExtension, CandidateSubmission, Hint, StopRequest


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def waiting(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A run that has not begun its search."""
    folder: Path = tmp_path_factory.mktemp("messages")
    async with running(temporal, folder, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        yield run


async def refusal(run: Running, update: Any, *arguments: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await run.handle.execute_update(update, *arguments)
    return str(caught.value.cause)


def submission(size: int = 5, label: str = "mine") -> CandidateSubmission:
    return CandidateSubmission.model_validate({"source": {"sha256": "ab" * 32, "size": size}, "label": label})


@pytest.mark.parametrize(
    ("update", "argument", "message"),
    [
        (Run.add_hint, Hint(text=" \n"), "hint is empty; accepted: 1 to 8192 bytes of text"),
        (Run.add_hint, Hint(text="x" * (MAX_HINT_BYTES + 1)), "hint has 8193 bytes; accepted: 1 to 8192"),
        (
            Run.extend_budget,
            BudgetExtension(),
            "extend: nothing given; accepted: iterations, wall_minutes, tokens, usd",
        ),
        (Run.extend_budget, BudgetExtension(iterations=-3), "extend: iterations is -3; accepted: 1 to 10000000"),
        (Run.extend_budget, BudgetExtension(iterations=2**70), "accepted: 1 to 10000000 together with the 20 there"),
        (Run.extend_budget, BudgetExtension(wall_minutes=0), "extend: wall_minutes is 0.0; accepted: a number above 0"),
        (Run.extend_budget, BudgetExtension(wall_minutes=1e300), "extend: wall_minutes is 1e+300; accepted: a number"),
        (Run.extend_budget, BudgetExtension(tokens=5), "extend: tokens has no limit in this run"),
        (Run.submit_candidate, submission(size=0), "submit: the source has 0 bytes; accepted: 1 to"),
        (Run.submit_candidate, submission(size=MAX_SOURCE_BYTES + 1), f"accepted: 1 to {MAX_SOURCE_BYTES}"),
        (Run.submit_candidate, submission(label="  "), "submit: label is empty"),
        (Run.stop, StopRequest(reason=""), "stop: reason is empty"),
    ],
)
async def test_nonsense_is_refused_with_what_is_accepted(
    waiting: Running, update: Any, argument: Any, message: str
) -> None:
    """One sentence with the thing, what was given and what is accepted."""
    assert message in await refusal(waiting, update, argument)


async def test_resume_is_refused_when_nothing_is_paused(waiting: Running) -> None:
    """And a second pause likewise."""
    assert "resume: the run is not paused" in await refusal(waiting, Run.resume)
    await waiting.handle.execute_update(Run.pause)
    assert "pause: the run is paused already" in await refusal(waiting, Run.pause)
    await waiting.handle.execute_update(Run.resume)


async def test_hints_are_bounded_together(temporal: Client, tmp_path: Path) -> None:
    """Every iteration's history carries them."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        await run.handle.execute_update(Run.add_hint, Hint(text="x" * MAX_HINT_BYTES))
        message = await refusal(run, Run.add_hint, Hint(text="y" * MAX_HINT_BYTES))
    assert f"at most {MAX_HINTS_BYTES} together" in message


async def test_only_so_many_kernels_may_wait(temporal: Client, tmp_path: Path) -> None:
    """The next one is refused, the waiting ones stay."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        for _ in range(MAX_SUBMISSIONS):
            await run.handle.execute_update(Run.submit_candidate, submission())
        assert f"{MAX_SUBMISSIONS} kernels are waiting already" in await refusal(
            run, Run.submit_candidate, submission()
        )
        assert (await run.status()).waiting_submissions == MAX_SUBMISSIONS


async def test_nothing_is_accepted_once_the_search_is_ending(temporal: Client, tmp_path: Path) -> None:
    """After a stop, and later while the champion is accepted."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")], before=lambda h: h.hold("lock_gate")) as run:
        await run.handle.execute_update(Run.stop, StopRequest(reason="enough"))
        for update, argument in (
            (Run.submit_candidate, submission()),
            (Run.extend_budget, BudgetExtension(iterations=1)),
        ):
            assert "the search is ending (enough)" in await refusal(run, update, argument)
        assert "the search is ending (enough)" in await refusal(run, Run.pause)


async def test_nothing_is_accepted_after_the_search(temporal: Client, tmp_path: Path) -> None:
    """While the champion is being accepted the search is over."""
    script = [kernel("ratio 1.1")]
    async with running(temporal, tmp_path, script, before=lambda h: h.hold("build", production=True)) as run:
        await run.held("build")
        message = await refusal(run, Run.submit_candidate, submission())
        run.harness.release("build")
        await run.result()
    assert "submit: the search is over (accepting)" in message


async def test_status_tells_everything_a_client_draws(temporal: Client, tmp_path: Path) -> None:
    """Even after the end, and with the champion's intervals."""
    async with running(temporal, tmp_path, [kernel("ratio 1.1")]) as run:
        await run.result()
        status = await run.status()
        best = await run.handle.query(Run.best)
    assert (status.run_id, status.phase.value, status.device) == (run.handle.id, "done", "fake device 0")
    assert status.measurement is not None
    assert status.measurement.score.low < status.measurement.score.value
    assert best.champion == status.champion
    assert status.acceptance == best.acceptance
