"""Messages between gate and executor: a JSON head and raw bytes behind it, over a socket."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEAD_LIMIT = 1 << 20  # bytes
BODY_LIMIT = 1 << 30


class Closed(Exception):
    """The other side is gone."""


def send(channel: socket.socket, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
    """Raises Closed."""
    text = json.dumps(head).encode()
    try:
        channel.sendall(struct.pack("<IQ", len(text), len(body)) + text)
        if body:
            channel.sendall(body)
    except OSError as error:
        raise Closed(str(error)) from None


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Raises Closed, TimeoutError after the socket's own time limit, and ValueError for what is no frame."""
    text_bytes, body_bytes = struct.unpack("<IQ", _exactly(channel, 12))
    if text_bytes > HEAD_LIMIT or body_bytes > BODY_LIMIT:
        raise ValueError(f"a frame of {text_bytes} and {body_bytes} bytes")
    head = json.loads(_exactly(channel, text_bytes))
    if not isinstance(head, dict):
        raise ValueError("a frame without a head")  # noqa: TRY004  the caller knows one way for a frame to be wrong
    return head, _exactly(channel, body_bytes)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = channel.recv(min(count - len(parts), 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from None
        if not part:
            raise Closed("end of file")
        parts += part
    return bytes(parts)
