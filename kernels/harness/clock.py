"""Letting a runner make one call, as Python sees it; the part that runs meanwhile is in C."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from kernels.harness.build import compile_tool
from specs.errors import MachineError

HERE = Path(__file__).parent
PROBES = 64  # lines looked at as a call answers: microseconds, whatever the size of the outputs
LINE = 64  # bytes


class Answer(IntEnum):
    ANSWERED = 0
    DEADLINE = 1  # the call did not come back in time
    ENDED = 2  # the runner is gone


class Kind(IntEnum):
    CALL = 1
    EMPTY = 2  # the hand-shake alone


class _Call(ctypes.Structure):
    _fields_ = (
        ("control", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("token", ctypes.c_uint32),
        ("spin", ctypes.c_uint32),
        ("pidfd", ctypes.c_int32),
        ("runner_core", ctypes.c_int32),
        ("gate_core", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("timeout_s", ctypes.c_double),
        ("wall_us", ctypes.c_double),
        ("flush", ctypes.c_void_p),
        ("flush_bytes", ctypes.c_uint64),
        ("private_bytes", ctypes.c_uint64),
        ("probes", ctypes.c_void_p),
        ("probe_count", ctypes.c_uint64),
        ("probed", ctypes.c_void_p),
        ("preempted", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Cores:
    """Where things run. With a single usable core both are the same and nobody spins."""

    gate: int
    runner: int

    @property
    def spin(self) -> bool:
        return self.gate != self.runner


@dataclass(frozen=True, slots=True)
class Line:
    """What the clock needs of one runner."""

    control: int  # address of the control page in the gate
    arena: int  # address of the arena in the gate
    pidfd: int
    cores: Cores


@dataclass(frozen=True, slots=True)
class Reading:
    answer: Answer
    wall_us: float  # from waking the runner to its answer
    probes: np.ndarray  # u64 offsets in the arena
    probed: np.ndarray  # u8 `[probes, LINE]`, what stood there as the call answered
    preempted: int  # how often the gate's own thread lost its core meanwhile


class Clock:
    """Loads the C side; owns the memory that caches are flushed with."""

    def __init__(self, builds: Path, flush_bytes: int, private_bytes: int) -> None:
        library = compile_tool(
            "clock",
            HERE / "clock.cpp",
            ["-std=c++17", "-O2"],
            builds,
            extra={"protocol.h": (HERE / "protocol.h").read_text()},
            shared=True,
        )
        self._library = ctypes.CDLL(str(library))
        self._library.ferret_flush_memory.restype = ctypes.c_void_p
        self._library.ferret_flush_memory.argtypes = (ctypes.c_uint64,)
        self._library.ferret_release_memory.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        self._library.ferret_release_memory.restype = None
        self._library.ferret_differs.restype = ctypes.c_uint64
        self._library.ferret_differs.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        self._library.ferret_control_bytes.restype = ctypes.c_uint64
        self._library.ferret_state_offset.restype = ctypes.c_uint64
        self.control_bytes = int(self._library.ferret_control_bytes())
        self.state_offset = int(self._library.ferret_state_offset())
        self._flush_bytes = flush_bytes
        self._private_bytes = min(private_bytes, flush_bytes)
        self._flush: int | None = None

    def close(self) -> None:
        if self._flush is not None:
            self._library.ferret_release_memory(self._flush, self._flush_bytes)
            self._flush = None

    def call(
        self,
        line: Line,
        token: int,
        kind: Kind,
        slots: np.ndarray,
        ranges: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
    ) -> Reading:
        """Wake a sleeping runner for one call and wait for its answer.

        `slots` is u64 `[arguments]`; `ranges` u64 `[tensors, 2]`, offset and size in the arena of what it writes.
        """
        probes = _probes(ranges, rng)
        probed = np.zeros((len(probes), LINE), dtype=np.uint8)
        if flush and self._flush is None:
            self._flush = self._library.ferret_flush_memory(self._flush_bytes)
            if not self._flush:
                raise MachineError(f"no memory for the cache flush buffer of {self._flush_bytes} bytes")
        call = _Call(
            control=line.control,
            arena=line.arena,
            slots=slots.ctypes.data,
            count=len(slots),
            kind=kind,
            token=token,
            spin=line.cores.spin,
            pidfd=line.pidfd,
            runner_core=line.cores.runner,
            gate_core=line.cores.gate,
            timeout_s=timeout_s,
            flush=self._flush if flush else None,
            flush_bytes=self._flush_bytes if flush else 0,
            private_bytes=self._private_bytes if flush else 0,
            probes=probes.ctypes.data,
            probe_count=len(probes),
            probed=probed.ctypes.data,
        )
        answer = Answer(self._library.ferret_call(ctypes.byref(call)))
        return Reading(answer, float(call.wall_us), probes, probed, int(call.preempted))

    def differs(self, a: np.ndarray, b: np.ndarray) -> int | None:
        """Index of the first byte in which two u8 arrays of one length differ; None when they are equal."""
        assert a.nbytes == b.nbytes
        assert a.flags.c_contiguous
        assert b.flags.c_contiguous
        index = int(self._library.ferret_differs(a.ctypes.data, b.ctypes.data, a.nbytes))
        return None if index == a.nbytes else index


def _probes(ranges: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Offsets of random whole lines inside the ranges, the larger a range the more of them."""
    lines = ranges[:, 1] // LINE if len(ranges) else np.zeros(0, dtype=np.uint64)
    if not lines.sum():
        return np.zeros(0, dtype=np.uint64)
    chosen = rng.choice(len(ranges), size=PROBES, p=lines / lines.sum())
    within = (rng.random(PROBES) * lines[chosen]).astype(np.uint64)
    found: np.ndarray = ranges[chosen, 0] + within * np.uint64(LINE)
    return found
