"""Scoring as laws: what a score is, what it never is, and what counts as a regression."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specs.plan import ConfigTarget
from specs.schema import Scoring, StageGate
from specs.scoring import MAX_RATIO, complete_ratios, fold, geomean, ratio_from_times, regressions, stage_gate_open

NONSENSE = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2 * MAX_RATIO]

ratios_ = st.floats(0.01, 100)
times = st.floats(1e-3, 1e7)
nonsense_times = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, -1e-300])


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[ConfigTarget], dict[str, float]]:
    """One to six configs, each with a ratio."""
    count = draw(st.integers(1, 6))
    targets = [
        ConfigTarget(name=f"c{i}", target_ratio=draw(st.floats(0.1, 3)), weight=draw(st.floats(0.1, 10)))
        for i in range(count)
    ]
    return targets, {target.name: draw(ratios_) for target in targets}


def _configs(*targets: float, weights: list[float] | None = None) -> list[ConfigTarget]:
    weights = weights or [1.0] * len(targets)
    return [
        ConfigTarget(name=f"c{i}", target_ratio=t, weight=w)
        for i, (t, w) in enumerate(zip(targets, weights, strict=True))
    ]


@given(scored())
def test_min_ratio_is_the_worst_config(case: tuple[list[ConfigTarget], dict[str, float]]) -> None:
    """No config above it can raise it."""
    configs, ratios = case
    assert fold(Scoring.MIN_RATIO, ratios, configs) == min(ratios.values())


@given(scored())
def test_weighted_avg_is_the_weighted_mean(case: tuple[list[ConfigTarget], dict[str, float]]) -> None:
    """sum(weight * ratio) / sum(weight), so it lies between the worst and the best."""
    configs, ratios = case
    score = fold(Scoring.WEIGHTED_AVG, ratios, configs)
    expected = sum(c.weight * ratios[c.name] for c in configs) / sum(c.weight for c in configs)
    assert score == pytest.approx(expected)
    assert min(ratios.values()) * (1 - 1e-12) <= score <= max(ratios.values()) * (1 + 1e-12)


def test_weighted_avg_by_hand() -> None:
    """(1 * 0.5 + 3 * 1.5) / 4."""
    configs = _configs(1, 1, weights=[1, 3])
    assert fold(Scoring.WEIGHTED_AVG, {"c0": 0.5, "c1": 1.5}, configs) == 1.25


def test_weights_of_any_size_do_not_overflow() -> None:
    """Only their proportion matters."""
    configs = _configs(1, 1, weights=[1e308, 1e308])
    assert fold(Scoring.WEIGHTED_AVG, {"c0": 1.0, "c1": 3.0}, configs) == 2.0


def test_weights_that_are_all_zero_make_no_score() -> None:
    """The loader refuses such a task; scoring does not divide by zero either."""
    assert fold(Scoring.WEIGHTED_AVG, {"c0": 2.0}, _configs(1, weights=[0.0])) == 0.0


@given(scored(), st.data())
def test_focus_is_the_ratio_of_its_config(
    case: tuple[list[ConfigTarget], dict[str, float]], data: st.DataObject
) -> None:
    """Whatever the others do."""
    configs, ratios = case
    focus = data.draw(st.sampled_from(sorted(ratios)))
    assert fold(Scoring.FOCUS, ratios, configs, focus) == ratios[focus]


@pytest.mark.parametrize("focus", [None, "other"])
def test_focus_without_its_config_is_an_error_not_a_score(focus: str | None) -> None:
    """The loader lets no such task through, so here it is a mistake of ours."""
    with pytest.raises(ValueError, match="is the name of no config"):
        fold(Scoring.FOCUS, {"c0": 1.0}, _configs(1), focus)


@given(scored(), st.sampled_from(Scoring), st.randoms(use_true_random=False))
def test_the_order_of_configs_changes_nothing(
    case: tuple[list[ConfigTarget], dict[str, float]], scoring: Scoring, order: random.Random
) -> None:
    """Bit for bit, in score, geomean and regressions."""
    configs, ratios = case
    champion = {name: ratio * 1.1 for name, ratio in ratios.items()}
    mixed = order.sample(configs, len(configs))
    reordered = {name: ratios[name] for name in order.sample(sorted(ratios), len(ratios))}
    assert fold(scoring, ratios, configs, "c0") == fold(scoring, reordered, mixed, "c0")
    assert geomean(ratios, configs) == geomean(reordered, mixed)
    assert regressions(scoring, ratios, champion, configs, "c0") == regressions(
        scoring, reordered, champion, mixed, "c0"
    )


@given(scored(), st.data())
def test_a_missing_config_counts_as_zero(
    case: tuple[list[ConfigTarget], dict[str, float]], data: st.DataObject
) -> None:
    """As if its ratio were 0, under every scoring."""
    configs, ratios = case
    missing = data.draw(st.sampled_from(sorted(ratios)))
    without = {name: ratio for name, ratio in ratios.items() if name != missing}
    zeroed = {**ratios, missing: 0.0}
    for scoring in Scoring:
        assert fold(scoring, without, configs, missing) == fold(scoring, zeroed, configs, missing)
    assert fold(Scoring.MIN_RATIO, without, configs) == 0.0
    assert fold(Scoring.FOCUS, without, configs, missing) == 0.0
    assert fold(Scoring.WEIGHTED_AVG, without, configs) < fold(Scoring.WEIGHTED_AVG, ratios, configs)
    assert geomean(without, configs) == 0.0


@given(scored())
def test_a_ratio_of_no_config_counts_for_nothing(case: tuple[list[ConfigTarget], dict[str, float]]) -> None:
    """A name that the task does not have cannot help a score."""
    configs, ratios = case
    more = {**ratios, "stranger": 1000.0}
    assert complete_ratios(more, configs) == ratios
    assert fold(Scoring.WEIGHTED_AVG, more, configs) == fold(Scoring.WEIGHTED_AVG, ratios, configs)


@given(scored(), st.sampled_from(NONSENSE), st.data())
def test_a_nonsense_ratio_counts_as_zero(
    case: tuple[list[ConfigTarget], dict[str, float]], nonsense: float, data: st.DataObject
) -> None:
    """NaN, infinite, negative or a million times faster: never a score."""
    configs, ratios = case
    spoilt = {**ratios, data.draw(st.sampled_from(sorted(ratios))): nonsense}
    assert fold(Scoring.MIN_RATIO, spoilt, configs) == 0.0
    assert geomean(spoilt, configs) == 0.0
    assert 0.0 <= fold(Scoring.WEIGHTED_AVG, spoilt, configs) <= max(ratios.values())


@given(times, times)
def test_a_ratio_is_baseline_over_candidate(baseline_us: float, candidate_us: float) -> None:
    """1.10 is 10% faster."""
    assume(baseline_us / candidate_us <= MAX_RATIO)
    assert ratio_from_times(baseline_us, candidate_us) == baseline_us / candidate_us


@given(times, nonsense_times)
def test_a_nonsense_time_never_makes_a_ratio(good: float, nonsense: float) -> None:
    """On either side, or on both."""
    assert ratio_from_times(good, nonsense) == 0.0
    assert ratio_from_times(nonsense, good) == 0.0
    assert ratio_from_times(nonsense, nonsense) == 0.0


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_any_two_times_make_a_sane_ratio(baseline_us: float, candidate_us: float) -> None:
    """Also where the quotient of two good times overflows."""
    ratio = ratio_from_times(baseline_us, candidate_us)
    assert math.isfinite(ratio)
    assert 0.0 <= ratio <= MAX_RATIO


@given(scored())
def test_geomean_is_the_nth_root_of_the_product(case: tuple[list[ConfigTarget], dict[str, float]]) -> None:
    """The mean that treats twice as fast and half as fast alike."""
    configs, ratios = case
    assert geomean(ratios, configs) == pytest.approx(math.prod(ratios.values()) ** (1 / len(ratios)))


def test_geomean_of_nothing_is_zero() -> None:
    """Not 1, which would look like a tie."""
    assert geomean({}, []) == 0.0


# ---------------------------------------------------------------- the stage gate


@given(scored(), st.floats(0.1, 3))
def test_a_plain_stage_gate_looks_at_the_score_alone(
    case: tuple[list[ConfigTarget], dict[str, float]], needed: float
) -> None:
    """Whatever the targets are."""
    configs, ratios = case
    score = fold(Scoring.MIN_RATIO, ratios, configs)
    assert stage_gate_open(StageGate(ratio=needed), score, ratios, configs) == (score >= needed)


@given(scored(), st.floats(0.1, 3))
def test_a_strict_stage_gate_also_needs_every_target(
    case: tuple[list[ConfigTarget], dict[str, float]], needed: float
) -> None:
    """One config under its own target keeps it shut."""
    configs, ratios = case
    score = fold(Scoring.MIN_RATIO, ratios, configs)
    reached = all(ratios[c.name] >= c.target_ratio for c in configs)
    assert stage_gate_open(StageGate(ratio=needed, strict=True), score, ratios, configs) == (
        score >= needed and reached
    )


def test_a_stage_gate_opens_exactly_at_its_ratio() -> None:
    """At least, not more than."""
    assert stage_gate_open(StageGate(ratio=0.9), 0.9, {"c0": 0.9}, _configs(1))
    assert not stage_gate_open(StageGate(ratio=0.9), math.nextafter(0.9, 0), {"c0": 0.9}, _configs(1))


def test_a_strict_stage_gate_stays_shut_for_a_missing_config() -> None:
    """A config that was not measured has not reached its target."""
    assert not stage_gate_open(StageGate(ratio=0.5, strict=True), 2.0, {"c0": 2.0}, _configs(1, 0.1))


@pytest.mark.parametrize("score", NONSENSE)
def test_a_nonsense_score_opens_nothing(score: float) -> None:
    """NaN compares with nothing; infinity is above everything and still no score."""
    assert not stage_gate_open(StageGate(ratio=0.1), score, {"c0": 1.0}, _configs(1))


# ---------------------------------------------------------------- guardrails


def test_focus_improving_while_another_falls_below_its_target_is_a_regression() -> None:
    """The guardrail was met under the champion, and is not any more."""
    fallen = regressions(Scoring.FOCUS, {"c0": 2.0, "c1": 0.94}, {"c0": 1.0, "c1": 1.0}, _configs(1, 0.95), "c0")
    assert [(r.config, r.ratio, r.target_ratio, r.champion_ratio) for r in fallen] == [("c1", 0.94, 0.95, 1.0)]


def test_a_guardrail_may_fall_as_long_as_it_keeps_its_target() -> None:
    """The target is the promise, not the champion's luck."""
    assert regressions(Scoring.FOCUS, {"c0": 2.0, "c1": 0.95}, {"c0": 1.0, "c1": 3.0}, _configs(1, 0.95), "c0") == []


@pytest.mark.parametrize(("ratio", "is_regression"), [(0.80, False), (0.795, False), (0.79, True), (0.85, False)])
def test_a_guardrail_already_missed_may_not_get_worse_by_more_than_min_gain(ratio: float, is_regression: bool) -> None:
    """Noise below min_gain is no regression; more is."""
    fallen = regressions(Scoring.FOCUS, {"c0": 2.0, "c1": ratio}, {"c0": 1.0, "c1": 0.8}, _configs(1, 0.95), "c0", 0.01)
    assert bool(fallen) == is_regression


def test_the_focus_itself_is_no_guardrail() -> None:
    """Its own fall shows in the score."""
    assert regressions(Scoring.FOCUS, {"c0": 0.1, "c1": 1.0}, {"c0": 2.0, "c1": 1.0}, _configs(1, 0.95), "c0") == []


@pytest.mark.parametrize(
    ("before", "after", "is_regression"),
    [(1.0, 0.94, True), (0.95, 0.94, True), (0.94, 0.50, False), (1.0, 0.95, False), (0.5, 1.0, False)],
)
def test_weighted_avg_guards_the_targets_that_were_reached(before: float, after: float, is_regression: bool) -> None:
    """From at or above the target to below it."""
    fallen = regressions(Scoring.WEIGHTED_AVG, {"c0": 2.0, "c1": after}, {"c0": 1.0, "c1": before}, _configs(1, 0.95))
    assert [r.config for r in fallen] == (["c1"] if is_regression else [])


@given(scored())
def test_min_ratio_has_no_guardrails(case: tuple[list[ConfigTarget], dict[str, float]]) -> None:
    """The minimum guards itself."""
    configs, ratios = case
    assert regressions(Scoring.MIN_RATIO, {}, ratios, configs) == []


@given(scored(), st.sampled_from([Scoring.FOCUS, Scoring.WEIGHTED_AVG]))
def test_a_guardrail_that_was_not_measured_has_fallen(
    case: tuple[list[ConfigTarget], dict[str, float]], scoring: Scoring
) -> None:
    """Leaving a config out is no way round its guardrail."""
    configs, ratios = case
    met = {c.name: c.target_ratio for c in configs}
    fallen = regressions(scoring, {"c0": ratios["c0"]}, met, configs, "c0")
    assert {r.config for r in fallen} >= {c.name for c in configs if c.name != "c0"}


def test_the_worst_regression_comes_first() -> None:
    """By how far it is below its own target."""
    fallen = regressions(
        Scoring.FOCUS, {"c0": 2, "c1": 0.9, "c2": 1.2}, {"c0": 1, "c1": 2, "c2": 2}, _configs(1, 1, 2), "c0"
    )
    assert [r.config for r in fallen] == ["c2", "c1"]
