"""A small real task, an RMSNorm with a stage tensor, and candidates for it written into the test's own folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import yaml

from kernels.harness import build, gate
from kernels.harness.judge import judge
from kernels.harness.requests import Build, GateLock, Judge, Sandbox
from specs.outcomes import Verdict
from specs.schema import Task
from tests.shared import one_for_all

REFERENCE = """
import numpy as np

def make_inputs(rng, args, distribution):
    x = rng.standard_normal((args["M"], args["N"]), dtype=np.float32)
    if distribution == "shifted":
        x = x * np.float32(3) + np.float32(5)
    return {"x": x, "g": rng.uniform(0.5, 1.5, args["N"]).astype(np.float32)}

def reference(inputs, args):
    x = inputs["x"].astype(np.float64)
    rstd = 1 / np.sqrt((x * x).mean(axis=1) + 1e-6)
    return {"rstd": rstd, "y": x * rstd[:, None] * inputs["g"].astype(np.float64)}
"""

GATE = {
    "contract": "y = x / sqrt(mean(x^2) + eps) * g, row by row.",
    "deterministic": True,
    "distributions": ["normal", "shifted"],
    "tensors": {"rstd": {"elementwise": 1e-5}, "y": {"elementwise": 1e-5, "rel_l2": 1e-5}},
    "edges": [{"name": "one_row", "args": {"M": 1, "N": 7}}],
    "held_out": [{"name": "odd", "args": {"M": 5, "N": 33}}],
}

TASK: dict[str, Any] = {
    "name": "tiny-rmsnorm",
    "gpu": "CPU",
    "arch": "native",
    "precision": "f32",
    "problem": {"description": "RMSNorm of a few rows"},
    "baseline": {"source": "plain loops", "program": "baseline.cpp"},
    "configs": [
        {"name": "small", "args": {"M": 4, "N": 256}},
        {"name": "wide", "args": {"M": 16, "N": 1024}},
    ],
    "gate": "gate",
    "language": "cpp",
    "interface": {
        "entry": "rmsnorm",
        "arguments": [
            {"name": "x", "kind": "input", "dtype": "f32", "shape": ["M", "N"]},
            {"name": "g", "kind": "input", "dtype": "f32", "shape": ["N"]},
            {"name": "rstd", "kind": "stage", "dtype": "f32", "shape": ["M"]},
            {"name": "y", "kind": "output", "dtype": "f32", "shape": ["M", "N"]},
            {"name": "eps", "kind": "scalar", "dtype": "f32", "value": 1.0e-6},
            {"name": "M", "kind": "scalar", "dtype": "i32"},
            {"name": "N", "kind": "scalar", "dtype": "i32"},
            {"name": "scratch", "kind": "workspace", "bytes": "4 * M"},
        ],
    },
    "build": {"flags": ["-std=c++17", "-O2"]},
    "search": {"min_gain": 0.02},
}

# Without <cmath>, which alone takes a compiler five times as long as the rest of such a kernel.
HEAD = """
#include <cstdint>
extern "C" void rmsnorm(const float* x, const float* g, float* rstd, float* y, float eps, int32_t M, int32_t N,
                        void* scratch) {
"""

# `before` runs before the work, `after` when all of it is done; `rows` and `columns` bound the loops.
BODY = """
    {before}
    for (int i = 0; i < {rows}; ++i) {{
        double sum = 0;
        for (int j = 0; j < N; ++j) sum += double(x[i * N + j]) * x[i * N + j];
        const float r = 1 / __builtin_sqrtf(float(sum / N) + eps);
        static_cast<float*>(scratch)[i] = r;
        if (rstd) rstd[i] = {stage};
        for (int j = 0; j < {columns}; ++j) y[i * N + j] = x[i * N + j] * r * g[j];
    }}
    {after}
}}
"""


def kernel(
    before: str = "", after: str = "", rows: str = "M", columns: str = "N", stage: str = "r", top: str = ""
) -> str:
    """Source of a candidate: honest as it stands, otherwise bent at one place."""
    return top + HEAD + BODY.format(before=before, after=after, rows=rows, columns=columns, stage=stage)


@dataclass
class Bench:
    """A task in its own folder, with everything that a test does to it."""

    folder: Path
    builds: Path
    task: Task

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def lock(self) -> GateLock:
        return gate.lock(self.task, self.gate)

    def library(self, source: str) -> Path:
        """Build a candidate, as a baseline so that the audit does not refuse what these tests are about."""
        path = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.cpp"
        path.write_text(source)
        built = build.build(Build(task=self.task, source=path, role="baseline", builds=self.builds))
        assert built.library is not None, built.result.log_tail
        return built.library

    def judge_request(self, library: Path, **changes: Any) -> Judge:
        return Judge(task=self.task, gate=self.gate, lock=self.lock(), library=library, builds=self.builds, **changes)

    def judge(self, source: str, sandbox: Sandbox = "preferred", **changes: Any) -> Verdict:
        return judge(self.judge_request(self.library(source), sandbox=sandbox, **changes))


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device lock of the test's own: no test waits for a run that happens beside it."""
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of builds for all tests: runner, clock and the honest kernel are compiled once."""
    return one_for_all(tmp_path_factory) / "builds"


@pytest.fixture
def make_bench(tmp_path: Path, builds: Path) -> Callable[..., Bench]:
    def make(
        task: dict[str, Any] | None = None, gate_yaml: dict[str, Any] | None = None, reference: str = REFERENCE
    ) -> Bench:
        folder = tmp_path / "task"
        (folder / "gate").mkdir(parents=True)
        (folder / "gate" / "gate.yaml").write_text(yaml.safe_dump({**GATE, **(gate_yaml or {})}, sort_keys=False))
        (folder / "gate" / "reference.py").write_text(reference)
        content = {**TASK, **(task or {})}
        (folder / "task.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        (folder / "baseline.cpp").write_text(kernel())
        return Bench(folder, builds, Task.model_validate(content))

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
