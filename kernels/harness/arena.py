"""Memory that the gate owns and a runner maps: where buffers lie, what surrounds them, what must still be there."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.harness.interface import Buffer
from specs.errors import GateError, MachineError
from specs.outcomes import FailureKind, Metrics
from specs.schema import ArgumentKind

GUARD = 4096  # bytes of noise on either side of every buffer, with no gap to its ends, that are looked at in every call
TILE = (1 << 20) + 64  # bytes of noise, repeated over all of the arena that is no buffer's
ALIGNMENT = 64  # bytes; all that a candidate may rely on
PAGE = 4096
SHIFT_PAGES = 16  # how far a buffer may move from call to call
WRITTEN = (ArgumentKind.OUTPUT, ArgumentKind.STAGE)

Differs = Callable[[np.ndarray, np.ndarray], int | None]


class CandidateFault(Exception):
    """Something the candidate did; becomes a Failure where verification stage and case are known."""

    def __init__(
        self, kind: FailureKind, message: str, tensor: str | None = None, metrics: Metrics | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.tensor = tensor
        self.metrics = metrics


def bytes_needed(cases: Iterable[Sequence[Buffer]]) -> int:
    """Size of an arena in which every case fits at any layout."""
    largest = max((sum(_room(buffer) for buffer in case) for case in cases), default=0)
    return -(-(largest + PAGE) // PAGE) * PAGE


def _room(buffer: Buffer) -> int:
    return buffer.nbytes + 2 * GUARD + (SHIFT_PAGES + 2) * PAGE


class Arena:
    """`size` bytes of anonymous shared memory. `memory` is the gate's u8 view of all of it.

    What is no buffer's holds noise, and after each call is known to hold it still.
    """

    def __init__(self, size: int) -> None:
        try:
            self.fd = os.memfd_create("ferret-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.memory = np.frombuffer(mmap.mmap(self.fd, size), dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise MachineError(f"no {size} bytes of shared memory for the buffers: {error}") from error
        self.size = size
        self._noise = np.frombuffer(os.urandom(TILE), dtype=np.uint8)
        self._used: list[tuple[int, int]] = [(0, size)]  # where noise does not stand now

    @property
    def address(self) -> int:
        return self.memory.ctypes.data

    def layout(self, buffers: Sequence[Buffer], rng: np.random.Generator) -> dict[str, int]:
        """See `draw_layout`."""
        return draw_layout(buffers, rng)

    def fill(
        self,
        buffers: Sequence[Buffer],
        offsets: Mapping[str, int],
        inputs: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        stages: bool,
    ) -> Filled:
        """See the function of this name."""
        return fill(self, buffers, offsets, inputs, rng, stages=stages)

    def noise(self, begin: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """What belongs in `[begin, end)` outside buffers, as pieces `(offset, u8)`."""
        while begin < end:
            within = begin % TILE
            piece = self._noise[within : min(TILE, within + end - begin)]
            yield begin, piece
            begin += len(piece)

    def occupy(self, spans: Sequence[tuple[int, int]]) -> None:
        """Put noise back where the last call's buffers were; `spans` are where those of the next will be."""
        for begin, end in self._used:
            for at, piece in self.noise(begin, end):
                self.memory[at : at + len(piece)] = piece
        self._used = list(spans)

    def close(self) -> None:
        # The mapping itself goes when the last view of it does.
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.memory = np.zeros(0, dtype=np.uint8)


def draw_layout(buffers: Sequence[Buffer], rng: np.random.Generator) -> dict[str, int]:
    """A fresh offset in the arena for every buffer: order permuted, each at a random page and cache line."""
    offsets = {}
    cursor = 0
    for index in rng.permutation(len(buffers)):
        buffer = buffers[index]
        page = -(-(cursor + GUARD) // PAGE) + int(rng.integers(SHIFT_PAGES))
        offsets[buffer.name] = page * PAGE + int(rng.integers(PAGE // ALIGNMENT)) * ALIGNMENT
        cursor = offsets[buffer.name] + buffer.nbytes + GUARD
    return offsets


def input_bytes(buffers: Sequence[Buffer], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gate's private u8 copy of every input.

    Raises GateError when the gate made something else than the interface says.
    """
    copies = {}
    for buffer in buffers:
        if buffer.kind is not ArgumentKind.INPUT:
            continue
        value = inputs.get(buffer.name)
        if value is None:
            raise GateError(f"make_inputs gave no {buffer.name!r}; it gave {', '.join(sorted(inputs)) or 'nothing'}")
        if value.dtype != buffer.dtype or value.shape != buffer.shape:
            given = f"{value.dtype}{list(value.shape)}"
            wanted = f"{buffer.dtype}{list(buffer.shape)}"
            raise GateError(f"make_inputs gave {buffer.name!r} as {given}; the interface says {wanted}")
        copies[buffer.name] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return copies


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the gate must remember of one call to check it afterwards, wherever its buffers are."""

    buffers: tuple[Buffer, ...]  # those that the call gets; stage tensors only when asked for
    offsets: dict[str, int]
    inputs: dict[str, np.ndarray]  # private copies, u8
    poison: dict[str, np.ndarray]  # u8

    @property
    def written(self) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self.buffers if buffer.kind in WRITTEN)

    @property
    def ranges(self) -> np.ndarray:
        """Offset and size of outputs and stage tensors, u64 `[tensors, 2]`."""
        return np.array([(self.offsets[b.name], b.nbytes) for b in self.written], dtype=np.uint64).reshape(-1, 2)

    def stray(self, at: int) -> CandidateFault:
        def distance(buffer: Buffer) -> int:
            begin = self.offsets[buffer.name]
            return max(begin - at, at - begin - buffer.nbytes)

        nearest = min(self.buffers, key=distance)
        side, where = ("before", "before its start") if at < self.offsets[nearest.name] else ("after", "past its end")
        return _outside(nearest, side, f"{distance(nearest)} bytes {where}")

    def tensors(self, snapshot: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs and stage tensors of a snapshot, in their dtypes and shapes."""
        found = {}
        place = 0
        for buffer in self.written:
            found[buffer.name] = snapshot[place : place + buffer.nbytes].view(buffer.dtype).reshape(buffer.shape)
            place += buffer.nbytes
        return found

    def unwritten(self, name: str, got: np.ndarray) -> np.ndarray:
        """Mask over `got`'s elements, flat: those that still hold the poison, byte for byte."""
        size = got.dtype.itemsize
        now = np.ascontiguousarray(got).reshape(-1).view(np.uint8).reshape(-1, size)
        same: np.ndarray = (now == self.poison[name].reshape(-1, size)).all(axis=1)
        return same


@dataclass(frozen=True, slots=True)
class Filled(Prepared):
    """An arena of this process's own memory made ready for one call."""

    arena: Arena

    def check_surroundings(self, differs: Differs, *, everywhere: bool = False) -> None:
        """Raise CandidateFault when a guard band or an input no longer holds what the gate put there.

        `everywhere` looks at all bytes of the arena that are no buffer's: a stray write may fall far from any.
        """
        # Past the ends first: whoever runs on past one buffer reaches what is before the next.
        for buffer in self.buffers:
            end = self.offsets[buffer.name] + buffer.nbytes
            at = self._disturbed(end, end + GUARD, differs)
            if at is not None:
                raise _outside(buffer, "after", f"{at - end} bytes past its end")
        for buffer in self.buffers:
            begin = self.offsets[buffer.name]
            at = self._disturbed(begin - GUARD, begin, differs)
            if at is not None:
                raise _outside(buffer, "before", f"{begin - at} bytes before its start")
        if everywhere:
            spans = sorted((self.offsets[b.name], b.nbytes) for b in self.buffers)
            begin = 0
            for offset, size in [*spans, (self.arena.size, 0)]:
                at = self._disturbed(begin, offset, differs)
                if at is not None:
                    raise self.stray(at)
                begin = offset + size
        for name, private in self.inputs.items():
            begin = self.offsets[name]
            at = differs(self.arena.memory[begin : begin + len(private)], private)
            if at is not None:
                raise CandidateFault(
                    FailureKind.INPUT_CHANGED, f"wrote to input {name}, first at byte {at}; inputs are read-only"
                )

    def _disturbed(self, begin: int, end: int, differs: Differs) -> int | None:
        for offset, piece in self.arena.noise(begin, end):
            at = differs(self.arena.memory[offset : offset + len(piece)], piece)
            if at is not None:
                return offset + at
        return None

    def check_late(self, snapshot: np.ndarray, probes: np.ndarray, probed: np.ndarray, differs: Differs) -> None:
        """Raise CandidateFault when an output is no longer what it was as the call answered.

        `snapshot` is what the runner left as it was stopped; `probed` u8 `[probes, 64]` was read as it answered.
        """
        place = 0
        for buffer in self.written:
            begin = self.offsets[buffer.name]
            for offset, line in zip(probes, probed, strict=True):
                within = int(offset) - begin
                if 0 <= within < buffer.nbytes:
                    then = snapshot[place + within : place + within + len(line)]
                    at = differs(then, line)
                    if at is not None:
                        raise _late(buffer, within + at)
            place += buffer.nbytes

    def snapshot(self) -> np.ndarray:
        """A copy of outputs and stage tensors, u8, one after the other."""
        parts = [self.arena.memory[self.offsets[b.name] :][: b.nbytes] for b in self.written]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)


def _outside(buffer: Buffer, side: str, where: str) -> CandidateFault:
    what = f"{buffer.name} ({buffer.kind.value}, {buffer.nbytes} bytes)"
    message = f"wrote outside {what}: bytes {side} it changed, first seen {where}"
    return CandidateFault(FailureKind.GUARD_OVERWRITTEN, message)


def _late(buffer: Buffer, at: int) -> CandidateFault:
    message = f"{buffer.name} changed after the call had answered, first at byte {at}"
    return CandidateFault(FailureKind.LATE_WRITE, f"{message}; all work must be done when the call returns")


def fill(
    arena: Arena,
    buffers: Sequence[Buffer],
    offsets: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    *,
    stages: bool,
) -> Filled:
    """Write inputs and poison into the arena, noise everywhere else.

    `inputs` are the private copies of `input_bytes`.
    """
    used = tuple(buffer for buffer in buffers if stages or buffer.kind is not ArgumentKind.STAGE)
    poison = {}
    arena.occupy([(offsets[buffer.name], offsets[buffer.name] + buffer.nbytes) for buffer in used])
    for buffer in used:
        begin = offsets[buffer.name]
        place = arena.memory[begin : begin + buffer.nbytes]
        if buffer.kind is ArgumentKind.INPUT:
            place[:] = inputs[buffer.name]
        else:
            pattern = poison_pattern(buffer, rng)
            place[:] = pattern
            if buffer.kind in WRITTEN:
                poison[buffer.name] = pattern
    kept = {b.name: inputs[b.name] for b in used if b.kind is ArgumentKind.INPUT}
    return Filled(used, dict(offsets), kept, poison, arena)


# Exponent all ones, quiet bit clear, the rest of the payload drawn: no arithmetic yields a signalling NaN.
_SIGNALLING = {
    np.dtype(np.float64): (np.uint64, 0x7FF0_0000_0000_0001, 50),
    np.dtype(np.float32): (np.uint32, 0x7F80_0001, 21),
    np.dtype(np.float16): (np.uint16, 0x7C01, 8),
}


def signalling(dtype: np.dtype) -> bool:
    """Whether poison of this dtype is a NaN that no honest kernel can write."""
    return dtype in _SIGNALLING or dtype.name == "bfloat16"


def poison_pattern(buffer: Buffer, rng: np.random.Generator) -> np.ndarray:
    """u8 `[nbytes]`: one NaN for all elements of a float, noise for what has no NaN to spare."""
    if signalling(buffer.dtype):
        unsigned, base, bits = _SIGNALLING.get(buffer.dtype, (np.uint16, 0x7F81, 5))
        payload = int(rng.integers(1 << bits)) << 1
        return np.full(buffer.nbytes // buffer.dtype.itemsize, base | payload, dtype=unsigned).view(np.uint8)
    if buffer.kind is ArgumentKind.WORKSPACE:
        # Content is undefined and may be large: a short noise repeated is enough to upset whoever relies on it.
        return np.resize(rng.integers(0, 256, size=PAGE + 1, dtype=np.uint8), buffer.nbytes)
    return rng.integers(0, 256, size=buffer.nbytes, dtype=np.uint8)
