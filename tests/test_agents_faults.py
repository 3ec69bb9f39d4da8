"""Each way in which a server or a network can fail, once, in the first answer of a run of its own.

All of these runs go on side by side, with the same workers and the same server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from activities import model_turn
from activities.agents import transcript
from activities.devices import Claims, LocalDevice
from activities.workshop import Workshop
from specs.outcomes import Role
from tests.fake_messages import FAULTS, Asked, Fault, Policy, fault
from tests.fake_models import Cases, Models, hands_in, role_of, serving, start_case
from tests.fakes import FakeHarness, kernel, settings_at
from worker import WORKFLOWS, device_activities, plan_activities
from workflows.optimization import OptimizationWorkflow as Run
from workflows.state import RunResult

PASSING = {
    "none": None,
    **{kind: Fault(kind) for kind in FAULTS},
    **{str(status): fault(status) for status in (408, 409, 500, 502, 503, 529)},
    "429": fault(429, retry_after_ms=50),
}
FINAL = {str(status): fault(status) for status in (400, 401, 403, 404, 422)}
SILENT = ("silence", "stall_midway", "pings")  # only a deadline ends these
DEADLINE_S = 8.0  # of one request, for all of the runs
PATIENCE_S = 200.0  # for all of the runs, on a machine that is busy otherwise


@dataclass
class Told:
    """What came of one run."""

    asked: list[Asked]  # by the optimiser
    result: RunResult | None = None
    story: tuple[tuple[str, str], ...] = ()
    said: tuple[dict[str, Any], ...] = ()
    problem: str = ""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Told]]:
    folder = tmp_path_factory.mktemp("faults")
    unique = uuid.uuid4().hex[:8]
    settings, harness = settings_at(folder / "home"), FakeHarness(folder / "control")
    device = LocalDevice(kind=f"cpu{unique}", queue=f"device-{unique}", description="fake device")
    workshop, claims = Workshop(settings, harness=harness.command), Claims(settings, (device,))
    plans, devices = plan_activities(workshop, claims), device_activities(workshop, claims)
    cases = Cases({case: failing_once(case, first) for case, first in (PASSING | FINAL).items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_turn, "TOTAL_S", DEADLINE_S)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving(patch, cases))
            for worker in (
                Worker(temporal, task_queue=unique, workflows=WORKFLOWS, workflow_failure_exception_types=[Exception]),
                Worker(temporal, task_queue=device.plan_queue, activities=plans),
                Worker(temporal, task_queue=device.queue, activities=devices),
            ):
                await stack.enter_async_context(worker)
            runs = {
                case: await start_case(
                    temporal, folder, workshop.store, case, task_queue=unique, gpu=device.kind,
                    model={"provider": "anthropic", "reviewer": None},
                )
                for case in cases.policies
            }  # fmt: skip
            async with asyncio.timeout(PATIENCE_S):
                found = await asyncio.gather(*(told_of(run, workshop, cases.asked[case]) for case, run in runs.items()))
            yield dict(zip(runs, found, strict=True))


def failing_once(case: str, first: Fault | None) -> Policy:
    fine, left = Models(hands_in(kernel("ratio 1.2", f"k_{case}"))), [first] if first else []
    return lambda asked: left.pop() if left else fine(asked)


async def told_of(run: WorkflowHandle[Run, RunResult], workshop: Workshop, asked: list[Asked]) -> Told:
    try:
        result = await run.result()
    except WorkflowFailureError as error:
        return Told(asked, problem=str(error.cause))
    lines = await run.query(Run.history)
    said = await transcript.messages(workshop.store, lines[0].chapters[0].head)
    return Told(asked, result, tuple((line.version, line.ending.value) for line in lines), tuple(said))


@pytest.mark.parametrize("case", PASSING)
async def test_a_failure_that_passes_changes_nothing(told: dict[str, Told], case: str) -> None:
    """The same win, one answer in the transcript, and one request more than without it."""
    found, undisturbed = told[case], told["none"]
    assert found.problem == ""
    assert found.story == undisturbed.story == (("v001", "win"),)
    assert found.result is not None
    assert found.result.outcome == "accepted"
    assert [message["role"] for message in found.said] == ["user", "assistant"]
    assert [block["type"] for block in found.said[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert all(role_of(one) is Role.OPTIMIZER and one.turns == 0 for one in found.asked)
    assert len(found.asked) == (1 if case == "none" else 2)
    assert all(one.body == found.asked[0].body for one in found.asked)


@pytest.mark.parametrize("case", FINAL)
async def test_a_failure_that_no_patience_mends_ends_the_run(told: dict[str, Told], case: str) -> None:
    """After one request, with the server's words."""
    found = told[case]
    assert len(found.asked) == 1
    assert f"HTTP {case}" in found.problem
    assert "made up by the fake server" in found.problem
