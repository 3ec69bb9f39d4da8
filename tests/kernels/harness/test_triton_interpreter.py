"""Triton candidates on a machine without a GPU: their results are judged, their time is not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernels.harness import arena, sandbox
from kernels.harness.arena import Arena, CandidateFault, Filled
from kernels.harness.dtypes import numpy_dtype
from kernels.harness.interface import buffers, slots
from kernels.harness.runner import RunnerKilled
from kernels.harness.sandbox import Isolation
from kernels.harness.triton_host import TritonInterpreter, _state
from specs.errors import UserError
from specs.outcomes import FailureKind
from specs.schema import DType, Interface
from tests.kernels.harness.triton_kernels import COPY, HEAD, PLAIN, interface, launcher, needs_triton

pytestmark = needs_triton

ISOLATIONS: list[Isolation] = ["process", *(["bubblewrap"] if sandbox.unusable() is None else [])]  # type: ignore[list-item]
N = 1000


class Contest:
    """A candidate for `launch(x, y, n)` in an arena of its own."""

    def __init__(self, source: bytes, isolation: Isolation, wanted: Interface) -> None:
        self.interface = wanted
        self.buffers = buffers(wanted, {"n": N})
        self.arena = Arena(arena.bytes_needed([self.buffers]))
        self.rng = np.random.default_rng(7)
        self.contestant = TritonInterpreter(source, wanted, self.arena, isolation)

    def call(self, x: np.ndarray, timeout_s: float = 10, **options: Any) -> tuple[Filled, np.ndarray]:
        """y after one call at fresh addresses."""
        offsets = arena.draw_layout(self.buffers, self.rng)
        filled = arena.fill(
            self.arena, self.buffers, offsets, arena.input_bytes(self.buffers, {"x": x}), self.rng, stages=True
        )
        values = slots(self.interface, {"n": N}, offsets)
        called = self.contestant.call(
            filled, values, self.rng, **{"flush": False, "everywhere": True, **options}, timeout_s=timeout_s
        )
        assert math.isnan(called.microseconds)
        return filled, filled.tensors(called.snapshot)["y"]


@pytest.fixture
def contest() -> Iterator[Callable[..., Contest]]:
    with contextlib.ExitStack() as keep:

        def make(source: bytes, isolation: Isolation = ISOLATIONS[-1], wanted: Interface | None = None) -> Contest:
            made = Contest(source, isolation, wanted or interface())
            keep.callback(made.contestant.close)
            return made

        yield make


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kernels_work_on_the_very_memory_that_the_gate_filled(
    contest: Callable[..., Contest], isolation: Isolation
) -> None:
    made = contest(PLAIN, isolation)
    for seed in range(3):
        _, y = made.call(numbers(seed))
        assert np.array_equal(y, numbers(seed))
    assert made.contestant.description.endswith("interpreter")


def test_it_is_stopped_whenever_it_is_not_in_a_call(contest: Callable[..., Contest]) -> None:
    made = contest(PLAIN)
    assert _state(made.contestant._process.pid) == "T"
    made.call(numbers())
    assert _state(made.contestant._process.pid) == "T"


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F64, DType.I8, DType.I64, DType.U16])
def test_other_dtypes_are_what_they_are(contest: Callable[..., Contest], dtype: DType) -> None:
    wanted = interface(
        {"name": "x", "kind": "input", "dtype": dtype.value, "shape": ["n"]},
        {"name": "y", "kind": "output", "dtype": "f32", "shape": ["n"]},
        {"name": "n", "kind": "scalar", "dtype": "i32"},
    )
    doubled = PLAIN.replace(b"tl.load(x + at, mask=at < n)", b"tl.load(x + at, mask=at < n).to(tl.float32) * 2")
    x = np.random.default_rng(1).integers(0, 50, N).astype(numpy_dtype(dtype))
    _, y = contest(doubled, wanted=wanted).call(x)
    assert np.array_equal(y, x.astype(np.float32) * 2)


def test_bf16_outputs_are_rounded_to_nearest(contest: Callable[..., Contest]) -> None:
    wanted = interface(
        {"name": "x", "kind": "input", "dtype": "f32", "shape": ["n"]},
        {"name": "y", "kind": "output", "dtype": "bf16", "shape": ["n"]},
        {"name": "n", "kind": "scalar", "dtype": "i32"},
    )
    _, y = contest(PLAIN, wanted=wanted).call(numbers())
    right = numbers().astype(ml_dtypes.bfloat16)
    assert np.abs(y.astype(np.float32) - right.astype(np.float32)).max() <= 2.0**-7 * np.abs(numbers()).max()


def test_loops_and_functions_are_interpreted(contest: Callable[..., Contest]) -> None:
    """Bounds of loops that the device alone knows, a device function, a while loop, a reduction."""
    source = launcher(
        "total[(1,)](x, y, n, BLOCK=128)",
        HEAD
        + """
@triton.jit
def twice(a):
    return a + a

@triton.jit
def total(x, y, n, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        sums += twice(tl.load(x + at, mask=at < n, other=0.0))
    begin = 0
    while begin < n:
        at = begin + tl.arange(0, BLOCK)
        tl.store(y + at, tl.sum(sums, axis=0), mask=at < n)
        begin += BLOCK
""",
    )
    _, y = contest(source).call(numbers())
    assert np.allclose(y, 2 * numbers().astype(np.float64).sum(), atol=1e-3)


SAYS_THAT_IT_COMPILES = """
from kernels.harness import triton_child
for fd in range(3, 1024):
    try:
        triton_child.Channel(fd).send({"compiling": True})
    except OSError:
        pass
while True: pass
"""


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("copy[(5,)](x, y, 1001, BLOCK=256)", FailureKind.GUARD_OVERWRITTEN, "wrote outside y"),
        ("copy[(1,)](y, x, n, BLOCK=256)", FailureKind.INPUT_CHANGED, "wrote to input x"),
        ("copy[(1,)](Wild(), y, n, BLOCK=256)", FailureKind.CRASHED, "SIGSEGV"),
        ("raise KeyError('why')", FailureKind.CRASHED, "KeyError: 'why' (line "),
        ("import os\nos._exit(3)", FailureKind.EXITED, "exit status 3"),
        ("raise SystemExit", FailureKind.EXITED, "SystemExit(None)"),
        ("import threading\nthreading.Thread(target=print).start()", FailureKind.THREADS, "a thread or a program"),
        ("import os\nos.fork()", FailureKind.THREADS, "a thread or a program"),
        ("import subprocess\nsubprocess.run(['/usr/bin/true'])", FailureKind.THREADS, "a thread or a program"),
        ("while True: pass", FailureKind.HUNG, "did not return within 4 s"),
        (
            SAYS_THAT_IT_COMPILES,
            FailureKind.HUNG,
            " within ",
        ),  # saying so gains it no time: an interpreter compiles nothing
        ("bytearray(1 << 40)", FailureKind.CRASHED, "ran out of the memory"),
        ("import socket\nsocket.socket()", FailureKind.CRASHED, "PermissionError"),
    ],
)
def test_what_a_candidate_does_wrong_is_its_own_fault(
    contest: Callable[..., Contest], body: str, kind: FailureKind, told: str
) -> None:
    wild = """
class Wild:
    dtype = tl.float32
    def data_ptr(self): return 4096
    def untyped_storage(self): return self
    def cpu(self): return self
    def copy_(self, other): pass
    def new_empty(self, *a, device=None): return self
    def set_(self, *a): pass
    def storage_offset(self): return 0
    def size(self): return ()
    def stride(self): return ()
"""
    made = contest(launcher(body, COPY + wild))
    with pytest.raises(CandidateFault) as caught:
        made.call(numbers(), timeout_s=1 if kind is FailureKind.HUNG else 10)
    assert (caught.value.kind, told in caught.value.message) == (kind, True), caught.value.message


def test_autotuning_is_refused_with_what_to_do_instead(contest: Callable[..., Contest]) -> None:
    tuned = PLAIN.replace(
        b"@triton.jit",
        b"@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2)], key=['n'])\n@triton.jit",
    )
    with pytest.raises(CandidateFault, match="declare one configuration"):
        contest(tuned).call(numbers())


def test_nothing_is_timed(contest: Callable[..., Contest]) -> None:
    made = contest(PLAIN)
    with pytest.raises(UserError, match="timed on a GPU; this machine has none"):
        made.call(numbers(), flush=True)
    with pytest.raises(UserError, match="timed on a GPU; this machine has none"):
        made.contestant.empty(made.rng)


def test_an_end_from_outside_is_no_verdict(contest: Callable[..., Contest]) -> None:
    made = contest(PLAIN)
    made.contestant._process._signal(9)
    with pytest.raises(RunnerKilled):
        made.call(numbers())


@pytest.mark.parametrize("made_by", ["the launcher", "the kernel"])
def test_descriptors_are_interpreted(contest: Callable[..., Contest], made_by: str) -> None:
    host = launcher(
        "move[(4,)](TensorDescriptor(x, [n], [1], [256]), TensorDescriptor(y, [n], [1], [256]))",
        HEAD
        + """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def move(a, b):
    at = [tl.program_id(0) * 256]
    b.store(at, a.load(at))
""",
    )
    device = launcher(
        "move[(4,)](x, y, n)",
        HEAD
        + """
@triton.jit
def move(x, y, n):
    at = [tl.program_id(0) * 256]
    tl.make_tensor_descriptor(y, [n], [1], [256]).store(at, tl.make_tensor_descriptor(x, [n], [1], [256]).load(at))
""",
    )
    _, y = contest(host if made_by == "the launcher" else device).call(numbers())
    assert np.array_equal(y, numbers())
