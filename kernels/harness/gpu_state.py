"""A GPU's clocks, power and company while it is timed: what to note, and which samples not to believe."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import structlog

from specs.errors import MachineError
from specs.outcomes import Value

log = structlog.get_logger(__name__)

T = TypeVar("T")

UNKNOWN = "unknown"

# Bits of NVML's clocks event reasons.
REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
# The device protects itself: whatever the clock reads at that moment, the sample says little about the kernel. A power
# cap is not among them, since a kernel that draws much reaches it by its own doing; if it matters the clock shows it.
HARDWARE = frozenset({"hardware slowdown", "hardware thermal slowdown", "hardware power brake"})

LOWEST_SHARE = (
    0.9  # of the run's usual clock; clocks move in steps of 15 MHz and wander by a few per cent by themselves
)
DROPPED_AT_MOST = 1 / 3


class State(Value):
    """One look at a device; None is what it does not say."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] | None = None  # words of REASONS; empty: nothing holds the clocks down

    @property
    def told(self) -> str:
        """One line for people, e.g. `SM 1980 MHz, memory 3201 MHz, 310 W, 41 C, not throttled`."""
        parts = [
            f"SM {self.sm_mhz} MHz" if self.sm_mhz is not None else "",
            f"memory {self.memory_mhz} MHz" if self.memory_mhz is not None else "",
            f"{self.power_w:.0f} W" if self.power_w is not None else "",
            f"{self.temperature_c} C" if self.temperature_c is not None else "",
        ]
        if self.throttle is not None:
            parts.append("clocks held by " + " and ".join(self.throttle) if self.throttle else "not throttled")
        return ", ".join(part for part in parts if part) or UNKNOWN


class Process(Value):
    """A process that computes on a device."""

    pid: int  # as the driver counts: inside a container it may be nobody's number here
    memory_bytes: int | None = None  # None: the driver does not say


class Watch:
    """Looks at one device through NVML; without NVML every answer is unknown and nothing fails."""

    def __init__(self, nvml: Any = None, handle: Any = None) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def known(self) -> bool:
        return self._nvml is not None

    def state(self) -> State:
        """Clocks in MHz, power in W, temperature in degrees Celsius, and what holds the clocks down."""
        if not self.known:
            return State()
        nvml, handle = self._nvml, self._handle
        milliwatts = _asked(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)))
        bits = _asked(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        if bits is None:  # drivers before 535 know it by its older name
            bits = _asked(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return State(
            sm_mhz=_asked(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_mhz=_asked(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=_asked(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            throttle=None if bits is None else reasons(bits),
        )

    def foreign_processes(self, own_pids: Collection[int]) -> tuple[Process, ...] | None:
        """Who else computes on the device, by pid; None where nobody can tell.

        The driver counts processes in its own namespace: in a container our own may appear under other numbers, or not
        at all. So this is for the record and for a warning, never for a verdict.
        """
        if not self.known:
            return None
        nvml = self._nvml
        found = _asked(lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)))
        if found is None:
            return None
        processes = [
            Process(pid=int(one.pid), memory_bytes=None if one.usedGpuMemory is None else int(one.usedGpuMemory))
            for one in found
        ]
        return tuple(sorted((one for one in processes if one.pid not in own_pids), key=lambda one: one.pid))


@contextlib.contextmanager
def watching(uuid: str, nvml: Any = None) -> Iterator[Watch]:
    """A watch on the device with this UUID (32 hexadecimal digits, with or without NVML's dashes and prefix).

    `nvml` is the module pynvml unless a test passes another. Never raises: what cannot be opened is a watch that knows
    nothing.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            log.info("gpu_state_unknown", reason="the package nvidia-ml-py is not installed")
            yield Watch()
            return
    try:
        nvml.nvmlInit()
    except Exception as error:  # pynvml's errors have a base class of their own; so does any fake's
        log.info("gpu_state_unknown", reason=f"NVML does not start: {error}")
        yield Watch()
        return
    try:
        try:
            watch = Watch(nvml, nvml.nvmlDeviceGetHandleByUUID(dashed(uuid)))
        except Exception as error:
            log.info("gpu_state_unknown", uuid=uuid, reason=f"NVML does not know the device: {error}")
            watch = Watch()
        yield watch
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def dashed(uuid: str) -> str:
    """A UUID as NVML writes it: `GPU-8d3f2a10-...`."""
    digits = uuid.lower().removeprefix("gpu-").replace("-", "")
    cuts = (0, 8, 12, 16, 20, len(digits))
    return "GPU-" + "-".join(digits[a:b] for a, b in itertools.pairwise(cuts))


def reasons(bits: int) -> tuple[str, ...]:
    """NVML's clocks event reasons in words, lowest bit first; a bit that is not known keeps its number."""
    names = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return (*names, f"reason {rest:#x}") if rest else tuple(names)


def judge_samples(
    clocks: Sequence[float | None],
    throttle: Sequence[Collection[str] | None] | None = None,
    *,
    lowest_share: float = LOWEST_SHARE,
    dropped_at_most: float = DROPPED_AT_MOST,
) -> list[int]:
    """Indices of samples to drop: the device was held down while they were taken.

    `clocks` are SM clocks in MHz of one contestant on one config in order, None where unknown, and `throttle` the words
    that hold at the same moments. Dropped is a sample with one of HARDWARE, and one whose clock lies below
    `lowest_share` of the usual one. Usual is the upper quartile: it is the median of a quiet run, and unlike the median
    it still shows a run that was throttled half of the time. A contestant is compared with itself alone: one that draws
    more power than its rivals, and so runs at lower clocks, has to live with them.

    Raises MachineError (to be tried again, no verdict on anybody) when more than `dropped_at_most` would be dropped.
    """
    words = throttle if throttle is not None else [None] * len(clocks)
    if len(words) != len(clocks):
        raise ValueError(f"{len(clocks)} clocks and {len(words)} throttle reasons; one of each a sample is needed")
    known = [clock for clock in clocks if clock is not None]
    usual = _upper_quartile(known) if known else 0.0
    dropped = [
        index
        for index, (clock, held) in enumerate(zip(clocks, words, strict=True))
        if (clock is not None and clock < lowest_share * usual) or (held is not None and HARDWARE.intersection(held))
    ]
    if len(dropped) > dropped_at_most * len(clocks):
        why = sorted({word for index in dropped for word in words[index] or ()})
        held = f" ({', '.join(why)})" if why else ""
        lowest = min(known, default=0.0)
        raise MachineError(
            f"the GPU was throttled in {len(dropped)} of {len(clocks)} samples{held}: lowest SM clock {lowest:.0f} MHz "
            f"of usually {usual:.0f} MHz; at most {dropped_at_most:.0%} may be dropped"
        )
    return dropped


def _upper_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else values[0]


def _asked(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:
        return None  # a virtual GPU and an older driver answer some questions only
