"""Where contestants run: this machine's processor or one of its GPUs, behind one face for judging and timing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernels.harness import arena, calibrate, device, sanitize, trial
from kernels.harness.arena import Arena
from kernels.harness.gate import Gate
from kernels.harness.gpu_state import State
from kernels.harness.interface import Buffer
from kernels.harness.requests import Sandbox
from kernels.harness.roofline import Peaks
from kernels.harness.runner import Called, Runner, Tools
from specs.outcomes import Device
from specs.schema import Language, Task

Cases = Sequence[Sequence[Buffer]]


class Memory(Protocol):
    """The arena of all contestants."""

    def layout(self, buffers: Sequence[Buffer], rng: np.random.Generator) -> dict[str, int]: ...

    def fill(
        self,
        buffers: Sequence[Buffer],
        offsets: Mapping[str, int],
        inputs: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        stages: bool,
    ) -> Any: ...

    def close(self) -> None: ...


class Contestant(Protocol):
    """One kernel in processes of its own."""

    @property
    def arena(self) -> Any: ...
    @property
    def description(self) -> str: ...

    def call(
        self,
        filled: Any,
        slots: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
        everywhere: bool = ...,
    ) -> Called: ...

    def empty(self, rng: np.random.Generator) -> float: ...
    def close(self) -> None: ...


class Machine(Protocol):
    """What judging and timing need of a device."""

    @property
    def isolation(self) -> str: ...
    @property
    def rounds_per_process(self) -> int:
        """Timed rounds after which every process is replaced."""
        ...

    @property
    def processes_differ(self) -> bool:
        """Whether one kernel in two processes takes two times: rounds that share their processes are then one draw."""
        ...

    @property
    def watched(self) -> bool:
        """Whether a round can be told to have been disturbed."""
        ...

    @property
    def checker_core(self) -> int | None:
        """Where goldens are compared meanwhile; None: anywhere."""
        ...

    def memory(self, cases: Cases) -> Memory: ...
    def expect(self, memory: Any, contestants: int, trusted: Path | None) -> None:
        """So many will be asked for at once: what takes long to start may start side by side."""
        ...

    def contestant(self, memory: Any, *, candidate: bytes | None = None, trusted: Path | None = None) -> Contestant: ...
    def check_memory(self, gate: Gate, library: bytes, source: Path | None) -> str:
        """Watch a candidate's accesses to memory; a sentence about what was watched. Raises CandidateFault."""
        ...

    def host_us(self, contestant: Any, filled: Any, slots: np.ndarray, timeout_s: float) -> float | None:
        """Microseconds of a call as its caller waits for it, launches included; None where the two are the same."""
        ...

    def peaks(self, *, again: bool = False) -> Peaks:
        """What the device can do at most, measured once, or `again`; the caller holds its lock."""
        ...

    def state(self) -> State:
        """Clocks and what holds them down at this moment, as far as the device says."""
        ...

    def lock(self, wait_s: float, *, shared: bool = False) -> AbstractContextManager[float]: ...
    def describe(self) -> Device: ...


class Cpu:
    """One core of this machine."""

    # Where a process lies in memory can make one of two identical kernels faster for as long as it lives.
    rounds_per_process = 10
    processes_differ = False  # by little beside the noise of a round

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.isolation = tools.isolation
        self.watched = tools.cores.spin
        self.checker_core: int | None = tools.cores.runner

    def memory(self, cases: Cases) -> Arena:
        return Arena(arena.bytes_needed(cases))

    def expect(self, memory: Any, contestants: int, trusted: Path | None) -> None:
        """A process takes milliseconds to start here."""

    def contestant(self, memory: Arena, *, candidate: bytes | None = None, trusted: Path | None = None) -> Runner:
        return Runner(self.tools, memory, candidate=candidate, trusted=trusted)

    def check_memory(self, gate: Gate, library: bytes, source: Path | None) -> str:
        """Build the source again with sanitizers: a shared object alone cannot be watched here."""
        if source is None:
            return "not checked: the source is not at hand"
        return sanitize.check(gate, gate.task, source, self.tools.builds, self.isolation)

    def host_us(self, contestant: Runner, filled: Any, slots: np.ndarray, timeout_s: float) -> None:
        """The processor does the work itself."""
        return

    def peaks(self, *, again: bool = False) -> Peaks:
        return calibrate.peaks("cpu", self.tools.builds, locked=True, again=again)

    def state(self) -> State:
        """A core's clock cannot be read without asking for privileges; pairs of calls close together make up for it."""
        return State()

    def lock(self, wait_s: float, *, shared: bool = False) -> AbstractContextManager[float]:
        return device.lock(self.tools.cores.runner, wait_s, shared=shared)

    def describe(self) -> Device:
        return device.describe(self.tools.cores)


@contextlib.contextmanager
def opened(task: Task, builds: Path, policy: Sandbox) -> Iterator[Machine]:
    """The device that a task asks for. Raises UserError when this machine has none, or cannot isolate as asked."""
    if task.language is Language.CPP:
        with trial.tools(task, builds, policy) as tools:
            yield Cpu(tools)
        return
    from kernels.harness.gpu import machine as gpu

    if task.language is Language.TRITON and gpu.unusable() is not None:
        from kernels.harness import triton_host

        with triton_host.opened(task, policy) as interpreter:
            yield interpreter
        return
    with gpu.opened(task, builds, policy) as found:
        yield found
