"""The small RMSNorm of the harness's tests as a CUDA task. Tests that need a GPU are skipped where there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernels.harness import build, gate
from kernels.harness.gpu.machine import unusable
from kernels.harness.judge import judge
from kernels.harness.requests import Build, GateLock, Judge
from specs.outcomes import Verdict
from specs.schema import Task
from tests.kernels.harness.conftest import GATE, REFERENCE, TASK, builds, own_device_lock

__all__ = ["builds", "own_device_lock"]

needs_gpu = pytest.mark.skipif(unusable() is not None, reason=f"needs a GPU: {unusable()}")

CUDA_TASK: dict[str, Any] = {
    **TASK,
    "name": "tiny-rmsnorm-cuda",
    "gpu": "H200",
    "arch": "sm_90a",
    "language": "cuda",
    "baseline": {"source": "one row a block", "program": "baseline.cu"},
    "interface": {
        "entry": "rmsnorm",
        "arguments": [*TASK["interface"]["arguments"], {"kind": "stream"}],
    },
    "build": {"flags": ["-std=c++17", "-O2", "-lineinfo"]},
}

SOURCE = """
#include <cstdint>
{top}
__global__ void rms(const float* x, const float* g, float* rstd, float* y, float eps, int n, float* scratch) {{
    __shared__ double part[256];
    {before}
    const float* row = x + int64_t(blockIdx.x) * n;
    float* out = y + int64_t(blockIdx.x) * n;
    double sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += double(row[j]) * row[j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {{
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }}
    const float r = 1 / sqrtf(float(part[0] / n) + eps);
    if (threadIdx.x == 0) {{
        scratch[blockIdx.x] = r;
        if (rstd) rstd[blockIdx.x] = {stage};
    }}
    for (int j = threadIdx.x; j < {columns}; j += blockDim.x) out[j] = row[j] * r * g[j];
    {after}
}}
extern "C" void rmsnorm(const float* x, const float* g, float* rstd, float* y, float eps, int M, int N, void* scratch,
                        cudaStream_t stream) {{
    {host}
    rms<<<{rows}, 256, 0, {stream}>>>(x, g, rstd, y, eps, N, static_cast<float*>(scratch));
}}
"""


def kernel(
    top: str = "", before: str = "", stage: str = "r", columns: str = "n", after: str = "", host: str = "",
    rows: str = "M", stream: str = "stream",
) -> str:  # fmt: skip
    """Source of a CUDA candidate: honest as it stands, otherwise bent at one place."""
    return SOURCE.format(
        top=top, before=before, stage=stage, columns=columns, after=after, host=host, rows=rows, stream=stream
    )


@dataclass
class GpuBench:
    folder: Path
    builds: Path
    task: Task

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def lock(self) -> GateLock:
        return gate.lock(self.task, self.gate)

    def library(self, source: str) -> Path:
        path = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.cu"
        path.write_text(source)
        built = build.build(Build(task=self.task, source=path, builds=self.builds))
        assert built.library is not None, built.result.log_tail
        return built.library

    def request(self, library: Path, **changes: Any) -> Judge:
        return Judge(task=self.task, gate=self.gate, lock=self.lock(), library=library, builds=self.builds, **changes)

    def judge(self, source: str, **changes: Any) -> Verdict:
        return judge(self.request(self.library(source), **changes))


@pytest.fixture
def make_gpu_bench(tmp_path: Path, builds: Path) -> Callable[..., GpuBench]:
    def make(task: dict[str, Any] | None = None, gate_yaml: dict[str, Any] | None = None) -> GpuBench:
        folder = tmp_path / "task"
        (folder / "gate").mkdir(parents=True)
        (folder / "gate" / "gate.yaml").write_text(yaml.safe_dump({**GATE, **(gate_yaml or {})}, sort_keys=False))
        (folder / "gate" / "reference.py").write_text(REFERENCE)
        content = {**CUDA_TASK, **(task or {})}
        (folder / "task.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        (folder / "baseline.cu").write_text(kernel())
        return GpuBench(folder, builds, Task.model_validate(content))

    return make


@pytest.fixture
def gpu_bench(make_gpu_bench: Callable[..., GpuBench]) -> GpuBench:
    return make_gpu_bench()
