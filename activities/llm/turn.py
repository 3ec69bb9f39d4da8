"""One turn of a conversation: the request within its budget, one answer that is paid for once, and why it stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from temporalio import activity

from activities.agents import transcript
from activities.agents.pages import one_line, visible
from activities.agents.prompts import nudges
from activities.agents.session import Session
from activities.agents.transcript import Message
from activities.heartbeat import queue_wait_s
from activities.llm import client, journal, replay
from activities.llm.journal import Entry, Lost
from activities.llm.prices import Prices, charge_of, is_count, worst_case_usd
from activities.llm.profiles import Profile, profile_of
from activities.llm.request import MOST_TOKENS, body_of, most_tokens, user_message
from activities.model_turn import ModelTurnInput
from activities.settings import Settings
from activities.store import Store
from activities.workshop import Workshop
from specs.dialogue import ModelTurn, Stop, ToolCall
from specs.errors import ModelError, ModelFault, UserError
from specs.outcomes import BlobRef, Charge, Role

FEWEST_TOKENS = 2_048  # an answer with less room is cut before it has called anything
MOST_CALLS = 16  # that are told to the workflow; what is beyond is answered as not run
MOST_SAID = 120  # characters; they stand in the history, where a turn with its call has 4 kB

_STOPS = {
    "tool_use": Stop.TOOLS,
    "end_turn": Stop.SPOKE,
    "stop_sequence": Stop.SPOKE,
    "pause_turn": Stop.PAUSED,
    "compaction": Stop.PAUSED,
    "max_tokens": Stop.TRUNCATED,
    "refusal": Stop.REFUSED,
    "model_context_window_exceeded": Stop.TOO_LONG,
}


async def take_turn(workshop: Workshop, given: ModelTurnInput, profile: Profile | None = None) -> ModelTurn:
    """Raises ModelError when the server gives no finished message, StoreError when something cannot be kept."""
    store = workshop.store
    session = Session.model_validate_json(await store.get(given.session))
    speaker = profile or _profile_of(session, workshop.settings)
    listed = _prices_of(workshop.settings)
    place = journal.place_of(session, given.turn, given.roomier)
    model = _model_of(session)
    charged = partial(charge_of, free=speaker.free, prices=listed)

    head = await _asked(store, given)
    messages = await transcript.messages(store, head)
    lost = await journal.lost_at(store, place)
    spent = sum((charged(one.model, one.usage) for one in lost), Charge())

    turn = partial(ModelTurn, waited_s=queue_wait_s() if activity.in_activity() else 0.0)
    wanted = min(session.model.max_tokens << given.roomier, MOST_TOKENS)
    body = body_of(session, messages, model=model, max_tokens=wanted, drop=speaker.drop)
    purse = _Purse(given, spent, partial(worst_case_usd, model, free=speaker.free, prices=listed))
    body["max_tokens"], unaffordable = purse.room(most_tokens(body), wanted)
    if unaffordable:
        return turn(head=given.head, stop=Stop.UNAFFORDABLE, detail=unaffordable, charge=spent)

    entry = await journal.entry_at(store, place)
    if entry is None or entry.body != journal.digest_of_body(body):
        try:
            entry = await _answered(store, speaker, place, body, lost)
        except ModelError as error:
            if error.kind is not ModelFault.TOO_LARGE:
                raise
            return turn(head=given.head, stop=Stop.TOO_LONG, detail=str(error)[:300], charge=spent)

    content = [block for block in entry.message["content"] if not _empty(block)]
    stop, detail = _stop_of(entry.message, content, runs_calls_on_end_turn=speaker.runs_calls_on_end_turn)
    charge = charged(model, _used(entry.message, body, free=speaker.free))
    return turn(
        head=await transcript.append(store, head, {"role": "assistant", "content": content}),
        stop=stop,
        detail=entry.drift[:300] or detail,
        calls=_calls_of(content) if stop is Stop.TOOLS else (),
        charge=charge + sum((charged(one.model, one.usage) for one in entry.lost), Charge()),
        context_tokens=charge.input_tokens + charge.cache_read_tokens + charge.cache_write_tokens,
    )


def _profile_of(session: Session, settings: Settings) -> Profile:
    """A key that this worker lacks is no mistake of the task's: what was won stays won."""
    try:
        return profile_of(session, settings)
    except UserError as error:
        raise ModelError(ModelFault.AUTH, str(error), retryable=False) from None


def _prices_of(settings: Settings) -> Prices:
    """As with a key: a file that was broken while the run was on costs no champion."""
    try:
        return Prices.of(settings)
    except UserError as error:
        raise ModelError(ModelFault.CONFIG, str(error), retryable=False) from None


def _model_of(session: Session) -> str:
    match session.role:
        case Role.OPTIMIZER:
            return session.model.optimizer
        case Role.GATE_WRITER:
            return session.model.gate_writer
        case Role.REVIEWER:
            assert session.model.reviewer is not None  # a run without one opens no such session
            return session.model.reviewer


async def _asked(store: Store, given: ModelTurnInput) -> BlobRef:
    """The transcript with the user's message of this turn, where there is one."""
    answers = [json.loads(await store.get(answer)) for answer in given.answers]
    message = user_message(await transcript.last(store, given.head), answers, nudges.text(given.nudge))
    return given.head if message is None else await transcript.append(store, given.head, message)


async def _answered(store: Store, profile: Profile, place: str, body: dict[str, Any], lost: tuple[Lost, ...]) -> Entry:
    """Ask, and write down what came: the answer, or what a broken stream has cost."""
    attempt = client.Attempt(turn=place.rpartition("/")[2])
    try:
        message = await client.ask(profile, body, attempt)
    except (ModelError, asyncio.CancelledError):
        if attempt.usage is not None:
            await journal.lose(store, place, Lost(model=body["model"], usage=attempt.usage))
        raise
    entry = Entry(
        body=journal.digest_of_body(body),
        newest=replay.user_digest(replay.newest_user(body["messages"])),
        model=body["model"],
        message=message,
        request_id=attempt.request_id,
        lost=lost,
        drift=attempt.drift,
    )
    return await journal.write(store, place, entry)


def _used(message: Message, body: dict[str, Any], *, free: bool) -> dict[str, Any]:
    """The server's own counts. What it does not count is taken to be as much as it can have been: otherwise a budget
    would hold as long as the server likes.
    """
    usage = message["usage"]
    read = [usage.get(key) for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")]
    told = {}
    if not is_count(read[0]) or not (free or any(is_count(count) and count for count in read)):
        told["input_tokens"] = most_tokens(body)
    written = usage.get("output_tokens")
    if not is_count(written) or not (free or written or not message["content"]):
        told["output_tokens"] = most_tokens(message["content"])
    return {**usage, **told}


@dataclass(frozen=True, slots=True)
class _Purse:
    """What is left of the run's budget for one call."""

    given: ModelTurnInput
    spent: Charge  # by broken attempts at this very turn
    usd: Callable[[int, int], float | None]  # a price that no call of so many tokens in and out can exceed

    def room(self, reads: int, wanted: int) -> tuple[int, str]:
        """How long an answer may be, and why there can be none."""
        fewest = min(FEWEST_TOKENS, wanted)
        room, why = min((self._by_tokens(reads, wanted), self._by_usd(reads, wanted)), key=lambda found: found[0])
        return (room, "") if room >= fewest else (wanted, why)

    def _by_tokens(self, reads: int, wanted: int) -> tuple[int, str]:
        if self.given.tokens_left is None:
            return wanted, ""
        left = self.given.tokens_left - self.spent.tokens
        why = f"{max(0, left)} tokens are left of max_tokens, and reading the conversation alone may take {reads}"
        return min(wanted, left - reads), why

    def _by_usd(self, reads: int, wanted: int) -> tuple[int, str]:
        if self.given.usd_left is None:
            return wanted, ""
        reading, whole = self.usd(reads, 0), self.usd(reads, wanted)
        if reading is None or whole is None or self.spent.usd is None:
            return 0, "the model's price is unknown, so that max_usd could not be kept"
        left = self.given.usd_left - self.spent.usd
        if whole <= left:
            return wanted, ""
        why = f"{max(0.0, left):.4f} USD are left of max_usd, and the next call could cost {whole:.4f}"
        # A token that is written costs the same however many there are.
        writing = (whole - reading) / wanted
        return int((left - reading) / writing) if writing > 0 else 0, why


def _stop_of(message: Message, content: Sequence[dict[str, Any]], *, runs_calls_on_end_turn: bool) -> tuple[Stop, str]:
    reason = message["stop_reason"]
    stop = _STOPS.get(reason, Stop.UNKNOWN)
    called = any(block.get("type") == "tool_use" for block in content)
    if stop is Stop.TOOLS and not called:
        stop = Stop.SPOKE
    if stop is Stop.SPOKE and called and runs_calls_on_end_turn:
        stop = Stop.TOOLS  # some servers name the wrong reason
    if stop is Stop.UNKNOWN:
        return stop, f"stop reason {str(reason)[:100]!r}"
    if stop is Stop.REFUSED:
        details = message.get("stop_details")
        category = details.get("category") if isinstance(details, dict) else None
        return stop, f"category {one_line(str(category), 100)}" if category else "no category was given"
    return stop, _said(content) if stop in (Stop.TOOLS, Stop.SPOKE) else ""


def _said(content: Sequence[dict[str, Any]]) -> str:
    """The beginning of what the model said, or of what it thought when it said nothing."""
    for kind, key in (("text", "text"), ("thinking", "thinking")):
        words = " ".join(" ".join(block[key] for block in content if block.get("type") == kind).split())
        if words:
            return visible(words)[:MOST_SAID].rstrip()
    return ""


def _calls_of(content: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    calls = [
        ToolCall(at=position, name=one_line(block["name"], 200)[:64])
        for position, block in enumerate(content)
        if block.get("type") == "tool_use"
    ]
    return tuple(calls[:MOST_CALLS])


def _empty(block: dict[str, Any]) -> bool:
    """Servers send such a block, but do not take it back."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()
