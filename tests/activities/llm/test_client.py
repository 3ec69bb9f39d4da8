"""The one way to a model: what comes back whole, and what is left behind when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from activities.llm import client
from activities.llm.journal import Entry
from specs.errors import ModelError, ModelFault
from tests.activities.llm.sessions import KEY, profile_at
from tests.fake_messages import FakeMessages, Reply, called, fault, reply, spoken, text, thought
from tests.fakes import until

BODY: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 1024,
    "messages": [{"role": "user", "content": "Go on."}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[FakeMessages]:
    async with FakeMessages() as running:
        yield running
        await client.close_all()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_finished_message_comes_back_as_it_was_sent(server: FakeMessages, stream: bool) -> None:
    """Thinking with its signature, words and calls: it has to go out again unchanged."""
    server.push(
        reply(thought("Wide loads."), spoken("I try it."), called("edit_kernel", old="a", new="b\n\u00e9" * 99))
    )
    attempt = client.Attempt()
    message = await client.ask(profile_at(server.url, stream=stream), BODY, attempt)
    thinking, words, call = message["content"]
    assert thinking["signature"]
    assert words == {"type": "text", "text": "I try it."}
    assert call["input"] == {"old": "a", "new": "b\n\u00e9" * 99}
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] > 100
    assert attempt.request_id
    again = [*BODY["messages"], {"role": "assistant", "content": message["content"]}]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "done"}]
    await client.ask(
        profile_at(server.url, stream=stream),
        {**BODY, "messages": [*again, {"role": "user", "content": results}]},
        attempt,
    )


async def test_a_profile_decides_what_goes_out(server: FakeMessages) -> None:
    """Version and headers of its own, and the key as a bearer's."""
    profile = profile_at(server.url, anthropic_version="2023-06-01", headers={"x-team": "kernels"})
    await client.ask(profile, BODY, client.Attempt(turn="3-1"))
    headers = server.requests[-1].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (headers["anthropic-version"], headers["x-team"]) == ("2023-06-01", "kernels")
    assert "x-ferret-turn" not in headers


async def test_a_server_of_ours_is_told_which_turn_is_asked_for(server: FakeMessages) -> None:
    """A replay answers by it."""
    await client.ask(profile_at(server.url, numbers_turns=True), BODY, client.Attempt(turn="3-1"))
    assert server.requests[-1].headers["x-ferret-turn"] == "3-1"


async def test_a_profile_has_one_client(server: FakeMessages) -> None:
    """Its connections are used again, and are closed at the end."""
    await client.close_all()
    for _ in range(3):
        await client.ask(profile_at(server.url), BODY, client.Attempt())
    assert len(client._clients) == 1
    (made,) = client._clients.values()
    await client.close_all()
    assert made.is_closed()
    assert not client._clients


@pytest.mark.parametrize("kind", ["silence", "stall_midway", "pings"])
async def test_a_cancelled_call_hangs_up(server: FakeMessages, kind: str) -> None:
    """A server that goes on writing would go on counting."""
    server.hung_up.clear()
    before = len(server.requests)
    server.push(fault(kind))
    asking = asyncio.create_task(client.ask(profile_at(server.url), BODY, client.Attempt()))
    await until(lambda: len(server.requests) > before, "it is asked")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(10):
        await server.hung_up.wait()


async def test_the_environment_does_not_choose_the_server(
    server: FakeMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the key."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-from-the-environment: 1")
    await client.close_all()
    server.push(text("hello"))
    await client.ask(profile_at(server.url), BODY, client.Attempt())
    headers = server.requests[-1].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "x-from-the-environment" not in headers


async def test_what_no_json_can_hold_is_no_finished_message(server: FakeMessages) -> None:
    """It could never be stored or sent back."""
    server.push(text("half \ud83d"))
    with pytest.raises(ModelError, match="no JSON text can hold"):
        await client.ask(profile_at(server.url, stream=False), BODY, client.Attempt())


def nested(depth: int) -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"in": deep}
    return deep


@pytest.mark.parametrize(
    "step",
    [
        reply({"type": "text", "text": 5}),
        reply({"type": "thinking", "thinking": None}),
        reply({"type": "tool_result", "content": "done"}),
        text("ok", stop_reason=["end_turn"]),
        *(reply(called("note", text=nested(depth))) for depth in (196, 230, 300, 700)),
    ],
)
async def test_a_message_of_the_wrong_types_is_none(server: FakeMessages, step: Reply) -> None:
    """Nor is one that the journal could not hold: whatever comes later would fail on it, and pay for it again."""
    server.push(step)
    with pytest.raises(ModelError) as caught:
        await client.ask(profile_at(server.url, stream=False), BODY, client.Attempt())
    assert (caught.value.kind, caught.value.attempt_cap) == (ModelFault.BAD_RESPONSE, 5)


async def test_a_deep_message_that_comes_through_can_be_kept(server: FakeMessages) -> None:
    """Deeper than any tool's input."""
    server.push(reply(called("note", text=nested(180))))
    message = await client.ask(profile_at(server.url, stream=False), BODY, client.Attempt())
    entry = Entry(body="a" * 64, newest="b" * 64, model="any", message=message)
    assert Entry.model_validate_json(entry.model_dump_json()) == entry


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_key_follows_no_redirect(server: FakeMessages, stream: bool, status: int) -> None:
    """The SDK would take x-api-key along to any host."""
    async with FakeMessages() as elsewhere:
        server.push(fault(status, headers={"location": f"{elsewhere.url}/v1/messages"}))
        with pytest.raises(ModelError) as caught:
            await client.ask(profile_at(server.url, stream=stream), BODY, client.Attempt())
        assert elsewhere.requests == []
    assert (caught.value.kind, caught.value.retryable) == (ModelFault.CONFIG, False)
    assert f"HTTP {status}: it redirects" in str(caught.value)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_cannot_send_without_end(
    server: FakeMessages, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what becomes large when it is unpacked."""
    server.push(fault(200, headers={"content-encoding": "gzip"}))
    with pytest.raises(ModelError, match="compressed") as packed:
        await client.ask(profile_at(server.url, stream=stream), BODY, client.Attempt())
    assert server.requests[-1].headers["accept-encoding"] == "identity"
    monkeypatch.setattr(client, "MOST_BYTES", 5_000)
    server.push(text("word " * 2_000))
    with pytest.raises(ModelError, match="more than 5000 bytes") as long:
        await client.ask(profile_at(server.url, stream=stream), BODY, client.Attempt())
    assert packed.value.kind is long.value.kind is ModelFault.BAD_RESPONSE
