"""The one way to a model: the Anthropic SDK over HTTP, without its retries, and what it returns is checked.

The SDK validates nothing. A proxy's login page comes back as a str, an answer of another API as an empty message, and
a stream that was cut as a message whose tool input is the beginning of what the model meant.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import httpx2
from pydantic_core import from_json

from activities import model_turn
from activities.llm.faults import Phase, UnfinishedMessage, classify, without
from activities.llm.local_server import DRIFT, TURN
from activities.llm.profiles import Profile, only_ours
from specs.errors import FerretError

CONNECT_S = 10.0
WRITE_S = 60.0
POOL_S = 30.0
MOST_BYTES = 64 * 2**20  # of one answer: the longest of a model has a few

Message = dict[str, Any]
Usage = dict[str, Any]

# One per profile: connections are kept, and to make a client takes longer than to use it. A script and a replay have an
# address for each of their turns, so the address is not part of the key.
_clients: dict[Profile, Any] = {}


@dataclass(slots=True)
class Attempt:
    """What is known of a call, and of a broken one too."""

    turn: str = "0-0"  # `<turn>-<roomier>` of its conversation
    request_id: str | None = None
    usage: Usage | None = None  # as far as a stream has told it: what a broken one has cost
    drift: str = ""  # how a replay's prompt differs from the recorded one


async def ask(profile: Profile, body: dict[str, Any], attempt: Attempt, total_s: float | None = None) -> Message:
    """One request and its finished message, as JSON. Raises ModelError. Neither holds a key or a header, whatever the
    server says; nor does what the attempt tells.
    """
    secrets = [profile.api_key, *profile.headers.values()]
    headers = {TURN: attempt.turn} if profile.numbers_turns else {}
    phase: Phase = "request"
    try:
        client = _client_for(profile)
        secrets.append(getattr(client, "api_key", None) or "")  # a cloud's client brings its own
        # A read timeout is the gap between two bytes: pings could keep a dead stream open for ever.
        async with asyncio.timeout(model_turn.TOTAL_S if total_s is None else total_s):
            if not profile.stream:
                answer = await client.messages.create(**body, extra_headers=headers)
                phase = "body"
                attempt.request_id = without(getattr(answer, "_request_id", None), secrets)
                return _finished(answer, secrets)
            async with client.messages.stream(**body, extra_headers=headers) as stream:
                phase = "body"
                attempt.request_id = without(stream.request_id, secrets)
                attempt.drift = without(stream.response.headers.get(DRIFT, ""), secrets)
                async for event in stream:
                    if event.type in ("message_start", "message_delta"):
                        usage = _as_json(stream.current_message_snapshot, secrets).get("usage")
                        attempt.usage = usage if isinstance(usage, dict) else None
                return _finished(stream.current_message_snapshot, secrets)
    except FerretError:
        raise
    except Exception as error:
        raise classify(error, phase, secrets) from None


async def close_all() -> None:
    """At the worker's end."""
    while _clients:
        _, client = _clients.popitem()
        await client.close()


def _client_for(profile: Profile) -> Any:
    if profile.client is not None:
        if profile not in _clients:
            _clients[profile] = _made_for(profile)
        return _clients[profile]
    key = replace(profile, base_url="")
    if key not in _clients:
        _clients[key] = _made_for(profile)
    return only_ours(_clients[key].with_options(base_url=profile.base_url), _headers(profile))


def _headers(profile: Profile) -> dict[str, str]:
    version = {} if profile.anthropic_version is None else {"anthropic-version": profile.anthropic_version}
    return {**profile.headers, **version}


def _made_for(profile: Profile) -> Any:
    timeout = httpx2.Timeout(connect=CONNECT_S, read=profile.read_timeout_s, write=WRITE_S, pool=POOL_S)
    headers = _headers(profile)
    options: dict[str, Any] = {
        "max_retries": 0,  # Temporal's job: it survives us
        "timeout": timeout,
        "default_headers": headers,
        "open_telemetry": False,  # whatever the environment says: a span could carry what was said
        "http_client": anthropic.DefaultAsyncHttpxClient(
            timeout=timeout,
            trust_env=profile.trust_env,
            # The SDK follows them by default, and x-api-key would go along to whatever host is named.
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            event_hooks={"response": [_bound]},
        ),
    }
    if profile.client is None:
        client: Any = anthropic.AsyncAnthropic(api_key=profile.api_key, base_url=profile.base_url, **options)
    else:
        client = profile.client(**options)
    return only_ours(client, headers)


async def _bound(response: httpx2.Response) -> None:
    """A server may send so much and no more, and nothing that grows when it is unpacked."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UnfinishedMessage("it is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                raise UnfinishedMessage(f"it has more than {MOST_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def _as_json(message: Any, secrets: Collection[str]) -> Message:
    found: Message = without(message.to_dict(mode="json", warnings=False), secrets)
    return found


def _finished(answer: Any, secrets: Collection[str]) -> Message:
    """Raises UnfinishedMessage for everything that the SDK takes for a message and that is none."""
    if not isinstance(answer, anthropic.types.Message):
        raise UnfinishedMessage(f"a message was expected, {type(answer).__name__} came: {answer}")
    message = _as_json(answer, secrets)
    if message.get("type") != "message" or not isinstance(message.get("content"), list):
        raise UnfinishedMessage(f"an answer of another API came, with {', '.join(sorted(message))}")
    if not message.get("stop_reason"):
        raise UnfinishedMessage("it has no stop_reason: it ended early")
    if not isinstance(message["stop_reason"], str):
        raise UnfinishedMessage("its stop_reason is no text")
    if not isinstance(message.get("usage"), dict):
        raise UnfinishedMessage("it does not say what it used")
    for block in message["content"]:
        if not isinstance(block, dict):
            raise UnfinishedMessage("one of its blocks is not an object")
        kind = block.get("type")
        if kind == "tool_use":
            _check_call(block)
        if kind == "tool_result":
            raise UnfinishedMessage("it holds an answer to a call, which is not the server's to give")
        if kind in ("text", "thinking") and not isinstance(block.get(kind), str):
            raise UnfinishedMessage(f"a block of {kind} holds none")
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
        from_json(b"[%b]" % text, allow_inf_nan=False)  # as deep as the journal has it
    except ValueError:  # half a surrogate pair, NaN, or nested too deeply: it could never be read back
        raise UnfinishedMessage("it holds what no JSON text can hold") from None
    return message


def _check_call(block: dict[str, Any]) -> None:
    if not isinstance(block.get("input"), dict):
        raise UnfinishedMessage("the input of a tool call is not an object")
    if not (isinstance(block.get("id"), str) and block["id"] and isinstance(block.get("name"), str)):
        raise UnfinishedMessage("a tool call has no id or no name")
