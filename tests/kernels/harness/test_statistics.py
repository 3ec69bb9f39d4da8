"""Who is faster, from lists of floats alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.statistics import (
    LOOK_EVERY,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Rounds,
    enough,
    ratio_interval,
    score_intervals,
    summarise,
)
from specs.schema import Scoring, Task
from tests.kernels.harness.tasks import task

MIN_GAIN = 0.01
times = st.floats(0.1, 1e6)


def noisy(rng: np.random.Generator, rounds: int, speed_up: float = 1.0) -> Rounds:
    """Baseline, candidate and champion of one machine: 2% noise, a drift and outliers that slow whole rounds or one."""
    drift = np.cumsum(rng.normal(0, 0.003, rounds))
    shared = np.exp(drift) * np.where(rng.random(rounds) < 0.05, 1.5, 1.0)

    def one(mean_us: float) -> list[float]:
        own = rng.lognormal(0, 0.02, rounds) * np.where(rng.random(rounds) < 0.03, rng.uniform(1.2, 4), 1.0)
        return list(mean_us * shared * own)

    return Rounds(one(100.0), one(80.0 / speed_up), one(80.0))


def gain_low(rng: np.random.Generator, plan: Task, rounds: int, speed_up: float) -> float:
    measured = {config.name: noisy(rng, rounds, speed_up) for config in plan.configs}
    gain = score_intervals(plan, measured).gain
    assert gain is not None
    return gain.low


def test_a_summary_has_median_and_quartiles() -> None:
    """Median and quartiles are those of the samples, in any order."""
    timing = summarise([5.0, 1.0, 3.0, 2.0, 4.0])

    assert (timing.q1_us, timing.median_us, timing.q3_us, timing.samples) == (2.0, 3.0, 4.0, 5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_not_a_time_is_refused(bad: float) -> None:
    """Zero, negative, NaN and infinite samples never become a figure."""
    with pytest.raises(ValueError, match="not a time"):
        summarise([1.0, bad])
    with pytest.raises(ValueError, match=r"candidate: .* is not a time"):
        ratio_interval([1.0, 1.0], [1.0, bad])
    with pytest.raises(ValueError, match=r"champion: .* is not a time"):
        enough([1.0, 1.0], [1.0, 1.0], [1.0, bad], 0.01)


def test_no_samples_are_refused() -> None:
    """An empty list has no median."""
    with pytest.raises(ValueError, match="at least one time"):
        summarise([])


def test_rounds_must_be_paired() -> None:
    """Lists of different length are not rounds."""
    with pytest.raises(ValueError, match="not paired: 2, 1 times"):
        ratio_interval([1.0, 1.0], [1.0])


def test_a_ratio_above_one_means_the_candidate_is_faster() -> None:
    """The ratio is baseline over candidate."""
    assert ratio_interval([10.0] * 30, [5.0] * 30).value == 2.0


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_an_interval_always_holds_its_value(rounds: list[tuple[float, float]]) -> None:
    """low <= value <= high for any samples, however skewed."""
    interval = ratio_interval([b for b, _ in rounds], [c for _, c in rounds])

    assert interval.low <= interval.value <= interval.high


def test_the_same_samples_give_the_same_interval() -> None:
    """There is no randomness left in a verdict once the samples are taken."""
    measured = noisy(np.random.default_rng(3), 40)

    assert ratio_interval(measured.baseline_us, measured.candidate_us) == ratio_interval(
        measured.baseline_us, measured.candidate_us
    )


def test_noise_common_to_a_round_cancels() -> None:
    """A machine that swings by a factor of three slows both sides alike, so the ratio stays sharp."""
    swing = np.random.default_rng(4).uniform(1, 3, 60)

    interval = ratio_interval(list(100 * swing), list(80 * swing))

    assert interval.low == pytest.approx(1.25)
    assert interval.high == pytest.approx(1.25)


def test_the_interval_covers_the_truth() -> None:
    """In 200 simulated measurements the true ratio is inside nearly always."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        measured = noisy(rng, 40)
        interval = ratio_interval(measured.baseline_us, measured.candidate_us)
        inside += interval.low <= 1.25 <= interval.high

    assert inside >= 180


def test_the_same_kernel_against_itself_almost_never_wins() -> None:
    """In 500 simulated A/A measurements fewer than 1% clear the required gain."""
    rng = np.random.default_rng(6)
    plan = task(configs=[{"name": "only", "args": {"M": 1, "N": 1}}])

    wins = sum(gain_low(rng, plan, MIN_ROUNDS, 1.0) > 1 + MIN_GAIN for _ in range(500))

    assert wins < 5


def test_a_true_gain_of_three_percent_is_found() -> None:
    """With typical noise and a common number of rounds a real 3% wins nearly always."""
    rng = np.random.default_rng(7)
    plan = task(configs=[{"name": "only", "args": {"M": 1, "N": 1}}])

    wins = sum(gain_low(rng, plan, 100, 1.03) > 1 + MIN_GAIN for _ in range(50))

    assert wins >= 45


@pytest.mark.parametrize(
    ("scoring", "focus", "score"),
    [(Scoring.MIN_RATIO, None, 1.0), (Scoring.WEIGHTED_AVG, None, 5 / 3), (Scoring.FOCUS, "wide", 2.0)],
)
def test_the_score_folds_the_ratios_as_the_task_says(scoring: Scoring, focus: str | None, score: float) -> None:
    """min_ratio, weighted_avg and focus each give their own score from the same rounds."""
    rounds = {"square": Rounds([10.0] * 20, [10.0] * 20), "wide": Rounds([10.0] * 20, [5.0] * 20)}

    intervals = score_intervals(task(scoring=scoring, focus_config=focus), rounds)

    assert intervals.score.value == pytest.approx(score)
    assert intervals.geomean == pytest.approx(math.sqrt(2))
    assert intervals.gain is None


def test_the_gain_is_score_over_the_champions_score() -> None:
    """The gain compares the folded scores, not the configs one by one."""
    rounds = {
        "square": Rounds([10.0] * 20, [8.0] * 20, [10.0] * 20),
        "wide": Rounds([10.0] * 20, [5.0] * 20, [4.0] * 20),
    }

    gain = score_intervals(task(), rounds).gain

    assert gain is not None
    assert gain.value == pytest.approx(1.25)


def test_a_config_without_rounds_counts_as_zero() -> None:
    """A config that was not measured cannot be left out of the denominator."""
    intervals = score_intervals(task(), {"square": Rounds([10.0] * 20, [5.0] * 20)})

    assert intervals.score.value == 0


def test_champion_times_are_all_or_none() -> None:
    """A gain over a part of the configs would not be a gain."""
    rounds = {"square": Rounds([1.0], [1.0], [1.0]), "wide": Rounds([1.0], [1.0])}

    with pytest.raises(ValueError, match="without champion times: wide"):
        score_intervals(task(), rounds)


def test_the_order_of_configs_changes_nothing() -> None:
    """The same rounds in another order give the same intervals."""
    rng = np.random.default_rng(8)
    rounds = {"square": noisy(rng, 30), "wide": noisy(rng, 30)}

    assert score_intervals(task(), rounds) == score_intervals(task(), dict(reversed(rounds.items())))


def test_identical_fake_times_cannot_end_the_sampling_early() -> None:
    """A spread of zero is not enough before the minimum number of rounds."""
    for rounds in range(1, MIN_ROUNDS):
        assert not enough([10.0] * rounds, [0.001] * rounds, None, 0.5)
    assert enough([10.0] * MIN_ROUNDS, [0.001] * MIN_ROUNDS, None, 0.5)


def test_sampling_ends_at_the_maximum_whatever_the_noise() -> None:
    """A noisy machine does not sample for ever."""
    wild = list(np.random.default_rng(9).uniform(1, 100, MAX_ROUNDS))

    assert enough(wild, wild[::-1], None, 1e-6)


def test_a_noisy_config_is_sampled_longer_than_a_quiet_one() -> None:
    """The interval and not the count decides between the bounds."""
    rng = np.random.default_rng(10)
    quiet, noise = rng.lognormal(0, 0.001, (2, 40)), rng.lognormal(0, 0.5, (2, 40))

    assert enough(list(quiet[0]), list(quiet[1]), None, 0.01)
    assert not enough(list(noise[0]), list(noise[1]), None, 0.01)


def test_an_uncertain_champion_keeps_the_sampling_going() -> None:
    """The gain over the champion must be known as well as the ratio."""
    rng = np.random.default_rng(11)
    quiet, noise = [1.0] * 40, list(rng.lognormal(0, 0.5, 40))

    assert enough(quiet, quiet, quiet, 0.01)
    assert not enough(quiet, quiet, noise, 0.01)


def test_the_rule_looks_only_now_and_then() -> None:
    """Between two looks the answer is no, so that a lucky streak has few chances."""
    rounds = MIN_ROUNDS + LOOK_EVERY // 2

    assert not enough([1.0] * rounds, [1.0] * rounds, None, 0.5)
