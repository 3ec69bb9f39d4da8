"""A tape survives the way through its bytes, and nothing malformed gets through."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness import tape
from kernels.harness.tape import Copy, Facts, KernelInfo, Launch, Memset, SetAttribute, Tape, TensorMapRequest, Upload

names = st.text(min_size=1, max_size=40)
u64 = st.integers(0, 2**63)
blocks = st.sampled_from([(1, 1, 1), (1024, 1, 1), (32, 8, 4)])
grids = st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 65535), st.integers(1, 65535))
launches = st.builds(
    Launch,
    names,
    names,
    grids,
    blocks,
    st.integers(0, 2**31 - 1),
    st.binary(max_size=80),
    st.sampled_from([None, (2, 1, 1), (4, 2, 2)]),
    st.booleans(),
    st.booleans(),
)
attributes = st.builds(
    lambda module, kernel, pair: SetAttribute(module, kernel, *pair),
    names,
    names,
    st.sampled_from([(8, 0), (8, 232448), (8, 2**20), (9, -1), (9, 100), (14, 0), (14, 1)]),
)
memsets = st.builds(Memset, u64, st.integers(0, 255), st.sampled_from([1, 2, 4]), st.integers(0, 2**40))
copies = st.builds(Copy, u64, u64, st.integers(0, 2**40))
uploads = st.builds(Upload, u64, st.binary(max_size=100))


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMapRequest:
    rank = draw(st.integers(1, 5))

    def many(length: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(1, most), min_size=length, max_size=length)))

    strides = tuple(16 * n for n in many(rank - 1, 2**36 - 1))
    sizes = many(rank, 2**32), strides, many(rank, 256), many(rank, 8)
    modes = (draw(st.integers(0, last)) for last in (2, 6, 3, 1))
    return TensorMapRequest(draw(st.integers(0, 15)), 16 * draw(st.integers(0, 2**60 - 1)), *sizes, *modes)


tapes = st.builds(
    Tape,
    st.lists(launches | attributes | memsets | copies | uploads, max_size=6).map(tuple),
    st.lists(tensor_maps(), max_size=3).map(tuple),
    u64.filter(lambda n: n < 2**63),
    st.just(bytes(range(101, 117))),
)


@given(tapes)
def test_a_tape_comes_back_as_it_was(written: Tape) -> None:
    assert Tape.from_bytes(written.to_bytes()) == written


@given(st.binary(max_size=300))
def test_bytes_that_are_no_tape_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="tape"):
        Tape.from_bytes(data)


@given(tapes, st.data())
def test_a_damaged_tape_is_refused_or_read_but_breaks_nothing(written: Tape, data: st.DataObject) -> None:
    raw = bytearray(written.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            read = Tape.from_bytes(damaged)
        except ValueError:
            continue
        assert Tape.from_bytes(read.to_bytes()) == read


@pytest.mark.parametrize(
    "op",
    [
        Launch("m", "k", (0, 1, 1), (1, 1, 1), 0, b""),
        Launch("m", "k", (1, 65536, 1), (1, 1, 1), 0, b""),
        Launch("m", "k", (1, 1, 1), (1025, 1, 1), 0, b""),
        Launch("m", "k", (1, 1, 1), (1, 1, 1), 0, bytes(tape.MAX_PARAMS + 1)),
        Launch("m", "k", (1, 1, 1), (1, 1, 1), 0, b"", cluster=(17, 1, 1)),
        Launch("m", "", (1, 1, 1), (1, 1, 1), 0, b""),
        Launch("m", "k" * (tape.MAX_NAME + 1), (1, 1, 1), (1, 1, 1), 0, b""),
        Launch("m", "k", (2**33, 1, 1), (1, 1, 1), 0, b""),
        Memset(0, 256, 1, 1),
        Memset(0, 0, 3, 1),
        Memset(2**64 - 1, 0, 1, 2),
        Copy(0, 2**64 - 1, 2),
        Upload(0, bytes(tape.MAX_UPLOAD + 1)),
        SetAttribute("m", "k", 9999, 1),
        SetAttribute("m", "k", 0, 1),
        SetAttribute("m", "k", -8, 1),
        SetAttribute("m", "k", 8, -1),
        SetAttribute("m", "k", 8, 2**20 + 1),
        SetAttribute("m", "k", 9, -2),
        SetAttribute("m", "k", 9, 101),
        SetAttribute("m", "k", 14, 2),
    ],
)
def test_what_no_device_would_do_is_no_tape(op: tape.Op) -> None:
    with pytest.raises(ValueError, match=r"tape|Launch"):
        Tape((op,)).to_bytes()


def test_a_tape_has_a_limit_of_operations_and_of_bytes() -> None:
    few = Tape((Copy(0, 8, 8),) * tape.MAX_OPS)
    assert len(Tape.from_bytes(few.to_bytes()).ops) == tape.MAX_OPS
    with pytest.raises(ValueError, match=f"over {tape.MAX_OPS} operations"):
        Tape((*few.ops, Copy(0, 8, 8))).to_bytes()
    long = Launch("m", "k", (1, 1, 1), (1, 1, 1), 0, bytes(tape.MAX_PARAMS))
    with pytest.raises(ValueError, match=f"at most {tape.MAX_BYTES} are accepted"):
        Tape((long,) * 129).to_bytes()


REQUEST = TensorMapRequest(7, 4096, (64, 32), (128,), (64, 8), (1, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": 16},
        {"dtype": 99},
        {"interleave": 3},
        {"swizzle": 7},
        {"l2": 4},
        {"oob": 2},
        {"address": 4104},
        {"dims": (0, 32)},
        {"dims": (64, 2**32 + 1)},
        {"strides": (136,)},
        {"strides": (2**40,)},
        {"box": (64, 257)},
        {"box": (0, 8)},
        {"element_strides": (1, 9)},
        {"element_strides": (0, 1)},
    ],
)
def test_a_tensor_map_that_cuda_has_no_word_for_is_no_tape(changes: dict[str, Any]) -> None:
    """What stands behind a tape's bytes goes to the driver as enumerators and sizes."""
    with pytest.raises(ValueError, match="tape: a tensor map"):
        Tape((), (replace(REQUEST, **changes),)).to_bytes()


def test_placeholders_are_found_where_they_stand() -> None:
    written = Tape((), (REQUEST, REQUEST), nonce=b"0123456789abcdef")
    data = bytes(64) + written.placeholder(1) + bytes(8) + written.placeholder(0)
    assert written.placeholders(data) == [(64, 1), (200, 0)]


@pytest.mark.parametrize("at", [16, 17, 20, 127])
def test_a_changed_placeholder_is_no_tape(at: int) -> None:
    nonce = b"0123456789abcdef"
    damaged = bytearray(tape.placeholder(nonce, 0))
    damaged[at] += 1
    with pytest.raises(ValueError, match="was changed after it had been encoded"):
        Tape((Upload(0, bytes(damaged)),), (REQUEST,), nonce=nonce).to_bytes()
    with pytest.raises(ValueError, match="was changed after it had been encoded"):
        Tape((Upload(0, tape.placeholder(nonce, 0)[:at]),), (REQUEST,), nonce=nonce).to_bytes()


def test_facts_that_do_not_fit_are_refused() -> None:
    kernels = {"k": KernelInfo(params=((0, 8),), param_bytes=8)}
    facts = Facts("m", kernels, stream=2**48, arena=2**47, heap=(2**46, 2**20), attributes={16: 132})
    raw = facts.to_bytes()
    assert struct.unpack_from("<I", raw, 12)[0] == len(raw)
    with pytest.raises(ValueError, match="facts of m"):
        Facts("m", kernels, stream=-1, arena=0, heap=(0, 0)).to_bytes()
