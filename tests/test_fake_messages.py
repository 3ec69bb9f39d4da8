"""The fake Messages server is as strict as the real one, and counts as it does."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from tests.fake_messages import Kept, Unacceptable, call, check, signature

MARK = {"type": "ephemeral", "ttl": "5m"}
CALL = {"type": "tool_use", "id": "t1", "name": "compile", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def words(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": [said("user", words("go")), *messages], **more}


def test_a_sound_transcript_is_taken() -> None:
    """Calls, their answers and a word after them."""
    check(body(said("assistant", words("ok"), CALL), said("user", RESULT, words("hurry"))))


@pytest.mark.parametrize(
    "wrong",
    [
        body(said("assistant", CALL), said("user", words("and?"))),
        body(said("assistant", CALL)),
        body(said("assistant", CALL), said("user", words("first"), RESULT)),
        body(said("assistant", words("ok")), said("user", RESULT)),
        body(said("assistant", CALL, CALL), said("user", RESULT)),
        body(said("assistant")),
        body(said("assistant", words(" "))),
        body(said("assistant", {"type": "thinking", "thinking": "hm", "signature": "forged"})),
        body(*(said("user", words("x", cache_control=MARK)) for _ in range(5))),
        body(said("user", words("x", cache_control={**MARK, "ttl": "1h"})), system=[words("s", cache_control=MARK)]),
        body(tools=[{"name": "a"}, {"name": "a"}]),
        {"model": "m", "max_tokens": 100, "messages": [said("assistant", words("hi"))]},
        {"model": "m", "messages": [said("user", words("go"))]},
    ],
)
def test_what_the_real_server_refuses_is_refused(wrong: dict[str, Any]) -> None:
    """A broken transcript fails in a test, not in somebody's run."""
    with pytest.raises(Unacceptable):
        check(wrong)


def test_thinking_belongs_to_what_stands_before_it() -> None:
    """A transcript that is edited is refused; new marks change nothing."""
    asked = body(system=[words("be quick")])
    thinking = {"type": "thinking", "thinking": "hm", "signature": signature(asked, 1, "hm")}
    answered = [*asked["messages"], said("assistant", thinking, words("ok"))]
    check({**asked, "messages": answered, "system": [words("be quick", cache_control=MARK)]})
    with pytest.raises(Unacceptable):
        check({**asked, "messages": answered, "system": [words("be slow")]})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def grown(turns: int, **more: Any) -> dict[str, Any]:
    messages = [said("assistant" if turn % 2 else "user", words(f"{turn:02} " * 2_000)) for turn in range(turns)]
    return {"model": "m", "max_tokens": 1, "messages": messages, "cache_control": MARK, **more}


def test_a_prefix_is_kept_until_its_time_is_over() -> None:
    """What was written is read; a use prolongs it."""
    clock = Clock()
    kept = Kept(clock)
    first = kept.usage(grown(1))
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (0, 0)
    clock.now = 299
    second = kept.usage(grown(3))
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    clock.now = 598
    assert kept.usage(grown(3))["cache_read_input_tokens"] == sum(
        usage["cache_creation_input_tokens"] for usage in (first, second)
    )
    clock.now = 900
    assert kept.usage(grown(3))["cache_read_input_tokens"] == 0


def test_a_prefix_is_not_found_when_it_is_another_or_too_far_back() -> None:
    """Twenty blocks before a mark, and every byte counts."""
    kept = Kept(Clock())
    kept.usage(grown(1))
    assert kept.usage(grown(1, system="other"))["cache_read_input_tokens"] == 0
    assert kept.usage(grown(20))["cache_read_input_tokens"] > 0
    far = Kept(Clock())
    far.usage(grown(1))
    assert far.usage(grown(22))["cache_read_input_tokens"] == 0


def test_nothing_short_is_kept() -> None:
    """Nor is anything without a mark."""
    kept = Kept(Clock())
    short = body(cache_control=MARK)
    assert kept.usage(short)["cache_creation_input_tokens"] == 0
    assert kept.usage({**grown(1), "cache_control": None})["cache_creation_input_tokens"] == 0


def as_process(asked: Any) -> Any:
    """The policy of the test below."""
    return call("compile", turn=asked.turns)


def test_it_runs_as_a_process() -> None:
    """With a policy by name; it tells what it was asked."""
    command = [sys.executable, "-m", "tests.fake_messages", "--policy", "tests.test_fake_messages:as_process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            content = json.dumps(body()).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/messages", content)) as response:
                message = json.load(response)
            assert message["content"][-1]["input"] == {"turn": 0}
            with urllib.request.urlopen(f"{url}/requests") as response:
                assert [asked["body"] for asked in json.load(response)] == [body()]
        finally:
            process.terminate()
