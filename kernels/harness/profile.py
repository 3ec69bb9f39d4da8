"""What bounds a kernel on one config: counted by the device where it can be, else derived from time and work."""

from __future__ import annotations

from kernels.harness import gate, machine, roofline, trial
from kernels.harness.gate import Case
from kernels.harness.judge import read_library
from kernels.harness.requests import Bottleneck, Profile, Profiled
from kernels.harness.roofline import COPY, DRAM_READ, Demand, Peaks
from specs.errors import UserError
from specs.schema import Language

NEAR = 0.4  # share of a roof from which on it can be what bounds a kernel; below both it waits for something else
ALIKE = 0.8  # one share over the other from which on neither stands out
FIXED_US = 200.0  # a processor's call that takes no longer is in good part the clock's own fixed cost
MOST_TOLD = 2000  # characters


def profile(request: Profile) -> Profiled:
    """Errors as with `measure`; a device that does not let its counters be read is not one of them."""
    task = request.task
    names = [config.name for config in task.configs]
    if request.config not in names:
        raise UserError(f"config {request.config!r} is none of task {task.name}; accepted: {', '.join(names[:20])}")
    config = task.config(request.config)
    loaded = gate.load(task, request.gate, request.lock)
    wanted = roofline.demand(task, config.args)
    known = wanted.flops is not None or wanted.bytes is not None
    if task.language is Language.CPP:
        with (
            machine.opened(task, request.builds, request.sandbox) as core,
            core.lock(request.device_wait_s),
        ):
            peaks = core.peaks() if known else None
        return _derived(request, wanted, peaks, "Not counted (the counters of a processor are not read)")
    from kernels.harness.gpu import counters
    from kernels.harness.gpu import machine as gpu

    library = read_library(request.library)
    with (
        gpu.opened(task, request.builds, request.sandbox) as device,
        device.lock(request.device_wait_s),
    ):
        peaks = device.peaks() if known else None
        rng = trial.secret_rng()
        case = Case(name=config.name, args=config.args)
        counted = device.counted(trial.ask(loaded, task, case, loaded.distributions[0], rng), library, rng)
    if isinstance(counted, str):
        return _derived(request, wanted, peaks, f"Not counted: {counted}")
    bottleneck, told = counters.digest(counted)
    lines = [f"{request.config}: {bottleneck}, as counted by Nsight Compute.", told]
    lines.append(
        f"The clock of record says {request.time_us:.2f} us for the call; shares of that, derived from `work`:"
    )
    lines.append(_roofs(wanted, peaks, request.time_us))
    return Profiled(bottleneck=bottleneck, source="counters", digest="\n".join(lines)[:MOST_TOLD])


def _derived(request: Profile, wanted: Demand, peaks: Peaks | None, why: str) -> Profiled:
    bottleneck = derive(wanted, peaks, request.time_us)
    lines = [
        f"{request.config}: {bottleneck}, derived from the measured time and the task's `work`. {why}.",
        f"measured: {request.time_us:.2f} us a call",
        f"derived: {_roofs(wanted, peaks, request.time_us)}",
    ]
    if peaks is not None:
        lines.append(_MEANING[bottleneck])
    if request.task.language is Language.CPP and request.time_us < FIXED_US:
        lines.append(
            "some tens of microseconds of such a short call are the clock's own fixed cost, in everybody's time"
        )
    return Profiled(bottleneck=bottleneck, source="roofline", digest="\n".join(lines)[:MOST_TOLD])


_MEANING: dict[Bottleneck, str] = {
    "memory": "it is near the memory roof: move fewer bytes, or each of them once",
    "compute": "it is near the arithmetic roof: do less arithmetic, or the same in a quicker format or unit",
    "balanced": "memory and arithmetic are alike near their roofs: only less of both helps",
    "latency": "it is far from both roofs: it waits (dependent operations, cache misses, unvectorised code, overhead)",
    "unknown": "",
}


def shares(wanted: Demand, peaks: Peaks, time_us: float) -> tuple[float | None, float | None]:
    """Shares of the memory and of the arithmetic roof that a time reaches; None where the task or the peaks lack it."""
    rates = [peaks.bandwidth[name].best for name in (DRAM_READ, COPY) if name in peaks.bandwidth]
    rate = peaks.flops.get(wanted.native) or peaks.flops.get("f32")
    memory = wanted.bytes / max(rates) * 1e6 / time_us if wanted.bytes and rates else None
    compute = wanted.flops / rate.best * 1e6 / time_us if wanted.flops and rate is not None else None
    return memory, compute


def derive(wanted: Demand, peaks: Peaks | None, time_us: float) -> Bottleneck:
    """The class by the shares of both roofs; unknown unless both can be told."""
    if peaks is None:
        return "unknown"
    memory, compute = shares(wanted, peaks, time_us)
    if memory is None or compute is None:
        return "unknown"
    high, low = max(memory, compute), min(memory, compute)
    if high < NEAR:
        return "latency"
    if low / high > ALIKE:
        return "balanced"
    return "memory" if memory > compute else "compute"


def _roofs(wanted: Demand, peaks: Peaks | None, time_us: float) -> str:
    lacking = [name for name, value in (("flops", wanted.flops), ("bytes", wanted.bytes)) if value is None]
    needed = (
        f"the task gives no work.{' and no work.'.join(lacking)}, which is needed for both roofs" if lacking else ""
    )
    if peaks is None:
        return f"nothing: {needed}"
    memory, compute = shares(wanted, peaks, time_us)
    parts = []
    if wanted.bytes and memory is not None:
        parts.append(f"{wanted.bytes / 1e6:.3f} MB, {wanted.bytes / time_us / 1e3:.1f} GB/s, {memory:.0%} of memory's")
    if wanted.flops and compute is not None:
        rate = wanted.flops / time_us / 1e3
        parts.append(
            f"{wanted.flops / 1e6:.3f} MFLOP, {rate:.1f} GFLOP/s, {compute:.0%} of {wanted.native} arithmetic's"
        )
    if memory and compute:
        lower = "memory" if memory > compute else "arithmetic"
        best = time_us * max(memory, compute)
        parts.append(f"the lower roof is {lower}'s, at {best:.2f} us a call")
    peaks_told = f"peaks are {peaks.device}'s, measured by ferret itself"
    return "; ".join([*parts, *([needed] if needed else []), peaks_told])
