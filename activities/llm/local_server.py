"""A Messages server inside this process that plays scripts and recordings, so that the real SDK is on every path.

It listens on this machine alone, and a secret in its paths keeps other users of the machine out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from activities.llm import replay, scripted
from activities.llm.replay import Unplayable
from activities.settings import Settings
from specs.errors import MachineError, UserError
from specs.outcomes import BlobRef
from specs.schema import Provider

TURN = "x-ferret-turn"  # of a request: which turn of its conversation is asked for, `<turn>-<roomier>`
DRIFT = "x-ferret-drift"  # of an answer: the prompt is not the one that was recorded, and where
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 128 * 2**20  # a transcript with its tools
ARRIVAL_S = 120.0  # of a whole request, from this machine
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 413: "Content Too Large", 500: "Internal Server Error"}

# One server an event loop, which is one a worker, and one secret for each place that data is kept in.
_ports: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
_starting: set[asyncio.Task[asyncio.Server]] = set()
_secrets: dict[Settings, str] = {}


def address(settings: Settings, provider: Provider, bundle: BlobRef, place: str) -> str:
    """The base URL that plays the bundle's script or recording at `place`. Starts the server on first use."""
    secret = _secrets.setdefault(settings, secrets.token_urlsafe(24))
    return f"http://127.0.0.1:{_port()}/{secret}/{provider.value}/{bundle.sha256}-{bundle.size}/{quote(place)}"


def _port() -> int:
    loop = asyncio.get_running_loop()
    if loop not in _ports:
        # Bound before anything is awaited: whoever asks next finds the port, and connections wait in its queue.
        listening = socket.create_server(("127.0.0.1", 0))
        starting = loop.create_task(asyncio.start_server(_serve, sock=listening, limit=MAX_HEAD_BYTES))
        _starting.add(starting)
        starting.add_done_callback(_starting.discard)
        _ports[loop] = listening.getsockname()[1]
    return _ports[loop]


# ---------------------------------------------------------------- requests


class _Refused(Exception):
    """An answer that is an error, in the form of the Messages API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    content: bytes


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request a connection: nothing has to be remembered of it."""
    try:
        async with asyncio.timeout(ARRIVAL_S):
            request = await _arrived(reader)
        await _reply(writer, *await _answer(request))
    except _Refused as refused:
        await _reply(writer, refused.status, {}, _error(refused.status, str(refused)))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
        pass  # nobody is there any more, or it does not speak HTTP
    except Exception as error:
        await _reply(writer, 500, {}, _error(500, f"{type(error).__name__} in the local server"))
        raise  # asyncio logs it
    finally:
        writer.close()


async def _arrived(reader: asyncio.StreamReader) -> _Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    method, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
        raise _Refused(413, f"a body of {length[:20]} bytes; at most {MAX_BODY_BYTES} are accepted")
    return _Request(method, rest.partition(" ")[0], headers, await reader.readexactly(int(length)))


async def _answer(request: _Request) -> tuple[int, dict[str, str], bytes]:
    settings, provider, bundle, place = _asked(request)
    try:
        body = json.loads(request.content)
        messages = list(body["messages"])
    except (ValueError, KeyError, TypeError):
        raise _Refused(400, "the body is no Messages request") from None
    headers: dict[str, str] = {}
    try:
        if provider is Provider.SCRIPTED:
            message = await scripted.answer(settings, bundle, place, messages)
        else:
            message, drift = await replay.answer(settings, bundle, place, request.headers.get(TURN, ""), messages)
            headers |= {DRIFT: drift} if drift else {}
    except (Unplayable, UserError) as error:
        raise _Refused(400, str(error)) from None
    except MachineError as error:
        raise _Refused(500, str(error)) from None  # the store may be back at the next attempt
    message.setdefault("model", body.get("model", ""))
    headers["request-id"] = f"req_{message['id']}"
    if body.get("stream"):
        return 200, headers | {"content-type": "text/event-stream"}, b"".join(map(_sse, events(message)))
    return 200, headers, json.dumps(message).encode()


def _asked(request: _Request) -> tuple[Settings, Provider, BlobRef, str]:
    """What the path names; whoever lacks the secret learns nothing."""
    path = request.path.removesuffix("/v1/messages")
    parts = path.split("/", 4)
    settings = next((one for one, secret in _secrets.items() if secrets.compare_digest(secret, _at(parts, 1))), None)
    if request.method != "POST" or path == request.path or settings is None or len(parts) != 5:
        raise _Refused(404, "nothing is here")
    sha256, _, size = parts[3].partition("-")
    try:
        return settings, Provider(parts[2]), BlobRef(sha256=sha256, size=int(size)), unquote(parts[4])
    except ValueError:
        raise _Refused(404, "nothing is here") from None


def _at(parts: list[str], index: int) -> str:
    return parts[index] if index < len(parts) and parts[index].isascii() else ""


# ---------------------------------------------------------------- answers


def events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A finished message as the stream that would have brought it."""
    start = message | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(message["content"]):
        empty, deltas = _opened(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {key: message[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in message}
    yield {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what fills it. Other kinds than these three come whole."""
    match block["type"]:
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            return block | {"thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "tool_use":
            # In one piece: the SDK parses all that it has anew with each.
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return block, []


def _sse(event: dict[str, Any]) -> bytes:
    # ASCII only: a reader may take U+2028 for the end of a line.
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode("ascii")


def _error(status: int, message: str) -> bytes:
    kind = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large"}.get(status, "api_error")
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


async def _reply(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], content: bytes) -> None:
    said = {
        "content-type": "application/json",
        **headers,
        "content-length": str(len(content)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    writer.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{head}\r\n".encode("latin-1") + content)
    with contextlib.suppress(ConnectionError):  # nobody is there any more
        await writer.drain()
