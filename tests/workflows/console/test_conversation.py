"""A conversation is read back from the store as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from activities.agents import transcript
from activities.agents.transcript import Message
from activities.store import Store
from specs.errors import UserError
from specs.outcomes import BlobRef, Chapter, Ending, Role
from tests.run_values import BLOB, make_history, make_line
from workflows.console.conversation import (
    MOST_ANSWER,
    MOST_INPUT,
    chapters_of,
    conversation_lines,
    is_iteration,
    read_back,
)

LONG = "\x1b[2J" + "e" * 9_000
MESSAGES: list[Message] = [
    {"role": "user", "content": "make it faster"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "B is read sixteen times", "signature": "s"},
            {"type": "text", "text": "I tile.\n\tfirst rows"},
            {"type": "tool_use", "id": "t1", "name": "write_kernel", "input": {"source": "x" * 5_000}},
            {"type": "tool_use", "id": "t2", "name": "compile", "input": {"strict": True}},
        ],
    },
]
ANSWERS: list[Message] = [
    {"type": "tool_result", "tool_use_id": "t1", "content": "written"},
    {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": LONG}], "is_error": True},
]
CHAPTER = Chapter(role=Role.OPTIMIZER, head=BLOB)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


async def told(store: Store, answers: list[Message]) -> Chapter:
    head: BlobRef | None = None
    for message in MESSAGES:
        head = await transcript.append(store, head, message)
    assert head is not None
    refs = [await store.put(json.dumps(answer).encode()) for answer in answers]
    return Chapter(role=Role.OPTIMIZER, head=head, answers=tuple(refs))


async def test_a_stretch_comes_back_whole(store: Store) -> None:
    """Every message, and the answers that ended it as the last one."""
    assert await read_back(store, await told(store, [])) == MESSAGES
    assert await read_back(store, await told(store, ANSWERS)) == [*MESSAGES, {"role": "user", "content": ANSWERS}]


async def test_a_person_reads_who_said_what(store: Store) -> None:
    """Text and thinking whole, calls by name with their inputs, answers by the call that they answer."""
    chapter = await told(store, ANSWERS)
    lines = [line.plain for line in conversation_lines(chapter, await read_back(store, chapter))]

    assert lines[0] == "optimizer: 3 messages"
    for line in (
        "[1] user",
        "    make it faster",
        "[2] assistant",
        "    (thinking) B is read sixteen times",
        "    I tile.",
        "    \tfirst rows",
        "    call write_kernel",
        "    call compile",
        "        strict: true",
        "[3] user",
        "    write_kernel answered",
        "        written",
        "    compile answered with an error",
    ):
        assert line in lines


def test_long_inputs_and_answers_are_cut_in_the_middle() -> None:
    """A kernel of a thousand lines does not hide what was said of it, and commands no terminal."""
    messages = [*MESSAGES, {"role": "user", "content": ANSWERS}]
    text = "\n".join(line.plain for line in conversation_lines(CHAPTER, messages))

    assert text.count("characters left out") == 2
    assert text.count("x") < MOST_INPUT + 100
    assert text.count("e") < MOST_ANSWER + 200
    assert "\x1b" not in text


def test_a_block_that_nobody_knows_is_named() -> None:
    """A newer server may send one; it is no reason to show nothing."""
    blocks = [{"type": "redacted_thinking", "data": "?"}, {"type": "thinking", "thinking": ""}]
    lines = [line.plain for line in conversation_lines(CHAPTER, [{"role": "assistant", "content": blocks}])]

    assert lines[-2:] == ["    (redacted_thinking)", "    (thinking) not shown"]


def test_conversations_are_found_by_version_index_or_as_the_last() -> None:
    """Those that the gate has come of have a word of their own."""
    asked = make_line(4, "a003", Ending.SLOWER, "tiles", "slower", chapters=(CHAPTER,))
    last = make_line(5, "v003", Ending.WIN, "rows", "faster", chapters=(CHAPTER, CHAPTER))
    lines = [*make_history(), asked, last]

    assert chapters_of(lines, [], "a003") == ("a003", [CHAPTER])
    assert chapters_of(lines, [], "4") == ("a003", [CHAPTER])
    assert chapters_of(lines, [CHAPTER], "gate") == ("gate", [CHAPTER])
    assert chapters_of(lines, [CHAPTER], None) == ("v003", [CHAPTER, CHAPTER])
    assert chapters_of([], [CHAPTER], None) == ("gate", [CHAPTER])


def test_an_iteration_without_a_conversation_is_answered_with_those_that_have_one() -> None:
    """A seed was never talked about; a scripted run may have nothing to read at all."""
    asked = make_line(4, "a003", Ending.SLOWER, "tiles", "slower", chapters=(CHAPTER,))
    with pytest.raises(UserError, match=r"no conversation of 'v001' in this run; accepted: a003$"):
        chapters_of([*make_history(), asked], [], "v001")
    with pytest.raises(UserError, match=r"no conversation of '999.*' in this run; accepted: a003$"):
        chapters_of([*make_history(), asked], [], "9" * 5_000)
    with pytest.raises(UserError, match="no conversation of this run has ended yet"):
        chapters_of(make_history(), [], None)


@pytest.mark.parametrize(
    ("word", "answer"),
    [("7", True), ("a003", True), ("v001", True), ("gate", True), ("axpy", False), ("gate-1", False)],
)
def test_one_word_says_run_or_iteration(word: str, answer: bool) -> None:
    """By its shape."""
    assert is_iteration(word) is answer
