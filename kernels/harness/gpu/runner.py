"""A contestant on a GPU: a recorder that has its host code and no device, an executor that has the device."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernels.harness import sandbox
from kernels.harness.arena import CandidateFault
from kernels.harness.gpu.arena import DeviceArena, DeviceFilled
from kernels.harness.gpu.process import Executor
from kernels.harness.interface import POINTERS, Buffer
from kernels.harness.runner import LEAK_BYTES, LEAK_CALLS, Called
from kernels.harness.tape import Copy, Facts, KernelInfo, Launch, Memset, Tape, Upload
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind, DType, Interface

if TYPE_CHECKING:
    from kernels.harness.cubin import DeviceCode

LOAD_TIMEOUT_S = 120.0
STREAM = 0x5EED_57E4_4D00  # the handle that a candidate is given; it means something to recorders only
MODULE = "kernel"
# A window on the device and the gate's own clock round it are two accounts of one thing.
SLACK_US = 200.0
SLACK_SHARE = 0.25
TAIL_US = 2000.0  # from the end of the stream to that of the whole context; usually 1 to 12
_CODES = {
    DType.F64: "d", DType.F32: "f", DType.I64: "q", DType.I32: "i", DType.I16: "h", DType.I8: "b",
    DType.U64: "Q", DType.U32: "I", DType.U16: "H", DType.U8: "B",
}  # fmt: skip
NULL = 2**64 - 1


class Recorder(Protocol):
    """What turns a call of the candidate's entry into a tape."""

    @property
    def modules(self) -> Mapping[str, bytes]:
        """Device code by the name that launches give; may grow with every tape."""
        ...

    def record_call(self, buffers: Sequence[Buffer], slots: np.ndarray, base: int, timeout_s: float) -> Tape:
        """What one call puts on its stream; pointers in `slots` are relative to the device address `base`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What every contestant of one task shares on one device."""

    interface: Interface
    isolation: sandbox.Isolation
    ordinal: int
    kernels: Path  # the trusted device code, compiled
    flush_mode: str = "read"


class GpuRunner:
    """One candidate, or the trusted baseline, on the device."""

    def __init__(self, parts: Parts, arena: DeviceArena, executor: Executor) -> None:
        """The executor is started and not yet awaited: `begin` does that, so that several can start side by side."""
        self.arena = arena
        self.description = ""
        self.launches = 0  # of the last call
        self._parts = parts
        self._executor = executor
        self._recorder: Recorder | None = None
        self._loaded: set[str] = set()
        self._heap = self._leaks = 0
        self._ranges: list[tuple[int, int]] = []

    # ------------------------------------------------------------ starting

    def begin_candidate(self, make_recorder: Any, code: DeviceCode | None) -> None:
        """Raises CandidateFault when the object or its device code cannot be loaded."""
        self._executor.await_ready()
        head, properties = self._ask({"do": "facts"})
        self._ask({"do": "flush_mode", "mode": self._parts.flush_mode})
        self._base = int(head["arena"])
        variables = {}
        kernels: Mapping[str, KernelInfo] = {}
        if code is not None and code.image:
            kernels = code.kernels
            variables = self._load(MODULE, code.image, list(code.variables))
        heap = (int(head["heap"][0]), int(head["heap"][1]))
        facts = Facts(
            module=MODULE, kernels=kernels, stream=STREAM, arena=self._base, heap=heap, variables=variables,
            attributes={int(number): value for number, value in head["attributes"].items()}, properties=properties,
            arena_bytes=self.arena.size,
        )  # fmt: skip
        self._ranges = [(self._base, self.arena.size), heap, *variables.values()]
        self._recorder = make_recorder(facts)

    def begin_trusted(self, program: Path) -> None:
        self._executor.await_ready()
        self._ask({"do": "flush_mode", "mode": self._parts.flush_mode})
        asked = {"do": "open", "path": str(program), "entry": self._parts.interface.entry}
        self.description = str(self._ask(asked)[0]["description"])

    # ------------------------------------------------------------ calling

    def call(
        self,
        filled: DeviceFilled,
        slots: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
        everywhere: bool = True,
    ) -> Called:
        """One call, timed on the device by the executor's events and beside it by its clock.

        Every byte of the arena that is no buffer's is looked at, whatever `everywhere` says: on a device it costs
        little. Raises CandidateFault as `Runner.call` does.
        """
        if self._recorder is None:
            asked = {"do": "call", "arguments": self._arguments(filled, slots), "flush": flush, "hidden": True}
            told = self._ask(asked, timeout_s=timeout_s)[0]
        else:
            tape = self.tape(filled, slots, timeout_s)
            told = self._ask({"do": "run", "flush": flush, "hidden": True}, tape.to_bytes(), timeout_s=timeout_s)[0]
        filled.check_surroundings()
        if float(told["tail_us"]) > TAIL_US:
            message = f"its work went on for {float(told['tail_us']):.0f} us after its last launch had ended"
            raise CandidateFault(FailureKind.LATE_WRITE, message)
        us, window_us = float(told["us"]), float(told["window_us"])
        disturbed = window_us > us * (1 + SLACK_SHARE) + SLACK_US or us > window_us + SLACK_US
        return Called(us, filled.snapshot(), disturbed=disturbed, faults=0)

    def tape(self, filled: DeviceFilled, slots: np.ndarray, timeout_s: float) -> Tape:
        """What the candidate's host code wants done for this call, looked through; its device code is loaded."""
        assert self._recorder is not None
        tape = self._recorder.record_call(filled.buffers, slots, self._base, timeout_s)
        for name, content in self._recorder.modules.items():
            if name not in self._loaded:
                self._load(name, content, [])
        self._look_through(tape)
        return tape

    def host_us(self, filled: DeviceFilled, slots: np.ndarray, timeout_s: float) -> float:
        """Microseconds of a call as its caller waits for it, launches included: nothing is hidden."""
        if self._recorder is None:
            asked = {"do": "call", "arguments": self._arguments(filled, slots), "flush": True, "hidden": False}
            return float(self._ask(asked, timeout_s=timeout_s)[0]["host_us"])
        tape = self.tape(filled, slots, timeout_s)
        asked = {"do": "run", "flush": True, "hidden": False}
        return float(self._ask(asked, tape.to_bytes(), timeout_s=timeout_s)[0]["host_us"])

    def graph_us(
        self, filled: DeviceFilled, slots: np.ndarray, *, copies: int, replays: int, timeout_s: float
    ) -> list[float]:
        """Microseconds of a call by another timer: CUDA graphs with and without it, each flushed `copies` times."""
        tape = self.tape(filled, slots, timeout_s)
        asked = {"do": "graph", "copies": copies, "replays": replays}
        return [float(us) for us in self._ask(asked, tape.to_bytes(), timeout_s=timeout_s)[0]["us"]]

    def graph_window_us(
        self, filled: DeviceFilled, slots: np.ndarray, *, replays: int, timeout_s: float
    ) -> list[float]:
        """Microseconds of one replay of a CUDA graph of the call, by the window that `call` uses."""
        tape = self.tape(filled, slots, timeout_s)
        asked = {"do": "graph_window", "replays": replays}
        return [float(us) for us in self._ask(asked, tape.to_bytes(), timeout_s=timeout_s)[0]["us"]]

    def empty(self, rng: np.random.Generator) -> float:
        """Microseconds between the two events with nothing between them."""
        return float(self._ask({"do": "empty"})[0]["us"])

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        self._executor.close()

    # ------------------------------------------------------------ parts

    def _ask(
        self, what: dict[str, Any], body: bytes = b"", timeout_s: float = LOAD_TIMEOUT_S
    ) -> tuple[dict[str, Any], bytes]:
        return self._executor.ask(what, body, timeout_s=timeout_s)

    def _load(self, module: str, content: bytes, variables: list[str]) -> dict[str, tuple[int, int]]:
        head, _ = self._ask({"do": "load", "module": module, "variables": variables}, content)
        self._loaded.add(module)
        return {name: (int(address), int(size)) for name, (address, size) in head["variables"].items()}

    def _look_through(self, tape: Tape) -> None:
        """Raise CandidateFault for an operation outside the memory that is the kernel's, and for a heap that grows."""
        self.launches = sum(isinstance(op, Launch) for op in tape.ops)
        for op in tape.ops:
            match op:
                case Memset():
                    self._inside("cudaMemsetAsync", op.dst, op.count * op.width)
                case Copy():
                    self._inside("cudaMemcpyAsync", op.dst, op.nbytes)
                    self._inside("cudaMemcpyAsync", op.src, op.nbytes)
                case Upload():
                    self._inside("cudaMemcpyAsync", op.dst, len(op.data))
        if tape.heap_bytes > self._heap:
            self._leaks += 1
            grown, self._heap = tape.heap_bytes - self._heap, tape.heap_bytes
            if self._leaks > LEAK_CALLS and grown > 0 and tape.heap_bytes > LEAK_BYTES:
                told = (
                    f"allocated more device memory in each of {self._leaks} calls, {tape.heap_bytes >> 10} KiB in all"
                )
                raise CandidateFault(FailureKind.LEAK, f"{told}; what a call takes it has to give back")

    def _inside(self, what: str, address: int, size: int) -> None:
        if not any(begin <= address and address + size <= begin + room for begin, room in self._ranges):
            told = f"{what} of {size} bytes at {address:#x}, which is none of the kernel's memory"
            raise CandidateFault(FailureKind.CRASHED, told)

    def _arguments(self, filled: DeviceFilled, slots: np.ndarray) -> list[dict[str, Any]]:
        """Arguments of a trusted program, in order: pointers by offset in the arena, with dtype and shape."""
        shapes = {buffer.name: buffer.shape for buffer in filled.buffers}
        given: list[dict[str, Any]] = []
        for argument, slot in zip(self._parts.interface.arguments, slots.tolist(), strict=True):
            if argument.kind is ArgumentKind.STREAM:
                given.append({"kind": "stream"})
            elif argument.kind in POINTERS:
                shape = shapes.get(argument.name or "", (0,))
                dtype = argument.dtype.value if argument.dtype is not None else "u8"
                given.append({"kind": "pointer", "offset": slot, "dtype": dtype, "shape": list(shape)})
            else:
                assert argument.dtype is not None
                given.append({"kind": "scalar", "dtype": argument.dtype.value, "value": _value(argument.dtype, slot)})
        return given


def _value(dtype: DType, slot: int) -> float | int:
    code = _CODES[dtype]
    value: float | int = struct.unpack_from(f"<{code}", slot.to_bytes(8, "little"))[0]
    return value
