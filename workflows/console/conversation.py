"""A conversation with a model as a person reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from activities.agents import transcript
from activities.agents.tools.tool import clipped
from activities.agents.transcript import Message
from activities.store import Store
from specs.errors import UserError
from specs.outcomes import Chapter
from workflows.console.lines import printable_source
from workflows.state import HistoryLine

GATE = "gate"  # the word for the conversations that a gate has come of
MOST_INPUT = 1_200  # characters of a call's input
MOST_ANSWER = 2_000


def chapters_of(lines: Sequence[HistoryLine], gate: Sequence[Chapter], word: str | None) -> tuple[str, list[Chapter]]:
    """The conversations of an iteration, by version or index, or of the gate; None: the last there are.

    Raises UserError that names what there is.
    """
    held = {GATE: list(gate)} | {line.version: list(line.chapters) for line in lines}
    held = {name: chapters for name, chapters in held.items() if chapters}
    if not held:
        raise UserError("no conversation of this run has ended yet, or it asks no model")
    if word is None:
        name = list(held)[-1]
    else:
        index = int(word) if word.isdecimal() and len(word) < 20 else None
        name = next((line.version for line in lines if line.index == index), word)
    if name not in held:
        raise UserError(f"no conversation of {word!r} in this run; accepted: {', '.join(held)}")
    return name, held[name]


def is_iteration(word: str) -> bool:
    """Whether a word says which iteration, rather than which run."""
    return word == GATE or word.isdecimal() or (word[:1] in ("v", "a") and word[1:].isdecimal())


async def read_back(store: Store, chapter: Chapter) -> list[Message]:
    """All messages of a stretch, first one first; the answers that ended it are the last. Raises StoreError."""
    messages = await transcript.messages(store, chapter.head)
    if chapter.answers:
        blocks = [json.loads(await store.get(answer)) for answer in chapter.answers]
        messages.append({"role": "user", "content": blocks})
    return messages


def conversation_lines(chapter: Chapter, messages: Sequence[Message]) -> Iterator[Text]:
    """Role, text, thinking, calls and answers; inputs and answers are cut where they are long."""
    yield Text(f"{chapter.role.value.replace('_', ' ')}: {len(messages)} messages", style="bold")
    names: dict[str, str] = {}
    for number, message in enumerate(messages, 1):
        yield Text()
        yield Text(f"[{number}] {message['role']}", style="bold cyan" if message["role"] == "assistant" else "bold")
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield from _block(block, names)


def _block(block: dict[str, Any], names: dict[str, str]) -> Iterator[Text]:
    match block.get("type"):
        case "text":
            yield from _indented(block["text"])
        case "thinking":
            yield from _indented(f"(thinking) {block['thinking'] or 'not shown'}", "dim italic")
        case "tool_use":
            names[block["id"]] = block["name"]
            yield Text(printable_source(f"    call {block['name']}"), style="yellow")
            for name, value in block["input"].items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield from _indented(f"{name}: {clipped(text, MOST_INPUT)}", "yellow", 8)
        case "tool_result":
            name, wrong = names.get(block["tool_use_id"], "a call"), bool(block.get("is_error"))
            style = "red" if wrong else "green"
            yield Text(printable_source(f"    {name} answered{' with an error' if wrong else ''}"), style=style)
            yield from _indented(clipped(_answered(block.get("content", "")), MOST_ANSWER), style, 8)
        case kind:
            yield from _indented(f"({kind})", "dim")


def _answered(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def _indented(text: str, style: str = "", by: int = 4) -> Iterator[Text]:
    for line in printable_source(text).splitlines():
        yield Text(" " * by + line, style=style)
