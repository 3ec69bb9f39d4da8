"""Triton candidates on a GPU: recorded without one, replayed on it, judged and timed like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import build, exploits, gate
from kernels.harness.exploits import Exploit, Settings
from kernels.harness.judge import judge
from kernels.harness.measure import measure
from kernels.harness.requests import Build, Measure, Measured
from specs.loader import load_task
from specs.outcomes import FailureKind, Verdict
from specs.schema import Language
from tests.kernels.harness.conftest import Bench
from tests.kernels.harness.gpu.conftest import needs_gpu
from tests.kernels.harness.triton_kernels import HEAD, needs_triton

pytestmark = [needs_gpu, needs_triton, pytest.mark.timeout(600)]

EXPLOITS = exploits.default_folder()
FILES = exploits.load(EXPLOITS, Language.TRITON)


@pytest.mark.parametrize("exploit", FILES, ids=lambda exploit: exploit.name)
def test_cheats_and_controls_come_out_on_the_device_as_they_say(exploit: Exploit, builds: Path) -> None:
    row = exploits.run(exploit, Settings(builds=builds))
    assert row.ok, [(each.layer, each.came, each.message) for each in row.passes]


GEMM_REFERENCE = """
import numpy as np

def make_inputs(rng, args, distribution):
    scale = 1.0 if distribution == "normal" else 3.0
    a = (scale * rng.standard_normal((args["M"], args["K"]))).astype(np.float16)
    b = rng.standard_normal((args["N"], args["K"])).astype(np.float16)
    return {"a": a, "b": b}

def reference(inputs, args):
    a, b = inputs["a"].astype(np.float64), inputs["b"].astype(np.float64)
    return {"c": a @ b.T, "c.scale": np.abs(a) @ np.abs(b).T}
"""

GEMM_TASK: dict[str, Any] = {
    "name": "triton-gemm",
    "gpu": "H200",
    "arch": "sm_90a",
    "language": "triton",
    "build": {},
    "interface": {
        "entry": "gemm",
        "arguments": [
            {"name": "a", "kind": "input", "dtype": "f16", "shape": ["M", "K"]},
            {"name": "b", "kind": "input", "dtype": "f16", "shape": ["N", "K"]},
            {"name": "c", "kind": "output", "dtype": "f32", "shape": ["M", "N"]},
            {"name": "M", "kind": "scalar", "dtype": "i32"},
            {"name": "N", "kind": "scalar", "dtype": "i32"},
            {"name": "K", "kind": "scalar", "dtype": "i32"},
            {"kind": "stream"},
        ],
    },
    "configs": [
        {"name": "square", "args": {"M": 512, "N": 512, "K": 1024}},
        {"name": "tall", "args": {"M": 2048, "N": 256, "K": 512}},
    ],
}
GEMM_GATE: dict[str, Any] = {
    "distributions": ["normal", "large"],
    "tensors": {"c": {"elementwise": 1.0e-5}},
    "edges": [{"name": "one_tile", "args": {"M": 128, "N": 128, "K": 64}}],
    "held_out": [],
}

# With descriptors of the launcher: shared memory beyond 48 KiB, tensor maps, wgmma.
HOST_DESCRIPTORS = (
    HEAD
    + """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def tiles(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    tl.store(c + rows[:, None] * N + columns[None, :], total)

def gemm(a, b, c, M, N, K, stream):
    tiles[(M // 128, N // 128)](
        TensorDescriptor.from_tensor(a, [128, 64]), TensorDescriptor.from_tensor(b, [128, 64]), c, N, K,
        BM=128, BN=128, BK=64, num_warps=8, num_stages=4,
    )
"""
)
# With descriptors made on the device, which need scratch from the heap.
DEVICE_DESCRIPTORS = (
    HEAD
    + """
@triton.jit
def tiles(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_tiles = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a_tiles.load([row, k]), b_tiles.load([column, k]).T, total)
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    tl.store(c + rows[:, None] * N + columns[None, :], total)

def gemm(a, b, c, M, N, K, stream):
    tiles[(M // 128, N // 128)](a, b, c, M, N, K, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
"""
)
# Plain pointers, on clusters of two blocks.
CLUSTERS = (
    HEAD
    + """
@triton.jit
def tiles(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        total += tl.dot(
            tl.load(a + rows[:, None] * K + k + at[None, :]), tl.load(b + columns[None, :] * K + k + at[:, None])
        )
    tl.store(c + rows[:, None] * N + columns[None, :], total)

def gemm(a, b, c, M, N, K, stream):
    tiles[(M // 128, N // 128)](a, b, c, N, K, BM=128, BN=128, BK=64, num_warps=4, num_ctas=2)
"""
)


def judged(bench: Bench, source: str) -> Verdict:
    path = bench.folder / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    path.write_text(source)
    built = build.build(Build(task=bench.task, source=path, builds=bench.builds))
    assert built.library is not None, built.result.log_tail
    return judge(bench.judge_request(built.library))


@pytest.mark.parametrize("source", [HOST_DESCRIPTORS, DEVICE_DESCRIPTORS, CLUSTERS], ids=["host", "device", "clusters"])
def test_what_hopper_kernels_are_made_of_works_when_replayed(make_bench: Callable[..., Bench], source: str) -> None:
    verdict = judged(make_bench(task=GEMM_TASK, gate_yaml=GEMM_GATE, reference=GEMM_REFERENCE), source)
    assert verdict.failure is None, verdict.failure
    assert verdict.cases > 10


def test_a_launch_that_the_device_refuses_is_the_candidates_failure(make_bench: Callable[..., Bench]) -> None:
    """More blocks than fit at once, all of which are asked to be there."""
    too_many = CLUSTERS.replace("num_ctas=2", "launch_cooperative_grid=True").replace(
        "tiles[(M // 128, N // 128)]", "tiles[(M // 128, 4096)]"
    )
    failure = judged(make_bench(task=GEMM_TASK, gate_yaml=GEMM_GATE, reference=GEMM_REFERENCE), too_many).failure
    assert failure is not None
    assert failure.kind is FailureKind.LAUNCH_FAILED


def test_a_triton_kernel_is_timed_against_cuda(builds: Path, tmp_path: Path) -> None:
    """Compiling and the launcher's own time are in nobody's figure."""
    folder = EXPLOITS / "tasks" / "rmsnorm_triton"
    task = load_task(folder / "task.yaml").task

    def built(source: Path, role: Any) -> Path:
        made = build.build(Build(task=task, source=source, role=role, builds=builds))
        assert made.library is not None, made.result.log_tail
        return made.library

    answer = measure(
        Measure(
            task=task, gate=folder / "gate", lock=gate.lock(task, folder / "gate"), builds=builds,
            baseline=built(folder / "../rmsnorm_cuda/baseline.cu", "baseline"),
            candidate=built(EXPLOITS / "honest_triton" / "plain.py", "candidate"),
            samples=tmp_path / "samples.json", max_seconds=20,
        )
    )  # fmt: skip
    assert isinstance(answer, Measured)
    assert answer.outcome.failure is None, answer.outcome.failure
    assert answer.outcome.measurement is not None
    for config in answer.outcome.measurement.configs:
        assert 0.05 < config.ratio.value < 20
        assert config.candidate.median_us < 100
