"""What a person can tell a run and ask it: validated updates, signals for the Temporal UI, queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

from temporalio import workflow
from temporalio.exceptions import ApplicationError, TemporalError

with workflow.unsafe.imports_passed_through():
    from activities.bundle import MAX_SOURCE_BYTES
    from specs.history import HistoryLine
    from specs.plan import Plan
    from workflows.budget import extend, unusable
    from workflows.state import (
        Best,
        BudgetExtension,
        CandidateSubmission,
        GateApproval,
        Hint,
        Parked,
        Phase,
        RunState,
        Status,
        StopRequest,
        Submission,
    )

from workflows.steps import PARKED, SteppedWorkflow

MAX_HINT_BYTES = 8 * 1024
MAX_HINTS_BYTES = 12 * 1024  # together: every iteration's history carries them
MAX_SUBMISSIONS = 20
MAX_LABEL = 200
MAX_REASON = 300
_OVER = (Phase.ACCEPTING, Phase.DELIVERING, Phase.DONE, Phase.CANCELLED)

Child = workflow.ChildWorkflowHandle[Any, Any]


P = ParamSpec("P")
R = TypeVar("R")


def _update(description: str) -> Callable[[Callable[P, Awaitable[R]]], workflow.UpdateMethodMultiParam[P, R]]:
    """`workflow.update` for async handlers: with a description, the SDK's types take the coroutine for the result."""
    decorator: Any = workflow.update(description=description)
    return cast(Callable[[Callable[P, Awaitable[R]]], workflow.UpdateMethodMultiParam[P, R]], decorator)


def _refuse(message: str) -> ApplicationError:
    return ApplicationError(message, type="UserError", non_retryable=True)


class RunMessages:
    """Handlers of OptimizationWorkflow. They change the state and tell the running children; the story is elsewhere."""

    plan: Plan
    state: RunState
    phase: Phase
    activity: str
    children: dict[int, Child]

    def show(self) -> None:
        """Bring search attributes and details up to date."""
        raise NotImplementedError

    # ---- queries

    @workflow.query(description="Where the run is: stage, champion, budget, what it is doing.")
    def status(self) -> Status:
        state = self.state
        return Status(
            run_id=workflow.info().workflow_id,
            plan=self.plan,
            phase=self.shown_phase(),
            stage=state.stage,
            iteration=state.next_index,
            activity=self.activity,
            champion=state.champion,
            last=state.history[-1] if state.history else None,
            baseline=state.baseline,
            budget=state.budget,
            charged_minutes=state.charged_s / 60,
            charge=state.charge,
            wins=state.wins,
            attempts=state.attempts,
            since_win=state.since_win,
            hints=state.hints,
            waiting_submissions=len(state.submissions),
            paused=state.paused,
            pause_reason=state.pause_reason,
            stop_reason=state.stop_reason,
            device=state.device.description if state.device else "",
            gate_digest=state.lock.digest if state.lock else None,
            acceptance=state.acceptance,
            delivery=state.delivery,
            written_gate=state.written_gate,
            gate_chapters=state.gate_chapters,
            measurement=state.measurement,
            self_reported=state.self_reported,
            standing=self.plan.standing,
        )

    @workflow.query(description="Every iteration so far, one line each.")
    def history(self) -> list[HistoryLine]:
        return self.state.history

    @workflow.query(description="The best kernel so far: verified, or labelled self-reported.")
    def best(self) -> Best:
        return Best(champion=self.state.champion, acceptance=self.state.acceptance)

    def shown_phase(self) -> Phase:
        if self.phase in _OVER:
            return self.phase
        if self.state.stop_reason is not None:
            return Phase.STOPPING
        return Phase.PAUSED if self.state.paused else self.phase

    # ---- pause and resume

    @_update("Pause at the next step; time stops being charged.")
    async def pause(self) -> Status:
        await self._set_paused(True)
        return self.status()

    @pause.validator
    def _may_pause(self) -> None:
        self._refuse_when_over("pause")
        if self.state.paused:
            raise _refuse("pause: the run is paused already; accepted: resume or stop")

    @_update("Go on after a pause.")
    async def resume(self) -> Status:
        await self._set_paused(False)
        return self.status()

    @resume.validator
    def _may_resume(self) -> None:
        self._refuse_when_over("resume")
        if not self.state.paused:
            raise _refuse("resume: the run is not paused; accepted: only while it is")

    @workflow.signal(description="Pause at the next step.")
    async def request_pause(self) -> None:
        if self.phase not in _OVER:
            await self._set_paused(True)

    @workflow.signal(description="Go on after a pause.")
    async def request_resume(self) -> None:
        await self._set_paused(False)

    @workflow.signal(name=PARKED, description="A step cannot go on until a person has put something right.")
    async def child_parked(self, given: Parked) -> None:
        if self.phase not in _OVER and self.state.stop_reason is None:
            await self._set_paused(True, given.reason)

    async def _set_paused(self, paused: bool, reason: str | None = None) -> None:
        self.state.paused, self.state.pause_reason = paused, reason
        self.show()
        for child in list(self.children.values()):
            await self._tell(child, SteppedWorkflow.pause if paused else SteppedWorkflow.resume)

    # ---- stop

    @_update("Finish the current step, then accept and deliver the best.")
    async def stop(self, given: StopRequest) -> Status:
        await self._stop(given.reason)
        return self.status()

    @stop.validator
    def _may_stop(self, given: StopRequest) -> None:
        self._refuse_when_over("stop")
        _check_text("stop: reason", given.reason, MAX_REASON)

    @workflow.signal(description="Finish the current step, then accept and deliver the best.")
    async def request_stop(self) -> None:
        if self.phase not in _OVER and self.state.stop_reason is None:
            await self._stop(StopRequest().reason)

    async def _stop(self, reason: str) -> None:
        self.state.stop_reason, self.state.paused = reason, False
        self.show()
        for child in list(self.children.values()):
            await self._tell(child, SteppedWorkflow.stop)

    # ---- steering

    @workflow.update(description="Give the optimiser a hint, read before its next proposal.")
    def add_hint(self, given: Hint) -> Status:
        self.state.hints.append(given.text.strip())
        return self.status()

    @add_hint.validator
    def _may_hint(self, given: Hint) -> None:
        self._refuse_when_over("hint")
        _check_text("hint", given.text, MAX_HINT_BYTES)
        used = sum(len(hint.encode()) for hint in self.state.hints)
        if used + len(given.text.encode()) > MAX_HINTS_BYTES:
            raise _refuse(f"hint: the run's hints have {used} bytes; at most {MAX_HINTS_BYTES} together are accepted")

    @workflow.update(description="Add to the budget.")
    def extend_budget(self, given: BudgetExtension) -> Status:
        extend(self.state, given)
        self.show()
        return self.status()

    @extend_budget.validator
    def _may_extend(self, given: BudgetExtension) -> None:
        self._refuse_when_over("extend")
        parts = {name: value for name, value in given.model_dump().items() if value is not None}
        if not parts:
            raise _refuse("extend: nothing given; accepted: iterations, wall_minutes, tokens, usd")
        for name, value in parts.items():
            limit = getattr(self.state.budget, f"max_{name}")
            if limit is None:
                raise _refuse(f"extend: {name} has no limit in this run, so there is nothing to extend")
            if problem := unusable(name, value, limit):
                raise _refuse(f"extend: {name} is {problem}")

    @workflow.update(description="Have a person's kernel judged before the optimiser's next proposal.")
    def submit_candidate(self, given: CandidateSubmission) -> Status:
        self.state.submissions.append(Submission(source=given.source, label=given.label.strip()))
        return self.status()

    @submit_candidate.validator
    def _may_submit(self, given: CandidateSubmission) -> None:
        self._refuse_when_over("submit")
        _check_text("submit: label", given.label, MAX_LABEL)
        if not 0 < given.source.size <= MAX_SOURCE_BYTES:
            raise _refuse(f"submit: the source has {given.source.size} bytes; accepted: 1 to {MAX_SOURCE_BYTES}")
        if len(self.state.submissions) >= MAX_SUBMISSIONS:
            raise _refuse(f"submit: {MAX_SUBMISSIONS} kernels are waiting already, the most accepted")

    @workflow.update(description="Approve the gate that was written for this task, or say why not.")
    def approve_gate(self, given: GateApproval) -> Status:
        self.state.gate_approval = given
        return self.status()

    @approve_gate.validator
    def _may_approve(self, given: GateApproval) -> None:
        self._refuse_when_over("approve-gate")
        if self.phase is not Phase.AWAITING_APPROVAL:
            raise _refuse(
                f"approve-gate: no gate waits for approval (the run is {self.phase.value}); "
                "accepted: only while one does"
            )
        if not given.approved:
            _check_text("approve-gate: reason of a refusal", given.reason, MAX_REASON)

    # ---- helpers

    def _refuse_when_over(self, what: str) -> None:
        if self.phase in _OVER:
            raise _refuse(f"{what}: the search is over ({self.phase.value}); accepted: only while it runs")
        if self.state.stop_reason is not None:
            raise _refuse(f"{what}: the search is ending ({self.state.stop_reason}); accepted: only while it runs")

    async def _tell(self, child: Child, signal: Callable[[SteppedWorkflow], None]) -> None:
        try:
            await child.signal(signal)
        except TemporalError:
            # It ended between our look and our call; the parent acts on its own state next.
            workflow.logger.info("iteration had ended before it could be told")


def _check_text(what: str, text: str, most: int) -> None:
    if not text.strip():
        raise _refuse(f"{what} is empty; accepted: 1 to {most} bytes of text")
    if (size := len(text.encode(errors="replace"))) > most:
        raise _refuse(f"{what} has {size} bytes; accepted: 1 to {most}")
