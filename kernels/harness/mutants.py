"""Wrong answers that every gate has to refuse, made from the golden of its own cases; no compiler is needed.

A mutant is what a plausible wrong kernel would have written: the golden, rounded to the interface's dtype and bent at
one place. Where a mutant happens to equal the right answer bit by bit it says nothing and another case has to speak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernels.harness.compare import Limits
from kernels.harness.dtypes import eps, largest, numpy_dtype
from kernels.harness.gate import Case, Gate, Golden
from specs.schema import Argument, ArgumentKind, DType, Interface, Scalar

BLOCK_SHARE = 16  # of an axis one part in so many is left out: less than one tile of most kernels
BIAS = 4.0  # times the limit

Tensors = dict[str, np.ndarray]
PARTIAL = {"one_wrong", "one_nan", "one_inf", "tail_zero", "tail_unwritten", "ignores_tail", "ignores_block"}

TF32 = "tf32"
# What a kernel might compute in instead, to be faster.
LOWER: dict[DType, tuple[str, ...]] = {
    DType.F64: ("f32",),
    DType.F32: (TF32, "bf16", "f16"),
    DType.F16: ("f8e4m3", "f8e5m2"),
    DType.BF16: ("f8e4m3", "f8e5m2"),
}


@dataclass(frozen=True, slots=True)
class Specimen:
    """One case with one distribution's inputs, its golden, and the right answer: the golden in the tensors' dtypes."""

    gate: Gate
    case: Case
    distribution: str
    inputs: Mapping[str, np.ndarray]
    golden: Golden
    right: Mapping[str, np.ndarray]
    seed: int

    @property
    def told(self) -> str:
        return f"{self.case.name} ({self.distribution})"

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def specimen(gate: Gate, case: Case, distribution: str, seed: int) -> Specimen:
    """Raises GateError."""
    inputs = gate.inputs(np.random.default_rng(seed), case.args, distribution)
    golden = gate.golden(inputs, case.args)
    return Specimen(gate, case, distribution, inputs, golden, rounded_to_dtypes(gate, golden), seed)


def rounded_to_dtypes(gate: Gate, golden: Golden) -> Tensors:
    arguments = _interface(gate).of(ArgumentKind.STAGE, ArgumentKind.OUTPUT)
    return {str(a.name): _cast(golden.tensors[str(a.name)], _numpy(a)) for a in arguments}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way of being wrong. `make` gives the tensors it changes, None where it cannot be made from a case."""

    name: str  # family(what), e.g. zeros(y); "y.1" is axis 1 of y
    family: str
    told: str  # one sentence: what such a kernel does
    make: Callable[[Specimen], Tensors | None]
    costly: bool = False  # evaluates the reference once more
    must_differ: bool = False  # an answer that does not change is let through, not merely without meaning

    @property
    def partial(self) -> bool:
        """Wrong in a small part: what a kernel may be at one shape alone."""
        return self.family in PARTIAL


def mutants_of(gate: Gate) -> tuple[Mutant, ...]:
    """Every mutant of a gate's interface."""
    interface = _interface(gate)
    found: list[Mutant] = []
    for argument in interface.of(ArgumentKind.STAGE, ArgumentKind.OUTPUT):
        found += _of_tensor(interface, argument, gate.limits[str(argument.name)])
    found += _of_inputs(gate, interface)
    return tuple(found)


# ---------------------------------------------------------------- answers that are wrong in one tensor


def _of_tensor(interface: Interface, argument: Argument, limits: Limits) -> Iterator[Mutant]:
    name, dtype = str(argument.name), _numpy(argument)
    assert argument.dtype is not None
    rank = len(argument.shape or ())
    floats = dtype.kind not in "iu"

    def bent(
        family: str, told: str, bend: Callable[[Specimen, np.ndarray], np.ndarray | None], detail: str = ""
    ) -> Mutant:
        def make(s: Specimen) -> Tensors | None:
            with np.errstate(all="ignore"):
                changed = bend(s, s.right[name])
            return None if changed is None else {name: changed}

        return Mutant(f"{family}({name}{detail})", family, told, make)

    yield bent("zeros", f"writes zeros to {name}", lambda s, y: np.zeros_like(y))
    yield bent("ones", f"writes ones to {name}", lambda s, y: np.ones_like(y))
    yield bent("constant", f"writes the mean of {name} everywhere", lambda s, y: _constant(s.golden.tensors[name], y))
    for source in interface.of(ArgumentKind.INPUT):
        copy = partial(_copied, source=str(source.name))
        yield bent("copy", f"copies input {source.name} to {name}", copy, f" from {source.name}")
    yield bent("scaled", f"{name} is {_factor(dtype):g} times too large", lambda s, y: _scaled(s, name, y))
    yield bent("sign_flipped", f"{name} has the wrong sign", lambda s, y: np.negative(y))
    yield bent("biased", f"every element of {name} is off by {BIAS:g} times its limit", partial(_biased, name, limits))
    yield bent("one_wrong", f"one element of {name}, anywhere, has the wrong sign", partial(_one_wrong, name))
    for stage in interface.of(ArgumentKind.STAGE):
        if argument.kind is ArgumentKind.OUTPUT:
            drop = partial(_without_stage, name, str(stage.name))
            yield bent("dropped_stage", f"{name} is computed as if {stage.name} were 1", drop, f" without {stage.name}")
    for axis in range(rank):
        where = f"the last of axis {axis} of {name}"
        yield bent("tail_zero", f"{where} is left zero", partial(_tail, axis, "zero"), f".{axis}")
        yield bent("tail_unwritten", f"{where} is never written", partial(_tail, axis, "poison"), f".{axis}")
        yield bent("rolled", f"axis {axis} of {name} is out by one place", partial(_rolled, axis), f".{axis}")
    yield bent("tail_zero", f"the very last element of {name} is left zero", partial(_tail, None, "zero"))
    yield bent("tail_unwritten", f"the very last element of {name} is never written", partial(_tail, None, "poison"))
    if floats:
        yield bent("nan", f"{name} is NaN everywhere", lambda s, y: _filled(y, np.nan))
        yield bent("one_nan", f"one element of {name} is NaN", partial(_one_not_finite, np.nan))
        yield bent("one_inf", f"one element of {name} is infinite", partial(_one_not_finite, np.inf))
    for lower in LOWER.get(argument.dtype, ()):
        told = f"{name} has passed through {lower}"
        yield bent("reduced_precision", told, partial(_through, lower), f".{lower}")


def _constant(golden: np.ndarray, right: np.ndarray) -> np.ndarray:
    values = golden.astype(np.float64)
    values = values[np.isfinite(values)]
    return _cast(np.full(golden.shape, values.mean() if values.size else 0.0), right.dtype)


def _copied(s: Specimen, right: np.ndarray, *, source: str) -> np.ndarray | None:
    given = s.inputs[source].reshape(-1)
    if given.size < right.size:
        return None
    return _cast(given[: right.size].astype(np.float64).reshape(right.shape), right.dtype)


def _factor(dtype: np.dtype) -> float:
    """Far enough from 1 to be no rounding of the dtype."""
    return 2.0 if dtype.kind in "iu" else 1.0 + max(1 / 16, 4 * eps(dtype))


def _scaled(s: Specimen, name: str, right: np.ndarray) -> np.ndarray:
    return _cast(s.golden.tensors[name].astype(np.float64) * _factor(right.dtype), right.dtype)


def _biased(name: str, limits: Limits, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    golden = s.golden.tensors[name].astype(np.float64)
    rms = float(np.sqrt(np.mean(np.square(golden[np.isfinite(golden)])))) if golden.size else 0.0
    off = np.zeros(golden.shape)
    if limits.elementwise is not None:
        off = limits.elementwise * s.golden.scales.get(name, np.abs(golden) + rms)
    elif (relative := limits.max_rel or limits.rel_l2) is not None:
        off = relative * np.abs(golden)
    elif (absolute := limits.max_abs or limits.mean_abs) is not None:
        off = np.full(golden.shape, absolute)
    elif limits.given and {limits.max_abs, limits.mean_abs, limits.max_rel, limits.rel_l2} == {None}:
        return None  # a cosine alone: `scaled` tells what that is worth
    changed = _cast(golden + BIAS * np.where(np.isfinite(off), off, 0.0), right.dtype)
    if not same(changed, right):
        return changed
    # Equal values are asked for, or nearly so: a few units of the last place, then.
    if right.dtype.kind in "iu":
        return _cast(golden + 1, right.dtype)
    return _cast(golden * (1 + BIAS * eps(right.dtype)), right.dtype)


def _one_wrong(name: str, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    golden = np.abs(s.golden.tensors[name].astype(np.float64)).reshape(-1)
    finite = np.isfinite(golden)
    if not finite.any():
        return None
    # Not one that is close to zero, where the wrong sign is nearly right.
    places = np.flatnonzero(finite & (golden >= np.sqrt(np.mean(np.square(golden[finite])))))
    changed = right.copy().reshape(-1)
    at = int(s.rng.choice(places)) if places.size else int(np.argmax(np.where(finite, golden, -1)))
    changed[at : at + 1] = np.negative(changed[at : at + 1])
    return changed.reshape(right.shape)


def _without_stage(name: str, stage: str, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    """The output divided by a stage tensor that fits its leading axes, as every per-row factor does."""
    golden, factor = s.golden.tensors[name].astype(np.float64), s.golden.tensors[stage].astype(np.float64)
    if factor.shape != golden.shape[: factor.ndim]:
        return None
    factor = factor.reshape(*factor.shape, *[1] * (golden.ndim - factor.ndim))
    return _cast(golden / np.where(factor == 0, 1.0, factor), right.dtype)


def _tail(axis: int | None, left: str, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    changed = right.copy()
    if axis is None:
        if right.size < 2:
            return None
        place = changed.reshape(-1)[-1:]
    else:
        if right.shape[axis] < 2:
            return None
        place = changed[(slice(None),) * axis + (slice(-1, None),)]
    place[...] = 0 if left == "zero" else _poison(s, right.dtype, place.shape)
    return changed


def _poison(s: Specimen, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind not in "iu" and dtype.itemsize > 1:
        return _filled(np.empty(shape, dtype), np.nan)
    noise = s.rng.integers(0, 256, size=(*shape, dtype.itemsize), dtype=np.uint8)
    return noise.view(dtype).reshape(shape)


def _rolled(axis: int, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    return None if right.shape[axis] < 2 else np.roll(right, 1, axis)


def _filled(like: np.ndarray, value: float) -> np.ndarray:
    return np.full(like.shape, value).astype(like.dtype)


def _one_not_finite(value: float, s: Specimen, right: np.ndarray) -> np.ndarray | None:
    finite = np.flatnonzero(np.isfinite(right.astype(np.float64)).reshape(-1))
    if finite.size == 0:
        return None
    changed = right.copy().reshape(-1)
    changed[int(s.rng.choice(finite))] = value
    return changed.reshape(right.shape)


def _through(lower: str, s: Specimen, right: np.ndarray) -> np.ndarray:
    return lowered(right, lower)


# ---------------------------------------------------------------- answers to other inputs than were given


def _of_inputs(gate: Gate, interface: Interface) -> Iterator[Mutant]:
    """What comes of ignoring a part of an input, or of rounding all of them: the reference's answer to less."""

    def other(family: str, what: str, told: str, change: Callable[[Specimen], Tensors | None]) -> Mutant:
        def make(s: Specimen) -> Tensors | None:
            with np.errstate(all="ignore"):
                inputs = change(s)
            if inputs is None:
                return None
            return rounded_to_dtypes(s.gate, s.gate.golden({**s.inputs, **inputs}, s.case.args))

        must_differ = family != "reduced_precision"
        return Mutant(f"{family}({what})", family, told, make, costly=True, must_differ=must_differ)

    for argument in interface.of(ArgumentKind.INPUT):
        name = str(argument.name)
        yield other("ignores", name, f"never looks at {name}", partial(_ignored, name))
        for axis in range(len(argument.shape or ())):
            where = f"sixteenth of axis {axis} of {name}"
            for family, told in (
                ("ignores_tail", f"leaves out the last {where}"),
                ("ignores_block", f"leaves out a {where}"),
            ):
                yield other(family, f"{name}.{axis}", told, partial(_block_ignored, name, axis, family))

    shared = {name for config in gate.task.configs for name in gate.task.variables(config.args)}
    for argument in interface.of(ArgumentKind.SCALAR):
        name = str(argument.name)
        # Whole numbers are sizes; and a reference sees only what args and problem.shapes give it.
        if name in shared and argument.value is None and _numpy(argument).kind not in "iu":
            make = partial(_without_scalar, name)
            yield Mutant(f"ignores({name})", "ignores", f"takes {name} for 0", make, costly=True, must_differ=True)

    dtypes = {a.dtype for a in interface.of(ArgumentKind.INPUT) if a.dtype is not None}
    for lower in dict.fromkeys(lower for dtype in DType if dtype in dtypes for lower in LOWER.get(dtype, ())):
        told = f"rounds its inputs to {lower} before it computes"
        yield other("reduced_precision", f"inputs.{lower}", told, partial(_inputs_through, lower))


def _ignored(name: str, s: Specimen) -> Tensors | None:
    given = s.inputs[name]
    return _unless_equal(s, name, np.zeros_like(given) if given.astype(np.float64).any() else np.ones_like(given))


def _block_ignored(name: str, axis: int, family: str, s: Specimen) -> Tensors | None:
    changed = s.inputs[name].copy()
    length = changed.shape[axis]
    if length < 2:
        return None
    size = -(-length // BLOCK_SHARE)
    begin = length - size if family == "ignores_tail" else int(s.rng.integers(length - size + 1))
    changed[(slice(None),) * axis + (slice(begin, begin + size),)] = 0
    return _unless_equal(s, name, changed)


def _without_scalar(name: str, s: Specimen) -> Tensors | None:
    args: dict[str, Scalar] = {**s.gate.task.variables(dict(s.case.args)), name: 0.0}
    return rounded_to_dtypes(s.gate, s.gate.golden(s.inputs, args))


def _inputs_through(lower: str, s: Specimen) -> Tensors | None:
    changed: Tensors = {}
    for argument in _interface(s.gate).of(ArgumentKind.INPUT):
        name = str(argument.name)
        if argument.dtype is not None and lower in LOWER.get(argument.dtype, ()):
            changed |= _unless_equal(s, name, lowered(s.inputs[name], lower)) or {}
    return changed or None


def _unless_equal(s: Specimen, name: str, changed: np.ndarray) -> Tensors | None:
    return None if same(s.inputs[name], changed) else {name: changed}


# ---------------------------------------------------------------- dtypes


def lowered(values: np.ndarray, lower: str) -> np.ndarray:
    """`values` rounded to a narrower format and back, saturating where it has not the range."""
    if lower == TF32:
        bits = values.astype(np.float32).view(np.uint32)
        # To nearest, ties to even, at 10 bits of mantissa; NaN and inf stay.
        rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
        kept = np.isfinite(values.astype(np.float32))
        return np.where(kept, rounded, bits).astype(np.uint32).view(np.float32).astype(values.dtype)
    target = numpy_dtype(DType(lower))
    return _cast(values.astype(np.float64), target).astype(values.dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, NaN to NaN."""
    if a.dtype.kind in "iu":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True))


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded to `dtype`; finite values out of its range become the largest it has."""
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            if values.dtype.kind in "iu":
                return values.astype(dtype)
            info = np.iinfo(dtype)
            whole: np.ndarray = np.clip(np.rint(np.nan_to_num(values)), float(info.min), float(info.max))
            return whole.astype(dtype)
        if values.dtype.kind in "iu":
            values = values.astype(np.float64)
        top = largest(dtype)
        saturated = np.where(np.isfinite(values), np.clip(values, -top, top), values)
        rounded: np.ndarray = saturated.astype(dtype)
        return rounded


def _numpy(argument: Argument) -> np.dtype:
    assert argument.dtype is not None
    return numpy_dtype(argument.dtype)


def _interface(gate: Gate) -> Interface:
    assert gate.task.interface is not None  # a gate without one is not loaded
    return gate.task.interface
