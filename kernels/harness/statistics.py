"""Which kernel is faster, decided on plain lists of times in microseconds: no device, no clock, no files.

One round times baseline, candidate and champion close together, so what slows one round slows all of them.
Every interval resamples whole rounds and keeps that pairing; the same lists always give the same interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specs.outcomes import Interval, Timing
from specs.schema import Scoring
from specs.scoring import ScoredConfig, fold, geomean

RESAMPLES = 1000  # the 2.5% ends then rest on 25 resamples each, steady to about a tenth of the interval
CONFIDENCE = 0.95
SEED = 0x5EED  # fixed, so that anyone who has the samples gets the same interval

MIN_ROUNDS = 20  # a kernel that answers with identical fake-fast times cannot end the sampling sooner
MAX_ROUNDS = 400  # beyond this the drift of the machine, not the sample count, sets the error
LOOK_EVERY = 10  # each look is one more chance to stop on a lucky streak, so looks are few


class Scored(Protocol):
    """The part of a Plan or a Task that a score needs."""

    @property
    def scoring(self) -> Scoring: ...
    @property
    def configs(self) -> Sequence[ScoredConfig]: ...
    @property
    def focus_config(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Rounds:
    """Times of one config in microseconds; the same position is the same round."""

    baseline_us: Sequence[float]
    candidate_us: Sequence[float]
    champion_us: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class ScoreIntervals:
    score: Interval  # the candidate's ratios folded by the task's scoring
    geomean: float  # of the candidate's ratios
    gain: Interval | None  # score over the champion's score; None without a champion


def summarise(samples_us: Sequence[float]) -> Timing:
    """Median and quartiles. Raises ValueError without samples or when one is not a finite positive time."""
    q1, median, q3 = np.quantile(_times("samples", samples_us), [0.25, 0.5, 0.75])
    return Timing(median_us=float(median), q1_us=float(q1), q3_us=float(q3), samples=len(samples_us))


def ratio_interval(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Interval:
    """Ratio of the medians, baseline over candidate, with its 95% interval over resampled rounds."""
    baseline, candidate = _paired(Rounds(baseline_us, candidate_us))
    chosen = _resampled(len(baseline), np.random.default_rng(SEED))
    ratios = np.median(baseline[chosen], axis=1) / np.median(candidate[chosen], axis=1)
    return _interval(float(np.median(baseline) / np.median(candidate)), ratios)


def score_intervals(task: Scored, rounds: Mapping[str, Rounds]) -> ScoreIntervals:
    """Score and gain with their intervals; each config's rounds are resampled on their own.

    Raises ValueError when some configs have champion times and others have none, or when the champion's score is 0.
    """
    with_champion = {name for name, r in rounds.items() if r.champion_us is not None}
    if with_champion and with_champion != set(rounds):
        raise ValueError(f"configs without champion times: {', '.join(sorted(set(rounds) - with_champion))}")

    rng = np.random.default_rng(SEED)
    candidate: dict[str, np.ndarray] = {}  # per config: the point estimate, then one ratio per resample
    champion: dict[str, np.ndarray] = {}
    for name in sorted(rounds):
        times = _paired(rounds[name])
        chosen = _resampled(len(times[0]), rng)
        medians = [np.concatenate([[np.median(t)], np.median(t[chosen], axis=1)]) for t in times]
        candidate[name] = medians[0] / medians[1]
        if len(medians) == 3:
            champion[name] = medians[0] / medians[2]

    scores = _folded(task, candidate)
    point = {name: float(ratios[0]) for name, ratios in candidate.items()}
    gain = None
    if champion:
        against = _folded(task, champion)
        if not (against > 0).all():
            raise ValueError("the champion's score is 0: a config of the task has no rounds")
        gains = scores / against
        gain = _interval(float(gains[0]), gains[1:])
    return ScoreIntervals(
        score=_interval(float(scores[0]), scores[1:]), geomean=geomean(point, task.configs), gain=gain
    )


def enough(
    baseline_us: Sequence[float],
    candidate_us: Sequence[float],
    champion_us: Sequence[float] | None,
    target_halfwidth: float,
) -> bool:
    """Whether sampling of one config may stop: its ratios are known to within `target_halfwidth`, relative.

    Looks only every LOOK_EVERY rounds, never stops before MIN_ROUNDS and always at MAX_ROUNDS.
    """
    rounds = len(_paired(Rounds(baseline_us, candidate_us, champion_us))[0])
    if rounds >= MAX_ROUNDS:
        return True
    if rounds < MIN_ROUNDS or rounds % LOOK_EVERY:
        return False
    known = [ratio_interval(baseline_us, candidate_us)]
    if champion_us is not None:
        known.append(ratio_interval(champion_us, candidate_us))
    return all((i.high - i.low) / 2 <= target_halfwidth * i.value for i in known)


def _times(what: str, samples_us: Sequence[float]) -> np.ndarray:
    times = np.asarray(samples_us, dtype=np.float64)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"{what}: at least one time is needed")
    if not (np.isfinite(times) & (times > 0)).all():
        bad = times[~(np.isfinite(times) & (times > 0))][0]
        raise ValueError(f"{what}: {bad} is not a time; only finite positive microseconds are")
    return times


def _paired(rounds: Rounds) -> list[np.ndarray]:
    """Baseline, candidate and, if there is one, champion; raises ValueError when they differ in length."""
    times = [_times("baseline", rounds.baseline_us), _times("candidate", rounds.candidate_us)]
    if rounds.champion_us is not None:
        times.append(_times("champion", rounds.champion_us))
    if len({len(t) for t in times}) != 1:
        raise ValueError(f"rounds are not paired: {', '.join(str(len(t)) for t in times)} times")
    return times


def _resampled(rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Round numbers drawn with replacement, `[RESAMPLES, rounds]`."""
    return rng.integers(0, rounds, size=(RESAMPLES, rounds))


def _folded(task: Scored, ratios: Mapping[str, np.ndarray]) -> np.ndarray:
    columns = {name: values.tolist() for name, values in ratios.items()}
    count = len(next(iter(columns.values()), []))
    if count == 0:
        raise ValueError("no config has rounds")
    return np.array(
        [
            fold(task.scoring, {name: values[i] for name, values in columns.items()}, task.configs, task.focus_config)
            for i in range(count)
        ]
    )


def _interval(value: float, resampled: np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    # A skewed resampling distribution can leave the point estimate outside its own percentiles.
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
