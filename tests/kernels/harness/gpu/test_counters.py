"""What Nsight Compute counts, read from its table; on a GPU, counted for real."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernels.harness.gpu import counters
from kernels.harness.gpu.counters import Kernel
from kernels.harness.profile import profile
from kernels.harness.requests import Bottleneck, Profile
from tests.kernels.harness.gpu.conftest import GpuBench, kernel, needs_gpu

# A raw page of Nsight Compute 2025.3 on an H200, most of its 757 columns left out. The executor's kernels come first.
NAMES = {
    "ID": "", "Process ID": "", "Process Name": "", "Host Name": "", "Kernel Name": "", "Context": "", "Stream": "",
    "Block Size": "", "Grid Size": "", "Device": "", "CC": "",
    "gpu__time_duration.sum": "ns", "sm__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte", "lts__t_sector_hit_rate.pct": "%",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%", "sm__maximum_warps_per_active_cycle_pct": "%",
    "launch__registers_per_thread": "register/thread", "launch__waves_per_multiprocessor": "",
    "launch__shared_mem_per_block_static": "byte/block", "launch__shared_mem_per_block_dynamic": "byte/block",
    "launch__occupancy_limit_registers": "block", "launch__occupancy_limit_shared_mem": "block",
    "smsp__average_warp_latency_per_inst_issued.ratio": "inst",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "inst",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "inst",
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": "inst",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "%",
}  # fmt: skip
PROCESS = ["770", "python3.12", "127.0.0.1"]
SOIL = [
    "0", *PROCESS, "ferret_soil", "1", "13", "(1024, 1, 1)", "(132, 1, 1)", "0", "9.0", *["1"] * (len(NAMES) - 11),
]  # fmt: skip
LONG = [
    "2", *PROCESS, "void tiles<(int)16, 4>(const uint4 *, int)", "1", "13", "(512, 1, 1)", "(384, 1, 1)", "0", "9.0",
    "31,392", "18.08", "68.00", "68.00", "100810240", "1,762,048", "52.88", "25.30", "25", "126", "2.91", "32768", "0",
    "1", "1", "19.15", "10.61", "1.94", "1", "9.43",
]  # fmt: skip
SHORT = [
    "3", *PROCESS, "tail(float *)", "1", "13", "(32, 1, 1)", "(1, 1, 1)", "0", "9.0", "2000", "1.0", "2.0",
    *["n/a"] * (len(NAMES) - 14),
]  # fmt: skip


def page(*rows: list[str]) -> str:
    table = [list(NAMES), list(NAMES.values()), *rows]
    lines = [",".join(f'"{field}"' for field in row) for row in table]
    return "\n".join(["==PROF== Connected to process 77 (python3)", *lines, "==PROF== Disconnected"])


def counted(**values: float) -> Kernel:
    long = {
        "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    }
    return Kernel("k", "(1, 1, 1)", "(1, 1, 1)", {long[name]: value for name, value in values.items()})


def test_a_page_is_read_without_the_gates_own_kernels() -> None:
    kernels = counters.parse(page(SOIL, LONG, SHORT))
    assert [(one.name, one.us) for one in kernels] == [("void tiles<(int)16, 4>", 31.392), ("tail", 2.0)]
    assert kernels[0].values["dram__bytes_write.sum"] == 1_762_048
    assert "dram__bytes_write.sum" not in kernels[1].values


def test_the_digest_tells_the_longest_kernel_first_and_its_class() -> None:
    bottleneck, told = counters.digest(counters.parse(page(SOIL, SHORT, LONG)))
    assert bottleneck == "memory"
    assert told.index("void tiles<(int)16, 4> grid (384, 1, 1)") < told.index("tail grid")
    assert "31.39 us, 94% of the call" in told
    assert "multiprocessors 18.08%, memory 68%, DRAM 68%, tensor pipe 9.43%" in told
    assert "DRAM 100.81 MB read, 1.76 MB written, 3267 GB/s" in told
    assert "blocks a multiprocessor 1 (by registers), shared memory 32.8 kB a block" in told
    assert "warps wait: 55% waiting for global or local memory, 10% waiting at a barrier" in told
    assert len(told) < 1_500


@pytest.mark.parametrize(
    ("kernel", "bottleneck"),
    [
        (counted(sm=20, memory=85), "memory"),
        (counted(sm=85, memory=40), "compute"),
        (counted(sm=82, memory=85), "balanced"),
        (counted(sm=30, memory=40), "latency"),
        (counted(sm=30), "unknown"),
    ],
)
def test_the_class_follows_from_the_shares_of_peak(kernel: Kernel, bottleneck: Bottleneck) -> None:
    assert counters.bottleneck(kernel) == bottleneck


@pytest.mark.parametrize(
    ("told", "trouble", "why"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            "", "this machine does not let its user read the counters (ERR_NVGPUCTRPERM)",
        ),
        (
            "==PROF== Connected\n==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "it is gone",
            "Nsight Compute counted nothing: Failed to initialize the profiler: LibraryNotLoaded",
        ),
        ("", "the executor is gone", "Nsight Compute counted nothing: the executor is gone"),
        ("==WARNING== No kernels were profiled.", "", "Nsight Compute counted nothing: it saw no kernel"),
    ],
)  # fmt: skip
def test_why_nothing_was_counted_is_one_line(told: str, trouble: str, why: str) -> None:
    assert counters.parse(told) == []
    assert counters.why_nothing(told, trouble) == why


def test_the_machines_clocks_are_left_alone() -> None:
    command = counters.command("ncu", Path("log"))
    assert command[command.index("--clock-control") + 1] == "none"


@needs_gpu
def test_a_call_is_counted_on_the_device_or_the_roofline_stands_in(gpu_bench: GpuBench) -> None:
    request = Profile(
        task=gpu_bench.task, gate=gpu_bench.gate, lock=gpu_bench.lock(), library=gpu_bench.library(kernel()),
        config="wide", time_us=4.0, builds=gpu_bench.builds,
    )  # fmt: skip
    found = profile(request)
    if shutil.which("ncu") is None or "counted nothing" in found.digest or "does not let" in found.digest:
        assert found.source == "roofline"
        assert "Not counted: " in found.digest
    else:
        assert found.source == "counters", found.digest
        assert "rms grid (16, 1, 1) block (256, 1, 1)" in found.digest
        assert "warps wait: " in found.digest
        assert "ferret_" not in found.digest
