"""Distance of a kernel's tensor from its float64 golden, and whether the gate's limits hold.

Every test is of the form "within the limit, else fail", so that a NaN anywhere fails. The golden alone sets
every scale: a candidate cannot widen its own tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from specs.errors import GateError
from specs.outcomes import FailureKind, Metrics

UpperLimit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CosineLimit = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class Limits(BaseModel):
    """How far one tensor may be from its golden; a limit that is not given is not checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    elementwise: UpperLimit | None = None  # |c - g| <= elementwise * scale, for every element
    max_abs: UpperLimit | None = None  # max |c - g|
    max_rel: UpperLimit | None = None  # max |c - g| / |g|
    mean_abs: UpperLimit | None = None  # mean |c - g|
    rel_l2: UpperLimit | None = None  # ||c - g|| / ||g||
    mismatch_fraction: Annotated[float, Field(ge=0, lt=1)] | None = None  # share allowed outside `elementwise`
    cosine: CosineLimit | None = None  # lower limit, whole tensor
    worst_row_cosine: CosineLimit | None = None  # lower limit, rows are the last axis
    # Instead of numbers: elementwise and rel_l2 at so many times the vendor baseline's own error, found at the lock.
    calibrated: Annotated[float, Field(ge=1, le=1000)] | None = None

    @model_validator(mode="after")
    def _calibrated_or_chosen(self) -> Self:
        if self.calibrated is not None and (self.elementwise is not None or self.rel_l2 is not None):
            raise ValueError("calibrated finds elementwise and rel_l2 itself; leave these two out")
        return self

    @model_validator(mode="after")
    def _slack_is_bounded(self) -> Self:
        # Without a bound on the worst error, the allowed share could be filled with anything.
        if self.mismatch_fraction and (self.elementwise is None or (self.max_abs is None and self.max_rel is None)):
            raise ValueError("mismatch_fraction needs elementwise, and max_abs or max_rel to bound the allowed share")
        return self

    @property
    def given(self) -> bool:
        return any(getattr(self, name) is not None for name in type(self).model_fields)


# Between these a sum of squares neither overflows nor loses what matters, so nothing need be scaled first.
_SQUARES_FIT = (1e-100, 1e100)


@dataclass(frozen=True, slots=True)
class Comparison:
    metrics: Metrics
    failure: tuple[FailureKind, str] | None = None
    limit: str | None = None  # which limit did not hold: a field of Limits, "equal" or "non_finite"

    @property
    def ok(self) -> bool:
        return self.failure is None


@dataclass(frozen=True, slots=True)
class _Errors:
    """Float64 arrays of the same shape; zeros where got and golden agree on a value that is not finite."""

    got: np.ndarray
    golden: np.ndarray
    difference: np.ndarray  # |got - golden|
    scale: np.ndarray  # what an elementwise limit is multiplied by


def compare(
    tensor: str, got: np.ndarray, golden: np.ndarray, limits: Limits, scale: np.ndarray | None = None
) -> Comparison:
    """Measure `got` (the interface's dtype) against `golden` (float64, or integers) of the same shape.

    `scale` (float64, same shape) is what `elementwise` is relative to; without it |g| + rms(g). Without any limit
    every element must be equal, which is what integers want. Raises ValueError when the shapes differ, GateError when
    `limits` are still to be calibrated: neither is ever the candidate's doing.
    """
    if limits.calibrated is not None:
        raise GateError(f"gate.yaml: tensors.{tensor}: calibrated, but the lock carries no numbers for it")
    if got.shape != golden.shape or (scale is not None and scale.shape != golden.shape):
        shapes = f"got {got.shape}, golden {golden.shape}" + ("" if scale is None else f", scale {scale.shape}")
        raise ValueError(f"{tensor}: shapes differ: {shapes}")
    if golden.size == 0:
        return Comparison(_nothing_to_compare(tensor))
    with np.errstate(all="ignore"):
        return _compare(tensor, got, golden, limits, scale)


def _compare(tensor: str, got: np.ndarray, golden: np.ndarray, limits: Limits, scale: np.ndarray | None) -> Comparison:
    c = got.astype(np.float64)
    g = golden.astype(np.float64, copy=False)
    finite = np.isfinite(c) & np.isfinite(g)
    count = int(np.count_nonzero(finite))
    if count != g.size:
        unlike = ~(finite | (np.isnan(c) & np.isnan(g)) | (np.isinf(g) & (c == g)))
        if unlike.any():
            return _non_finite(tensor, got, golden, unlike)
        c, g = np.where(finite, c, 0.0), np.where(finite, g, 0.0)
        scale = None if scale is None else np.where(finite, scale, 0.0)
    if scale is None:
        # An element that is small only because its terms cancelled is not held to its own size.
        scale = np.abs(g) + _norm(g) / max(1, count) ** 0.5

    difference = np.asarray(np.subtract(c, g))  # a 0-d result is a scalar, which cannot be written to
    errors = _Errors(c, g, np.abs(difference, out=difference), scale)
    exact = not limits.given
    if exact:
        # Compared as they came: float64 cannot tell 2**53 from 2**53 + 1.
        outside = (got != golden) & finite
        badness = np.where(outside, np.maximum(difference, np.finfo(np.float64).tiny), 0.0)
    elif limits.elementwise is not None:
        # Never inf: a difference that overflowed to inf would be within it.
        tolerance = np.asarray(np.minimum(limits.elementwise * scale, np.finfo(np.float64).max))
        outside = ~(difference <= tolerance)
        badness = np.divide(difference, scale, out=tolerance)
        np.copyto(badness, 0.0, where=np.isnan(badness) & ~outside)  # 0 / 0 is no error
    else:
        outside = np.zeros(g.shape, dtype=bool)
        badness = difference
    worst = _index_of_max(badness)
    raw = _measure(errors, outside)
    metrics = Metrics(
        tensor=tensor,
        **{name: value if np.isfinite(value) else None for name, value in raw.items()},
        worst_index=worst,
        worst_got=_text(got[worst]),
        worst_want=_text(golden[worst]),
    )
    exceeded = _exceeded(metrics, raw, limits, errors, outside, worst, exact)
    if exceeded is None:
        return Comparison(metrics)
    return Comparison(metrics, (FailureKind.WRONG, exceeded[1]), exceeded[0])


def _measure(errors: _Errors, outside: np.ndarray) -> dict[str, float]:
    c, g, difference = errors.got, errors.golden, errors.difference
    norm_g, norm_d = _norm(g), _norm(difference)
    relative = np.divide(difference, np.abs(g))
    return {
        "max_abs": float(difference.max()),
        "max_rel": float(np.fmax.reduce(relative, axis=None, initial=0.0)),  # fmax passes over 0 / 0
        "mean_abs": float(difference.mean()),
        "rel_l2": norm_d / norm_g if norm_g > 0 else (0.0 if norm_d == 0 else np.inf),
        "cosine": _cosine(c.reshape(1, -1), g.reshape(1, -1)),
        "worst_row_cosine": _cosine(_rows(c), _rows(g)),
        "mismatch_fraction": float(np.count_nonzero(outside)) / outside.size,
    }


def _exceeded(
    metrics: Metrics,
    raw: dict[str, float],
    limits: Limits,
    errors: _Errors,
    outside: np.ndarray,
    worst: tuple[int, ...],
    exact: bool,
) -> tuple[str, str] | None:
    """The first limit that does not hold: its name, and the case in words. None when all hold."""
    at = f"{metrics.tensor}{list(worst) if worst else ''}: got {metrics.worst_got}, want {metrics.worst_want}"
    share = f"{np.count_nonzero(outside)} of {outside.size} elements"
    if exact:
        return ("equal", f"{at}; without limits the values must be equal, {share} are not") if outside.any() else None
    allowed = limits.mismatch_fraction or 0.0
    if limits.elementwise is not None and not raw["mismatch_fraction"] <= allowed:
        error, bound = errors.difference[worst], limits.elementwise * errors.scale[worst]
        slack = f" (a share of {allowed:g} is allowed)" if allowed else ""
        return "elementwise", (
            f"{at}; error {error:.4g} is over the limit {bound:.4g} = elementwise {limits.elementwise:g} "
            f"* scale {errors.scale[worst]:.4g}; {share} are outside{slack}"
        )
    for name in ("max_abs", "max_rel", "mean_abs", "rel_l2"):
        limit = getattr(limits, name)
        if limit is not None and not raw[name] <= limit:
            return name, f"{at}; {name} {raw[name]:.4g} is over the limit {limit:g}"
    for name in ("cosine", "worst_row_cosine"):
        limit = getattr(limits, name)
        if limit is not None and not raw[name] >= limit:
            return name, f"{at}; {name} {raw[name]:.9g} is under the limit {limit:g}"
    return None


def _non_finite(tensor: str, got: np.ndarray, golden: np.ndarray, unlike: np.ndarray) -> Comparison:
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(unlike)), unlike.shape))
    count = int(np.count_nonzero(unlike))
    metrics = Metrics(
        tensor=tensor,
        mismatch_fraction=count / unlike.size,
        worst_index=first,
        worst_got=_text(got[first]),
        worst_want=_text(golden[first]),
    )
    message = (
        f"{tensor}{list(first) if first else ''}: got {metrics.worst_got}, want {metrics.worst_want}; NaN and inf must "
        f"stand exactly where the golden has them, {count} of {unlike.size} elements do not fit"
    )
    return Comparison(metrics, (FailureKind.NON_FINITE, message), "non_finite")


def errors_of(tensor: str, got: np.ndarray, golden: np.ndarray, scale: np.ndarray | None = None) -> dict[str, float]:
    """The error of `got` in the metrics that calibration sets: the worst |c - g| / scale, and ||c - g|| / ||g||.

    inf where no limit could admit it: NaN or inf out of place, or a difference where the scale is 0.
    """
    comparison = compare(tensor, got, golden, Limits(elementwise=0.0), scale)
    if comparison.failure is not None and comparison.failure[0] is FailureKind.NON_FINITE:
        return {"elementwise": np.inf, "rel_l2": np.inf}
    if golden.size == 0:
        return {"elementwise": 0.0, "rel_l2": 0.0}
    at = comparison.metrics.worst_index
    c, g = got.astype(np.float64), golden.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        finite = np.isfinite(c) & np.isfinite(g)
        rms = _norm(np.where(finite, g, 0.0)) / max(1, int(np.count_nonzero(finite))) ** 0.5
        size = np.abs(g) + rms if scale is None else scale
        worst = float(np.abs(c[at] - g[at]) / size[at]) if c[at] != g[at] else 0.0
    rel_l2 = comparison.metrics.rel_l2
    return {"elementwise": worst if worst == worst else 0.0, "rel_l2": np.inf if rel_l2 is None else rel_l2}


def _nothing_to_compare(tensor: str) -> Metrics:
    zero = dict.fromkeys(("max_abs", "max_rel", "mean_abs", "rel_l2", "mismatch_fraction"), 0.0)
    return Metrics(tensor=tensor, cosine=1.0, worst_row_cosine=1.0, **zero)


def _norm(values: np.ndarray) -> float:
    """Euclidean norm that neither overflows nor underflows, whatever the size of the values."""
    largest = max(float(values.max()), -float(values.min()))
    if largest == 0 or not np.isfinite(largest):
        return largest
    flat = values.ravel() if _SQUARES_FIT[0] < largest < _SQUARES_FIT[1] else values.ravel() / largest
    root: float = float(np.dot(flat, flat)) ** 0.5
    return root if _SQUARES_FIT[0] < largest < _SQUARES_FIT[1] else largest * root


def _rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest cosine over the rows of two `[R, N]` arrays; two zero rows agree, one zero row does not."""
    largest_a, largest_b = _largest(a), _largest(b)
    if not (_squares_fit(largest_a) and _squares_fit(largest_b)):
        a = a / np.where(largest_a > 0, largest_a, 1.0)[:, None]
        b = b / np.where(largest_b > 0, largest_b, 1.0)[:, None]
    dot = np.einsum("rn,rn->r", a, b)
    norms = np.sqrt(np.einsum("rn,rn->r", a, a)) * np.sqrt(np.einsum("rn,rn->r", b, b))
    both_zero = (largest_a == 0) & (largest_b == 0)
    cosine = np.divide(dot, norms, out=np.where(both_zero, 1.0, 0.0), where=norms != 0)
    return float(np.clip(cosine, -1.0, 1.0).min())


def _largest(rows: np.ndarray) -> np.ndarray:
    largest: np.ndarray = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return largest


def _squares_fit(largest: np.ndarray) -> bool:
    return bool(((largest == 0) | ((largest > _SQUARES_FIT[0]) & (largest < _SQUARES_FIT[1]))).all())


def _index_of_max(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _text(value: np.generic) -> str:
    return str(int(value)) if np.issubdtype(value.dtype, np.integer) else f"{float(value):.9g}"
