"""Each way in which a server or a network can fail, once, in the first answer of a conversation of its own.

All of these conversations go on side by side, with the same worker and the same server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

from activities import model_turn
from activities.agents import transcript
from activities.bundle import pack
from activities.devices import Claims
from activities.open_session import OpenSessionInput
from activities.workshop import Workshop
from specs.dialogue import Chapter, Submitted
from specs.outcomes import BlobRef, Role, Stage, Value
from specs.plan import Plan
from tests.fake_messages import FAULTS, Asked, Fault, Policy, fault
from tests.fake_models import Cases, Models, hands_in, serving
from tests.fakes import kernel, settings_at, write_task
from worker import plan_activities
from workflows.conversation import Conversation
from workflows.state import Allowance

FAST = kernel("ratio 1.2")
SILENT = ("silence", "stall_midway", "pings")  # only a deadline ends these
PASSING: dict[str, Fault] = {
    **{kind: Fault(kind) for kind in FAULTS},
    **{str(status): fault(status) for status in (408, 409, 500, 502, 503, 529)},
    "429": fault(429, retry_after_ms=50),
}
FINAL = {str(status): fault(status) for status in (400, 401, 403, 404, 422)}
DEADLINE_S = 2.0  # of a request to a server that stays silent
PATIENCE_S = 200.0  # for all of them, on a machine that is busy otherwise


class TalkInput(Value):
    plan: Plan
    opening: OpenSessionInput


class TalkResult(Value):
    kernel: BlobRef | None
    title: str
    chapters: tuple[Chapter, ...]


@workflow.defn(sandboxed=False)
class TalkWorkflow:
    """An optimiser's conversation as an iteration holds it, without what is done with a kernel afterwards."""

    async def next_step(self, name: str) -> None:
        """Nobody pauses or stops it."""

    async def park(self, reason: str) -> None:
        raise AssertionError(reason)

    @workflow.run
    async def run(self, given: TalkInput) -> TalkResult:
        talk = Conversation(self, given.plan, given.opening, max_steps=9, allowance=Allowance())
        ended = await talk.hold()
        assert isinstance(ended.final, Submitted)
        return TalkResult(kernel=talk.workspace.kernel, title=ended.final.title, chapters=tuple(talk.chapters))


class Told(Value):
    """What came of one conversation."""

    asked: tuple[Asked, ...]
    result: TalkResult | None = None
    kernel: str = ""
    said: tuple[dict[str, Any], ...] = ()
    problem: str = ""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Told]]:
    folder = tmp_path_factory.mktemp("faults")
    unique = uuid.uuid4().hex[:8]
    workshop = Workshop(settings_at(folder / "home"))
    loaded = write_task(folder / "task", ["// none"], gpu=f"cpu{unique}", model={"provider": "anthropic"})
    plan, bundle = Plan.of(loaded.task, loaded.digest), await pack(loaded, workshop.store)
    cases = Cases({case: failing_once(first) for case, first in (PASSING | FINAL).items()})

    async def hold(case: str) -> Told:
        opening = OpenSessionInput(
            run=unique, place=case, role=Role.OPTIMIZER, model=plan.model, stage=Stage.REPRODUCE, bundle=bundle,
            sandbox="off", hints=(f"y is x, case {case}.",),
        )  # fmt: skip
        try:
            result = await temporal.execute_workflow(
                TalkWorkflow.run, TalkInput(plan=plan, opening=opening), id=f"{case}-{unique}", task_queue=plan.queue
            )
        except WorkflowFailureError as error:
            return Told(asked=tuple(cases.asked[case]), problem=str(error.cause.__cause__))
        assert result.kernel is not None
        return Told(
            asked=tuple(cases.asked[case]),
            result=result,
            kernel=(await workshop.store.get(result.kernel)).decode(),
            said=tuple(await transcript.messages(workshop.store, result.chapters[0].head)),
        )

    async def held(cases: Sequence[str]) -> dict[str, Told]:
        async with asyncio.timeout(PATIENCE_S):
            return dict(zip(cases, await asyncio.gather(*map(hold, cases)), strict=True))

    activities = plan_activities(workshop, Claims(workshop.settings, ()))
    with pytest.MonkeyPatch.context() as patch:
        async with (
            serving(patch, cases),
            Worker(temporal, task_queue=plan.queue, workflows=[TalkWorkflow], activities=activities),
        ):
            found = await held([case for case in cases.policies if case not in SILENT])
            patch.setattr(model_turn, "TOTAL_S", DEADLINE_S)
            yield found | await held(SILENT)


def failing_once(first: Fault) -> Policy:
    fine, left = Models(hands_in(FAST)), [first]
    return lambda asked: left.pop() if left else fine(asked)


@pytest.mark.parametrize("case", PASSING)
async def test_a_failure_that_passes_changes_nothing(told: dict[str, Told], case: str) -> None:
    """The same kernel is handed in, the transcript has one answer, and the same request was made once more."""
    found = told[case]
    assert found.problem == ""
    assert found.result is not None
    assert (found.result.title, found.kernel) == ("an idea", FAST)
    assert len(found.result.chapters) == 1
    assert [message["role"] for message in found.said] == ["user", "assistant"]
    assert [block["type"] for block in found.said[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert len(found.asked) == 2 or (case in SILENT and len(found.asked) > 2)  # a deadline may be a busy machine's too
    assert all(one.body == found.asked[0].body for one in found.asked)


@pytest.mark.parametrize("case", FINAL)
async def test_a_failure_that_no_patience_mends_ends_it(told: dict[str, Told], case: str) -> None:
    """After one request, with the server's words."""
    found = told[case]
    assert len(found.asked) == 1
    assert f"HTTP {case}" in found.problem
    assert "made up by the fake server" in found.problem
