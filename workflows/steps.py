"""What every child of a run has in common: a pause holds between two steps, and a stop ends it there."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.state import Parked

PARKED = "child_parked"  # the parent's signal; by name, since its class imports this one


class StopAsked(Exception):
    """A person stopped the run: raised between two steps, never inside one."""


class SteppedWorkflow:
    """Signals of the parent, and the boundary at which they count."""

    def __init__(self) -> None:
        self.step_name = "starting"
        self.paused = False
        self.stopped = False
        self.paused_s = 0.0

    @workflow.signal(description="Wait before the next step.")
    def pause(self) -> None:
        self.paused = True

    @workflow.signal(description="Go on.")
    def resume(self) -> None:
        self.paused = False

    @workflow.signal(description="End before the next step.")
    def stop(self) -> None:
        self.stopped = True

    def show(self) -> None:
        """Bring what people see up to date."""
        raise NotImplementedError

    async def next_step(self, name: str) -> None:
        """The boundary between two steps: here a pause holds, and a stop raises StopAsked."""
        self.step_name = name
        if self.paused and not self.stopped:
            since = workflow.now()
            self.show()
            await workflow.wait_condition(lambda: not self.paused or self.stopped)
            self.paused_s += (workflow.now() - since).total_seconds()
        if self.stopped:
            raise StopAsked
        self.show()

    async def park(self, reason: str) -> None:
        """Pause the whole run over something that a person has to put right; returns when it is resumed."""
        self.paused = True
        parent = workflow.info().parent
        if parent is not None:
            above = workflow.get_external_workflow_handle(parent.workflow_id)
            await above.signal(PARKED, Parked(reason=reason))
        await self.next_step(self.step_name)
