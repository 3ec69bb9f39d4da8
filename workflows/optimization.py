"""The run: lock the gate, measure the baseline, iterate while the budget lasts, accept, deliver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from activities import (
        accept,
        accept_program,
        claim_device,
        deliver,
        lock_gate,
        measure_baseline,
        record,
        release_device,
        remember,
    )
    from specs.dialogue import Mode
    from specs.outcomes import Acceptance, BlobRef, Ending, Iteration, labelled
    from specs.plan import Plan
    from workflows import details, ending, ledger, visibility
    from workflows.budget import allowance, why_over
    from workflows.state import (
        Delivery,
        DeviceClaim,
        GateApproval,
        GateInput,
        IterationInput,
        IterationResult,
        Phase,
        RunInput,
        RunResult,
        RunState,
        WrittenGate,
    )

from workflows.failures import DEVICE_LOST, FATAL, for_people, kind, on_device, raise_if_cancelled, words
from workflows.gate import GateWorkflow
from workflows.iteration import IterationWorkflow
from workflows.messages import Child, RunMessages

T = TypeVar("T")

GATE = -1  # the gate writer's place among the children
MOST_GATES = 3  # that a person may refuse


@workflow.defn(name="OptimizationWorkflow")
class OptimizationWorkflow(RunMessages):
    @workflow.init
    def __init__(self, given: RunInput) -> None:
        # Before `run`, so that messages which arrive with the very first task find their state.
        self.given = given
        self.plan: Plan = given.plan
        self.state = given.state or RunState(budget=given.plan.budget)
        self.phase = self.state.phase
        self.activity = ""
        self.children: dict[int, Child] = {}
        self.charged_since = workflow.now()

    @workflow.run
    async def run(self, given: RunInput) -> RunResult:
        try:
            if await self._prepare():
                while await self._may_go_on():
                    await self._iterate()
                    await self._continue_as_new_if_long()
                await self._accept()
            await self._deliver(Phase.DONE)
        except asyncio.CancelledError:
            await self._deliver(Phase.CANCELLED)
            raise
        except (ActivityError, ChildWorkflowError, ApplicationError) as error:
            await self._give_up(error)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ending.result(self.plan, self.state)

    # ---------------------------------------------------------------- the chapters

    async def _prepare(self) -> bool:
        """All that comes before the first candidate; False when a person stopped the run before there was a gate."""
        if self.plan.self_contained:
            await self._take_device()
            return True
        if not self.plan.gated and not await self._write_gate():
            return False
        await self._lock_gate()
        await self._measure_baseline()
        return True

    async def _write_gate(self) -> bool:
        """A task without a gate gets one, with a person's approval where the task asks for it."""
        if self.state.bundle is not None:
            return True  # carried over by continue-as-new
        draft, feedback = None, ""
        for attempt in range(1, MOST_GATES + 1):
            await self._while_paused()
            self._enter(Phase.WRITING_GATE, f"attempt {attempt}")
            written = await self._written_gate(attempt, draft, feedback)
            approval = await self._approval() if written is not None else None
            if written is None or approval is None:
                return False
            if approval.approved:
                self.state.bundle = written.bundle
                return True
            draft, feedback = written.gate, f"A person refused it: {approval.reason}"
        raise ApplicationError(f"{MOST_GATES} gates were refused by a person", type="GateError", non_retryable=True)

    async def _written_gate(self, attempt: int, draft: BlobRef | None, feedback: str) -> WrittenGate | None:
        self.charged_since = workflow.now()
        child = await workflow.start_child_workflow(
            GateWorkflow.run,
            GateInput(
                plan=self.plan,
                bundle=self.given.bundle,
                sandbox=self.given.sandbox,
                run=workflow.info().first_execution_run_id,
                attempt=attempt,
                draft=draft,
                feedback=feedback,
                hints=tuple(self.state.hints),
                allowance=allowance(self.state, 1),
            ),
            id=f"{workflow.info().workflow_id}/gate-{attempt}",
            static_summary=f"{self.plan.task}: the gate",
            search_attributes=visibility.of_child(self.plan, 0, self.state.stage.value),
        )
        self.children[GATE] = child
        try:
            result = await child
        except ChildWorkflowError as error:
            if _ended_by_somebody(error):
                # A cancel that nobody asked of the run itself would leave it hanging.
                told = "the writing of the gate was ended by hand"
                raise ApplicationError(told, type="GateError", non_retryable=True) from None
            raise
        finally:
            del self.children[GATE]
        self._charge(result.queue_wait_s + result.paused_s)
        self.state.charge = self.state.charge + result.charge
        self.state.gate_chapters = (*self.state.gate_chapters, *result.chapters)
        if result.written is None and self.state.stop_reason is None:
            raise ApplicationError(f"no gate was written: {result.reason}", type="GateError", non_retryable=True)
        self.state.written_gate = result.written
        return result.written

    async def _approval(self) -> GateApproval | None:
        """A person's, where the task asks for it; None when the run was stopped instead."""
        if not self.plan.approve_gate:
            return GateApproval(approved=True)
        self.state.gate_approval = None
        self._enter(Phase.AWAITING_APPROVAL)
        await workflow.wait_condition(
            lambda: self.state.gate_approval is not None or self.state.stop_reason is not None
        )
        return self.state.gate_approval if self.state.stop_reason is None else None

    async def _lock_gate(self) -> None:
        if self.state.lock is not None:
            return  # carried over by continue-as-new
        self._enter(Phase.LOCKING_GATE)
        locked = await workflow.execute_activity_method(
            lock_gate.GateLocking.lock_gate,
            lock_gate.LockGateInput(bundle=self._bundle, sandbox=self.given.sandbox),
            task_queue=self.plan.queue,
            summary="hash and lock the gate",
            **lock_gate.OPTIONS,
        )
        self.state.lock = locked.lock

    async def _measure_baseline(self) -> None:
        if self.state.baseline is not None:
            return
        await self._while_paused()
        self._enter(Phase.MEASURING_BASELINE)
        await self._claim_device(silent=None)
        self.charged_since = workflow.now()
        self._charge(await self._keeping_a_device(self._time_baseline))

    async def _take_device(self) -> None:
        """All that a self-contained program needs: it brings its own reference and its own baseline."""
        if self.state.device is not None:
            return  # carried over by continue-as-new
        await self._while_paused()
        self._enter(Phase.CLAIMING_DEVICE)
        await self._claim_device(silent=None)

    async def _may_go_on(self) -> bool:
        """The boundary between two iterations: a pause holds here, and here the search ends."""
        await self._while_paused()
        reason = why_over(self.plan, self.state)
        if reason is not None:
            self.state.stop_reason = reason
            return False
        self._enter(Phase.ITERATING, f"iteration {self.state.next_index}")
        return True

    async def _iterate(self) -> None:
        """One round: `search.width` iterations side by side, the best of them against the champion."""
        slots = ledger.next_round(self.plan, self.state)
        self.charged_since = workflow.now()
        done, error = await self._run_children(slots)
        ended = [slot for slot in slots if slot.index in done]
        results = [done[slot.index] for slot in ended]
        charged = self._charge(ledger.waited_s(results))
        # What siblings of one that failed have found counts, unless it was found with a broken gate.
        if error is None or kind(error) not in FATAL:
            booked = ledger.settle(self.plan, self.state, ended, results, charged)
            await self._remember(booked)
            for iteration in booked:
                await self._record(iteration)
        if error is not None:
            self._end_search_after(error)
        self.show()

    async def _accept(self) -> None:
        """The newest champion that passes is the one delivered; one that does not falls back to the win before it."""
        self._enter(Phase.ACCEPTING)
        for champion in reversed(self.state.champions):
            self.activity = f"accepting {champion.version}"
            self.state.champion = champion
            try:
                accepting = self._accept_program if self.plan.self_contained else self._accept_champion
                self.state.acceptance = await self._keeping_a_device(accepting)
            except ActivityError as error:
                raise_if_cancelled(error)
                self._end_search_after(error)
                return
            if self.state.acceptance.accepted:
                self.state.champion = ledger.of_record(champion, self.state.acceptance)
                return
        self.state.champion = None

    async def _deliver(self, end: Phase) -> None:
        """Export the best so far; also the last act of a cancelled run, whose main task is cancelled only once."""
        if end is Phase.CANCELLED:
            self.state.stop_reason = f"cancelled: {workflow.cancellation_reason() or 'no reason given'}"
        self._enter(Phase.CANCELLED if end is Phase.CANCELLED else Phase.DELIVERING)
        if self.state.baseline is not None or (self.plan.self_contained and self.state.device is not None):
            try:
                await self._write_results(cancelled=end is Phase.CANCELLED)
            except ActivityError as error:
                if end is not Phase.CANCELLED:
                    raise
                # A person wanted an end: what cannot be written must not turn it into a failure.
                workflow.logger.warning("the best so far was not delivered: %s", words(error))
        await self._release_device()
        self._enter(end)

    async def _write_results(self, *, cancelled: bool) -> None:
        run_id, times = workflow.info().workflow_id, (self._started(), workflow.now())
        summary = ending.summary(self.plan, self.state, run_id, times, cancelled=cancelled)
        delivered = await workflow.execute_activity_method(
            deliver.Delivering.deliver,
            deliver.DeliverInput(language=self.plan.language, summary=summary),
            task_queue=self.plan.queue,
            summary=labelled("write the best kernel, result.json and report.html", self.plan.standing),
            **deliver.OPTIONS,
        )
        self.state.delivery = Delivery(folder=delivered.folder, files=delivered.files, record=delivered.record)

    @property
    def _bundle(self) -> BlobRef:
        """The task as it was given, with the gate that this run has written for it."""
        return self.state.bundle or self.given.bundle

    # ---------------------------------------------------------------- iterations

    async def _run_children(
        self, slots: Sequence[ledger.Slot]
    ) -> tuple[dict[int, IterationResult], ChildWorkflowError | ActivityError | None]:
        """The results by index, and the failure of one that has none; those whose device went silent run again."""
        done: dict[int, IterationResult] = {}
        failed: ChildWorkflowError | ActivityError | None = None
        while failed is None and (waiting := [slot for slot in slots if slot.index not in done]):
            self._show_children(waiting)
            ended = await asyncio.gather(
                *(self._run_child(slot, len(slots)) for slot in waiting), return_exceptions=True
            )
            lost = None
            for slot, outcome in zip(waiting, ended, strict=True):
                if isinstance(outcome, IterationResult):
                    done[slot.index] = outcome
                elif not isinstance(outcome, ChildWorkflowError):
                    raise outcome
                elif kind(outcome) == DEVICE_LOST:
                    lost = outcome
                elif failed is None or kind(outcome) in FATAL:
                    failed = outcome
            if lost is not None and failed is None:
                try:
                    await self._replace_device()
                except ActivityError as error:
                    raise_if_cancelled(error)
                    failed = error
                # Waiting for a device that was gone is waiting in a queue.
                self.charged_since = workflow.now()
        return done, failed

    async def _run_child(self, slot: ledger.Slot, side_by_side: int) -> IterationResult:
        child = await workflow.start_child_workflow(
            IterationWorkflow.run,
            self._child_input(slot, side_by_side),
            id=f"{workflow.info().workflow_id}/iter-{slot.index:03d}",
            static_summary=labelled(f"{self.plan.task}: iteration {slot.index}", self.plan.standing),
            search_attributes=visibility.of_child(self.plan, slot.index, self.state.stage.value),
        )
        self.children[slot.index] = child
        try:
            # What was said while the child was being started has not reached it.
            if self.state.stop_reason is not None:
                await self._tell(child, IterationWorkflow.stop)
            elif self.state.paused:
                await self._tell(child, IterationWorkflow.pause)
            return await child
        except ChildWorkflowError as error:
            if _ended_by_somebody(error):
                return self._ended_by_hand(slot)
            raise_if_cancelled(error)
            raise
        finally:
            del self.children[slot.index]

    def _child_input(self, slot: ledger.Slot, side_by_side: int) -> IterationInput:
        state = self.state
        assert state.device is not None
        return IterationInput(
            plan=self.plan,
            bundle=self._bundle,
            index=slot.index,
            stage=state.stage,
            lock=state.lock,
            device=state.device,
            baseline_library=state.baseline_library,
            champion=state.champion,
            submission=slot.submission,
            script_position=slot.script_position,
            use_seed=slot.use_seed,
            tried=ledger.tried(state),
            hints=tuple(state.hints),
            sandbox=self.given.sandbox,
            device_patience_s=self.given.device_patience_s,
            run=workflow.info().first_execution_run_id,
            mode=state.mode if slot.submission is None and not slot.use_seed else Mode.IMPROVE,
            baseline=state.baseline if self.plan.thinks else None,
            logbook=state.logbook,
            notes=state.notes,
            profile=state.profile,
            lever=state.lever,
            objections=state.objections if state.mode is Mode.PIVOT else "",
            allowance=allowance(state, side_by_side),
            past=ledger.searched(self.plan, state),
            ahead=slot.ahead,
        )

    def _ended_by_hand(self, slot: ledger.Slot) -> IterationResult:
        """Someone cancelled or terminated only the child, in the Temporal UI: the run goes on with the next one."""
        reason = "this iteration was cancelled by hand"
        if self.plan.thinks:
            reason += "; what its conversations have cost is not counted"
        iteration = Iteration(
            index=slot.index, version="a000", stage=self.state.stage, ending=Ending.STOPPED, reason=reason
        )
        return IterationResult(index=slot.index, ending=Ending.STOPPED, reason=reason, label="", iteration=iteration)

    async def _remember(self, iterations: Sequence[Iteration]) -> None:
        """What the next conversation is told; scripts and parameter searches read nothing."""
        if not self.plan.thinks or not iterations:
            return
        remembered = await workflow.execute_activity_method(
            remember.Remembering.remember,
            remember.RememberInput(logbook=self.state.logbook, iterations=tuple(iterations)),
            task_queue=self.plan.queue,
            summary=f"remember {', '.join(iteration.version for iteration in iterations)}",
            **remember.OPTIONS,
        )
        self.state.logbook = remembered.logbook

    async def _record(self, iteration: Iteration) -> None:
        champion = self.state.champion
        try:
            await workflow.execute_activity_method(
                record.Recording.record,
                record.RecordInput(
                    run_id=workflow.info().workflow_id,
                    task=self.plan.task,
                    language=self.plan.language,
                    iteration=iteration,
                    champion=champion.source if champion else None,
                    champion_version=champion.version if champion else None,
                ),
                task_queue=self.plan.queue,
                summary=labelled(f"commit {iteration.version}: {iteration.ending.value}", self.plan.standing),
                **record.OPTIONS,
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            # The record is for people; the run's own state is complete without it.
            workflow.logger.warning("iteration %s was not recorded: %s", iteration.version, words(error))

    # ---------------------------------------------------------------- the device

    async def _claim_device(self, silent: str | None) -> None:
        claimed = await workflow.execute_activity_method(
            claim_device.DeviceClaiming.claim_device,
            claim_device.ClaimDeviceInput(
                run_id=workflow.info().workflow_id, kind=self.plan.gpu.strip().lower(), silent=silent
            ),
            task_queue=self.plan.queue,
            summary="claim a device" if silent is None else f"claim a device instead of {silent}",
            **claim_device.OPTIONS,
        )
        self.state.device = DeviceClaim(queue=claimed.queue, description=claimed.description)

    async def _replace_device(self) -> None:
        """Times of two devices cannot be compared, so the baseline is measured again."""
        assert self.state.device is not None
        workflow.logger.warning("device %s went silent", self.state.device.queue)
        await self._claim_device(silent=self.state.device.queue)
        if not self.plan.self_contained:
            await self._keeping_a_device(self._time_baseline)

    async def _keeping_a_device(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step on the claimed device, and again on another one as often as the device goes silent."""
        while True:
            assert self.state.device is not None
            try:
                with on_device(self.state.device.queue):
                    return await step()
            except ApplicationError as error:
                if error.type != DEVICE_LOST:
                    raise
                await self._claim_device(silent=self.state.device.queue)
                self.charged_since = workflow.now()
                # The baseline's times belong to the device that is gone; measuring it is also what proves the new one.
                if step != self._time_baseline and not self.plan.self_contained:
                    await self._keeping_a_device(self._time_baseline)

    async def _time_baseline(self) -> float:
        """Returns the seconds spent waiting."""
        state = self.state
        assert state.lock is not None
        assert state.device is not None
        measured = await workflow.execute_activity_method(
            measure_baseline.BaselineMeasuring.measure_baseline,
            measure_baseline.MeasureBaselineInput(bundle=self._bundle, lock=state.lock, sandbox=self.given.sandbox),
            task_queue=state.device.queue,
            schedule_to_start_timeout=timedelta(seconds=self.given.device_patience_s),
            summary=f"build, judge and time {self.plan.baseline[:100]}",
            **measure_baseline.OPTIONS,
        )
        state.baseline_library, state.baseline = measured.library, measured.times
        return measured.queue_wait_s

    async def _accept_champion(self) -> Acceptance:
        state = self.state
        assert state.champion is not None
        assert state.lock is not None
        assert state.device is not None
        assert state.baseline_library is not None
        accepted = await workflow.execute_activity_method(
            accept.Accepting.accept,
            accept.AcceptInput(
                bundle=self._bundle,
                lock=state.lock,
                baseline=state.baseline_library,
                version=state.champion.version,
                source=state.champion.source,
                sandbox=self.given.sandbox,
            ),
            task_queue=state.device.queue,
            schedule_to_start_timeout=timedelta(seconds=self.given.device_patience_s),
            summary=f"accept {state.champion.version}: production flags, held-out cases, fresh processes",
            **accept.OPTIONS,
        )
        return accepted.acceptance

    async def _accept_program(self) -> Acceptance:
        state = self.state
        assert state.champion is not None
        assert state.device is not None
        accepted = await workflow.execute_activity_method(
            accept_program.ProgramAccepting.accept_program,
            accept_program.AcceptProgramInput(
                bundle=self._bundle,
                version=state.champion.version,
                source=state.champion.source,
                sandbox=self.given.sandbox,
            ),
            task_queue=state.device.queue,
            schedule_to_start_timeout=timedelta(seconds=self.given.device_patience_s),
            summary=labelled(f"build and run {state.champion.version} once more", self.plan.standing),
            **accept_program.OPTIONS,
        )
        return accepted.acceptance

    async def _release_device(self) -> None:
        if self.state.device is None:
            return
        try:
            await workflow.execute_activity_method(
                release_device.DeviceReleasing.release_device,
                release_device.ReleaseDeviceInput(run_id=workflow.info().workflow_id, queue=self.state.device.queue),
                task_queue=self.state.device.queue,
                summary="release the device",
                **release_device.OPTIONS,
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            workflow.logger.warning("device was not released: %s", words(error))

    def _charge(self, waited_s: float) -> float:
        """Charge the time since `charged_since`, without what was waiting; returns the seconds charged."""
        seconds = max(0.0, (workflow.now() - self.charged_since).total_seconds() - waited_s)
        self.state.charged_s += seconds
        return seconds

    # ---------------------------------------------------------------- endings

    def _end_search_after(self, error: ActivityError | ChildWorkflowError) -> None:
        """A machine that stays broken ends the search with what it has; a broken gate, or no kernel, fails the run."""
        if kind(error) in FATAL or self.state.champion is None:
            raise error
        self.state.stop_reason = f"gave up after a failure of the machine ({kind(error)}: {words(error)})"[:1000]

    async def _give_up(self, error: ActivityError | ChildWorkflowError | ApplicationError) -> None:
        """Fail the run with one message. Nothing is delivered: what a broken gate has judged cannot be trusted."""
        try:
            raise_if_cancelled(error)
        except asyncio.CancelledError:
            await self._deliver(Phase.CANCELLED)
            raise
        self.state.stop_reason = words(error)
        await self._release_device()
        self._enter(Phase.DONE)
        await workflow.wait_condition(workflow.all_handlers_finished)
        raise for_people(error) from error

    async def _continue_as_new_if_long(self) -> None:
        limit, info = self.given.history_events_limit, workflow.info()
        long = info.is_continue_as_new_suggested() or (limit is not None and info.get_current_history_length() > limit)
        if not long:
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.state.started = self._started()
        workflow.continue_as_new(self.given.model_copy(update={"state": self.state}))

    async def _while_paused(self) -> None:
        if self.state.paused:
            self.show()
            await workflow.wait_condition(lambda: not self.state.paused or self.state.stop_reason is not None)

    def _started(self) -> datetime:
        return self.state.started or workflow.info().workflow_start_time

    # ---------------------------------------------------------------- what people see

    def _enter(self, phase: Phase, activity: str = "") -> None:
        changed, self.phase, self.activity = phase is not self.phase, phase, activity
        self.state.phase = phase
        if changed:
            self.show()
        else:
            self._show_details()

    def show(self) -> None:
        self._show_details()
        workflow.upsert_search_attributes(visibility.of_run(self.plan, self.state, self.shown_phase()))

    def _show_details(self) -> None:
        workflow.set_current_details(details.run(self.plan, self.state, self.shown_phase(), self.activity))

    def _show_children(self, slots: Sequence[ledger.Slot]) -> None:
        names = ", ".join(f"{slot.index:03d}" for slot in slots)
        self.activity = f"iteration {names}" if len(slots) == 1 else f"iterations {names}"
        self._show_details()


def _ended_by_somebody(error: ChildWorkflowError) -> bool:
    """Whether a child alone was cancelled or terminated, in the Temporal UI."""
    return workflow.cancellation_reason() is None and kind(error) in ("CancelledError", "TerminatedError")
