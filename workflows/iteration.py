"""One iteration: a proposal carried to a verdict, in a history of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import SearchAttributeUpdate
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import build, check_gate, judge, measure, propose, run_program
    from activities.agents.session import Subject
    from activities.open_session import OpenSessionInput
    from specs.decision import decide, decide_self_reported
    from specs.dialogue import Chapter, Mode, Planned, Question, Reviewed, Role, Submitted, Workspace
    from specs.outcomes import (
        BlobRef,
        BuildResult,
        BuildStatus,
        Charge,
        Ending,
        Iteration,
        Measurement,
        MeasureOutcome,
        Origin,
        Proposal,
        Review,
        SelfReported,
        Verdict,
        labelled,
    )
    from specs.schema import Provider
    from workflows import details, visibility
    from workflows.budget import left
    from workflows.ledger import REASON_LENGTH, TRIED_LENGTH
    from workflows.state import Allowance, IterationInput, IterationResult

from workflows.conversation import Conversation, Ended
from workflows.failures import kind, on_device, raise_if_cancelled, words
from workflows.steps import SteppedWorkflow, StopAsked

PLAN_ROUNDS = 2  # of a plan and what a reviewer has against it
REVIEW_STEPS = 10  # a verdict needs few, and a reviewer that gives none does not approve by it
LOG_TAIL = 1_500  # characters of the compiler's words that travel on to the parent's history


class IterationStep(BaseModel):
    """Answer of the `step` query."""

    index: int
    step: str  # proposing, building, judging, measuring, ...
    label: str
    paused: bool
    charge: Charge = Charge()  # of its conversations so far


@workflow.defn(name="IterationWorkflow")
class IterationWorkflow(SteppedWorkflow):
    @workflow.init
    def __init__(self, given: IterationInput) -> None:
        super().__init__()
        self.given = given
        self.proposal: Proposal | None = None
        self.built: BuildResult | None = None
        self.verdict: Verdict | None = None
        self.measurement: Measurement | None = None
        self.self_reported: SelfReported | None = None
        self.review: Review | None = None
        self.charge = Charge()
        self.queue_wait_s = 0.0
        self.talks: list[Conversation] = []
        self.found = IterationResult(index=given.index, ending=Ending.STOPPED, reason="", label="")

    @workflow.run
    async def run(self, given: IterationInput) -> IterationResult:
        try:
            result = await self._walk()
        except StopAsked:
            result = self._ended(Ending.STOPPED, f"stopped before {self.step_name}")
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.show(result)
        return result

    async def _walk(self) -> IterationResult:
        proposed = await (self._converse() if self._asks_a_model else self._propose())
        if isinstance(proposed, IterationResult):
            return proposed
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
            return self._ended(Ending.REFUSED, verdict.failure.told)
        outcome = await self._measure(built)
        if outcome.measurement is None:
            assert outcome.failure is not None
            # Every timed output is checked: what the clock's rounds found overrules the first verdict.
            self.verdict = verdict.model_copy(update={"passed": False, "failure": outcome.failure})
            return self._ended(Ending.REFUSED, outcome.failure.told)
        decision = decide(self.given.plan, outcome.measurement)
        if decision.ending is Ending.WIN and self._is_reviewed:
            return await self._reviewed(decision.reason, outcome.measurement)
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
        return IterationStep(
            index=self.given.index, step=self.step_name, label=self._label(), paused=self.paused, charge=self._charged()
        )

    # ---- steps

    async def _propose(self) -> propose.ProposeResult:
        """A person's kernel, the task's seed, or the next setting of a parameter search."""
        given = self.given
        await self.next_step("proposing")
        proposed = await self._proposed(
            propose.ProposeInput(
                bundle=given.bundle,
                submitted=given.submission.source if given.submission else None,
                label=given.submission.label if given.submission else "",
                use_seed=given.use_seed,
                champion=given.champion.source if given.champion else None,
                tried=given.past,
                ahead=given.ahead,
            )
        )
        if proposed.proposal is None and given.submission is None:
            self.found = self.found.model_copy(update={"exhausted": True})
        return proposed

    async def _proposed(self, asked: propose.ProposeInput) -> propose.ProposeResult:
        proposed = await workflow.execute_activity_method(
            propose.Proposing.propose,
            asked,
            task_queue=self.given.plan.queue,
            summary=f"iteration {self.given.index}: next candidate",
            **propose.OPTIONS,
        )
        self.proposal = proposed.proposal
        return proposed

    async def _converse(self) -> propose.ProposeResult | IterationResult:
        """The optimiser's conversation, and what it hands in."""
        if self.given.mode is Mode.RESEARCH:
            return await self._research()
        talk, ended = await self._ask_optimizer(self.given.objections)
        workspace = talk.workspace
        if isinstance(ended.final, Submitted):
            assert workspace.kernel is not None
            self.proposal = Proposal(
                source=workspace.kernel, normal=ended.final.normal, origin=Origin.OPTIMIZER, label=ended.final.title
            )
            return propose.ProposeResult(proposal=self.proposal)
        # The last state that compiled is worth a look, unless it is what the conversation began with.
        if workspace.kernel is not None and workspace.kernel == workspace.compiled != talk.start.kernel:
            return await self._handed_in(talk, f"last state: {ended.reason}"[:120])
        return self._ended(Ending.NO_PROPOSAL, ended.reason)

    async def _research(self) -> IterationResult:
        """No kernel but a plan, which a reviewer may object to; what it objects to last goes on with the plan."""
        objections, told, began = "", "", None
        for _ in range(PLAN_ROUNDS):
            talk, ended = await self._ask_optimizer(objections, began)
            began = began or talk.start  # notes of the first round count in the second one too
            if not isinstance(ended.final, Planned):
                return self._ended(Ending.RESEARCHED, f"no plan was handed in: {ended.reason}")
            told = f"next lever: {ended.final.title}"
            objections = await self._objections(ended.final.plan)
            self.found = self.found.model_copy(update={"lever": ended.final.plan, "objections": objections})
            if not objections:
                break
        return self._ended(Ending.RESEARCHED, f"{told}; the reviewer objects: {objections}" if objections else told)

    async def _ask_optimizer(self, feedback: str, began: Workspace | None = None) -> tuple[Conversation, Ended]:
        given = self.given
        notes = self.found.notes or given.notes
        talk = self._conversation(
            self._opening(Role.OPTIMIZER, Workspace(notes=notes, profile=given.profile)).model_copy(
                update={
                    "mode": given.mode,
                    "plan": given.lever,
                    "script_position": given.script_position,
                    "feedback": feedback,
                    "began": began,
                }
            ),
            max_steps=given.plan.search.max_steps,
        )
        try:
            ended = await talk.hold()
        except ActivityError as error:
            raise_if_cancelled(error)
            if given.champion is None or not kind(error).startswith("Model."):
                raise
            # An iteration that fails has no result, and what its conversations have cost would stand in no book.
            told = f"the model cannot be asked ({kind(error)}: {words(error)})"
            ended = Ended(None, told[:REASON_LENGTH], gave_up=True)
        self._keep(talk, ended)
        return talk, ended

    async def _objections(self, lever: BlobRef) -> str:
        """What a reviewer has against a plan; a reviewer that gives no verdict holds no research turn up."""
        if not self.given.plan.reviewed:
            return ""
        champion = self.given.champion
        subject = Subject(
            question=Question.PLAN,
            plan=lever,
            kernel=champion.source if champion else None,
            figures=f"score {champion.score:.3f}" if champion else "no kernel has passed yet",
        )
        try:
            review = await self._ask_reviewer(subject)
        except ActivityError as error:
            raise_if_cancelled(error)
            workflow.logger.warning("the plan was not reviewed: %s", words(error))
            return ""
        return objections_of(review) if isinstance(review, Review) else ""

    def _keep(self, talk: Conversation, ended: Ended) -> None:
        """What outlives the conversation, whatever came of it."""
        self.found = self.found.model_copy(
            update={
                "notes": talk.workspace.notes,
                "profile": talk.workspace.profile,
                "exhausted": ended.nothing,
                "over_budget": ended.reason if ended.over_budget else "",
                "gave_up": ended.reason if ended.gave_up else "",
            }
        )

    async def _handed_in(self, talk: Conversation, title: str) -> propose.ProposeResult:
        await self.next_step("proposing")
        return await self._proposed(
            propose.ProposeInput(
                bundle=self.given.bundle,
                submitted=talk.workspace.kernel,
                label=title,
                by=Origin.OPTIMIZER,
                use_seed=False,
            )
        )

    async def _reviewed(self, reason: str, measurement: Measurement) -> IterationResult:
        """A win is one when the reviewer says so too. No verdict is no approval: the champion stays."""
        assert self.proposal is not None
        subject = Subject(
            question=Question.INTEGRITY, kernel=self.proposal.source, figures=details.figures(measurement, reason)
        )
        try:
            review = await self._ask_reviewer(subject)
        except ActivityError as error:
            raise_if_cancelled(error)
            told = f"the reviewer cannot be asked: {words(error)}"
            self.found = self.found.model_copy(update={"gave_up": told[:REASON_LENGTH]})
            return self._ended(Ending.UNREVIEWED, told)
        if isinstance(review, Ended):
            if review.over_budget:
                self.found = self.found.model_copy(update={"over_budget": review.reason})
            return self._ended(Ending.UNREVIEWED, f"the reviewer gave no verdict: {review.reason}")
        self.review = review
        if self.review.approved:
            return self._ended(Ending.WIN, reason)
        return self._ended(Ending.VETOED, objections_of(review))

    async def _ask_reviewer(self, subject: Subject) -> Review | Ended:
        """The verdict, or how a conversation without one ended."""
        talk = self._conversation(
            self._opening(Role.REVIEWER, Workspace(kernel=subject.kernel)).model_copy(update={"subject": subject}),
            max_steps=REVIEW_STEPS,
        )
        ended = await talk.hold()
        return ended.final.review if isinstance(ended.final, Reviewed) else ended

    @property
    def _asks_a_model(self) -> bool:
        """A person's kernel and the seed are there already, and a parameter search needs no conversation."""
        given = self.given
        return given.submission is None and not given.use_seed and given.plan.model.provider is not Provider.TUNE

    @property
    def _is_reviewed(self) -> bool:
        return self.given.plan.reviewed and not self.given.use_seed

    def _opening(self, role: Role, workspace: Workspace) -> OpenSessionInput:
        given = self.given
        return OpenSessionInput(
            run=given.run,
            place=f"iter-{given.index:03d}/{len(self.talks)}-{role.value}",
            role=role,
            model=given.plan.model,
            stage=given.stage,
            bundle=given.bundle,
            sandbox=given.sandbox,
            lock=given.lock,
            baseline_library=given.baseline_library,
            baseline=given.baseline,
            champion=given.champion,
            logbook=given.logbook,
            hints=given.hints,
            workspace=workspace,
        )

    def _conversation(self, opening: OpenSessionInput, *, max_steps: int) -> Conversation:
        """Of an iteration's conversations each may use what those before it have left of its allowance."""
        given = self.given
        tokens, usd = left(given.allowance, self._charged())
        talk = Conversation(
            self,
            given.plan,
            opening,
            max_steps=max_steps,
            allowance=Allowance(tokens=tokens, usd=usd),
            device_queue=given.device.queue,
            device_patience_s=given.device_patience_s,
        )
        self.talks.append(talk)
        return talk

    def _charged(self) -> Charge:
        total = self.charge
        for talk in self.talks:
            total = total + talk.charge
        return total

    def _chapters(self) -> tuple[Chapter, ...]:
        return tuple(chapter for talk in self.talks for chapter in talk.chapters)

    async def _build(self, proposal: Proposal) -> BuildResult:
        given = self.given
        if given.lock is not None:
            await self.next_step("checking the gate")
            await workflow.execute_activity_method(
                check_gate.GateChecking.check_gate,
                check_gate.CheckGateInput(bundle=given.bundle, lock=given.lock),
                task_queue=given.plan.queue,
                summary=f"gate {given.lock.digest[:12]} unchanged?",
                **check_gate.OPTIONS,
            )
        await self.next_step("building")
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
        await self.next_step("judging")
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
        await self.next_step("measuring")
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
        await self.next_step("running")
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

    # ---- the result

    def _ended(self, ending: Ending, reason: str) -> IterationResult:
        """Everything found so far, with a provisional version: siblings may have won by more."""
        # The end of the script, or a stop before any proposal, is not an iteration; a person always gets an answer.
        nothing = (
            self.proposal is None
            and self.given.submission is None
            and not self._charged().calls
            and ending in (Ending.NO_PROPOSAL, Ending.STOPPED)
        )
        return self.found.model_copy(
            update={
                "ending": ending,
                "reason": reason[:REASON_LENGTH],
                "label": self._label(),
                "iteration": None if nothing else self._iteration(ending, reason[:REASON_LENGTH]),
                "charge": self._charged(),
                "queue_wait_s": self.queue_wait_s + sum(talk.waited_s for talk in self.talks),
                "paused_s": self.paused_s,
            }
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
            review=self.review,
            chapters=self._chapters(),
            notes=self.found.notes,
            charge=self._charged() if self.talks else None,
        )

    def _label(self) -> str:
        if self.proposal is not None:
            return self.proposal.label
        return self.given.submission.label if self.given.submission else ""

    def show(self, result: IterationResult | None = None) -> None:
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


def objections_of(review: Review) -> str:
    """What a reviewer has against something, with its first piece of evidence; empty when it has nothing."""
    if review.approved:
        return ""
    quoted = f' ("{review.evidence[0].quote}": {review.evidence[0].why})' if review.evidence else ""
    return f"{review.summary}{quoted}"[:REASON_LENGTH]


def _not_built(built: BuildResult) -> str:
    said = _first_error(built.log_tail)
    return said if built.status is BuildStatus.FAILED else f"{built.status.value.replace('_', ' ')}: {said}"


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower()), lines[-1] if lines else "the compiler said nothing"
    )
