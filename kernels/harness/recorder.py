"""A candidate's host code where no GPU is: each call of its entry becomes a tape of what it wants done."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernels.harness import symbols
from kernels.harness.arena import CandidateFault
from kernels.harness.build import compile_tool
from kernels.harness.clock import HERE
from kernels.harness.interface import Buffer
from kernels.harness.runner import Contained, Ground, Tools, memory_file
from kernels.harness.tape import MAX_BYTES, NONCE_BYTES, Facts, Launch, SetAttribute, Tape
from specs.outcomes import FailureKind

# What stands at the start of the shared memory; tape.h says what each is.
_HEAD = struct.Struct(f"<QQQIIQQ{NONCE_BYTES}s")
_REFUSED, _FAILED, _BASE = 24, 28, 32  # offsets
_SAID_BYTES = 1024
_PAGE = 4096
_TAPE_HEAD, _TAPE_HEAD_BYTES = struct.Struct("<8sIIQ"), 48  # magic, version, records, bytes of the records

_REFUSALS = {1: FailureKind.WRONG_STREAM, 2: FailureKind.CRASHED, 3: FailureKind.LAUNCH_FAILED}
_ERROR_NAMES = {
    1: "cudaErrorInvalidValue",
    9: "cudaErrorInvalidConfiguration",
    98: "cudaErrorInvalidDeviceFunction",
    701: "cudaErrorLaunchOutOfResources",
    720: "cudaErrorCooperativeLaunchTooLarge",
    912: "cudaErrorInvalidClusterSize",
}

_EXPORTS = f"{symbols.CUDA_LIBRARY} {{ global: cuda*; __cuda*; ferret_recorder_*; local: *; }};\n"


def build_runtime(builds: Path) -> Path:
    """Compile the library that a candidate finds in the place of CUDA's runtime; the same for every task."""
    return compile_tool(
        "cudart",
        HERE / "cudart.cpp",
        [
            "-std=c++17", "-O2", "-Wl,-z,relro,-z,now", "-Wl,-Bsymbolic",
            f"-Wl,-soname,{symbols.CUDA_LIBRARY}", "-Wl,--version-script=exports.map",
        ],
        builds,
        extra={"tape.h": (HERE / "tape.h").read_text(), "exports.map": _EXPORTS},
        shared=True,
    )  # fmt: skip


class Recorder(Contained):
    """One candidate's host code in a process without data and without a device."""

    def __init__(self, tools: Tools, library: bytes, facts: Facts) -> None:
        """Start and load.

        `tools.program` is a runner that was built with `cuda`. Raises CandidateFault when the object cannot be loaded,
        RunnerLost when the process itself did not start.

        A recorder and the process that replays its tapes belong together: what one call sets up on the device (symbols,
        memory that it keeps) later ones may rely on. Function attributes are on every tape.
        """
        self._facts = facts
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            told = facts.to_bytes()
        except ValueError as error:
            raise CandidateFault(FailureKind.NOT_LOADED, f"could not be loaded: {error}") from None
        facts_at = _PAGE
        self._tape_at = facts_at + -(-len(told) // _PAGE) * _PAGE
        size = self._tape_at + MAX_BYTES
        with contextlib.ExitStack() as keep:
            fd = memory_file("ferret-recording", keep)
            os.ftruncate(fd, size)
            self._shared = mmap.mmap(fd, size)
            head = _HEAD.pack(facts_at, self._tape_at, MAX_BYTES, 0, 0, facts.arena, facts.stream, self._nonce)
            self._shared[: len(head)] = head
            self._shared[facts_at : facts_at + len(told)] = told
            ground = Ground(
                runtime=build_runtime(tools.builds),
                recording_fd=fd,
                recording_bytes=size,
                reserved=facts.arena_bytes + facts.heap[1],
            )
            super().__init__(tools, ground, candidate=library)

    @property
    def modules(self) -> Mapping[str, bytes]:
        """Device code that tapes name beyond the facts' own module: none, a CUDA candidate has one image."""
        return {}

    def record_call(self, buffers: Sequence[Buffer], slots: np.ndarray, base: int, timeout_s: float) -> Tape:
        """`record` with pointers relative to the device address `base`; the buffers are nothing that it looks at."""
        return self.record(slots, timeout_s, base=base)

    def record(self, slots: np.ndarray, timeout_s: float, *, base: int | None = None) -> Tape:
        """What one call of the entry puts on its stream.

        `slots` is u64 `[arguments]`, pointers relative to `base`, by default the facts' arena. Raises CandidateFault
        when the call is refused, a launch fails, or the process crashes, exits, hangs or leaves something behind.
        """
        self._reset(self._facts.arena if base is None else base)
        self._call_untimed(slots, timeout_s)
        if failed := self._number(_FAILED):
            name = _ERROR_NAMES.get(failed, f"error {failed}")
            why = self._words_at(1) or "says that a launch failed, and not which or why"
            raise CandidateFault(FailureKind.LAUNCH_FAILED, f"{why} ({name})")
        return self._tape()

    def _reset(self, base: int) -> None:
        begin = self._tape_at
        self._shared[begin : begin + _TAPE_HEAD_BYTES] = bytes(_TAPE_HEAD_BYTES)
        self._shared[_REFUSED:_BASE] = bytes(_BASE - _REFUSED)
        self._shared[_BASE : _BASE + 8] = base.to_bytes(8, "little")

    def _tape(self) -> Tape:
        """A copy of what the process wrote, parsed. It stands still meanwhile, and would gain nothing if it did not."""
        begin = self._tape_at
        body = _TAPE_HEAD.unpack_from(self._shared, begin)[3]
        if body > MAX_BYTES - _TAPE_HEAD_BYTES:
            raise CandidateFault(FailureKind.CRASHED, f"left a tape of {body} bytes; at most {MAX_BYTES} are accepted")
        try:
            tape = Tape.from_bytes(self._shared[begin : begin + _TAPE_HEAD_BYTES + body])
        except ValueError as error:
            raise CandidateFault(FailureKind.CRASHED, f"left something that is no tape: {error}") from None
        self._check(tape)
        return tape

    def _check(self, tape: Tape) -> None:
        facts = self._facts
        if tape.nonce != self._nonce or tape.heap_bytes > facts.heap[1]:
            raise CandidateFault(FailureKind.CRASHED, "left a tape that this recorder did not write")
        for op in tape.ops:
            if not isinstance(op, Launch | SetAttribute):
                continue
            kernel = facts.kernels.get(op.kernel) if op.module == facts.module else None
            if kernel is None or (isinstance(op, Launch) and len(op.params) != kernel.param_bytes):
                raise CandidateFault(FailureKind.CRASHED, f"left a tape with a kernel that is not its own: {op.kernel}")

    def _ended(self, when: str) -> Exception:
        """A call that was refused ended the process: then that is why."""
        fault = super()._ended(when)
        kind = _REFUSALS.get(self._number(_REFUSED))
        if kind is None or not isinstance(fault, CandidateFault):
            return fault
        return CandidateFault(kind, self._words_at(0) or f"ended itself as if a call had been refused: {fault.message}")

    def _number(self, offset: int) -> int:
        return int.from_bytes(self._shared[offset : offset + 4], "little")

    def _words_at(self, index: int) -> str:
        """One of the two texts; printable characters only, since a candidate may have written it."""
        begin = _HEAD.size + index * _SAID_BYTES
        raw = self._shared[begin : begin + _SAID_BYTES].split(b"\0", 1)[0]
        return symbols.readable_names(re.sub(r"[^\x20-\x7e]+", " ", raw.decode(errors="replace")).strip())
