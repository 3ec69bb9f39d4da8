"""Outcomes: nonsense combinations cannot be built."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from specs.outcomes import (
    Acceptance,
    BaselineTimes,
    BlobRef,
    BuildResult,
    BuildStatus,
    ConfigMeasurement,
    Device,
    Ending,
    Failure,
    FailureKind,
    Interval,
    Iteration,
    Measurement,
    MeasureOutcome,
    Origin,
    Proposal,
    SelfReported,
    SelfReportedConfig,
    Stage,
    Timing,
    Verdict,
    VerificationStage,
)

DIGEST = "a" * 64
BLOB = BlobRef(sha256=DIGEST, size=1)
FAILURE = Failure(
    kind=FailureKind.WRONG, verification=VerificationStage.NUMERICS, case="c", message="y[0] is 1, 2 is wanted"
)
TIMING = Timing(median_us=10, q1_us=9, q3_us=11, samples=30)
EXACT = Interval(value=1.0, low=0.9, high=1.1)
DEVICE = Device(name="cpu")
PROPOSAL = Proposal(source=BLOB, normal=DIGEST, origin=Origin.OPTIMIZER, label="one")
BUILT = BuildResult(status=BuildStatus.BUILT, key=DIGEST, library=BLOB)
FAILED = BuildResult(status=BuildStatus.FAILED, key=DIGEST, log_tail="error")
PASSED = Verdict(passed=True, library=DIGEST, gate=DIGEST, cases=4)
PUBLIC = PASSED.model_copy(update={"scope": "public"})
REFUSED = Verdict(passed=False, failure=FAILURE, library=DIGEST, gate=DIGEST, cases=1)
MEASURED = Measurement(
    library=DIGEST,
    configs=(ConfigMeasurement(config="c", baseline=TIMING, candidate=TIMING, ratio=EXACT),),
    score=EXACT,
    geomean=1.0,
    device=DEVICE,
)
WIN: dict[str, Any] = {
    "index": 0,
    "version": "v001",
    "stage": Stage.REPRODUCE,
    "ending": Ending.WIN,
    "reason": "first correct kernel",
    "proposal": PROPOSAL,
    "build": BUILT,
    "verdict": PASSED,
    "measurement": MEASURED,
}
ATTEMPT: dict[str, Any] = {**WIN, "version": "a001", "ending": Ending.SLOWER}


@pytest.mark.parametrize(
    "status", [BuildStatus.FAILED, BuildStatus.TIMED_OUT, BuildStatus.REFUSED], ids=lambda status: status.value
)
def test_a_build_that_failed_cannot_carry_a_library(status: BuildStatus) -> None:
    """Nothing could load it."""
    with pytest.raises(ValidationError, match="must not carry a library"):
        BuildResult(status=status, key=DIGEST, library=BLOB)


def test_a_build_that_succeeded_must_carry_a_library() -> None:
    """Something must come of it."""
    with pytest.raises(ValidationError, match="must carry a library"):
        BuildResult(status=BuildStatus.BUILT, key=DIGEST)


def test_only_a_built_build_is_ok() -> None:
    """What the next stage asks."""
    assert BUILT.ok
    assert not FAILED.ok


def test_a_verdict_that_passes_has_no_failure() -> None:
    """And one that refuses says why."""
    with pytest.raises(ValidationError):
        Verdict(passed=True, failure=FAILURE, library=DIGEST, gate=DIGEST, cases=1)
    with pytest.raises(ValidationError):
        Verdict(passed=False, library=DIGEST, gate=DIGEST, cases=1)


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("field", ["median_us", "q1_us", "q3_us"])
def test_a_nonsense_time_is_no_time(field: str, time: float) -> None:
    """Only a finite positive time is a time."""
    with pytest.raises(ValidationError):
        Timing.model_validate({"median_us": 10, "q1_us": 9, "q3_us": 11, "samples": 3, field: time})


def test_a_timing_needs_a_sample() -> None:
    """A median of nothing is nothing."""
    with pytest.raises(ValidationError):
        Timing(median_us=1, q1_us=1, q3_us=1, samples=0)


@pytest.mark.parametrize(("low", "value", "high"), [(1.1, 1.0, 1.2), (0.8, 1.0, 0.9), (1.2, 1.0, 0.8)])
def test_an_interval_out_of_order_is_refused(low: float, value: float, high: float) -> None:
    """The value lies within its own interval."""
    with pytest.raises(ValidationError, match="out of order"):
        Interval(value=value, low=low, high=high)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -0.5])
def test_a_nonsense_ratio_is_refused(nonsense: float) -> None:
    """In an interval and as a geomean."""
    with pytest.raises(ValidationError):
        Interval(value=nonsense, low=nonsense, high=nonsense)
    with pytest.raises(ValidationError):
        Measurement.model_validate({**MEASURED.model_dump(), "geomean": nonsense})


def test_a_measurement_needs_a_config() -> None:
    """A score of nothing is nothing."""
    with pytest.raises(ValidationError):
        Measurement.model_validate({**MEASURED.model_dump(), "configs": ()})


def test_baseline_times_need_a_config() -> None:
    """The same for the vendor."""
    with pytest.raises(ValidationError):
        BaselineTimes(timings={}, device=DEVICE)


def test_measuring_yields_one_thing() -> None:
    """A measurement or a failure, never both and never neither."""
    assert MeasureOutcome(measurement=MEASURED).failure is None
    assert MeasureOutcome(failure=FAILURE).measurement is None
    with pytest.raises(ValidationError, match="exactly one"):
        MeasureOutcome(measurement=MEASURED, failure=FAILURE)
    with pytest.raises(ValidationError, match="exactly one"):
        MeasureOutcome()


@pytest.mark.parametrize("whole", [WIN, ATTEMPT], ids=["win", "attempt"])
def test_a_whole_walk_is_accepted(whole: dict[str, Any]) -> None:
    """The sound case, against which the refusals below stand."""
    assert Iteration.model_validate(whole).measurement == MEASURED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": None}, "has not passed the judge"),
        ({"verdict": REFUSED}, "has not passed the judge"),
        ({"verdict": PUBLIC}, "on the public cases alone is no verdict"),
        ({"measurement": None, "build": FAILED}, "was not built"),
        ({"measurement": None, "build": None}, "was not built"),
        ({"measurement": None, "verdict": None, "proposal": None}, "needs a proposal"),
        ({"version": "v001"}, "does not fit"),
        ({"ending": Ending.WIN}, "does not fit"),
        ({"version": "b001"}, "pattern"),
        ({"version": "a1"}, "pattern"),
    ],
)
def test_a_walk_with_a_gap_is_refused(changes: dict[str, Any], why: str) -> None:
    """An unjudged kernel has no times, an unbuilt one no verdict, an attempt no win's number."""
    with pytest.raises(ValidationError, match=why):
        Iteration.model_validate({**ATTEMPT, **changes})


def test_a_look_at_the_public_cases_accepts_nothing() -> None:
    """Acceptance is the last judgement of all; a quick one cannot stand in for it."""
    with pytest.raises(ValidationError, match="on the public cases alone accepts nothing"):
        Acceptance(version="v001", accepted=True, reason="", verdict=PUBLIC)


def test_a_win_needs_a_measurement() -> None:
    """Nothing becomes champion unmeasured."""
    with pytest.raises(ValidationError, match="a win needs a measurement"):
        Iteration.model_validate({**WIN, "measurement": None})


@pytest.mark.parametrize("ending", [Ending.NO_PROPOSAL, Ending.STOPPED])
def test_an_iteration_may_end_with_nothing(ending: Ending) -> None:
    """The optimiser had nothing to say, or a person stopped it."""
    empty = dict.fromkeys(("proposal", "build", "verdict", "measurement"))
    assert Iteration.model_validate({**ATTEMPT, **empty, "ending": ending}).build is None


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "g" * 64])
def test_a_digest_is_64_hexadecimal_digits(digest: str) -> None:
    """Lower case, as sha256sum prints it."""
    with pytest.raises(ValidationError):
        BlobRef(sha256=digest, size=0)


def test_a_misspelt_field_is_refused() -> None:
    """It would otherwise be lost in silence."""
    with pytest.raises(ValidationError):
        BlobRef.model_validate({"sha256": DIGEST, "size": 1, "sise": 2})


def test_an_outcome_cannot_be_changed() -> None:
    """A value is a value."""
    with pytest.raises(ValidationError, match="frozen"):
        PASSED.passed = False  # type: ignore[misc]


def test_spread_is_the_quartile_range_over_the_median() -> None:
    """How far to trust a time."""
    assert TIMING.spread == pytest.approx(0.2)


# ---------------------------------------------------------------- self-reported

REPORTED = SelfReported(program=DIGEST, configs=(SelfReportedConfig(config="c", ratio=1.2),), score=1.2, geomean=1.2)
REPORTED_WIN: dict[str, Any] = {
    "index": 0, "version": "v001", "stage": Stage.REPRODUCE, "ending": Ending.WIN, "reason": "by its own words",
    "proposal": PROPOSAL, "build": BUILT, "self_reported": REPORTED,
}  # fmt: skip


def test_a_program_may_win_by_its_own_words() -> None:
    """And says so, wherever the value goes."""
    assert Iteration(**REPORTED_WIN).model_dump()["self_reported"]["label"] == "self-reported"


@pytest.mark.parametrize("evidence", [{"verdict": PASSED}, {"verdict": PASSED, "measurement": MEASURED}])
def test_its_own_words_stand_beside_no_evidence_of_ours(evidence: dict[str, Any]) -> None:
    """Or somebody would take the one for the other."""
    with pytest.raises(ValidationError, match="stands beside no verdict and no measurement"):
        Iteration(**REPORTED_WIN | evidence)
    with pytest.raises(ValidationError, match="stands beside no verdict and no measurement"):
        Acceptance(version="v001", accepted=True, reason="", self_reported=REPORTED, **evidence)


@pytest.mark.parametrize(
    "change",
    [{"label": "verified"}, {"label": ""}, {"measurement": None}, {"score": math.nan}, {"score": -1}, {"configs": ()}],
)
def test_a_report_cannot_be_dressed_up(change: dict[str, Any]) -> None:
    """Its label is fixed, its numbers are numbers, and it has room for nothing else."""
    with pytest.raises(ValidationError):
        SelfReported(**REPORTED.model_dump() | change)


def test_no_measurement_and_no_verdict_can_be_read_from_a_report() -> None:
    """Not even from its JSON."""
    for kind in (Measurement, MeasureOutcome, Verdict, BaselineTimes):
        with pytest.raises(ValidationError):
            kind.model_validate_json(REPORTED.model_dump_json())


def test_a_report_that_was_refused_has_no_ratio() -> None:
    """Neither in sum nor in part."""
    with pytest.raises(ValidationError, match="carries no ratio but 0"):
        SelfReported(**REPORTED.model_dump() | {"refused": "it crashed"})


@pytest.mark.parametrize(
    "given", [{"ratio": 0.0}, {"ratio": 1.0, "reason": "why?"}, {"ratio": math.inf}, {"ratio": -1.0}]
)
def test_a_ratio_of_0_has_a_reason_and_no_other_has_one(given: dict[str, Any]) -> None:
    """Nothing is 0 in silence."""
    with pytest.raises(ValidationError):
        SelfReportedConfig(config="c", **given)


def test_a_report_of_0_wins_nothing_and_an_unbuilt_program_reports_nothing() -> None:
    """The walk has no gaps here either."""
    nothing = SelfReported(
        program=DIGEST, configs=(SelfReportedConfig(config="c", ratio=0.0, reason="INVALID"),), score=0, geomean=0
    )
    with pytest.raises(ValidationError, match="a win needs"):
        Iteration(**REPORTED_WIN | {"self_reported": nothing})
    with pytest.raises(ValidationError, match="not built cannot report"):
        Iteration(**REPORTED_WIN | {"build": FAILED})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("n1024 (normal): c is off by 3 at [0, 5]", "wrong in case n1024 (normal): c is off by 3 at [0, 5]"),
        ("n1024: no answer came", "wrong in case n1024 at c: no answer came"),
        ("no answer came", "wrong in case 'n1024' at c: no answer came"),
        ("n10240 (normal): other", "wrong in case 'n1024' at c: n10240 (normal): other"),
    ],
)
def test_a_refusal_names_case_and_tensor_once(message: str, said: str) -> None:
    """Whether the judge's message has them already or not."""
    failure = Failure(
        kind=FailureKind.WRONG,
        verification=VerificationStage.NUMERICS,
        case="n1024",
        first_failing_stage="c",
        message=message,
    )
    assert failure.told == said
