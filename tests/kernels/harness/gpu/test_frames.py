"""Messages between gate and executor."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.gpu import frames


@given(
    head=st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=4),
    body=st.binary(max_size=2000),
)
def test_what_is_sent_arrives(head: dict[str, object], body: bytes) -> None:
    one, other = socket.socketpair()
    with one, other:
        frames.send(one, head, body)
        assert frames.receive(other) == (head, body)


def test_the_other_sides_end_is_told() -> None:
    one, other = socket.socketpair()
    with one:
        other.close()
        with pytest.raises(frames.Closed):
            frames.receive(one)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<IQ", frames.HEAD_LIMIT + 1, 0),
        struct.pack("<IQ", 2, frames.BODY_LIMIT + 1),
        struct.pack("<IQ", 2, 0) + b"[]",
        struct.pack("<IQ", 2, 0) + b"{{",
    ],
)
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(raw)
        with pytest.raises(ValueError, match=r"frame|Expecting"):
            frames.receive(other)
