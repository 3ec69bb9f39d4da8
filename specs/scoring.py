"""Folds per-config ratios into one score. Pure functions; a ratio is baseline time / candidate time.

A config without a ratio counts as 0, and so does a ratio that is no number a clock could have given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specs.schema import Scoring, StageGate

# No kernel is a million times faster than a vendor's: such a ratio is a broken clock.
MAX_RATIO = 1e6


class ScoredConfig(Protocol):
    """What scoring needs of a config; specs.schema.Config and specs.plan.ConfigTarget both have it."""

    @property
    def name(self) -> str: ...
    @property
    def target_ratio(self) -> float: ...
    @property
    def weight(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Regression:
    """A guardrail config that a candidate made too slow."""

    config: str
    ratio: float
    target_ratio: float
    champion_ratio: float


def ratio_from_times(baseline_us: float, candidate_us: float) -> float:
    """Ratio of two times; 0.0 when either is not a finite time above zero."""
    if not (_is_time(baseline_us) and _is_time(candidate_us)):
        return 0.0
    # A denormal time may overflow the quotient to inf: float division of two floats never raises for that.
    return sane(baseline_us / candidate_us)


def sane(ratio: float) -> float:
    """The ratio itself, or 0.0 when it is NaN, infinite, negative or beyond MAX_RATIO."""
    return ratio if 0.0 < ratio <= MAX_RATIO else 0.0


def fold(
    scoring: Scoring, ratios: Mapping[str, float], configs: Sequence[ScoredConfig], focus: str | None = None
) -> float:
    """Score of a set of ratios, keyed by config name.

    Raises ValueError when scoring is focus and no config bears the name `focus`: the loader lets no such task through.
    """
    complete = complete_ratios(ratios, configs)
    match scoring:
        case Scoring.MIN_RATIO:
            return min(complete.values(), default=0.0)
        case Scoring.WEIGHTED_AVG:
            return _weighted(complete, configs)
        case Scoring.FOCUS:
            if focus not in complete:
                raise ValueError(f"focus {focus!r} is the name of no config; accepted: {', '.join(complete)}")
            return complete[focus]


def geomean(ratios: Mapping[str, float], configs: Sequence[ScoredConfig]) -> float:
    """Geometric mean over all configs; 0.0 as soon as one of them is missing, 0 or nonsense."""
    values = complete_ratios(ratios, configs).values()
    if not values or 0.0 in values:
        return 0.0
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def complete_ratios(ratios: Mapping[str, float], configs: Sequence[ScoredConfig]) -> dict[str, float]:
    """One sane ratio for every config, 0.0 where there is none; names that no config bears are left out."""
    return {config.name: sane(ratios.get(config.name, 0.0)) for config in configs}


def stage_gate_open(
    gate: StageGate, score: float, ratios: Mapping[str, float], configs: Sequence[ScoredConfig]
) -> bool:
    """Whether a champion with this score moves the run from REPRODUCE to OPTIMIZE."""
    if not sane(score) >= gate.ratio:
        return False
    complete = complete_ratios(ratios, configs)
    return not gate.strict or all(complete[config.name] >= config.target_ratio for config in configs)


def regressions(
    scoring: Scoring,
    ratios: Mapping[str, float],
    champion_ratios: Mapping[str, float],
    configs: Sequence[ScoredConfig],
    focus: str | None = None,
    min_gain: float = 0.0,
) -> list[Regression]:
    """The configs that fell past their guardrail, worst first.

    - focus: a config other than the focus that is below its target, and either was not under the champion or lost more
      than `min_gain` against it.
    - weighted_avg: a config that was at its target under the champion and no longer is.
    - min_ratio: none; the minimum guards itself.
    """
    if scoring is Scoring.MIN_RATIO:
        return []
    now, before = complete_ratios(ratios, configs), complete_ratios(champion_ratios, configs)
    fallen: list[Regression] = []
    for config in configs:
        ratio, champion = now[config.name], before[config.name]
        guarded = scoring is Scoring.WEIGHTED_AVG or config.name != focus
        if not guarded or ratio >= config.target_ratio:
            continue
        lost_target = champion >= config.target_ratio
        lost_ground = scoring is Scoring.FOCUS and ratio < champion * (1 - min_gain)
        if lost_target or lost_ground:
            fallen.append(Regression(config.name, ratio, config.target_ratio, champion))
    return sorted(fallen, key=lambda r: (r.ratio / r.target_ratio, r.config))


def _is_time(us: float) -> bool:
    return math.isfinite(us) and us > 0.0


def _weighted(ratios: Mapping[str, float], configs: Sequence[ScoredConfig]) -> float:
    # Weights are scaled first, by a power of two so that nothing is rounded, lest huge ones overflow; fsum makes the
    # order of configs irrelevant.
    largest = max((config.weight for config in configs), default=0.0)
    if not (math.isfinite(largest) and largest > 0.0):
        return 0.0
    exponent = math.frexp(largest)[1]
    weights = {config.name: math.ldexp(config.weight, -exponent) for config in configs}
    return math.fsum(weights[name] * ratio for name, ratio in ratios.items()) / math.fsum(weights.values())
