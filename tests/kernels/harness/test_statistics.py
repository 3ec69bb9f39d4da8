"""Who is faster, from lists of floats alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.statistics import (
    LOOK_EVERY,
    MAX_ROUNDS,
    MIN_ROUNDS,
    MIN_SETS,
    Rounds,
    enough,
    ratio_interval,
    score_intervals,
    summarise,
)
from specs.outcomes import Interval
from specs.schema import Scoring, Task
from tests.kernels.harness.tasks import task

MIN_GAIN = 0.01
ONE = task(configs=[{"name": "only", "args": {"M": 1, "N": 1}}])
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


def in_sets(
    rng: np.random.Generator, sets: int, speed_up: float = 1.0, *, spread: float = 0.013, noise: float = 0.01
) -> Rounds:
    """A short kernel on a GPU: ten rounds a set of processes, each contestant with a speed of its own in each set.

    Times come in steps of 32 ns, as events give them.
    """
    lives = np.repeat(rng.normal(0, spread, (3, sets)), 10, axis=1)
    times = 6.0 * np.exp(lives + rng.normal(0, noise, lives.shape)) / np.array([[1.0], [speed_up], [1.0]])
    baseline, candidate, champion = (np.round(times / 0.032) * 0.032).tolist()
    return Rounds(baseline, candidate, champion, [number // 10 for number in range(10 * sets)])


def gain(rounds: Rounds) -> Interval:
    found = score_intervals(ONE, {"only": rounds}).gain
    assert found is not None
    return found


def as_if_independent(rounds: Rounds) -> Rounds:
    return replace(rounds, processes=None)


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
        ratio_interval(Rounds([1.0, 1.0], [1.0, bad]))
    with pytest.raises(ValueError, match=r"champion: .* is not a time"):
        enough(Rounds([1.0, 1.0], [1.0, 1.0], [1.0, bad]), 0.01)


def test_no_samples_are_refused() -> None:
    """An empty list has no median."""
    with pytest.raises(ValueError, match="at least one time"):
        summarise([])


def test_rounds_must_be_paired() -> None:
    """Lists of different length are not rounds."""
    with pytest.raises(ValueError, match="not paired: 2, 1 times"):
        ratio_interval(Rounds([1.0, 1.0], [1.0]))


def test_a_ratio_above_one_means_the_candidate_is_faster() -> None:
    """The ratio is baseline over candidate."""
    assert ratio_interval(Rounds([10.0] * 30, [5.0] * 30)).value == 2.0


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_an_interval_always_holds_its_value(rounds: list[tuple[float, float]]) -> None:
    """low <= value <= high for any samples, however skewed."""
    interval = ratio_interval(Rounds([b for b, _ in rounds], [c for _, c in rounds]))

    assert interval.low <= interval.value <= interval.high


def test_the_same_samples_give_the_same_interval() -> None:
    """There is no randomness left in a verdict once the samples are taken."""
    measured = noisy(np.random.default_rng(3), 40)

    assert ratio_interval(measured) == ratio_interval(measured)


def test_noise_common_to_a_round_cancels() -> None:
    """A machine that swings by a factor of three slows both sides alike, so the ratio stays sharp."""
    swing = np.random.default_rng(4).uniform(1, 3, 60)

    interval = ratio_interval(Rounds(list(100 * swing), list(80 * swing)))

    assert interval.low == pytest.approx(1.25)
    assert interval.high == pytest.approx(1.25)


def test_the_interval_covers_the_truth() -> None:
    """In 200 simulated measurements the true ratio is inside nearly always."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        interval = ratio_interval(noisy(rng, 40))
        inside += interval.low <= 1.25 <= interval.high

    assert inside >= 180


def test_the_same_kernel_against_itself_almost_never_wins() -> None:
    """In 200 simulated A/A measurements fewer than 1% clear the required gain."""
    rng = np.random.default_rng(6)
    plan = task(configs=[{"name": "only", "args": {"M": 1, "N": 1}}])

    wins = sum(gain_low(rng, plan, MIN_ROUNDS, 1.0) > 1 + MIN_GAIN for _ in range(200))

    assert wins < 2


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
        assert not enough(Rounds([10.0] * rounds, [0.001] * rounds), 0.5)
    assert enough(Rounds([10.0] * MIN_ROUNDS, [0.001] * MIN_ROUNDS), 0.5)


def test_sampling_ends_at_the_maximum_whatever_the_noise() -> None:
    """A noisy machine does not sample for ever."""
    wild = list(np.random.default_rng(9).uniform(1, 100, MAX_ROUNDS))

    assert enough(Rounds(wild, wild[::-1]), 1e-6)


def test_a_noisy_config_is_sampled_longer_than_a_quiet_one() -> None:
    """The interval and not the count decides between the bounds."""
    rng = np.random.default_rng(10)
    quiet, noise = rng.lognormal(0, 0.001, (2, 40)), rng.lognormal(0, 0.5, (2, 40))

    assert enough(Rounds(list(quiet[0]), list(quiet[1])), 0.01)
    assert not enough(Rounds(list(noise[0]), list(noise[1])), 0.01)


def test_an_uncertain_champion_keeps_the_sampling_going() -> None:
    """The gain over the champion must be known as well as the ratio."""
    rng = np.random.default_rng(11)
    quiet, noise = [1.0] * 40, list(rng.lognormal(0, 0.5, 40))

    assert enough(Rounds(quiet, quiet, quiet), 0.01)
    assert not enough(Rounds(quiet, quiet, noise), 0.01)


def test_the_rule_looks_only_now_and_then() -> None:
    """Between two looks the answer is no, so that a lucky streak has few chances."""
    rounds = MIN_ROUNDS + LOOK_EVERY // 2

    assert not enough(Rounds([1.0] * rounds, [1.0] * rounds), 0.5)


def test_a_kernel_whose_processes_differ_almost_never_wins_against_itself() -> None:
    """Rounds that share their processes are one draw: taken for many they let far more than 1% win."""
    rng = np.random.default_rng(12)
    measured = [in_sets(rng, MIN_SETS) for _ in range(200)]

    assert sum(gain(rounds).low > 1 + MIN_GAIN for rounds in measured) < 2
    assert sum(gain(as_if_independent(rounds)).low > 1 + MIN_GAIN for rounds in measured) > 2


def test_the_interval_covers_the_truth_though_processes_differ() -> None:
    """As often as it says, from the least number of sets on, where resampled rounds miss it every second time."""
    rng = np.random.default_rng(13)
    measured = [in_sets(rng, sets, 1.1) for sets in (MIN_SETS, 2 * MIN_SETS) for _ in range(24)]

    def inside(all_rounds: list[Rounds]) -> float:
        found = [gain(rounds) for rounds in all_rounds]
        return sum(one.low <= 1.1 <= one.high for one in found) / len(found)

    assert inside(measured) >= 0.92
    assert inside([as_if_independent(rounds) for rounds in measured]) < 0.75


def test_two_percent_are_found_where_processes_differ_by_little() -> None:
    """The least number of sets is enough for a kernel of a hundred microseconds."""
    rng = np.random.default_rng(14)

    wins = sum(gain(in_sets(rng, MIN_SETS, 1.02, spread=0.001, noise=0.003)).low > 1 + MIN_GAIN for _ in range(20))

    assert wins == 20


def test_more_sets_find_what_few_cannot() -> None:
    """Three per cent of a short kernel show once enough of its processes have been seen."""
    rng = np.random.default_rng(15)

    few = sum(gain(in_sets(rng, MIN_SETS, 1.03)).low > 1 + MIN_GAIN for _ in range(15))
    many = sum(gain(in_sets(rng, 40, 1.03)).low > 1 + MIN_GAIN for _ in range(15))

    assert many >= 14 > few


def test_too_few_sets_of_processes_take_no_title() -> None:
    """However many rounds they played, and however alike they look."""
    alike = Rounds([10.0] * 100, [5.0] * 100, [10.0] * 100, [number % (MIN_SETS - 1) for number in range(100)])

    assert gain(alike).low == 0
    assert not enough(alike, 0.5)
    assert gain(as_if_independent(alike)).low == 2
    assert gain(replace(alike, processes=[number % MIN_SETS for number in range(100)])).low == 2


def test_one_set_of_processes_still_gives_a_ratio() -> None:
    """Beside no champion nothing is decided yet."""
    assert ratio_interval(Rounds([10.0] * 20, [5.0] * 20, processes=[1] * 20)).low == 2
    assert enough(Rounds([10.0] * 20, [5.0] * 20, processes=[1] * 20), 0.5)


def test_configs_share_their_processes() -> None:
    """A set that is quick on one config may be quick on the other: two configs then know no more than one."""
    rounds = in_sets(np.random.default_rng(16), 12)

    both = score_intervals(task(), {"square": rounds, "wide": rounds}).gain

    assert both is not None
    assert (both.low, both.high) == pytest.approx((gain(rounds).low, gain(rounds).high))


def test_a_config_that_was_done_earlier_keeps_its_rounds() -> None:
    """Configs need not have been played by the same sets."""
    rng = np.random.default_rng(17)
    later = replace(in_sets(rng, 9), processes=[3 + number // 10 for number in range(90)])

    both = score_intervals(task(), {"square": in_sets(rng, 7), "wide": later}).gain

    assert both is not None
    assert 0 < both.low < both.value < both.high


def test_the_processes_of_every_round_are_known_or_of_none() -> None:
    """Half of it known would be resampled half wrong."""
    rounds = in_sets(np.random.default_rng(18), 7)

    with pytest.raises(ValueError, match="70 rounds, and the processes of 1"):
        ratio_interval(replace(rounds, processes=[1]))
    with pytest.raises(ValueError, match="processes of some configs"):
        score_intervals(task(), {"square": rounds, "wide": as_if_independent(rounds)})
