"""A server that speaks the Messages API as the real one does, and breaks in every way that a server or a network can.

    async with FakeMessages(policy) as server:      # server.url, server.requests
        server.push(fault(429, retry_after_ms=20), call("read_kernel"))

What is answered: the next pushed step, else `policy(request)`, else "ok". A step is a Reply (`text`, `call`, `reply`)
or a Fault (`fault`). A policy is a function of the request alone: it answers a repeated request in the same way.
As a process: `python -m tests.fake_messages [--policy module:function] [--port N]`; its first line is its address, and
GET /requests gives what it was asked.

It writes raw HTTP/1.1, so that every fault can be made. It refuses the transcripts that the real one refuses (calls
without answers, thinking that does not belong to what stands before it, ...), and it counts tokens as if it kept
prefixes at the marks, four bytes a token, so that the cost of a conversation can be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import itertools
import json
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

Block = dict[str, Any]
Event = tuple[str, dict[str, Any]]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
MOST_MARKS = 4
LOOK_BACK = 20  # blocks before a mark in which a kept prefix is found
FEWEST_KEPT = 1_024  # tokens of the shortest prefix that is kept
SECONDS_OF = {"5m": 300.0, "1h": 3_600.0}
PIECE = 16  # characters of a delta


# ---------------------------------------------------------------- what it is asked and what it answers


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", ()))

    @property
    def answers(self) -> list[Block]:
        """The tool results of the newest message."""
        return [block for block in blocks_of(self.messages[-1]) if block["type"] == "tool_result"]

    @property
    def turns(self) -> int:
        """How often the model has spoken before."""
        return sum(message["role"] == "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished message. Ids of calls and signatures of thinking are added."""

    content: tuple[Block, ...]
    stop_reason: str | None = None  # None: tool_use where there is a call, else end_turn
    stop_details: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)  # instead of what was counted
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` is a status or one of FAULTS."""

    kind: int | str
    type: str | None = None  # of the error; None: what belongs to the status
    code: str | None = None
    message: str = "made up by the fake server"
    headers: dict[str, str] = field(default_factory=dict)
    html: bool = False


Step = Reply | Fault
Policy = Callable[[Asked], Step]

FAULTS = (
    "reset",  # before a status line
    "silence",  # nothing ever comes
    "reset_midway",
    "close_midway",  # the connection ends where more was promised
    "stall_midway",
    "pings",  # a stream that lives and says nothing
    "cut",  # a stream that ends in good order, but before the message does
    "cut_in_call",  # ... in the middle of a call's input
    "error_event",
    "broken_event",  # no JSON in a stream
    "broken_call",  # a call's input is no JSON
    "nameless_events",
    "broken_json",
    "empty",
    "html",
    "other_api",
    "list",
    "other_form",  # a stream instead of JSON, JSON instead of a stream
    "no_stop_reason",
    "no_usage",
    "input_is_text",
)


def text(words: str, **more: Any) -> Reply:
    return Reply(({"type": "text", "text": words},), **more)


def call(name: str, /, **given: Any) -> Reply:
    """A message that thinks, says a word, and calls one tool."""
    return reply(thought(f"I need {name}."), spoken("Next step."), called(name, **given))


def reply(*content: Block, **more: Any) -> Reply:
    return Reply(content, **more)


def spoken(words: str) -> Block:
    return {"type": "text", "text": words}


def thought(words: str) -> Block:
    return {"type": "thinking", "thinking": words}


def called(name: str, /, **given: Any) -> Block:
    return {"type": "tool_use", "name": name, "input": given}


def fault(
    kind: int | str,
    *,
    retry_after: float | str | None = None,
    retry_after_ms: float | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Fault:
    named = {"retry-after": retry_after, "retry-after-ms": retry_after_ms}
    said = {name: str(value) for name, value in named.items() if value is not None}
    return Fault(kind, headers={**said, **(headers or {})}, **more)


def blocks_of(message: dict[str, Any]) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


# ---------------------------------------------------------------- what the real server refuses


class Unacceptable(Exception):
    """A request that the real server answers with 400."""


def check(body: dict[str, Any]) -> None:
    if not isinstance(body.get("model"), str) or not isinstance(body.get("max_tokens"), int):
        raise Unacceptable("model, max_tokens: Field required")
    messages = body.get("messages")
    if not messages or messages[0].get("role") != "user":
        raise Unacceptable('messages: first message must use the "user" role')
    names = [tool["name"] for tool in body.get("tools") or ()]
    if len(names) != len(set(names)):
        raise Unacceptable("tools: Tool names must be unique.")
    _check_messages(body)
    _check_marks(body)


def _check_messages(body: dict[str, Any]) -> None:
    pending: list[str] = []
    known: set[str] = set()
    for at, message in enumerate(body["messages"]):
        blocks = blocks_of(message)
        if not blocks:
            raise Unacceptable(f"messages.{at}: all messages must have non-empty content")
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            raise Unacceptable(f"messages.{at}: text content blocks must contain non-whitespace text")
        if message["role"] == "user":
            _check_answers(at, blocks, pending)
            pending = []
            continue
        if pending:
            raise Unacceptable(f"messages.{at}: `tool_use` ids were found without `tool_result` blocks: {pending}")
        pending = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if known & set(pending) or len(pending) != len(set(pending)):
            raise Unacceptable(f"messages.{at}: `tool_use` ids must be unique")
        known.update(pending)
        for block in blocks:
            if block["type"] == "thinking" and block.get("signature") != signature(body, at, block["thinking"]):
                raise Unacceptable(f"messages.{at}: `thinking` block was changed or does not belong to this prefix")
    if pending:
        raise Unacceptable(f"messages: `tool_use` ids were found without `tool_result` blocks: {pending}")


def _check_answers(at: int, blocks: list[Block], pending: list[str]) -> None:
    kinds = [block["type"] == "tool_result" for block in blocks]
    if kinds != sorted(kinds, reverse=True):
        raise Unacceptable(f"messages.{at}: `tool_result` blocks must come first")
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if sorted(answered) != sorted(pending):
        raise Unacceptable(f"messages.{at}: `tool_result` blocks for {answered}, but `tool_use` ids are {pending}")


def _check_marks(body: dict[str, Any]) -> None:
    marks = [block["cache_control"] for block in _prefix(body) if block.get("cache_control")]
    if len(marks) > MOST_MARKS:
        raise Unacceptable(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}.")
    lives = [mark.get("ttl", "5m") for mark in marks]
    if lives != sorted(lives):  # "1h" sorts before "5m"
        raise Unacceptable("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


def signature(body: dict[str, Any], at: int, thinking: str) -> str:
    """Of thinking in message `at`: bound to all that stands before that message, as current models bind theirs."""
    before = [_bare(block) for block in _prefix({**body, "messages": body["messages"][:at]})]
    return _digest([body["model"], before, thinking])


# ---------------------------------------------------------------- what is kept of a prefix


def tokens_of(value: Any) -> int:
    return max(
        1,
        len(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))
        // 4,
    )


def _prefix(body: dict[str, Any]) -> list[Block]:
    """Every block in the order in which it is read, its place with it; the request's own mark is on the last one."""
    system = body.get("system") or []
    found = [{**tool, "@": "tools"} for tool in body.get("tools") or ()]
    found += [{**block, "@": "system"} for block in blocks_of({"content": system})]
    for message in body["messages"]:
        found += [{**block, "@": message["role"]} for block in blocks_of(message)]
    if body.get("cache_control") and found and not found[-1].get("cache_control"):
        found[-1]["cache_control"] = body["cache_control"]
    return found


def _bare(block: Block) -> Block:
    return {key: value for key, value in block.items() if key != "cache_control"}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Kept:
    """The prefixes that the server remembers, each until its time is over; a use prolongs it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, tuple[float, float]] = {}  # digest of a prefix: when it ends, and its life

    def usage(self, body: dict[str, Any]) -> dict[str, Any]:
        blocks = _prefix(body)
        digests, sizes, rolling = [], [], hashlib.sha256(body["model"].encode())
        for block in blocks:
            bare = _bare(block)
            rolling.update(json.dumps(bare, sort_keys=True).encode())
            digests.append(rolling.hexdigest())
            sizes.append(tokens_of({key: value for key, value in bare.items() if key != "@"}))
        upto = list(itertools.accumulate(sizes))
        marks = [at for at, block in enumerate(blocks) if block.get("cache_control")]
        read_to = max((self._found(digests, mark) for mark in marks), default=-1)
        read = upto[read_to] if read_to >= 0 else 0
        written, end = {"5m": 0, "1h": 0}, read
        for mark in marks:
            if upto[mark] < FEWEST_KEPT:
                continue
            life = blocks[mark]["cache_control"].get("ttl", "5m")
            written[life] += max(0, upto[mark] - end)
            end = max(end, upto[mark])
            self._until[digests[mark]] = (self._clock() + SECONDS_OF[life], SECONDS_OF[life])
        return {
            "input_tokens": (upto[-1] if upto else 0) - end,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written["5m"] + written["1h"],
            "cache_creation": {
                "ephemeral_5m_input_tokens": written["5m"],
                "ephemeral_1h_input_tokens": written["1h"],
            },
        }

    def _found(self, digests: list[str], mark: int) -> int:
        for at in range(mark, max(-1, mark - LOOK_BACK), -1):
            until, life = self._until.get(digests[at], (0.0, 0.0))
            if until > self._clock():
                self._until[digests[at]] = (self._clock() + life, life)
                return at
        return -1


# ---------------------------------------------------------------- the server


class FakeMessages:
    def __init__(
        self, policy: Policy | None = None, *, clock: Callable[[], float] = time.monotonic, lenient: bool = False
    ) -> None:
        self.requests: list[Asked] = []  # to /v1/messages, refused ones too
        self.hung_up = asyncio.Event()  # somebody has closed the connection without waiting for the answer
        self.url = ""
        self._policy: Policy = policy or (lambda _: text("ok"))
        self._steps: deque[Step] = deque()
        self._kept = Kept(clock)
        self._lenient = lenient  # takes any transcript
        self._ids = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def push(self, *steps: Step) -> None:
        """Answered before the policy is asked, in this order."""
        self._steps.extend(steps)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**26)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (asked := await _read(reader)) is not None:
                if not await self._answer(asked, _Line(reader, writer, self.hung_up)):
                    return
        except ConnectionError:
            self.hung_up.set()
        except asyncio.CancelledError:
            pass  # by stop(); asyncio's own callback would complain of it
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, asked: Asked, line: _Line) -> bool:
        """Whether the connection can be used again."""
        if asked.path == "/requests":
            listed = [{"path": one.path, "headers": one.headers, "body": one.body} for one in self.requests]
            return await line.json(200, listed)
        if asked.path == "/v1/messages/count_tokens":
            return await line.json(200, {"input_tokens": sum(tokens_of(_bare(one)) for one in _prefix(asked.body))})
        if asked.method != "POST" or asked.path != "/v1/messages":
            return await line.error(404, Fault(404, message=f"no such address: {asked.path}"))
        self.requests.append(asked)
        step = self._steps.popleft() if self._steps else None
        if isinstance(step, Fault):
            return await self._fail(step, asked.body, line)
        if not self._lenient:
            try:
                check(asked.body)
            except Unacceptable as error:
                return await line.error(400, Fault(400, message=str(error)))
        step = step or self._policy(asked)
        if isinstance(step, Fault):
            return await self._fail(step, asked.body, line)
        if step.delay_s and await line.gone_within(step.delay_s):
            return False
        message = self._message(step, asked.body)
        if asked.body.get("stream"):
            return await line.events(_events(message))
        return await line.json(200, message)

    def _message(self, step: Reply, body: dict[str, Any]) -> dict[str, Any]:
        content: list[Block] = []
        for block in step.content:
            made = {}
            if block["type"] == "tool_use":
                made = {"id": f"toolu_{next(self._ids):06d}_{_digest(body)[:8]}"}
            if block["type"] == "thinking":
                made = {"signature": signature(body, len(body["messages"]), block["thinking"])}
            content.append({**made, **block})
        calls = any(block["type"] == "tool_use" for block in content)
        counted = {**self._kept.usage(body), "output_tokens": sum(map(tokens_of, content)), "service_tier": "standard"}
        return {
            "id": f"msg_{next(self._ids):06d}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": step.stop_reason or ("tool_use" if calls else "end_turn"),
            "stop_sequence": None,
            "stop_details": step.stop_details,
            "usage": {**counted, **step.usage},
        }

    async def _fail(self, step: Fault, body: dict[str, Any], line: _Line) -> bool:
        if isinstance(step.kind, int):
            return await line.error(step.kind, step)
        if step.kind == "reset":
            return line.reset()
        if step.kind == "silence":
            await line.gone()
            return False
        whole = self._message(call("edit_kernel", old="int a;", new="int b = 0;" * 8), body)
        if step.kind in _SHAPES:
            return await line.body(200, *_SHAPES[step.kind])
        if step.kind in _TWISTS:
            whole = _TWISTS[step.kind](whole)
            return await (line.events(_events(whole)) if body.get("stream") else line.json(200, whole))
        if step.kind == "other_form":
            return await (line.json(200, whole) if body.get("stream") else line.events(_events(whole)))
        if body.get("stream"):
            return await _fail_in_stream(step, _events(whole), line)
        return await _fail_in_body(step, json.dumps(whole).encode(), line)


async def _fail_in_stream(step: Fault, events: list[Event], line: _Line) -> bool:
    if step.kind == "nameless_events":
        return await line.frames(f"data: {json.dumps(data)}\n\n" for _, data in events)
    in_call = [at for at, (_, data) in enumerate(events) if data.get("delta", {}).get("type") == "input_json_delta"]
    frames = [_frame(*event) for event in events]
    until = {"cut_in_call": in_call[-1], "broken_call": in_call[0]}.get(str(step.kind), len(frames) // 2)
    async with line.stream() as send:
        for frame in frames[:until]:
            await send(frame)
        match step.kind:
            case "cut" | "cut_in_call":
                pass
            case "error_event":
                error = {"type": step.type or "overloaded_error", "message": step.message}
                await send(_frame("error", {"type": "error", "error": error}))
            case "broken_event":
                await send("event: content_block_delta\ndata: {no json\n\n")
            case "broken_call":
                name, data = events[in_call[0]]
                await send(_frame(name, {**data, "delta": {"type": "input_json_delta", "partial_json": '{"old": ]]'}}))
                for frame in frames[in_call[-1] + 1 :]:
                    await send(frame)
            case "pings":
                while not await line.gone_within(0.02):
                    await send(_frame("ping", {"type": "ping"}))
                return False
            case _:
                return await _break(step.kind, line)
    return False


async def _fail_in_body(step: Fault, content: bytes, line: _Line) -> bool:
    line.head(200, {"content-type": "application/json", "content-length": str(len(content))})
    await line.raw(content[: len(content) // 2])
    return await _break(step.kind, line)


async def _break(kind: int | str, line: _Line) -> bool:
    match kind:
        case "reset_midway":
            await asyncio.sleep(0.02)  # what was sent must have left before the reset throws it away
            line.reset()
        case "stall_midway":
            await line.gone()
        case "close_midway":
            line.close()
        case _:
            raise ValueError(f"no fault {kind!r} in this form of answer")
    return False


_SHAPES: dict[int | str, tuple[str, bytes]] = {
    "broken_json": ("application/json", b'{"id": "msg_1", "content": ['),
    "empty": ("application/json", b""),
    "html": ("text/html", b"<html><body>Please log in to the proxy.</body></html>"),
    "other_api": ("application/json", b'{"object": "chat.completion", "choices": []}'),
    "list": ("application/json", b"[1, 2, 3]"),
}


def _with_text_as_input(message: dict[str, Any]) -> dict[str, Any]:
    *others, last = message["content"]
    return {**message, "content": [*others, {**last, "input": "int b;"}]}


_TWISTS: dict[int | str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no_stop_reason": lambda message: {**message, "stop_reason": None},
    "no_usage": lambda message: {**message, "usage": None},
    "input_is_text": _with_text_as_input,
}


# ---------------------------------------------------------------- HTTP


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = first.split(" ", 2)
    return Asked(method, target.partition("?")[0], headers, json.loads(content) if content else {})


def _frame(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _events(message: dict[str, Any]) -> list[Event]:
    """A message as the pieces in which it would be written."""
    usage = message["usage"]
    first = {**message, "content": [], "stop_reason": None, "usage": usage and {**usage, "output_tokens": 1}}
    found: list[Event] = [("message_start", {"message": first}), ("ping", {})]
    for index, block in enumerate(message["content"]):
        start = {**block, **_EMPTY.get(block["type"], {})}
        found.append(("content_block_start", {"index": index, "content_block": start}))
        found += [("content_block_delta", {"index": index, "delta": delta}) for delta in _deltas(block)]
        found.append(("content_block_stop", {"index": index}))
    end = {key: message[key] for key in ("stop_reason", "stop_sequence", "stop_details")}
    found.append(("message_delta", {"delta": end, "usage": {"output_tokens": (usage or {}).get("output_tokens", 0)}}))
    found.append(("message_stop", {}))
    return [(name, {"type": name, **data}) for name, data in found]


_EMPTY: dict[str, Block] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _deltas(block: Block) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in _pieces(block["text"]))
        case "tool_use":
            written = json.dumps(block["input"])
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in _pieces(written))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"]))
            yield {"type": "signature_delta", "signature": block["signature"]}


def _pieces(words: str) -> Iterator[str]:
    """No more than a few dozen, so that a long kernel does not take a thousand writes."""
    size = max(PIECE, len(words) // 32)
    return (words[at : at + size] for at in range(0, len(words), size))


class _Line:
    """One connection, written byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hung_up: asyncio.Event) -> None:
        self._reader = reader
        self._writer = writer
        self._hung_up = hung_up

    def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in headers.items())]
        lines.append(f"request-id: req_{id(self):x}")
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def raw(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def body(self, status: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> bool:
        self.head(status, {"content-type": kind, "content-length": str(len(content)), **(headers or {})})
        await self.raw(content)
        return True

    async def json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> bool:
        return await self.body(status, "application/json", json.dumps(value).encode(), headers)

    async def error(self, status: int, step: Fault) -> bool:
        if step.html:
            return await self.body(status, "text/html", f"<html>{step.message}</html>".encode(), step.headers)
        error: dict[str, Any] = {"type": step.type or ERROR_TYPES.get(status, "api_error"), "message": step.message}
        if step.code:
            error["details"] = {"error_code": step.code}
        return await self.json(status, {"type": "error", "error": error}, step.headers)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Callable[[str], Any]]:
        self.head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

        async def send(frame: str) -> None:
            content = frame.encode()
            await self.raw(f"{len(content):x}\r\n".encode() + content + b"\r\n")

        yield send
        if not self._writer.is_closing():
            await self.raw(b"0\r\n\r\n")

    async def frames(self, frames: Iterator[str]) -> bool:
        async with self.stream() as send:
            for frame in frames:
                await send(frame)
        return True

    async def events(self, events: list[Event]) -> bool:
        return await self.frames(_frame(*event) for event in events)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> bool:
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()
        return False

    async def gone(self) -> None:
        """Until the other side has given up."""
        while not await self.gone_within(3_600):
            pass

    async def gone_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._reader.read(1)  # nothing is sent while an answer is awaited, so this is the end
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        self._hung_up.set()
        return True


async def _run(policy: Policy | None, port: int) -> None:
    server = FakeMessages(policy)
    await server.start(port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def _named_policy(name: str | None) -> Policy | None:
    if name is None:
        return None
    module, _, function = name.partition(":")
    found: Policy = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", help="module:function")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(_run(_named_policy(arguments.policy), arguments.port))
