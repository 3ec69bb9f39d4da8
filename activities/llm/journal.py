"""Answers that were paid for are never asked for again, and what broken streams have cost is not forgotten.

Written after the answer and before the activity returns: a worker that dies in between pays nothing at the next
attempt. A journal is also a run's recording, from which provider `replay` answers.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

from activities.agents.session import Session
from activities.store import Store
from specs.outcomes import Digest, Value

JOURNAL = "journal"  # `journal/<run>/<place>/<turn>-<roomier>`
LOST = "lost"  # apart from the journal, so that every name in there is an answer


class Lost(Value):
    """A stream that broke after its server had begun to count."""

    model: str
    usage: dict[str, Any]


class Entry(Value):
    body: Digest  # of the whole request: another one must be asked anew
    newest: Digest  # of the newest user message, as replay.user_digest has it
    model: str  # as it was asked for
    message: dict[str, Any]
    request_id: str | None = None
    lost: tuple[Lost, ...] = ()
    drift: str = ""  # of a replay: how the prompt was not the recorded one


def place_of(session: Session, turn: int, roomier: int) -> str:
    """`<run>/<place>/<turn>-<roomier>`: no two turns of any run share it."""
    return f"{session.run}/{session.place}/{turn}-{roomier}"


async def entry_at(store: Store, place: str) -> Entry | None:
    content = await store.recall(f"{JOURNAL}/{place}")
    return None if content is None else Entry.model_validate_json(content)


async def write(store: Store, place: str, entry: Entry) -> None:
    await store.remember(f"{JOURNAL}/{place}", entry.model_dump_json().encode())


async def lose(store: Store, place: str, lost: Lost) -> None:
    await store.remember(f"{LOST}/{place}/{uuid.uuid4().hex}", lost.model_dump_json().encode())


async def lost_at(store: Store, place: str) -> tuple[Lost, ...]:
    found = [await store.recall(name) for name in await store.names(f"{LOST}/{place}")]
    return tuple(Lost.model_validate_json(content) for content in found if content is not None)


def digest_of_body(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
