"""The comparator: NaN fails, the golden alone sets the scale, and messages say where and by how much."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from kernels.harness.compare import Limits, compare
from specs.outcomes import FailureKind

TIGHT = Limits(elementwise=1e-5)
ALL = Limits(
    elementwise=1e-5, max_abs=1e3, max_rel=1e9, mean_abs=1e3, rel_l2=1e-5, cosine=0.999999, worst_row_cosine=0.9999
)
EACH = [
    Limits(elementwise=0.1),
    Limits(max_abs=0.1),
    Limits(max_rel=0.1),
    Limits(mean_abs=0.1),
    Limits(rel_l2=0.1),
    Limits(cosine=0.9),
    Limits(worst_row_cosine=0.9),
    Limits(elementwise=0.1, mismatch_fraction=0.99, max_abs=1e300),
]


def golden(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape)


def kind(got: np.ndarray, want: np.ndarray, limits: Limits, scale: np.ndarray | None = None) -> FailureKind | None:
    failure = compare("y", got, want, limits, scale).failure
    return failure[0] if failure else None


def test_rounding_to_the_dtype_passes() -> None:
    """A float32 rounding of the golden is inside every sensible limit."""
    want = golden(32, 64)

    comparison = compare("y", want.astype(np.float32), want, ALL)

    assert comparison.ok
    assert comparison.metrics.max_abs is not None
    assert 0 < comparison.metrics.max_abs < 1e-6


@pytest.mark.parametrize("limits", EACH, ids=lambda limits: str(limits.model_dump(exclude_none=True)))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_fails_whatever_is_limited(limits: Limits, value: float) -> None:
    """NaN and inf where the golden is finite fail under every single kind of limit."""
    want = golden(8, 8)
    got = want.copy()
    got[3, 5] = value

    comparison = compare("y", got, want, limits)

    assert comparison.failure is not None
    assert comparison.failure[0] is FailureKind.NON_FINITE
    assert comparison.metrics.worst_index == (3, 5)
    assert comparison.metrics.max_abs is None


@pytest.mark.parametrize("limits", EACH, ids=lambda limits: str(limits.model_dump(exclude_none=True)))
def test_all_nan_fails(limits: Limits) -> None:
    """A tensor of nothing but NaN fails."""
    assert kind(np.full((4, 4), np.nan), golden(4, 4), limits) is FailureKind.NON_FINITE


@pytest.mark.parametrize("limits", EACH[:7], ids=lambda limits: str(limits.model_dump(exclude_none=True)))
def test_zeros_fail(limits: Limits) -> None:
    """A tensor of zeros fails each limit of 10% on its own."""
    assert kind(np.zeros((8, 8)), golden(8, 8), limits) is FailureKind.WRONG


@pytest.mark.parametrize(
    ("got", "fits"),
    [
        ([np.nan, np.inf, -np.inf, 1.0], True),
        ([np.inf, np.inf, -np.inf, 1.0], False),
        ([np.nan, -np.inf, -np.inf, 1.0], False),
        ([np.nan, np.inf, 1e308, 1.0], False),
        ([np.nan, np.nan, -np.inf, 1.0], False),
    ],
)
def test_values_that_are_not_finite_must_stand_where_the_golden_has_them(got: list[float], fits: bool) -> None:
    """NaN matches NaN and inf matches inf of the same sign, and only there."""
    want = np.array([np.nan, np.inf, -np.inf, 1.0])

    assert kind(np.array(got), want, TIGHT) is (None if fits else FailureKind.NON_FINITE)


def test_a_wrong_finite_element_beside_matching_infinities_fails() -> None:
    """An inf in the golden does not widen the tolerance of its neighbours."""
    assert kind(np.array([np.inf, 1.5]), np.array([np.inf, 1.0]), TIGHT) is FailureKind.WRONG


def test_the_candidate_cannot_widen_its_own_tolerance() -> None:
    """A huge output does not scale the allowance: only the golden does."""
    assert kind(np.array([1e30, 1.0]), np.array([1.0, 1.0]), Limits(elementwise=0.5)) is FailureKind.WRONG


def test_the_default_scale_adds_the_rms_so_that_cancellation_is_forgiven() -> None:
    """An element that is nearly zero by cancellation is held to the size of the tensor."""
    want = np.array([1e-12, 1.0, -1.0, 1.0])
    got = want + np.array([5e-6, 0, 0, 0])

    assert kind(got, want, TIGHT) is None
    assert kind(got + np.array([1e-5, 0, 0, 0]), want, TIGHT) is FailureKind.WRONG


def test_a_scale_of_the_reference_replaces_the_default() -> None:
    """With a scale given, the tolerance is that scale times the limit and nothing else."""
    want, got = np.array([0.0, 1.0]), np.array([0.9e-3, 1.0])

    assert kind(got, want, TIGHT, np.array([100.0, 1.0])) is None
    assert kind(got, want, TIGHT, np.array([10.0, 1.0])) is FailureKind.WRONG


def test_a_scale_that_is_nan_fails() -> None:
    """A NaN in the scale is not a licence."""
    assert kind(np.array([1.0]), np.array([1.0]), TIGHT, np.array([np.nan])) is FailureKind.WRONG


def test_a_golden_of_zeros_wants_zeros() -> None:
    """Where the golden is all zeros nothing but zero passes."""
    want = np.zeros((3, 3))

    assert kind(np.zeros((3, 3), dtype=np.float32), want, ALL) is None
    assert kind(np.full((3, 3), 1e-30, dtype=np.float32), want, TIGHT) is FailureKind.WRONG
    assert kind(np.full((3, 3), 1e-30, dtype=np.float32), want, Limits(cosine=0.5)) is FailureKind.WRONG


def test_a_scalar_tensor_is_compared() -> None:
    """A tensor without dimensions works like any other."""
    assert kind(np.float32(2.0) * np.ones(()), np.array(2.0), ALL) is None
    assert kind(np.array(2.1), np.array(2.0), TIGHT) is FailureKind.WRONG


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_an_empty_tensor_passes(shape: tuple[int, ...]) -> None:
    """With nothing to compare there is nothing wrong."""
    comparison = compare("y", np.zeros(shape, dtype=np.float32), np.zeros(shape), ALL)

    assert comparison.ok
    assert comparison.metrics.max_abs == 0


def test_shapes_that_differ_are_our_own_mistake() -> None:
    """A shape mismatch raises, since the arena and not the candidate makes the shape."""
    with pytest.raises(ValueError, match=r"y: shapes differ: got \(2,\), golden \(3,\)"):
        compare("y", np.zeros(2), np.zeros(3), TIGHT)


def test_integers_are_exact_without_limits() -> None:
    """Off by one fails, even where float64 cannot tell the two apart."""
    want = np.array([2**53, 7], dtype=np.int64)

    assert kind(want.copy(), want, Limits()) is None
    assert kind(want + np.array([1, 0]), want, Limits()) is FailureKind.WRONG


def test_unsigned_and_signed_integers_are_told_apart() -> None:
    """A golden of another integer dtype is compared by value."""
    got = np.array([2**64 - 1], dtype=np.uint64)

    assert kind(got, np.array([-1], dtype=np.int64), Limits()) is FailureKind.WRONG


def test_integers_may_have_limits() -> None:
    """A limit, once given, is what holds for integers too."""
    want = np.array([10, 20], dtype=np.int32)

    assert kind(want + 1, want, Limits(max_abs=1)) is None
    assert kind(want + 2, want, Limits(max_abs=1)) is FailureKind.WRONG


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16])
def test_small_floats_are_compared_as_float64(dtype: type) -> None:
    """Every float dtype of a task can be compared, and its NaN is seen."""
    want = np.array([0.5, 1.0, -2.0, 4.0])
    got: np.ndarray = want.astype(dtype)

    assert kind(got, want, TIGHT) is None
    got[1] = np.nan
    assert kind(got, want, TIGHT) is FailureKind.NON_FINITE


def test_the_message_says_where_what_and_by_how_much() -> None:
    """The worst element is named with both values, its error and its limit."""
    want = np.ones((4, 4))
    got = want.copy()
    got[1, 1], got[2, 3] = 1.5, 3.0

    failure = compare("y", got, want, Limits(elementwise=0.1)).failure

    assert failure is not None
    assert failure[1] == (
        "y[2, 3]: got 3, want 1; error 2 is over the limit 0.2 = elementwise 0.1 * scale 2; "
        "2 of 16 elements are outside"
    )


def test_a_share_may_be_allowed_to_mismatch_within_a_bound() -> None:
    """mismatch_fraction lets a share through, and the other limit still holds for that share."""
    want = np.ones(100)
    got = want.copy()
    got[7] = 1.5
    limits = Limits(elementwise=1e-3, mismatch_fraction=0.01, max_abs=1.0)

    assert kind(got, want, limits) is None
    got[8] = 1.5
    assert kind(got, want, limits) is FailureKind.WRONG
    got[8], got[7] = 1.0, 2.5
    assert kind(got, want, limits) is FailureKind.WRONG


def test_an_allowed_share_without_a_bound_is_refused() -> None:
    """A share that may be anything at all is not a limit."""
    with pytest.raises(ValidationError, match="max_abs or max_rel"):
        Limits(elementwise=1e-3, mismatch_fraction=0.1)


def test_one_bad_row_is_seen_by_the_row_cosine() -> None:
    """A corrupt row that the overall cosine averages away fails worst_row_cosine."""
    want = golden(512, 16)
    got = want.copy()
    got[100] = got[100][::-1]

    assert kind(got, want, Limits(cosine=0.99)) is None
    assert kind(got, want, Limits(worst_row_cosine=0.99)) is FailureKind.WRONG


def test_values_near_the_ends_of_float64_do_not_overflow_the_metrics() -> None:
    """Huge and tiny goldens are compared like any others."""
    for size in (1e300, 1e-300):
        want = golden(8, 8) * size
        assert kind(want.copy(), want, ALL.model_copy(update={"max_abs": None})) is None
        assert kind(want * 1.5, want, TIGHT) is FailureKind.WRONG
    assert kind(np.array([-1.7e308]), np.array([1.7e308]), TIGHT) is FailureKind.WRONG


@given(arrays(np.float64, (3, 4), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_a_tensor_equals_itself(values: np.ndarray) -> None:
    """Every tensor, with whatever NaN and inf in it, passes against itself."""
    assert compare("y", values.astype(np.float32), values, TIGHT).ok


@given(
    arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6, width=32)),
    st.integers(0, 11),
    st.sampled_from([np.nan, np.inf, -np.inf, 1e9, -1e9]),
)
def test_one_ruined_element_fails(values: np.ndarray, index: int, value: float) -> None:
    """No single element can be ruined without the comparison seeing it."""
    got = values.copy()
    got.flat[index] = value

    assert not compare("y", got, values, TIGHT).ok


def test_a_million_elements_take_a_fraction_of_a_second() -> None:
    """The comparison is vectorised: a Python loop over the elements would take far longer than this bound."""
    want = golden(1024, 1024)
    got = want.astype(np.float32)
    started = time.process_time()

    compare("y", got, want, ALL)

    assert time.process_time() - started < 2.0
