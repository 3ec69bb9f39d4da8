"""One tool call of a model's finished message: its input is read from the transcript and validated."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, WAIT, Options
from activities.workshop import Workshop
from specs.dialogue import Brief, Final, ToolCall, Workspace
from specs.outcomes import BlobRef, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=20),  # a compile, or a gate's admission
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # a compiler must be gone
)
DEVICE_OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=40),  # a judgement and a measurement
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the device must be free again
)


class UseToolInput(Value):
    session: BlobRef
    head: BlobRef  # the message that holds the call
    call: ToolCall
    workspace: Workspace
    run: bool = True  # False: one call too many of its message, answered as not run


class ToolOutcome(Value):
    answer: BlobRef  # the tool_result block
    error: bool = False
    workspace: Workspace | None = None  # when the call has changed it
    final: Final | None = None
    said: Brief = ""
    queue_wait_s: float = 0.0


class ToolUsing:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="use_tool")
    async def use_tool(self, given: UseToolInput) -> ToolOutcome:
        return await self._used(given)

    @activity.defn(name="use_device_tool")
    async def use_device_tool(self, given: UseToolInput) -> ToolOutcome:
        return await self._used(given)

    async def _used(self, given: UseToolInput) -> ToolOutcome:
        async with at_work():
            from activities.agents.toolbox import use

            return await use(self._workshop, given)
