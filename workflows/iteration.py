"""One iteration: a proposal carried to a verdict, in a history of its own."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from activities import build, check_gate, judge, measure, propose, run_program
    from specs.decision import decide, decide_self_reported
    from specs.outcomes import (
        BuildResult,
        BuildStatus,
        Charge,
        Ending,
        Failure,
        Iteration,
        Measurement,
        MeasureOutcome,
        Proposal,
        SelfReported,
        Verdict,
        labelled,
    )
    from workflows import details, visibility
    from workflows.ledger import REASON_LENGTH, TRIED_LENGTH
    from workflows.state import IterationInput, IterationResult

from workflows.failures import on_device

LOG_TAIL = 1_500  # characters of the compiler's words that travel on to the parent's history


class IterationStep(BaseModel):
    """Answer of the `step` query."""

    index: int
    step: str  # proposing, building, judging, measuring, ...
    label: str
    paused: bool


class _StopAsked(Exception):
    """A person stopped the run: raised between two steps, never inside one."""


@workflow.defn(name="IterationWorkflow")
class IterationWorkflow:
    @workflow.init
    def __init__(self, given: IterationInput) -> None:
        self.given = given
        self.step_name = "starting"
        self.paused = False
        self.stopped = False
        self.proposal: Proposal | None = None
        self.built: BuildResult | None = None
        self.verdict: Verdict | None = None
        self.measurement: Measurement | None = None
        self.self_reported: SelfReported | None = None
        self.charge = Charge()
        self.queue_wait_s = 0.0
        self.paused_s = 0.0

    @workflow.run
    async def run(self, given: IterationInput) -> IterationResult:
        try:
            result = await self._walk()
        except _StopAsked:
            result = self._ended(Ending.STOPPED, f"stopped before {self.step_name}")
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._show(result)
        return result

    async def _walk(self) -> IterationResult:
        proposed = await self._propose()
        if proposed.proposal is None:
            return self._ended(Ending.NO_PROPOSAL, proposed.reason)
        if earlier := self.given.tried.get(proposed.proposal.normal[:TRIED_LENGTH]):
            return self._ended(Ending.DUPLICATE, f"the same source, comments and white space aside, as {earlier}")
        built = await self._build(proposed.proposal)
        if built.library is None:
            return self._ended(Ending.BUILD_FAILED, _not_built(built))
        if self.given.plan.self_contained:
            return await self._believe(built)
        verdict = await self._judge(built)
        if verdict.failure is not None:
            return self._ended(Ending.REFUSED, _refused(verdict.failure))
        outcome = await self._measure(built)
        if outcome.measurement is None:
            assert outcome.failure is not None
            # Every timed output is checked: what the clock's rounds found overrules the first verdict.
            self.verdict = verdict.model_copy(update={"passed": False, "failure": outcome.failure})
            return self._ended(Ending.REFUSED, _refused(outcome.failure))
        decision = decide(self.given.plan, outcome.measurement)
        return self._ended(decision.ending, decision.reason)

    async def _believe(self, built: BuildResult) -> IterationResult:
        """The walk of a self-contained program: no judge and no clock of ours, only what it says of itself."""
        report, champion = await self._run_program(built), self.given.champion
        if report.refused:
            return self._ended(Ending.REFUSED, report.refused)
        decision = decide_self_reported(self.given.plan, report, champion.ratios if champion else None)
        return self._ended(decision.ending, decision.reason)

    # ---- messages from the parent

    @workflow.query(description="Which step this iteration is at.")
    def step(self) -> IterationStep:
        return IterationStep(index=self.given.index, step=self.step_name, label=self._label(), paused=self.paused)

    @workflow.signal(description="Wait before the next step.")
    def pause(self) -> None:
        self.paused = True

    @workflow.signal(description="Go on.")
    def resume(self) -> None:
        self.paused = False

    @workflow.signal(description="End before the next step.")
    def stop(self) -> None:
        self.stopped = True

    # ---- steps

    async def _propose(self) -> propose.ProposeResult:
        await self._next_step("proposing")
        given = self.given
        proposed = await workflow.execute_activity_method(
            propose.Proposing.propose,
            propose.ProposeInput(
                bundle=given.bundle,
                submitted=given.submission.source if given.submission else None,
                label=given.submission.label if given.submission else "",
                use_seed=given.use_seed,
                script_position=given.script_position,
            ),
            task_queue=given.plan.queue,
            summary=f"iteration {given.index}: next candidate",
            **propose.OPTIONS,
        )
        self.proposal, self.charge = proposed.proposal, proposed.charge
        return proposed

    async def _build(self, proposal: Proposal) -> BuildResult:
        given = self.given
        if given.lock is not None:
            await self._next_step("checking the gate")
            await workflow.execute_activity_method(
                check_gate.GateChecking.check_gate,
                check_gate.CheckGateInput(bundle=given.bundle, lock=given.lock),
                task_queue=given.plan.queue,
                summary=f"gate {given.lock.digest[:12]} unchanged?",
                **check_gate.OPTIONS,
            )
        await self._next_step("building")
        output = await workflow.execute_activity_method(
            build.Building.build,
            build.BuildInput(bundle=given.bundle, source=proposal.source),
            task_queue=given.plan.queue,
            summary=f"compile {proposal.label[:100]}",
            **build.OPTIONS,
        )
        self.built = output.result
        self.queue_wait_s += output.queue_wait_s
        return output.result

    async def _judge(self, built: BuildResult) -> Verdict:
        await self._next_step("judging")
        given = self.given
        assert built.library is not None
        assert given.lock is not None
        with on_device(given.device.queue):
            result = await workflow.execute_activity_method(
                judge.Judging.judge,
                judge.JudgeInput(
                    bundle=given.bundle,
                    lock=given.lock,
                    library=built.library,
                    source=self.proposal.source if self.proposal else None,
                    sandbox=given.sandbox,
                ),
                task_queue=given.device.queue,
                schedule_to_start_timeout=timedelta(seconds=given.device_patience_s),
                summary=f"judge {self._label()[:100]}",
                **judge.OPTIONS,
            )
        self.verdict = result.verdict
        self.queue_wait_s += result.queue_wait_s
        return result.verdict

    async def _measure(self, built: BuildResult) -> MeasureOutcome:
        await self._next_step("measuring")
        given = self.given
        assert built.library is not None
        assert given.lock is not None
        assert given.baseline_library is not None
        with on_device(given.device.queue):
            result = await workflow.execute_activity_method(
                measure.Measuring.measure,
                measure.MeasureInput(
                    bundle=given.bundle,
                    lock=given.lock,
                    baseline=given.baseline_library,
                    candidate=built.library,
                    champion=given.champion.library if given.champion else None,
                    sandbox=given.sandbox,
                ),
                task_queue=given.device.queue,
                schedule_to_start_timeout=timedelta(seconds=given.device_patience_s),
                summary=f"time {self._label()[:100]}",
                **measure.OPTIONS,
            )
        self.measurement = result.outcome.measurement
        self.queue_wait_s += result.queue_wait_s
        return result.outcome

    async def _run_program(self, built: BuildResult) -> SelfReported:
        await self._next_step("running")
        given = self.given
        assert built.library is not None
        with on_device(given.device.queue):
            result = await workflow.execute_activity_method(
                run_program.ProgramRunning.run_program,
                run_program.RunProgramInput(bundle=given.bundle, program=built.library, sandbox=given.sandbox),
                task_queue=given.device.queue,
                schedule_to_start_timeout=timedelta(seconds=given.device_patience_s),
                summary=labelled(f"run {self._label()[:100]}", given.plan.standing),
                **run_program.OPTIONS,
            )
        self.self_reported = result.report
        self.queue_wait_s += result.queue_wait_s
        return result.report

    async def _next_step(self, name: str) -> None:
        """The boundary between two steps: here a pause holds and a stop ends the iteration."""
        self.step_name = name
        if self.paused and not self.stopped:
            since = workflow.now()
            self._show()
            await workflow.wait_condition(lambda: not self.paused or self.stopped)
            self.paused_s += (workflow.now() - since).total_seconds()
        if self.stopped:
            raise _StopAsked
        self._show()

    # ---- the result

    def _ended(self, ending: Ending, reason: str) -> IterationResult:
        """Everything found so far, with a provisional version: siblings may have won by more."""
        # The end of the script, or a stop before any proposal, is not an iteration; a person always gets an answer.
        nothing = (
            self.proposal is None and self.given.submission is None and ending in (Ending.NO_PROPOSAL, Ending.STOPPED)
        )
        return IterationResult(
            index=self.given.index,
            ending=ending,
            reason=reason[:REASON_LENGTH],
            label=self._label(),
            iteration=None if nothing else self._iteration(ending, reason[:REASON_LENGTH]),
            charge=self.charge,
            queue_wait_s=self.queue_wait_s,
            paused_s=self.paused_s,
        )

    def _iteration(self, ending: Ending, reason: str) -> Iteration:
        return Iteration(
            index=self.given.index,
            version="v000" if ending is Ending.WIN else "a000",
            stage=self.given.stage,
            ending=ending,
            reason=reason,
            proposal=self.proposal,
            build=self.built and self.built.model_copy(update={"log_tail": self.built.log_tail[-LOG_TAIL:]}),
            verdict=self.verdict,
            measurement=self.measurement,
            self_reported=self.self_reported,
        )

    def _label(self) -> str:
        if self.proposal is not None:
            return self.proposal.label
        return self.given.submission.label if self.given.submission else ""

    def _show(self, result: IterationResult | None = None) -> None:
        workflow.set_current_details(
            details.iteration(
                self.given,
                self.step_name,
                self.proposal,
                self.built,
                self.verdict,
                self.measurement or self.self_reported,
                result,
                self.paused,
            )
        )
        if result is not None:
            standing = self.given.plan.standing if self.self_reported else None
            updates: list[SearchAttributeUpdate[Any]] = [
                visibility.PHASE.value_set(labelled(result.ending.value, standing))
            ]
            if self.measurement is not None:
                updates.append(visibility.SCORE.value_set(self.measurement.score.value))
            elif self.self_reported is not None:
                updates.append(visibility.SCORE.value_set(self.self_reported.score))
            workflow.upsert_search_attributes(updates)


def _refused(failure: Failure) -> str:
    """Kind, case, tensor and what the judge says; what it says itself is not said twice."""
    kind, tensor, message = failure.kind.value.replace("_", " "), failure.first_failing_stage, failure.message
    where = f" at {tensor}" if tensor and not re.search(rf"\b{re.escape(tensor)}\b", message) else ""
    case, colon, said = message.partition(": ")
    # The judge puts the case and the distribution of its inputs in front: `n1024 (normal): c differs ...`.
    if colon and (case == failure.case or case.startswith(f"{failure.case} (")):
        return f"{kind} in case {case}{where}: {said}"
    return f"{kind} in case '{failure.case}'{where}: {message}"


def _not_built(built: BuildResult) -> str:
    said = _first_error(built.log_tail)
    return said if built.status is BuildStatus.FAILED else f"{built.status.value.replace('_', ' ')}: {said}"


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower()), lines[-1] if lines else "the compiler said nothing"
    )
