"""The physics floor: no call is quicker than reading what must come in, nor than the arithmetic it cannot leave out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernels.harness.interface import buffers
from specs import expressions
from specs.errors import UserError
from specs.outcomes import Digest, Value
from specs.schema import ArgumentKind, Config, DType, Scalar, Task

Kind = Literal["cpu", "cuda"]
PerSecond = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# Share of the ideal time below which a time is impossible. The rest is for what a calibration cannot know: lines that
# outlive the flush, a clock that boosts higher for one short call, one level of Strassen. One core of a shared machine
# gets more or less of its memory bus from hour to hour, so a processor's floor is lower still.
SLACK: Mapping[Kind, float] = {"cpu": 0.5, "cuda": 0.8}

DRAM_READ, COPY, L2_READ = "dram_read", "copy", "l2_read"

# Width in bits of the operands of each class of arithmetic, as they lie in memory.
WIDTHS: Mapping[str, int] = {
    "f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "i16": 16, "f8": 8, "i8": 8,
}  # fmt: skip

_CLASS_OF: Mapping[DType, str] = {
    DType.F64: "f64", DType.F32: "f32", DType.F16: "f16", DType.BF16: "bf16", DType.F8E4M3: "f8", DType.F8E5M2: "f8",
    DType.I16: "i16", DType.U16: "i16", DType.I8: "i8", DType.U8: "i8",
}  # fmt: skip
_FOUR_BITS = re.compile(r"(?:fp|mxfp|nvfp|nf|int|i|u|w|a)4(?!\d)|e2m1", re.IGNORECASE)
_EIGHT_BITS = re.compile(r"(?:fp|mxfp|int|i|u|w|a|f)8(?!\d)|e4m3|e5m2", re.IGNORECASE)


class Rate(Value):
    """One measured rate, in bytes or operations a second."""

    best: PerSecond  # of all variants and repetitions
    median: PerSecond  # of the repetitions of the best variant
    how: str = ""  # the variant that was best
    # What the best variant would reach at the highest clock that the device names; None where nothing says.
    at_top_clock: PerSecond | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.median > self.best:
            raise ValueError(f"rate out of order: median {self.median}, best {self.best}")
        return self

    @property
    def ceiling(self) -> float:
        """No honest kernel is quicker than this."""
        return max(self.best, self.at_top_clock or 0.0)


class Peaks(Value):
    """What a device can do at most, as the harness measured it itself."""

    kind: Kind
    device: str  # name, for people
    key: Digest  # device, driver, compiler and calibrator: what the peaks are valid for
    identity: dict[str, str] = Field(default_factory=dict)  # what the key is made of
    bandwidth: dict[str, Rate] = Field(default_factory=dict)  # "dram_read", "copy", "l2_read" -> bytes/s
    flops: dict[str, Rate] = Field(default_factory=dict)  # class of arithmetic -> operations/s, a multiply-add is two
    # Rates that the device has (or may have) and that could not be measured, with the reason. A class that is neither
    # here nor in `flops` does not exist on the device: it runs no quicker there than a wider one.
    missing: dict[str, str] = Field(default_factory=dict)
    cache_bytes: int = Field(ge=0, default=0)  # last-level cache
    measured_at: str = ""  # UTC, ISO 8601
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    runs: int = Field(ge=1, default=1)  # calibrations that these are the best of


@dataclass(frozen=True, slots=True)
class Demand:
    """What one call of a task cannot do without. None: the task does not say."""

    flops: int | None
    bytes: int | None  # in and out, as the task counts them
    read_bytes: int | None  # that must come in from memory
    width: int  # bits of the narrowest format of its tensors
    native: str  # class of arithmetic of its narrowest floating input, for people


def demand(task: Task, args: Mapping[str, Scalar]) -> Demand:
    """Work of one call with a config's `args`; raises UserError when an expression of the task has no value.

    `work.bytes` counts what comes in and what goes out. Outputs may still lie in a cache when the call ends, so all of
    them are taken off; and of the inputs nothing has to be read twice. Without `work.bytes` there is no telling which
    part of the inputs has to be read at all (a page table leaves most pages alone), so nothing is counted.
    """
    variables = task.variables(dict(args))
    flops = _work(task, "flops", task.work.flops, variables)
    total = _work(task, "bytes", task.work.bytes, variables)
    inputs = outputs = 0
    if task.interface is not None:
        for buffer in buffers(task.interface, variables):
            inputs += buffer.nbytes if buffer.kind is ArgumentKind.INPUT else 0
            outputs += buffer.nbytes if buffer.kind in (ArgumentKind.OUTPUT, ArgumentKind.STAGE) else 0
    read = None if total is None or task.interface is None else max(0, min(inputs, total - outputs))
    return Demand(flops, total, read, _width(task), _native(task))


def floor_us(wanted: Demand, peaks: Peaks) -> float | None:
    """Microseconds that no honest call can go below, slack included; None when nothing is known to bound it.

    The larger of reading `read_bytes` at the device's best bandwidth and `flops` at its quickest arithmetic.
    """
    bounds = []
    bandwidth = peaks.bandwidth.get(DRAM_READ)
    if wanted.read_bytes and bandwidth is not None:
        bounds.append(wanted.read_bytes / bandwidth.ceiling)
    rate = fastest(peaks, wanted.width)
    if wanted.flops and rate is not None:
        bounds.append(wanted.flops / rate)
    return SLACK[peaks.kind] * max(bounds) * 1e6 if bounds else None


def floors_us(task: Task, configs: Iterable[Config], peaks: Peaks) -> dict[str, float]:
    """The floor of each config by name, in microseconds; a config that nothing bounds is left out."""
    found = {config.name: floor_us(demand(task, config.args), peaks) for config in configs}
    return {name: floor for name, floor in found.items() if floor is not None}


def impossible(config: str, time_us: float, floors: Mapping[str, float]) -> str | None:
    """Why a time cannot be true, in one sentence; None when it can. NaN and non-positive times are impossible."""
    floor = floors.get(config, 0.0)
    # Written so that NaN fails.
    if time_us > floor:
        return None
    if not floor:
        return f"{time_us:.3f} us is not a time"
    return f"{time_us:.3f} us is under the physics floor of {floor:.3f} us: so much cannot be moved or computed in it"


def fastest(peaks: Peaks, width: int) -> float | None:
    """Operations a second of the quickest arithmetic that could serve data of `width` bits.

    A gate's limits may let a kernel compute in one format narrower than its data (f32 in TF32 or BF16), and emulations
    from narrower pieces are slower than that format; two steps narrower no admitted gate lets through. None when a
    class within reach could not be measured: a bound over the others would not be one.
    """
    within_reach = [name for name, bits in WIDTHS.items() if 2 * bits >= width]
    if any(name in peaks.missing for name in within_reach):
        return None
    # Nothing below eight bits is ever measured, so four-bit data on a device with four-bit arithmetic has no bound.
    if width < 8 and "f4" in peaks.missing:
        return None
    rates = [peaks.flops[name].ceiling for name in within_reach if name in peaks.flops]
    return max(rates, default=None)


def ideal_us(wanted: Demand, peaks: Peaks) -> float | None:
    """The roofline in microseconds, for tables: all bytes at memory bandwidth, all flops in the data's own format."""
    bounds = []
    rates = [peaks.bandwidth[name].best for name in (DRAM_READ, COPY) if name in peaks.bandwidth]
    if wanted.bytes and rates:
        bounds.append(wanted.bytes / max(rates))
    rate = peaks.flops.get(wanted.native) or peaks.flops.get("f32")
    if wanted.flops and rate is not None:
        bounds.append(wanted.flops / rate.best)
    return max(bounds) * 1e6 if bounds else None


def sol(time_us: float, wanted: Demand, peaks: Peaks) -> float | None:
    """Speed of light score: the share of the roofline that a time reaches; 1 is all of it, more means caches helped."""
    ideal = ideal_us(wanted, peaks)
    return ideal / time_us if ideal is not None and time_us > 0 and math.isfinite(time_us) else None


def _work(task: Task, name: str, expression: str | None, variables: Mapping[str, Scalar]) -> int | None:
    if expression is None:
        return None
    try:
        return expressions.evaluate(expression, variables)
    except ValueError as error:
        raise UserError(f"task {task.name}: work.{name}: {error}") from None


def _width(task: Task) -> int:
    """Bits of the narrowest format that the interface or the task's `precision` names."""
    widths = [dtype.bytes * 8 for dtype in _tensors(task)]
    if _EIGHT_BITS.search(task.precision):
        widths.append(8)
    if _FOUR_BITS.search(task.precision):
        widths.append(4)
    # A mask or a table of indices in bytes makes the floor lower than it could be, never higher than it may be.
    return min(widths, default=4)


def _native(task: Task) -> str:
    classes = [_CLASS_OF.get(dtype, "f32") for dtype in _tensors(task, ArgumentKind.INPUT)]
    # The matrix with the fewest bits decides how a product is computed; integer tensors are mostly indices.
    floats = [name for name in classes if not name.startswith("i")]
    return min(floats or classes or ["f32"], key=lambda name: WIDTHS[name])


def _tensors(task: Task, *kinds: ArgumentKind) -> list[DType]:
    if task.interface is None:
        return []
    wanted = kinds or (ArgumentKind.INPUT, ArgumentKind.OUTPUT, ArgumentKind.STAGE)
    return [argument.dtype for argument in task.interface.of(*wanted) if argument.dtype is not None]
