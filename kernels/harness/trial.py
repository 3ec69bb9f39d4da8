"""One question put to one contestant, and what its answer is worth: the part that judging and timing share."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.harness import arena, device, sandbox
from kernels.harness.arena import CandidateFault, Prepared
from kernels.harness.clock import Clock
from kernels.harness.compare import compare
from kernels.harness.gate import Case, Gate, Golden
from kernels.harness.gpu_state import State
from kernels.harness.interface import Buffer, buffers, slots
from kernels.harness.requests import Sandbox
from kernels.harness.runner import Tools, build_runner
from specs.errors import UserError
from specs.outcomes import FailureKind, Metrics
from specs.schema import ArgumentKind, Interface, Language, Scalar, Task

if TYPE_CHECKING:
    from kernels.harness.machine import Contestant

# How much of an integer tensor has to look untouched before "not written" is the better word for "wrong": noise agrees
# with one right answer in 256 by chance when elements are bytes.
UNTOUCHED_SHARE = 0.02
STILL = State()

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


@contextlib.contextmanager
def tools(task: Task, builds: Path, policy: Sandbox) -> Iterator[Tools]:
    """Runner, clock, cores and isolation for a task; the calling thread stays on the gate's core meanwhile."""
    interface = interface_of(task)
    isolation = sandbox.choose(policy)
    cores = device.pick_cores()
    last, private = device.cache_bytes(cores.runner)
    clock = Clock(builds, flush_bytes=2 * last, private_bytes=2 * private)
    try:
        program = build_runner(interface, builds, cuda=task.language is Language.CUDA)
        with device.pinned(cores.gate), unreadable():
            yield Tools(program, interface.entry, clock, cores, isolation)
    finally:
        clock.close()


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Nobody of the same user can read this process's memory, where goldens are, while a candidate runs."""
    libc = ctypes.CDLL(None)
    before = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_DUMPABLE, before, 0, 0, 0)


def interface_of(task: Task) -> Interface:
    if task.interface is None:
        raise UserError(f"task {task.name}: interface: none given, so there is no function to call")
    return task.interface


def secret_rng() -> np.random.Generator:
    """A generator that nobody can repeat."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))


@dataclass(frozen=True, slots=True)
class Question:
    """Fresh inputs for one case."""

    case: Case
    distribution: str
    variables: Mapping[str, Scalar]
    buffers: tuple[Buffer, ...]
    inputs: Mapping[str, np.ndarray]
    private: Mapping[str, np.ndarray]  # the same as bytes

    @property
    def told(self) -> str:
        return f"{self.case.name} ({self.distribution})"


def ask(gate: Gate, task: Task, case: Case, distribution: str, rng: np.random.Generator) -> Question:
    """Draw inputs that have never been seen before."""
    variables = task.variables(case.args)
    wanted = buffers(interface_of(task), variables)
    inputs = gate.inputs(rng, case.args, distribution)
    return Question(case, distribution, variables, wanted, inputs, arena.input_bytes(wanted, inputs))


def shapes(task: Task, cases: Sequence[Case]) -> list[tuple[Buffer, ...]]:
    """The buffers of every case."""
    return [buffers(interface_of(task), task.variables(case.args)) for case in cases]


def case_bytes(task: Task, case: Case) -> int:
    """Bytes of every buffer of a case: what it costs to look at it."""
    return sum(buffer.nbytes for buffer in buffers(interface_of(task), task.variables(case.args)))


@dataclass(frozen=True, slots=True)
class Answered:
    """The outputs of one call, in the gate's own memory."""

    microseconds: float
    tensors: Mapping[str, np.ndarray]
    filled: Prepared
    disturbed: bool = False  # see Called
    faults: int = 0
    state: State = STILL  # of the device, right after a timed call


def put(
    runner: Contestant,
    task: Task,
    question: Question,
    rng: np.random.Generator,
    *,
    stages: bool,
    flush: bool,
    timeout_s: float,
    offsets: Mapping[str, int] | None = None,
) -> Answered:
    """One call at fresh addresses (or at `offsets`); raises CandidateFault when it broke a rule on the way."""
    filled, arguments = prepare(runner, task, question, rng, stages=stages, offsets=offsets)
    called = runner.call(
        filled,
        arguments,
        rng,
        flush=flush,
        timeout_s=timeout_s,
        everywhere=not flush,  # timed calls follow one another closely, and come after the judge's
    )
    tensors = filled.tensors(called.snapshot)
    return Answered(called.microseconds, tensors, filled, called.disturbed, called.faults)


def prepare(
    runner: Contestant,
    task: Task,
    question: Question,
    rng: np.random.Generator,
    *,
    stages: bool,
    offsets: Mapping[str, int] | None = None,
) -> tuple[Any, np.ndarray]:
    """Lay inputs and poison out for one call; what was laid out, and the call's slots, u64 `[arguments]`."""
    offsets = runner.arena.layout(question.buffers, rng) if offsets is None else offsets
    filled = runner.arena.fill(question.buffers, offsets, question.private, rng, stages=stages)
    given = {buffer.name: offsets[buffer.name] for buffer in filled.buffers}
    return filled, slots(interface_of(task), question.variables, given)


def check(gate: Gate, answered: Answered, golden: Golden) -> list[Metrics]:
    """Every tensor against its golden, in the gate's order; raises CandidateFault at the first that diverges."""
    found = []
    for name, limits in gate.limits.items():
        if name not in answered.tensors:
            continue
        got = answered.tensors[name]
        untouched = answered.filled.unwritten(name, got)
        if arena.signalling(got.dtype) and untouched.any():
            raise _not_written(name, got, untouched, None)
        comparison = compare(name, got, golden.tensors[name], limits, golden.scales.get(name))
        if comparison.failure is not None:
            if not arena.signalling(got.dtype) and untouched.mean() > UNTOUCHED_SHARE:
                raise _not_written(name, got, untouched, comparison.metrics)
            kind, message = comparison.failure
            raise CandidateFault(kind, message, name, comparison.metrics)
        found.append(comparison.metrics)
    return found


def check_same(first: Answered, second: Answered, kind: FailureKind, told: str) -> None:
    """Raise CandidateFault of `kind` unless every output of two calls is equal bit by bit; `told` says which two."""
    for buffer in first.filled.buffers:
        if buffer.kind is not ArgumentKind.OUTPUT:
            continue
        a, b = first.tensors[buffer.name], second.tensors[buffer.name]
        unlike = a.reshape(-1).view(f"u{a.dtype.itemsize}") != b.reshape(-1).view(f"u{b.dtype.itemsize}")
        if unlike.any():
            at = _index(unlike, a.shape)
            share = f"{int(unlike.sum())} of {a.size} elements"
            message = f"{buffer.name} differs {told}: {share}, first {list(at)}: {a[at]!s} and {b[at]!s}"
            raise CandidateFault(kind, message, buffer.name)


def _not_written(name: str, got: np.ndarray, untouched: np.ndarray, metrics: Metrics | None) -> CandidateFault:
    share = f"{int(untouched.sum())} of {untouched.size} elements"
    first = list(_index(untouched, got.shape))
    message = f"{name} was not written everywhere: {share} still hold what stood there before the call, first {first}"
    return CandidateFault(FailureKind.NOT_WRITTEN, message, name, metrics)


def _index(mask: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), shape))
