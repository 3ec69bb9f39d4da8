"""The body of a turn's request, and the user message that it appends."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from activities.agents.session import Session
from activities.agents.toolbox import schemas
from activities.agents.transcript import Message

MOST_TOKENS = 128_000  # of one answer, however much room is asked for
LOOK_BACK = 18  # blocks before a mark in which a server finds what it has kept: twenty, with some room

NOT_RUN = "This call was not run."

Block = dict[str, Any]


def user_message(answered: Message, answers: Sequence[Block], nudge: str) -> Message | None:
    """Answers to every call of the last message, run or not, then the nudge; None when there is nothing to say."""
    if not answers and not nudge:
        return None  # the first turn, or a server that wants the same transcript once more
    done = {answer["tool_use_id"] for answer in answers}
    # A call without an answer makes a transcript that no server accepts.
    missing = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": NOT_RUN, "is_error": True}
        for block in _blocks(answered)
        if block.get("type") == "tool_use" and block["id"] not in done
    ]
    said = [{"type": "text", "text": nudge}] if nudge else []
    return {"role": "user", "content": [*answers, *missing, *said]}


def body_of(
    session: Session, messages: Sequence[Message], *, model: str, max_tokens: int, drop: Collection[str]
) -> dict[str, Any]:
    """Tools and system first and the same all through a run, so that a server can keep what it has read of them."""
    cache = {"type": "ephemeral", "ttl": session.model.cache_ttl}
    marked = "cache_control" not in drop
    # An answer without a block cannot be sent back.
    said = [message for message in messages if message["content"]]
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "system": [{"type": "text", "text": session.system, "cache_control": cache}] if marked else session.system,
        "messages": _with_mark(said, cache) if marked else said,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": session.model.effort},
        "cache_control": cache,
    }
    if session.tools:
        body["tools"] = schemas(session.tools)
    return {key: value for key, value in body.items() if key not in drop}


def most_tokens(said: Any) -> int:
    """An upper bound: code and prose take more than three bytes a token."""
    return len(json.dumps(said, ensure_ascii=False).encode()) // 3


def _with_mark(messages: list[Message], cache: Block) -> list[Message]:
    """The end of the last request marked once more where the blocks since then are too many to look back over."""
    asked = [position for position, message in enumerate(messages) if message["role"] == "user"]
    if len(asked) < 2 or sum(len(_blocks(message)) for message in messages[asked[-2] + 1 :]) <= LOOK_BACK:
        return messages
    before = messages[asked[-2]]
    *others, last = _blocks(before)
    content = [*others, {**last, "cache_control": cache}]
    return [*messages[: asked[-2]], {**before, "content": content}, *messages[asked[-2] + 1 :]]


def _blocks(message: Message) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
