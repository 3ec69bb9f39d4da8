"""Writing a gate for a task that has none: from a canonical source, admitted by mutants, reviewed, bounded."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import adopt_gate
    from activities.agents.session import Subject
    from activities.open_session import OpenSessionInput
    from specs.dialogue import Chapter, GateHandedIn, Question, Reviewed, Role, Workspace
    from specs.outcomes import BlobRef, Charge, Review, Stage
    from workflows import details
    from workflows.budget import left
    from workflows.state import Allowance, GateInput, GateResult, WrittenGate

from workflows.conversation import Conversation, Ended
from workflows.failures import raise_if_cancelled, words
from workflows.steps import SteppedWorkflow, StopAsked

MOST_ROUNDS = 3  # of writing and review
WRITING_STEPS = 40
REVIEW_STEPS = 12


@workflow.defn(name="GateWorkflow")
class GateWorkflow(SteppedWorkflow):
    @workflow.init
    def __init__(self, given: GateInput) -> None:
        super().__init__()
        self.given = given
        self.round = 0
        self.talks: list[Conversation] = []

    @workflow.run
    async def run(self, given: GateInput) -> GateResult:
        try:
            result = await self._write()
        except StopAsked:
            result = self._ended(None, f"stopped before {self.step_name}")
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.show()
        return result

    async def _write(self) -> GateResult:
        """Write, admit, review; an objection goes back to the writer."""
        draft, feedback, objection = self.given.draft, self.given.feedback, "no round was begun"
        for self.round in range(1, MOST_ROUNDS + 1):
            written = await self._hold(self._writer(draft, feedback), WRITING_STEPS)
            if not isinstance(written.final, GateHandedIn):
                return self._ended(None, f"the gate writer handed nothing in: {written.reason}")
            draft = written.final.gate
            bundle = await self._adopt(draft)
            if not self.given.plan.reviewed:
                return self._ended(WrittenGate(bundle=bundle, gate=draft, review=None, rounds=self.round))
            review = await self._review(draft)
            if isinstance(review, str):
                return self._ended(None, review)
            if review.approved:
                return self._ended(WrittenGate(bundle=bundle, gate=draft, review=review, rounds=self.round))
            objection = review.summary
            feedback = "\n".join([objection, *(f'- "{one.quote}": {one.why}' for one in review.evidence)])
        return self._ended(None, f"the reviewer objected {MOST_ROUNDS} times, last: {objection}")

    async def _adopt(self, draft: BlobRef) -> BlobRef:
        """The task with this gate in its folder, as if its author had shipped it."""
        await self.next_step("adopting the gate")
        adopted = await workflow.execute_activity_method(
            adopt_gate.GateAdopting.adopt_gate,
            adopt_gate.AdoptGateInput(bundle=self.given.bundle, gate=draft),
            task_queue=self.given.plan.queue,
            summary=f"the gate of round {self.round}",
            **adopt_gate.OPTIONS,
        )
        return adopted.bundle

    async def _review(self, draft: BlobRef) -> Review | str:
        """The verdict, or why there is none: which is no approval."""
        opening = self._opening(Role.REVIEWER, Workspace(gate=draft)).model_copy(
            update={"subject": Subject(question=Question.GATE, gate=draft)}
        )
        try:
            ended = await self._hold(opening, REVIEW_STEPS)
        except ActivityError as error:
            raise_if_cancelled(error)
            return f"the reviewer cannot be asked: {words(error)}"
        if not isinstance(ended.final, Reviewed):
            return f"the reviewer gave no verdict: {ended.reason}"
        return ended.final.review

    async def _hold(self, opening: OpenSessionInput, max_steps: int) -> Ended:
        tokens, usd = left(self.given.allowance, self._charged())
        talk = Conversation(
            self, self.given.plan, opening, max_steps=max_steps, allowance=Allowance(tokens=tokens, usd=usd)
        )
        self.talks.append(talk)
        return await talk.hold()

    def _writer(self, draft: BlobRef | None, feedback: str) -> OpenSessionInput:
        return self._opening(Role.GATE_WRITER, Workspace(gate=draft)).model_copy(update={"feedback": feedback})

    def _opening(self, role: Role, workspace: Workspace) -> OpenSessionInput:
        return OpenSessionInput(
            run=self.given.run,
            place=f"gate-{self.given.attempt}/{role.value}-{self.round}",
            role=role,
            model=self.given.plan.model,
            stage=Stage.REPRODUCE,
            bundle=self.given.bundle,
            sandbox=self.given.sandbox,
            hints=self.given.hints,
            workspace=workspace,
        )

    def _charged(self) -> Charge:
        total = Charge()
        for talk in self.talks:
            total = total + talk.charge
        return total

    def _chapters(self) -> tuple[Chapter, ...]:
        return tuple(chapter for talk in self.talks for chapter in talk.chapters)

    def _ended(self, written: WrittenGate | None, reason: str = "") -> GateResult:
        return GateResult(
            written=written,
            reason=reason,
            charge=self._charged(),
            chapters=self._chapters(),
            queue_wait_s=sum(talk.waited_s for talk in self.talks),
            paused_s=self.paused_s,
        )

    def show(self) -> None:
        workflow.set_current_details(details.gate(self.given, self.step_name, self.round, self.paused))
