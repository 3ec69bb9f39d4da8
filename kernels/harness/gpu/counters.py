"""What Nsight Compute counts while an executor replays one call: read as a table, told in a few lines."""

from __future__ import annotations

import csv
import glob
import io
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels.harness import trial
from kernels.harness.arena import CandidateFault
from kernels.harness.cubin import DeviceCode
from kernels.harness.gpu.arena import DeviceArena
from kernels.harness.gpu.checked import MakeRecorder
from kernels.harness.gpu.process import Executor
from kernels.harness.gpu.runner import GpuRunner, Parts
from kernels.harness.requests import Bottleneck
from kernels.harness.trial import Question
from specs.errors import MachineError
from specs.schema import Task

# Sections and not metrics: which counters a device has for them, Nsight Compute knows itself.
SECTIONS = (
    "SpeedOfLight", "Occupancy", "LaunchStats", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "WarpStateStats",
)  # fmt: skip
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
OURS = ("ferret_soil", "ferret_flush", "ferret_wait", "ferret_nothing")  # kernels of kernels.cu round the call
KERNELS_LOOKED_AT = 8  # of one call
KERNELS_TOLD = 3
CALL_TIMEOUT_S = 240.0  # each kernel is replayed tens of times
NEAR = 60.0  # per cent of a unit's peak from which on it is what bounds a kernel
ALIKE = 10.0  # per cent of peak between two that bound it alike
NO_PERMISSION = "ERR_NVGPUCTRPERM"

_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_DRAM = ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed")
_TIME = "gpu__time_duration.sum"
_STALL = re.compile(r"^smsp__average_warps_issue_stalled_(?P<why>\w+?)_per_issue_active\.ratio$")
_LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
_TENSOR = re.compile(r"^sm__(?:inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_active$")
_LIMIT = re.compile(r"^launch__occupancy_limit_(?P<what>\w+)$")
_STALLS = {
    "long_scoreboard": "waiting for global or local memory",
    "short_scoreboard": "waiting for shared memory or special functions",
    "wait": "fixed latency of an instruction",
    "barrier": "waiting at a barrier",
    "math_pipe_throttle": "arithmetic unit busy",
    "mio_throttle": "queue to shared memory full",
    "lg_throttle": "queue to global memory full",
    "tex_throttle": "queue to the texture unit full",
    "not_selected": "ready, another warp was chosen",
    "selected": "issuing",
    "no_instruction": "waiting for instructions",
    "gmma": "waiting for a tensor-core product",
    "membar": "waiting for a memory fence",
    "drain": "waiting for its stores at the end",
    "dispatch_stall": "dispatch held up",
    "imc_miss": "constant cache miss",
    "branch_resolving": "waiting for a branch",
    "sleeping": "asleep",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch as it was counted."""

    name: str
    grid: str
    block: str
    values: Mapping[str, float]  # metric -> value in base units: ns, bytes, per cent

    def get(self, *names: str) -> float | None:
        return next((self.values[name] for name in names if name in self.values), None)

    @property
    def us(self) -> float:
        return self.values.get(_TIME, 0.0) / 1000


def program() -> str | None:
    """Nsight Compute's command line: on PATH, or where its own installer puts it."""
    places = sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu") + glob.glob("/usr/local/cuda*/bin/ncu"))  # noqa: PTH207
    return shutil.which("ncu") or (places[-1] if places else None)


def command(ncu: str, log: Path) -> tuple[str, ...]:
    """In front of an executor's. Clocks are left as they are: the machine's settings are not ours to change."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return (
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
        "--clock-control", "none", "--cache-control", "all", "--launch-count", str(KERNELS_LOOKED_AT + 2),
        *sections, "--metrics", ",".join(METRICS),
    )  # fmt: skip


def count(
    parts: Parts, task: Task, memory: DeviceArena, code: DeviceCode | None, make_recorder: MakeRecorder,
    question: Question, rng: np.random.Generator,
) -> list[Kernel] | str:  # fmt: skip
    """The kernels of one call as Nsight Compute counts them, or why they could not be counted.

    No host code of the candidate runs in the executor, so it needs no walls; behind them no counter could be read.
    """
    ncu = program()
    if ncu is None:
        return "Nsight Compute (ncu) is not installed on this machine"
    with tempfile.TemporaryDirectory(prefix="ferret-ncu-") as folder:
        log = Path(folder) / "counted.csv"
        executor = Executor(
            "process", parts.ordinal, parts.kernels, arena_fd=memory.fd, arena_bytes=memory.size,
            home=Path(folder), under=command(ncu, log),
        )  # fmt: skip
        runner = GpuRunner(parts, memory, executor)
        trouble = ""
        try:
            runner.begin_candidate(make_recorder, code)
            filled, arguments = trial.prepare(runner, task, question, rng, stages=False)
            runner.host_us(filled, arguments, CALL_TIMEOUT_S)
            executor.finish()
        except (CandidateFault, MachineError) as error:
            trouble = str(error)
        finally:
            runner.close()
        told = log.read_text(errors="replace") if log.exists() else ""
    kernels = parse(told)
    return kernels if kernels else why_nothing(told, trouble)


def parse(told: str) -> list[Kernel]:
    """The launches of a raw page as CSV (a line of names, one of units, one a launch), without our own kernels."""
    lines = told.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    head, _, *rows = csv.reader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"'))))
    found = []
    for row in rows:
        fields = dict(zip(head, row, strict=False))
        name = _without_arguments(fields.get("Kernel Name", ""))
        if name in OURS:
            continue
        values = {metric: number for metric, text in fields.items() if (number := _number(text)) is not None}
        found.append(Kernel(name, fields.get("Grid Size", "?"), fields.get("Block Size", "?"), values))
    return found


def why_nothing(told: str, trouble: str) -> str:
    """One line about why Nsight Compute counted nothing."""
    if NO_PERMISSION in told or NO_PERMISSION in trouble:
        return f"this machine does not let its user read the counters ({NO_PERMISSION})"
    error = next((line for line in told.splitlines() if line.startswith("==ERROR==")), "")
    said = error.removeprefix("==ERROR==").strip() or trouble.strip() or "it saw no kernel"
    return f"Nsight Compute counted nothing: {' '.join(said.split())[:200]}"


def bottleneck(kernel: Kernel) -> Bottleneck:
    """By the shares of peak of the multiprocessors and of memory, as far as they were counted."""
    sm, memory = kernel.get(_SM), kernel.get(_MEMORY)
    if sm is None or memory is None:
        return "unknown"
    if max(sm, memory) < NEAR:
        return "latency"
    if abs(sm - memory) < ALIKE:
        return "balanced"
    return "memory" if memory > sm else "compute"


def digest(kernels: Sequence[Kernel]) -> tuple[Bottleneck, str]:
    """The class of the longest kernel, and what was counted of the longest few."""
    longest = sorted(kernels, key=lambda kernel: -kernel.us)
    total = sum(kernel.us for kernel in kernels)
    lines = [f"{len(kernels)} kernel(s), {total:.2f} us together under the profiler, caches flushed before each"]
    lines += [line for kernel in longest[:KERNELS_TOLD] for line in _told(kernel, total)]
    return bottleneck(longest[0]), "\n".join(lines)


def _told(kernel: Kernel, total: float) -> list[str]:
    share = f", {kernel.us / total:.0%} of the call" if total else ""
    lines = [f"{kernel.name[:60]} grid {kernel.grid} block {kernel.block}: {kernel.us:.2f} us{share}"]
    lines.append("  of peak: " + _parts(
        ("multiprocessors", kernel.get(_SM), "%"),
        ("memory", kernel.get(_MEMORY), "%"),
        ("DRAM", kernel.get(*_DRAM), "%"),
        ("tensor pipe", max((v for n, v in kernel.values.items() if _TENSOR.match(n)), default=None), "%"),
    ))  # fmt: skip
    read, written = kernel.get("dram__bytes_read.sum"), kernel.get("dram__bytes_write.sum")
    moved = [] if read is None or written is None else [f"DRAM {_size(read)} read, {_size(written)} written"]
    if moved and kernel.us:
        moved.append(f"{((read or 0) + (written or 0)) / kernel.us / 1e3:.0f} GB/s")
    hits = _parts(
        ("L2 hits", kernel.get("lts__t_sector_hit_rate.pct"), "%"),
        ("L1 hits", kernel.get("l1tex__t_sector_hit_rate.pct"), "%"),
    )
    lines.append("  " + ", ".join([*moved, hits]))
    lines.append("  occupancy: " + _parts(
        ("achieved", kernel.get("sm__warps_active.avg.pct_of_peak_sustained_active"), "%"),
        ("possible", kernel.get("sm__maximum_warps_per_active_cycle_pct"), "%"),
        ("registers", kernel.get("launch__registers_per_thread"), ""),
        ("waves", kernel.get("launch__waves_per_multiprocessor"), ""),
    ) + _limit(kernel) + _shared(kernel))  # fmt: skip
    if stalls := _stalls(kernel):
        lines.append(f"  warps wait: {stalls}")
    return lines


def _parts(*parts: tuple[str, float | None, str]) -> str:
    return ", ".join(f"{name} {value:.4g}{unit}" for name, value, unit in parts if value is not None) or "not counted"


def _limit(kernel: Kernel) -> str:
    limits = {m["what"]: v for name, v in kernel.values.items() if (m := _LIMIT.match(name)) and v > 0}
    if not limits:
        return ""
    what = min(limits, key=lambda name: limits[name])
    return f", blocks a multiprocessor {limits[what]:.0f} (by {what.replace('_', ' ')})"


def _shared(kernel: Kernel) -> str:
    static = kernel.get("launch__shared_mem_per_block_static") or 0
    dynamic = kernel.get("launch__shared_mem_per_block_dynamic") or 0
    return f", shared memory {_size(static + dynamic)} a block"


def _stalls(kernel: Kernel) -> str:
    """The three reasons for which warps wait longest between two instructions, as shares of that time."""
    reasons = {m["why"]: v for name, v in kernel.values.items() if (m := _STALL.match(name))}
    reasons.pop("selected", None)
    whole = kernel.get(_LATENCY) or sum(reasons.values())
    top = sorted(reasons, key=lambda why: -reasons[why])[:3]
    return ", ".join(
        f"{reasons[why] / whole:.0%} {_STALLS.get(why, why.replace('_', ' '))}" for why in top if whole and reasons[why]
    )


def _size(count: float) -> str:
    if count < 1e3:
        return f"{count:.0f} B"
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _without_arguments(name: str) -> str:
    """`void k<(int)16>` of `void k<(int)16>(const float *)`."""
    depth = 0
    for at in range(len(name) - 1, -1, -1) if name.endswith(")") else ():
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return name[:at]
    return name


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
