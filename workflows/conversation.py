"""A conversation with a model: turns and tool calls, an activity each, until something is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import model_turn, open_session, use_tool
    from activities.model_turn import Nudge
    from activities.open_session import OpenSessionInput, OpenSessionResult
    from activities.use_tool import ToolOutcome
    from specs.dialogue import ON_DEVICE, Chapter, Final, ModelTurn, Stop, ToolCall, Workspace
    from specs.outcomes import BlobRef, Charge
    from specs.plan import Plan
    from workflows.budget import left
    from workflows.state import Allowance

from workflows.failures import kind, on_device, raise_if_cancelled, words

MOST_CALLS = 8  # of one message that are run; the others are answered as not run
MOST_EPOCHS = 4
MOST_REFUSALS = 2  # the same conversation would go on refusing, and so may the next
MOST_SILENT = 3  # messages in a row without a call that was run
ROOMIER = 2  # how often an answer that was cut is asked for again with twice the room
LAST_STEPS = 3  # how many steps before the last one the model is told to hand in

# A person has to put these right: money, or a server that is gone for longer than an activity has patience.
PARKS = ("Model.spend_limit", "Model.billing", "TimeoutError")
# Of the transcript rather than of the server: a new one may do, where this one has begun well.
ANEW = ("Model.invalid_request", "Model.bad_response")


class Host(Protocol):
    """The workflow that a conversation is part of."""

    async def next_step(self, name: str) -> None: ...

    async def park(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a conversation ended: with what was handed in, or with a reason why nothing was."""

    final: Final | None
    reason: str = ""
    over_budget: bool = False  # the next call could have broken it
    gave_up: bool = False  # the model cannot be asked any more
    nothing: bool = False  # there was nothing to ask for


@dataclass(slots=True)
class _Talk:
    """Where one stretch of the conversation is."""

    session: BlobRef
    head: BlobRef
    answers: tuple[BlobRef, ...] = ()
    nudge: Nudge = Nudge.NONE
    turn: int = 0
    roomier: int = 0
    silent: int = 0


class Conversation:
    """One role's talk; it begins anew, from state that the code owns, whenever its transcript has become too long."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
        opening: OpenSessionInput,
        *,
        max_steps: int,
        allowance: Allowance,
        device_queue: str | None = None,
        device_patience_s: float = 900,
    ) -> None:
        self._host = host
        self._plan = plan
        self._opening = opening
        self._max_steps = max_steps
        self._allowance = allowance
        self._device_queue = device_queue
        self._device_patience_s = device_patience_s
        self.workspace: Workspace = opening.workspace
        self.start: Workspace = opening.workspace
        self.charge = Charge()
        self.waited_s = 0.0
        self.steps = 0
        self.refusals = 0
        self.chapters: list[Chapter] = []

    async def hold(self) -> Ended:
        """Talk until something is handed in, nothing more is to be had, or the steps or the budget are used up."""
        because = ""
        for epoch in range(MOST_EPOCHS):
            opened = await self._open(epoch, because)
            if opened.nothing:
                return Ended(None, opened.nothing, nothing=True)
            self.workspace = opened.workspace
            if epoch == 0:
                self.start = opened.workspace
            talk = _Talk(opened.session, opened.head)
            try:
                ended = await self._talk(talk)
            finally:
                self.chapters.append(Chapter(role=self._opening.role, head=talk.head, answers=talk.answers))
            if isinstance(ended, Ended):
                return ended
            because = ended
        return Ended(None, f"began anew {MOST_EPOCHS - 1} times, last because {because}")

    async def _open(self, epoch: int, because: str) -> OpenSessionResult:
        await self._host.next_step(f"{self._opening.role.value.replace('_', ' ')}: opening")
        update = {
            "epoch": epoch,
            "workspace": self.workspace,
            "began": self.start if epoch else self._opening.began,
            "earlier": self.chapters[-1] if self.chapters else None,
            "because": because,
        }
        return await workflow.execute_activity_method(
            open_session.SessionOpening.open_session,
            self._opening.model_copy(update=update),
            task_queue=self._plan.queue,
            summary=f"{self._opening.role.value}: {because or self._opening.mode.value}"[:200],
            **open_session.OPTIONS,
        )

    async def _talk(self, talk: _Talk) -> Ended | str:
        """One stretch. Returns why it has to begin anew, or how the conversation ended."""
        while self.steps < self._max_steps:
            if talk.nudge is Nudge.NONE and self._max_steps - self.steps <= LAST_STEPS < self._max_steps:
                talk.nudge = Nudge.HAND_IN if talk.answers else Nudge.NONE
            try:
                turn = await self._turn(talk)
            except ActivityError as error:
                if talk.turn == 0 or kind(error) not in ANEW:
                    raise
                return f"the server took it no further ({words(error)})"[:300]
            self.steps += 1
            if turn.stop is Stop.UNAFFORDABLE:
                return Ended(None, turn.detail, over_budget=True)
            if turn.stop is Stop.TRUNCATED and talk.roomier < ROOMIER:
                talk.roomier += 1  # the same turn once more, from the same head
                continue
            if turn.stop is Stop.REFUSED:
                talk.head, talk.answers = turn.head, ()
                self.refusals += 1
                if self.refusals == MOST_REFUSALS:
                    return Ended(None, f"the model refused twice ({turn.detail})")
                return f"the model refused ({turn.detail})"
            if turn.stop is Stop.TOO_LONG:
                talk.head, talk.answers = turn.head, ()
                return f"the transcript was too long {turn.detail}".strip()
            talk.head, talk.answers, talk.nudge = turn.head, (), Nudge.NONE
            talk.turn, talk.roomier = talk.turn + 1, 0
            ended = await self._react(talk, turn)
            if ended is not None:
                return ended
            if turn.context_tokens > self._plan.model.context_tokens:
                return f"the transcript had grown to {turn.context_tokens} tokens"
        return Ended(None, f"all {self._max_steps} steps were used without handing anything in")

    async def _react(self, talk: _Talk, turn: ModelTurn) -> Ended | None:
        if turn.stop is Stop.TOOLS:
            talk.silent = 0
            return await self._use_tools(talk, turn.calls)
        if turn.stop is Stop.PAUSED:
            return None
        talk.silent += 1
        if talk.silent >= MOST_SILENT:
            return Ended(None, f"{MOST_SILENT} answers in a row called no tool; the last one: {turn.detail}"[:300])
        talk.nudge = {Stop.TRUNCATED: Nudge.TRUNCATED, Stop.SPOKE: Nudge.USE_A_TOOL}.get(turn.stop, Nudge.NOT_RUN)
        return None

    async def _use_tools(self, talk: _Talk, calls: Sequence[ToolCall]) -> Ended | None:
        """One call after the other: a later one may build on what an earlier one wrote."""
        for position, call in enumerate(calls):
            outcome = await self._use_tool(talk, call, run=position < MOST_CALLS)
            talk.answers = (*talk.answers, outcome.answer)
            self.waited_s += outcome.queue_wait_s
            if outcome.workspace is not None:
                self.workspace = outcome.workspace
            if outcome.final is not None:
                return Ended(outcome.final)
        return None

    async def _turn(self, talk: _Talk) -> ModelTurn:
        while True:
            await self._host.next_step(f"{self._opening.role.value.replace('_', ' ')}: step {self.steps + 1}")
            tokens_left, usd_left = left(self._allowance, self.charge)
            try:
                turn = await workflow.execute_activity_method(
                    model_turn.ModelTurning.model_turn,
                    model_turn.ModelTurnInput(
                        session=talk.session,
                        head=talk.head,
                        answers=talk.answers,
                        turn=talk.turn,
                        nudge=talk.nudge,
                        roomier=talk.roomier,
                        tokens_left=tokens_left,
                        usd_left=usd_left,
                    ),
                    task_queue=self._plan.queue,
                    summary=f"{self._opening.role.value}, step {self.steps + 1}",
                    **model_turn.OPTIONS,
                )
            except ActivityError as error:
                raise_if_cancelled(error)
                if kind(error) not in PARKS:
                    raise
                await self._host.park(f"the model cannot be asked: {words(error)}"[:300])
            else:
                self.charge = self.charge + turn.charge
                self.waited_s += turn.waited_s
                return turn

    async def _use_tool(self, talk: _Talk, call: ToolCall, *, run: bool) -> ToolOutcome:
        await self._host.next_step(f"{self._opening.role.value.replace('_', ' ')}: {call.name}")
        given = use_tool.UseToolInput(
            session=talk.session, head=talk.head, call=call, workspace=self.workspace, run=run
        )
        if call.name in ON_DEVICE and run and self._device_queue is not None:
            with on_device(self._device_queue):
                return await workflow.execute_activity_method(
                    use_tool.ToolUsing.use_device_tool,
                    given,
                    task_queue=self._device_queue,
                    schedule_to_start_timeout=timedelta(seconds=self._device_patience_s),
                    summary=call.name,
                    **use_tool.DEVICE_OPTIONS,
                )
        return await workflow.execute_activity_method(
            use_tool.ToolUsing.use_tool,
            given,
            task_queue=self._plan.queue,
            summary=call.name,
            **use_tool.OPTIONS,
        )
