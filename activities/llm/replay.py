"""Provider `replay`: a run's recorded answers are given once more, and a prompt that differs is told.

A recording is a text file: a header, then a line for each turn of a model. `client.py recording` writes it from the
journal, in which every answer stands before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from activities.bundle import unpack
from activities.settings import Settings
from activities.store import Store
from specs.errors import UserError
from specs.outcomes import BlobRef, Digest, Value

_Line = TypeVar("_Line", bound=Value)
Turn = tuple[str, int, int]  # place, turn, how often it was asked for anew with more room


class Unplayable(Exception):
    """There is no answer to give; the message is one line."""


class Header(Value):
    format: Literal["ferret recording"] = "ferret recording"
    version: Literal[1] = 1
    task: str = ""
    run: str


class RecordedTurn(Value):
    place: str  # as in the session: `iter-007/optimizer/0`
    turn: int = Field(ge=0)
    roomier: int = Field(ge=0, default=0)
    user: Digest  # of the newest user message: user_digest
    message: dict[str, Any]
    request_id: str | None = None


class Recording(Value):
    header: Header
    turns: tuple[RecordedTurn, ...]

    def at(self, place: str, turn: int, roomier: int) -> RecordedTurn | None:
        return next((one for one in self.turns if (one.place, one.turn, one.roomier) == (place, turn, roomier)), None)


# ---------------------------------------------------------------- digests

# Figures differ from run to run although nothing else does; a digit inside a name (`float4`) is no figure.
_FIGURE = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?|(?<![\w.])[-+]?\.\d+")
_SPACE = re.compile(r"\s+")  # a table's columns move with its figures


def user_digest(message: dict[str, Any]) -> str:
    """Of a user message as it would be in any other run: marks for caching are left out, figures are all the same."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    canonical = json.dumps(_canonical(blocks), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def newest_user(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The last message that is a user's; raises Unplayable when there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return dict(message)
    raise Unplayable("the request has no message of a user")


def _canonical(value: Any) -> Any:
    match value:
        case str():
            return _SPACE.sub(" ", _FIGURE.sub("#", value)).strip()
        case dict():
            # A call's id comes from the recorded answer and has to be that one.
            return {
                key: inner if key == "tool_use_id" else _canonical(inner)
                for key, inner in value.items()
                if key != "cache_control"
            }
        case list():
            return [_canonical(inner) for inner in value]
        case bool() | None:
            return value
        case int() | float():
            return "#"
    return value


# ---------------------------------------------------------------- files


async def write_recording(store: Store, run: str, task: str = "") -> bytes:
    """Every answer in the run's journal, in order. Raises UserError when there is none."""
    from activities.llm.journal import JOURNAL, Entry

    prefix = f"{JOURNAL}/{run}"
    turns = []
    for name in await store.names(prefix):
        content = await store.recall(name)
        if content is None:
            continue  # taken away since
        try:
            entry = Entry.model_validate_json(content)
        except ValidationError:
            raise UserError(
                f"{name} in {store.url} is damaged, so that the run cannot be recorded whole; accepted: a run whose "
                "answers can all be read"
            ) from None
        place, turn, roomier = _split(name.removeprefix(f"{prefix}/"))
        turns.append(
            RecordedTurn(
                place=place,
                turn=turn,
                roomier=roomier,
                user=entry.newest,
                message=entry.message,
                request_id=entry.request_id,
            )
        )
    if not turns:
        raise UserError(f"run {run} has no answer of a model in {store.url}; accepted: a run that has asked one")
    turns.sort(key=lambda one: (one.place, one.turn, one.roomier))
    lines = [Header(task=task, run=run).model_dump_json(), *(one.model_dump_json() for one in turns)]
    return "".join(f"{line}\n" for line in lines).encode()


def read_recording(content: bytes) -> Recording:
    """Raises UserError with the line that cannot be read."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"line {at}: not UTF-8 text; accepted: a file that `client.py recording` wrote") from None
    header = _parsed(Header, lines[0], 1)
    turns: dict[Turn, RecordedTurn] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        turn = _parsed(RecordedTurn, line, number)
        key = (turn.place, turn.turn, turn.roomier)
        if key in turns:
            raise UserError(f"line {number}: turn {turn.turn} of {turn.place} stands in the file twice; accepted: once")
        _check_message(turn.message, number)
        turns[key] = turn
    if not turns:
        raise UserError("line 2: no turn follows the header; accepted: at least one")
    return Recording(header=header, turns=tuple(turns.values()))


def _check_message(message: dict[str, Any], number: int) -> None:
    """What a stream of it could not be made of."""
    blocks = message.get("content")
    wanted = {"text": ("text",), "thinking": ("thinking", "signature"), "tool_use": ("id", "name", "input")}
    whole = (
        isinstance(message.get("id"), str)
        and isinstance(message.get("usage"), dict)
        and isinstance(message.get("stop_reason"), str)
        and isinstance(blocks, list)
        and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks)
        and all(key in block for block in blocks for key in wanted.get(block["type"], ()))
    )
    if not whole:
        raise UserError(f"line {number}: message: not a finished answer of a model; accepted: the recorded one, whole")


def _parsed(kind: type[_Line], line: str, number: int) -> _Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: " if where else ""
        raise UserError(
            f"line {number}: {what}{first['msg']}; accepted: a line that `client.py recording` wrote"
        ) from None


def _split(name: str) -> Turn:
    """`iter-007/optimizer/0/3-0` in the journal."""
    place, _, last = name.rpartition("/")
    turn, _, roomier = last.partition("-")
    return place, int(turn), int(roomier)


# ---------------------------------------------------------------- answering


async def answer(
    settings: Settings, ref: BlobRef, place: str, turn: str, messages: list[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """The recorded message, and how the prompt differs from the recorded one. Raises Unplayable."""
    if not re.fullmatch(r"\d+-\d+", turn):
        raise Unplayable(f"turn {turn!r} of {place} is no `<turn>-<roomier>`")
    number, roomier = map(int, turn.split("-"))
    bundle = await unpack(ref, Store.of(settings), settings.bundles)
    recorded = _recording(bundle.recording).at(place, number, roomier)
    if recorded is None:
        again = f" after {roomier} that were cut" if roomier else ""
        raise Unplayable(f"the recording has no turn {number} of {place}{again}")
    drift = ""
    if user_digest(newest_user(messages)) != recorded.user:
        drift = f"replay drift at turn {number} of {place}: the prompt is not the one that was recorded"
        if bundle.task.model.on_drift == "stop":
            raise Unplayable(drift)
    return dict(recorded.message), drift


@lru_cache(maxsize=4)
def _recording(path: Path) -> Recording:
    """A bundle's files never change."""
    return read_recording(path.read_bytes())
