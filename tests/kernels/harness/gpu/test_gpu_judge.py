"""What the judge promises of CUDA candidates; on the device itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernels.harness import build, judge
from kernels.harness.gpu import process
from kernels.harness.measure import measure
from kernels.harness.requests import Build, Measure, Measured
from specs.errors import MachineError, RunnerLost
from specs.outcomes import MeasureOutcome
from tests.kernels.harness.gpu.conftest import GpuBench, kernel, needs_gpu

pytestmark = needs_gpu

SPIN = "while (*static_cast<const volatile float*>(g) != 12345.f) {}"


def library(bench: GpuBench, source: str, role: str = "candidate") -> Path:
    path = bench.folder / f"measured-{role}.cu"
    path.write_text(source)
    built = build.build(Build(task=bench.task, source=path, role=role, builds=bench.builds))
    assert built.library is not None, built.result.log_tail
    return built.library


def timed(bench: GpuBench, source: str, champion: str | None = None, max_seconds: float = 20) -> MeasureOutcome:
    request = Measure(
        task=bench.task, gate=bench.gate, lock=bench.lock(), baseline=library(bench, kernel(), "baseline"),
        candidate=bench.library(source), champion=bench.library(champion) if champion else None, builds=bench.builds,
        samples=bench.folder / "samples.json", max_seconds=max_seconds,
    )  # fmt: skip
    answer = measure(request)
    assert isinstance(answer, Measured)
    return answer.outcome


def test_an_honest_kernel_passes_all_five_stages(gpu_bench: GpuBench) -> None:
    verdict = gpu_bench.judge(kernel(), held_out=True)
    assert verdict.passed, verdict.failure
    assert verdict.cases > 10


@pytest.mark.parametrize(
    ("bent", "kind"),
    [
        ({"columns": "n - 1"}, "not_written"),
        ({"after": "if (threadIdx.x == 0) out[0] = nanf(\"\");"}, "non_finite"),
        ({"after": "if (threadIdx.x == 0) const_cast<float*>(row)[1] = 0;"}, "input_changed"),
        ({"after": "if (threadIdx.x == 0) y[-40] = 1;"}, "guard_overwritten"),
        ({"after": "if (threadIdx.x == 0) y[1 << 17] = 1;"}, "guard_overwritten"),
        ({"stage": "1"}, "wrong"),
        ({"after": "if (threadIdx.x == 0 && rstd == nullptr) out[0] *= 1.1f;"}, "wrong"),
        ({"after": "if (threadIdx.x == 0) *(int*)8 = 1;"}, "crashed"),
        ({"after": "__trap();"}, "crashed"),
        ({"rows": "M, 2048, 0, stream>>>(x, g, rstd, y, eps, N, (float*)scratch); if (0) rms<<<M"}, "launch_failed"),
        ({"stream": "0"}, "wrong_stream"),
        ({"host": "*(volatile int*)8 = 1;"}, "crashed"),
        ({"top": "__device__ int calls;", "after": "if (threadIdx.x == 0 && atomicAdd(&calls, 1) > 200) out[0] = 0;"},
         "wrong"),
        ({"after": "if (threadIdx.x == 0) out[0] *= 1 + (clock64() % 64) * 1e-7f;"}, "not_deterministic"),
    ],
)  # fmt: skip
def test_a_bent_kernel_is_refused_for_what_it_does(gpu_bench: GpuBench, bent: dict[str, str], kind: str) -> None:
    failure = gpu_bench.judge(kernel(**bent)).failure
    assert failure is not None, "it passed"
    assert failure.kind.value == kind, failure.message


def test_a_kernel_that_does_not_end_is_hung(gpu_bench: GpuBench) -> None:
    failure = gpu_bench.judge(kernel(after=SPIN), call_timeout_s=3).failure
    assert failure is not None
    assert failure.kind.value == "hung"


@pytest.mark.parametrize(
    ("bent", "tool"),
    [
        ({"after": "if (threadIdx.x == 0 && blockIdx.x == 0) scratch[0] += g[n];"}, "memcheck"),
        ({"after": "part[threadIdx.x / 2] = r; out[0] = part[0] > 0 ? row[0] * r * g[0] : 0;"}, "racecheck"),
        (
            {"before": "if (threadIdx.x == 0 && scratch[blockIdx.x] == 7) y[blockIdx.x] = 1;"},
            "initcheck",
        ),
    ],
)
def test_the_memory_checkers_find_what_numbers_do_not_show(
    gpu_bench: GpuBench, bent: dict[str, str], tool: str
) -> None:
    failure = gpu_bench.judge(kernel(**bent)).failure
    assert failure is not None, "it passed"
    assert failure.kind.value == "memory_error", failure.message
    assert tool in failure.message
    assert ".cu:" in failure.message


def test_killing_an_executor_is_nobodys_fault(gpu_bench: GpuBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that starts is shot; the judge reports a lost runner, which is retried, and no verdict."""
    original = process.Executor.await_ready

    def shot(self: process.Executor) -> None:
        original(self)
        os.killpg(self._process.pid, signal.SIGKILL)

    monkeypatch.setattr(process.Executor, "await_ready", shot)
    with pytest.raises(RunnerLost):
        gpu_bench.judge(kernel())


def test_a_device_without_room_is_nobodys_fault(gpu_bench: GpuBench) -> None:
    held = "\n".join(
        [
            "import sys",
            "from cuda.bindings import driver as d",
            "d.cuInit(0); c = d.cuDevicePrimaryCtxRetain(0)[1]; d.cuCtxSetCurrent(c)",
            "step = 1 << 30",
            "while step >= 1 << 16:",
            "    if int(d.cuMemAlloc(step)[0]) != 0: step //= 2",
            "print('full', flush=True)",
            "sys.stdin.read()",
        ]
    )
    source = gpu_bench.library(kernel())
    hog = subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert hog.stdout is not None
        assert hog.stdout.readline().strip() == "full"
        with pytest.raises(MachineError):
            judge.judge(gpu_bench.request(source))
    finally:
        hog.kill()
        hog.wait()
    assert judge.judge(gpu_bench.request(source)).passed


def test_a_kernel_does_not_win_against_itself(gpu_bench: GpuBench) -> None:
    outcome = timed(gpu_bench, kernel(), kernel())
    assert outcome.measurement is not None, outcome.failure
    assert outcome.measurement.gain is not None
    assert outcome.measurement.gain.low <= 1 + gpu_bench.task.search.min_gain
    for config in outcome.measurement.configs:
        assert config.candidate_host_us is not None
        assert config.candidate_host_us > config.candidate.q1_us


def test_a_timed_answer_that_is_wrong_ends_the_measurement(gpu_bench: GpuBench) -> None:
    """It is right for as long as a judge might look."""
    late = kernel(
        top="__device__ unsigned calls;",
        after="if (threadIdx.x == 0 && blockIdx.x == 0 && atomicAdd(&calls, 1) > 25) out[0] = 0;",
    )
    failure = timed(gpu_bench, late).failure
    assert failure is not None
    assert failure.kind.value == "timed_wrong"


def test_nothing_is_left_behind(gpu_bench: GpuBench) -> None:
    """No process of ours has the device when the judge is done, whatever the candidate did."""
    before = threading.active_count()
    for bent in ({}, {"after": "__trap();"}, {"host": "*(volatile int*)8 = 1;"}):
        gpu_bench.judge(kernel(**bent))
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "executor" not in children
    assert "runner" not in children
    assert threading.active_count() <= before
