"""Which kernel is faster, decided on plain lists of times in microseconds: no device, no clock, no files.

One round times baseline, candidate and champion close together, so what slows one round slows all of them.
Every interval resamples whole rounds and keeps that pairing; the same lists always give the same interval.

Rounds that shared their processes are not independent: a short kernel on a GPU is faster or slower by a per cent or so
for as long as its process lives. Where `Rounds.processes` says which rounds those are, whole sets are resampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
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
MIN_SETS = 6  # of processes, before their spread can be told from luck


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
    processes: Sequence[int] | None = None  # the set of processes of each round; None: every round stands for itself


@dataclass(frozen=True, slots=True)
class ScoreIntervals:
    score: Interval  # the candidate's ratios folded by the task's scoring
    geomean: float  # of the candidate's ratios
    gain: Interval | None  # score over the champion's score; None without a champion; from 0 with under MIN_SETS sets


def summarise(samples_us: Sequence[float]) -> Timing:
    """Median and quartiles. Raises ValueError without samples or when one is not a finite positive time."""
    q1, median, q3 = np.quantile(_times("samples", samples_us), [0.25, 0.5, 0.75])
    return Timing(median_us=float(median), q1_us=float(q1), q3_us=float(q3), samples=len(samples_us))


def ratio_interval(rounds: Rounds) -> Interval:
    """Ratio of the medians, baseline over candidate, with its 95% interval."""
    baseline, candidate = _paired(Rounds(rounds.baseline_us, rounds.candidate_us, processes=rounds.processes))
    sets = _sets(rounds)
    rng = np.random.default_rng(SEED)
    if sets is None:
        draws = _drawn_rounds(len(baseline), rng)
        medians = [np.median(times[draws], axis=1) for times in (baseline, candidate)]
    else:
        weights = _drawn_weights(sets, rng)
        medians = [_weighted_medians(times, weights[:, sets]) for times in (baseline, candidate)]
    value = float(np.median(baseline) / np.median(candidate))
    return _interval(value, medians[0] / medians[1], 1.0 if sets is None else _stretch(sets))


def score_intervals(task: Scored, rounds: Mapping[str, Rounds]) -> ScoreIntervals:
    """Score and gain with their intervals; each config's rounds are resampled on their own.

    Raises ValueError when some configs have champion times and others have none, or when the champion's score is 0.
    """
    with_champion = {name for name, r in rounds.items() if r.champion_us is not None}
    if with_champion and with_champion != set(rounds):
        raise ValueError(f"configs without champion times: {', '.join(sorted(set(rounds) - with_champion))}")

    paired = {name: (_paired(rounds[name]), _sets(rounds[name])) for name in sorted(rounds)}
    clustered = [sets for _, sets in paired.values() if sets is not None]
    if clustered and len(clustered) != len(paired):
        raise ValueError("the processes of some configs are known, and those of others are not")

    rng = np.random.default_rng(SEED)
    # A set of processes has all configs in it, and may be quick or slow on all of them: they are drawn together.
    weights = _drawn_weights(np.concatenate(clustered), rng) if clustered else None
    candidate: dict[str, np.ndarray] = {}  # per config: the point estimate, then one ratio per resample
    champion: dict[str, np.ndarray] = {}
    for name, (times, sets) in paired.items():
        if weights is None or sets is None:
            draws = _drawn_rounds(len(times[0]), rng)
            drawn = [np.median(t[draws], axis=1) for t in times]
        else:
            drawn = [_weighted_medians(t, weights[:, sets]) for t in times]
        medians = [np.concatenate([[np.median(t)], d]) for t, d in zip(times, drawn, strict=True)]
        candidate[name] = medians[0] / medians[1]
        if len(medians) == 3:
            champion[name] = medians[0] / medians[2]

    scores = _folded(task, candidate)
    point = {name: float(ratios[0]) for name, ratios in candidate.items()}
    stretch = max((_stretch(sets) for sets in clustered), default=1.0)
    gain = None
    if champion:
        against = _folded(task, champion)
        if not (against > 0).all():
            raise ValueError("the champion's score is 0: a config of the task has no rounds")
        gains = scores / against
        gain = _interval(float(gains[0]), gains[1:], stretch)
        if any(_count(sets) < MIN_SETS for sets in clustered):
            gain = gain.model_copy(update={"low": 0.0})  # nothing is known of how far processes differ: no title
    return ScoreIntervals(
        score=_interval(float(scores[0]), scores[1:], stretch), geomean=geomean(point, task.configs), gain=gain
    )


def enough(rounds: Rounds, target_halfwidth: float) -> bool:
    """Whether sampling of one config may stop: its ratios are known to within `target_halfwidth`, relative.

    Looks only every LOOK_EVERY rounds, never stops before MIN_ROUNDS, and before MIN_SETS of processes where a champion
    is at stake; always at MAX_ROUNDS.
    """
    count = len(_paired(rounds)[0])
    sets = _sets(rounds)
    if count >= MAX_ROUNDS:
        return True
    if count < MIN_ROUNDS or count % LOOK_EVERY:
        return False
    if rounds.champion_us is not None and sets is not None and _count(sets) < MIN_SETS:
        return False
    known = [ratio_interval(rounds)]
    if rounds.champion_us is not None:
        known.append(ratio_interval(Rounds(rounds.champion_us, rounds.candidate_us, processes=rounds.processes)))
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


def _sets(rounds: Rounds) -> np.ndarray | None:
    """The set of processes of each round; None where rounds stand for themselves."""
    if rounds.processes is None:
        return None
    if len(rounds.processes) != len(rounds.baseline_us):
        raise ValueError(f"{len(rounds.baseline_us)} rounds, and the processes of {len(rounds.processes)}")
    return np.asarray(rounds.processes, dtype=np.intp)


def _count(sets: np.ndarray) -> int:
    return len(np.unique(sets))


def _drawn_rounds(rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Round numbers drawn with replacement, `[RESAMPLES, rounds]`."""
    return rng.integers(0, rounds, size=(RESAMPLES, rounds))


def _drawn_weights(sets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A weight for every set of processes, `[RESAMPLES, sets]`: the Bayesian bootstrap.

    Unlike sets drawn with replacement none is ever left out, so no config is ever without rounds.
    """
    return rng.exponential(size=(RESAMPLES, int(sets.max()) + 1))


def _weighted_medians(times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The median of `times` under each row of `weights`, `[RESAMPLES, rounds]`, between neighbours interpolated."""
    order = np.argsort(times, kind="stable")
    ordered, heavy = times[order], weights[:, order]
    middles = np.cumsum(heavy, axis=1) - heavy / 2  # of each time's share
    half = heavy.sum(axis=1) / 2
    above = np.clip((middles < half[:, None]).sum(axis=1), 1, max(len(times) - 1, 1))
    if len(times) == 1:
        return np.repeat(ordered, len(weights))
    rows = np.arange(len(weights))
    left, right = middles[rows, above - 1], middles[rows, above]
    share = np.clip((half - left) / (right - left), 0, 1)
    median: np.ndarray = ordered[above - 1] + share * (ordered[above] - ordered[above - 1])
    return median


def _stretch(sets: np.ndarray) -> float:
    """By how much the bootstrap of a few sets comes out too narrow.

    Its spread is short by sqrt((n - 1) / (n + 1)), and their own spread is as uncertain as Student's t says.
    """
    free = _count(sets) - 1
    if free == 0:
        return 1.0
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    # Fisher's expansion of the quantile of t: within 0.1% from five degrees of freedom on.
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return float(t / z * np.sqrt((free + 2) / free))


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


def _interval(value: float, resampled: np.ndarray, stretch: float) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    # A skewed resampling distribution can leave the point estimate outside its own percentiles.
    low, high = (float(end) for end in np.quantile(resampled, [tail, 1 - tail]))
    below, above = max(value - low, 0.0), max(high - value, 0.0)
    return Interval(value=value, low=max(value - stretch * below, 0.0), high=value + stretch * above)
