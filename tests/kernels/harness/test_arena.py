"""Buffers between guard bands, poisoned outputs, and what is noticed after a call."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.harness.arena import (
    ALIGNMENT,
    GUARD,
    Arena,
    CandidateFault,
    Filled,
    bytes_needed,
    draw_layout,
    fill,
    input_bytes,
    signalling,
)
from kernels.harness.interface import Buffer
from specs.errors import GateError
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind

F32 = np.dtype(np.float32)
BUFFERS = (
    Buffer("x", ArgumentKind.INPUT, F32, (5, 7)),
    Buffer("s", ArgumentKind.STAGE, F32, (5,)),
    Buffer("y", ArgumentKind.OUTPUT, F32, (5, 7)),
    Buffer("w", ArgumentKind.WORKSPACE, np.dtype(np.uint8), (100,)),
)


def differs(a: np.ndarray, b: np.ndarray) -> int | None:
    unlike = np.flatnonzero(a != b)
    return int(unlike[0]) if unlike.size else None


def filled(rng: np.random.Generator, *, stages: bool = True, buffers: tuple[Buffer, ...] = BUFFERS) -> Filled:
    arena = Arena(bytes_needed([buffers]))
    inputs = {b.name: rng.standard_normal(b.shape, dtype=np.float32) for b in buffers if b.kind is ArgumentKind.INPUT}
    return fill(arena, buffers, draw_layout(buffers, rng), input_bytes(buffers, inputs), rng, stages=stages)


def snapshot(call: Filled) -> np.ndarray:
    parts = [call.arena.memory[call.offsets[b.name] :][: b.nbytes] for b in call.written]
    return np.concatenate(parts)


NO_PROBES = (np.zeros(0, dtype=np.uint64), np.zeros((0, 64), dtype=np.uint8))


@given(sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=8), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_layout_fits_and_nothing_overlaps(sizes: list[int], seed: int) -> None:
    """Buffers with their guards lie apart, inside the arena, aligned as promised."""
    buffers = [Buffer(f"b{i}", ArgumentKind.OUTPUT, np.dtype(np.uint8), (n,)) for i, n in enumerate(sizes)]
    offsets = draw_layout(buffers, np.random.default_rng(seed))
    spans = sorted((offsets[b.name] - GUARD, offsets[b.name] + b.nbytes + GUARD) for b in buffers)
    assert spans[0][0] >= 0
    assert spans[-1][1] <= bytes_needed([buffers])
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    assert all(offset % ALIGNMENT == 0 for offset in offsets.values())


def test_addresses_move_from_call_to_call() -> None:
    """A cache keyed by address finds nothing: hardly any two of a hundred layouts share an address."""
    rng = np.random.default_rng(1)
    assert len({draw_layout(BUFFERS, rng)["y"] for _ in range(100)}) > 80


def test_an_untouched_call_has_nothing_to_report() -> None:
    """Guards and inputs that nobody wrote to are found as they were."""
    call = filled(np.random.default_rng(2))
    call.check_surroundings(differs)
    call.check_late(snapshot(call), *NO_PROBES, differs)


@pytest.mark.parametrize("name", ["x", "s", "y", "w"])
@pytest.mark.parametrize(("side", "told"), [(-1, "1 bytes before its start"), (0, "0 bytes past its end")])
def test_one_byte_outside_a_buffer_is_seen(name: str, side: int, told: str) -> None:
    """The guards begin where the buffer ends, and the message names buffer and side."""
    call = filled(np.random.default_rng(3))
    size = next(b.nbytes for b in BUFFERS if b.name == name)
    call.arena.memory[call.offsets[name] + (side if side < 0 else size)] ^= 1
    with pytest.raises(CandidateFault, match=told) as caught:
        call.check_surroundings(differs)
    assert caught.value.kind is FailureKind.GUARD_OVERWRITTEN
    assert f"outside {name} " in caught.value.message


def test_a_changed_input_is_seen() -> None:
    """One bit of one input is enough."""
    call = filled(np.random.default_rng(4))
    call.arena.memory[call.offsets["x"] + 13] ^= 1
    with pytest.raises(CandidateFault, match="wrote to input x, first at byte 13") as caught:
        call.check_surroundings(differs)
    assert caught.value.kind is FailureKind.INPUT_CHANGED


@pytest.mark.parametrize("past", [GUARD + 100, 3 * GUARD])
def test_a_write_far_from_every_buffer_is_seen_when_looked_for(past: int) -> None:
    """Every byte of the arena that is no buffer's is known, not only the guards."""
    call = filled(np.random.default_rng(5), buffers=BUFFERS[2:3])
    at = call.offsets["y"] + BUFFERS[2].nbytes + past
    call.arena.memory[at] ^= 1
    call.check_surroundings(differs)
    with pytest.raises(CandidateFault, match=f"outside y .* first seen {past} bytes past its end") as caught:
        call.check_surroundings(differs, everywhere=True)
    assert caught.value.kind is FailureKind.GUARD_OVERWRITTEN


def test_places_of_the_last_call_hold_noise_again() -> None:
    """Layout after layout in one arena, nothing but the buffers differs from the noise."""
    rng = np.random.default_rng(15)
    arena = Arena(bytes_needed([BUFFERS]))
    inputs = input_bytes(BUFFERS, {"x": rng.standard_normal((5, 7), dtype=np.float32)})
    for _ in range(20):
        call = fill(arena, BUFFERS, draw_layout(BUFFERS, rng), inputs, rng, stages=True)
        call.check_surroundings(differs, everywhere=True)


def test_the_arena_cannot_change_its_size() -> None:
    """Nobody who maps it can take pages away from the others by making the file shorter."""
    arena = Arena(1 << 16)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(arena.fd, 4096)


def test_a_write_after_the_answer_is_late() -> None:
    """What the probes saw as the call answered has to be what it left behind."""
    call = filled(np.random.default_rng(6))
    offset = call.offsets["y"] + 64
    probed = call.arena.memory[offset : offset + 64].copy()
    call.arena.memory[offset + 3] ^= 1
    with pytest.raises(CandidateFault, match="first at byte 67"):
        call.check_late(snapshot(call), np.array([offset], dtype=np.uint64), probed.reshape(1, 64), differs)


def test_unwritten_elements_are_known_by_their_poison() -> None:
    """Exactly the elements that still hold the poison are counted as unwritten."""
    call = filled(np.random.default_rng(7))
    got = call.tensors(snapshot(call))["y"].copy()
    assert call.unwritten("y", got).all()
    got[0, :] = 1.0
    assert call.unwritten("y", got).sum() == 28


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_poison_of_a_float_is_a_nan_that_differs_per_call(dtype: type) -> None:
    """Whatever is left unwritten cannot pass for a number, nor be learnt from an earlier call."""
    buffers = (Buffer("y", ArgumentKind.OUTPUT, np.dtype(dtype), (16,)),)
    rng = np.random.default_rng(8)
    patterns = set()
    for _ in range(20):
        call = filled(rng, buffers=buffers)
        values = call.tensors(snapshot(call))["y"]
        with np.errstate(invalid="ignore"):
            assert np.isnan(values).all()
        patterns.add(values.tobytes())
    assert signalling(np.dtype(dtype))
    assert len(patterns) > 10


def test_a_stage_that_is_not_asked_for_has_no_memory() -> None:
    """Without stages the arena holds no place for them at all."""
    call = filled(np.random.default_rng(9), stages=False)
    assert [b.name for b in call.buffers] == ["x", "y", "w"]


@pytest.mark.parametrize(
    "given_inputs",
    [{}, {"x": np.zeros((5, 7))}, {"x": np.zeros((5, 8), dtype=np.float32)}],
    ids=["missing", "dtype", "shape"],
)
def test_inputs_unlike_the_interface_are_the_gates_fault(given_inputs: dict[str, np.ndarray]) -> None:
    """A gate that makes something else than the interface says is refused before anything runs."""
    with pytest.raises(GateError, match="make_inputs gave"):
        input_bytes(BUFFERS, given_inputs)


def test_closing_lets_go_of_the_memory() -> None:
    """After close no descriptor is left."""
    arena = Arena(4096)
    fd = arena.fd
    arena.close()
    arena.close()
    assert not Path(f"/proc/self/fd/{fd}").exists()
