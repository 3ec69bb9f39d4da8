"""Building a Triton candidate: its text is looked at, and nothing of it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import build, gate
from kernels.harness.judge import judge
from kernels.harness.requests import Build, Built, Judge
from specs.errors import UserError
from specs.outcomes import BuildStatus, FailureKind
from specs.schema import Task
from tests.kernels.harness.conftest import TASK, Bench
from tests.kernels.harness.triton_kernels import HEAD, needs_triton

pytestmark = needs_triton

TRITON: dict[str, Any] = {**TASK, "language": "triton", "build": {}}
KERNEL = (
    HEAD
    + """
@triton.jit
def norm(x, g, rstd, y, eps, N, STAGE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    a = tl.load(x + row * N + columns, mask=columns < N, other=0.0)
    r = 1.0 / tl.sqrt(tl.sum(a * a) / N + eps)
    if STAGE:
        tl.store(rstd + row, r)
    tl.store(y + row * N + columns, a * r * tl.load(g + columns, mask=columns < N), mask=columns < N)

def rmsnorm(x, g, rstd, y, eps, M, N, scratch):
    norm[(M,)](x, g, rstd, y, eps, N, STAGE=rstd is not None, BLOCK=triton.next_power_of_2(N))
"""
)


@pytest.fixture
def made(tmp_path: Path, builds: Path) -> Callable[..., Built]:
    def make(source: str | bytes, name: str = "candidate.py", **changes: Any) -> Built:
        path = tmp_path / name
        path.write_bytes(source.encode() if isinstance(source, str) else source)
        task = Task.model_validate({**TRITON, **changes.pop("task", {})})
        return build.build(Build(task=task, source=path, builds=builds, **changes))

    return make


def test_the_product_is_the_source_itself(made: Callable[..., Built], tmp_path: Path) -> None:
    built = made(KERNEL)
    assert built.library is not None, built.result.log_tail
    assert built.library.name == "kernel.py"
    assert built.library.read_text() == KERNEL
    assert built.result.compiler.startswith("triton 3")
    assert made(KERNEL).result.cached


@pytest.mark.parametrize(
    ("source", "status", "told"),
    [
        (KERNEL + "import torch\n", BuildStatus.REFUSED, "kernel.py:16: imports torch"),
        (KERNEL.replace("def rmsnorm(", "def other("), BuildStatus.FAILED, "defines no launcher def rmsnorm(x, g, rs"),
        (KERNEL.replace(", scratch)", ")"), BuildStatus.FAILED, "rmsnorm takes 7 arguments; 8 are needed"),
        (KERNEL + "def broken(:\n", BuildStatus.FAILED, "kernel.py:16: invalid syntax"),
        (b"# coding: utf-7\n", BuildStatus.FAILED, "only UTF-8 is accepted"),
        (b"x = '\xe9'\n", BuildStatus.FAILED, "line 1: byte 0xe9 is not UTF-8"),
        ("x = " + "(" * 3000 + ")" * 3000, BuildStatus.FAILED, "kernel.py"),
    ],
)
def test_what_is_no_candidate_is_told_with_its_line(
    made: Callable[..., Built], source: str | bytes, status: BuildStatus, told: str
) -> None:
    built = made(source)
    assert built.library is None
    assert (built.result.status, told in built.result.log_tail) == (status, True), built.result.log_tail


def test_nothing_of_a_candidate_runs_while_it_is_built(made: Callable[..., Built], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert made(KERNEL + f"open({str(ran)!r}, 'w')\n", role="baseline").library is not None
    assert not ran.exists()


def test_a_triton_kernel_is_given_no_flags(made: Callable[..., Built]) -> None:
    with pytest.raises(UserError, match=r"build flags -O3: a Triton kernel is given no flags"):
        made(KERNEL, task={"build": {"flags": ["-O3"]}})


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_baseline_is_built_as_what_its_name_says(made: Callable[..., Built]) -> None:
    """A Triton task is timed against a kernel that a compiler makes."""
    plain = """#include <cstdint>
extern "C" void rmsnorm(const float*, const float*, float*, float*, float, int32_t, int32_t, void*) {}
"""
    built = made(plain, name="baseline.cpp", role="baseline")
    assert built.library is not None, built.result.log_tail
    assert built.library.name == "kernel.so"


def test_what_was_built_is_judged_without_a_gpu(make_bench: Callable[..., Bench], builds: Path, tmp_path: Path) -> None:
    """By the harness's own judge, call by call, on this machine's processor."""
    from kernels.harness.gpu import machine

    if machine.unusable() is None:
        pytest.skip("there is a GPU")
    bench = make_bench(task={"language": "triton", "build": {}, "configs": TASK["configs"][:1]})

    def judged(source: str) -> Any:
        path = tmp_path / "candidate.py"
        path.write_text(source)
        built = build.build(Build(task=bench.task, source=path, builds=builds))
        assert built.library is not None, built.result.log_tail
        lock = gate.lock(bench.task, bench.gate)
        return judge(Judge(task=bench.task, gate=bench.gate, lock=lock, library=built.library, builds=builds))

    verdict = judged(KERNEL)
    assert verdict.failure is None
    assert verdict.cases > 20
    failure = judged(KERNEL.replace("/ N + eps", "/ N + 1.0")).failure
    assert failure.kind is FailureKind.WRONG
