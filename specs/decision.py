"""Win or attempt: what a measurement means for a run. Pure, so workflow code may call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from pydantic import model_validator

from specs.outcomes import SELF_REPORTED, Ending, Interval, Measurement, SelfReported, Value
from specs.schema import Scoring, Search
from specs.scoring import Regression, ScoredConfig, fold, regressions

NAME_SHOWN = 60  # characters: a reason is one line of a table


class Judgeable(Protocol):
    """What deciding needs of a task; specs.plan.Plan and specs.schema.Task both have it."""

    @property
    def scoring(self) -> Scoring: ...
    @property
    def focus_config(self) -> str | None: ...
    @property
    def configs(self) -> Sequence[ScoredConfig]: ...
    @property
    def search(self) -> Search: ...


class Decision(Value):
    win: bool
    ending: Ending  # WIN, SLOWER or REGRESSED
    reason: str  # one sentence with figures, at most 400 characters

    @model_validator(mode="after")
    def _ending_fits(self) -> Self:
        if self.ending not in (Ending.WIN, Ending.SLOWER, Ending.REGRESSED):
            raise ValueError(f"a measured kernel ends as win, slower or regressed, not as {self.ending.value}")
        if self.win != (self.ending is Ending.WIN):
            raise ValueError(f"ending {self.ending.value} does not fit win={self.win}")
        return self


def decide(plan: Judgeable, measurement: Measurement) -> Decision:
    """Whether a judged and measured kernel becomes the champion.

    The first correct kernel wins. After it, the low end of the gain's interval must clear 1 + min_gain, and no
    guardrail config may have regressed.
    """
    score = _fold(plan, measurement.ratios())
    if score == 0.0:
        measured = {config.config for config in measurement.configs}
        lacking = ", ".join(c.name for c in plan.configs if c.name not in measured)
        why = f"no times for {_cut(lacking)}, which count as ratio 0" if lacking else "a ratio is 0"
        return _attempt(Ending.SLOWER, f"score 0: {why}")
    if measurement.gain is None:
        return Decision(win=True, ending=Ending.WIN, reason=f"first correct kernel, score {score:.3f}")
    before = {c.config: c.champion_ratio for c in measurement.configs if c.champion_ratio is not None}
    compared = _compare(score, _fold(plan, before), measurement.gain)
    needed = f"{plan.search.min_gain:.1%}"
    if not measurement.gain.low > 1 + plan.search.min_gain:
        return _attempt(Ending.SLOWER, f"{compared}; more than {needed} is needed at the low end")
    fallen = regressions(
        plan.scoring, measurement.ratios(), before, plan.configs, plan.focus_config, plan.search.min_gain
    )
    if fallen:
        return _attempt(Ending.REGRESSED, f"{compared}, but {_describe(fallen)}")
    return Decision(win=True, ending=Ending.WIN, reason=f"{compared}; {needed} is needed")


def decide_self_reported(plan: Judgeable, report: SelfReported, champion: Mapping[str, float] | None) -> Decision:
    """Whether a program becomes the champion by what it reports of itself; `champion` are the champion's own ratios.

    The first program with a score above 0 wins. After it the score must exceed the champion's by more than min_gain,
    and no guardrail config may have regressed. There is no interval: nothing here was measured by us.
    """
    score = _fold(plan, report.ratios())
    if score == 0.0:
        why = next((f"{_cut(one.config)}: {one.reason}" for one in report.configs if one.reason), "no ratio counts")
        return _attempt(Ending.SLOWER, f"{SELF_REPORTED} score 0: {why}")
    if champion is None:
        return Decision(win=True, ending=Ending.WIN, reason=f"first program with a score, {SELF_REPORTED}: {score:.3f}")
    before, needed = _fold(plan, champion), f"{plan.search.min_gain:.1%}"
    compared = f"{SELF_REPORTED} score {score:.3f} against the champion's {before:.3f}"
    if not score > before * (1 + plan.search.min_gain):
        return _attempt(Ending.SLOWER, f"{compared}; more than {needed} above it is needed")
    fallen = regressions(plan.scoring, report.ratios(), champion, plan.configs, plan.focus_config, plan.search.min_gain)
    if fallen:
        return _attempt(Ending.REGRESSED, f"{compared}, but {_describe(fallen)}")
    return Decision(win=True, ending=Ending.WIN, reason=f"{compared}; {needed} above it is needed")


def _fold(plan: Judgeable, ratios: Mapping[str, float]) -> float:
    return fold(plan.scoring, ratios, plan.configs, plan.focus_config)


def _attempt(ending: Ending, reason: str) -> Decision:
    return Decision(win=False, ending=ending, reason=reason)


def _compare(score: float, champion: float, gain: Interval) -> str:
    """`score 1.043 is 3.1% (2.4% to 3.8%) above the champion's 1.012`."""
    sign, side = (-1, "below") if gain.value < 1 else (1, "above")
    value, *ends = (round(sign * (end - 1) * 100, 1) + 0.0 for end in (gain.value, gain.low, gain.high))
    low, high = sorted(ends)
    return f"score {score:.3f} is {value:.1f}% ({low:.1f}% to {high:.1f}%) {side} the champion's {champion:.3f}"


def _describe(fallen: list[Regression]) -> str:
    worst = fallen[0]
    more = f", and {len(fallen) - 1} more" if len(fallen) > 1 else ""
    return (
        f"{_cut(worst.config)} fell to {worst.ratio:.3f}, below its target {worst.target_ratio:g} "
        f"(champion {worst.champion_ratio:.3f}){more}"
    )


def _cut(name: str) -> str:
    return name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
