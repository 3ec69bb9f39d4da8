"""Answers that were paid for are never asked for again, and what broken streams have cost is not forgotten.

Written after the answer and before the activity returns: a worker that dies in between pays nothing at the next
attempt. A journal is also a run's recording, from which provider `replay` answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from typing import Any, TypeVar

from pydantic import ValidationError

from activities.agents.session import Session
from activities.store import Store
from specs.outcomes import Digest, Value

JOURNAL = "journal"  # `journal/<run>/<place>/<turn>-<roomier>`
LOST = "lost"  # apart from the journal, so that every name in there is an answer

_log = logging.getLogger(__name__)
_Kept = TypeVar("_Kept", bound=Value)


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


# Answers that were paid for and that the store would not take, by store and place: a full disk must not make every
# attempt pay once more.
_unwritten: dict[tuple[str, str], Entry] = {}


async def entry_at(store: Store, place: str) -> Entry | None:
    """None: nobody was asked yet, or what is there cannot be read and has to be asked for anew."""
    if (held := _unwritten.get((store.url, place))) is not None:
        return await write(store, place, held)
    name = f"{JOURNAL}/{place}"
    return _read(Entry, name, await store.recall(name))


async def write(store: Store, place: str, entry: Entry) -> Entry:
    """Returns the one that counts: of two workers that had the same turn and have both paid, the first one's."""
    name = f"{JOURNAL}/{place}"
    _unwritten[store.url, place] = entry
    first = _read(Entry, name, await store.recall(name))
    if first is not None and first.body == entry.body and first.message != entry.message:
        paid = Lost(model=entry.model, usage=entry.message["usage"])
        entry = first.model_copy(update={"lost": (*entry.lost, paid)})
    await store.remember(name, entry.model_dump_json().encode())
    _unwritten.pop((store.url, place), None)
    return entry


async def lose(store: Store, place: str, lost: Lost) -> None:
    await store.remember(f"{LOST}/{place}/{uuid.uuid4().hex}", lost.model_dump_json().encode())


async def lost_at(store: Store, place: str) -> tuple[Lost, ...]:
    names = await store.names(f"{LOST}/{place}")
    found = [_read(Lost, name, await store.recall(name)) for name in names]
    return tuple(one for one in found if one is not None)


def _read(kind: type[_Kept], name: str, content: bytes | None) -> _Kept | None:
    try:
        return None if content is None else kind.model_validate_json(content)
    except ValidationError:
        _log.warning("%s in the store is damaged and counts as not there", name)
        return None


def digest_of_body(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
