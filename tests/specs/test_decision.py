"""Win, slower or regressed: what a measurement means, with a reason that has the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specs.decision import Decision, decide, decide_self_reported
from specs.outcomes import (
    ConfigMeasurement,
    Device,
    Ending,
    Interval,
    Measurement,
    SelfReported,
    SelfReportedConfig,
    Timing,
)
from specs.plan import ConfigTarget, Plan
from specs.schema import Budget, Language, Model, Scoring, Search, StageGate
from specs.scoring import fold, geomean


def _plan(*configs: ConfigTarget, **changes: Any) -> Plan:
    base = Plan(
        task="t",
        digest="0" * 64,
        gpu="CPU",
        language=Language.CPP,
        baseline="b",
        scoring=Scoring.MIN_RATIO,
        focus_config=None,
        configs=configs or (_target("a"), _target("b")),
        stage_gate=StageGate(),
        search=Search(),
        model=Model(),
        budget=Budget(),
        seeded=False,
    )
    return base.model_copy(update=changes)


def _target(name: str, target_ratio: float = 0.95) -> ConfigTarget:
    return ConfigTarget(name=name, target_ratio=target_ratio, weight=1.0)


def _exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def _measured(
    plan: Plan, ratios: Mapping[str, float], champion: Mapping[str, float] | None = None, gain: Interval | None = None
) -> Measurement:
    timing = Timing(median_us=10, q1_us=9, q3_us=11, samples=30)
    return Measurement(
        library="1" * 64,
        configs=tuple(
            ConfigMeasurement(
                config=name,
                baseline=timing,
                candidate=timing,
                ratio=_exactly(ratio),
                champion_ratio=champion[name] if champion else None,
            )
            for name, ratio in ratios.items()
        ),
        score=_exactly(fold(plan.scoring, ratios, plan.configs, plan.focus_config)),
        geomean=1.0,
        gain=gain,
        device=Device(name="cpu"),
    )


def test_the_first_correct_kernel_wins() -> None:
    """However slow it is: there is nothing to be slower than."""
    plan = _plan()
    assert decide(plan, _measured(plan, {"a": 0.2, "b": 0.3})) == Decision(
        win=True, ending=Ending.WIN, reason="first correct kernel, score 0.200"
    )


def test_a_gain_that_clears_the_margin_wins_with_its_figures() -> None:
    """The whole sentence."""
    plan = _plan()
    gain = Interval(value=1.031, low=1.024, high=1.038)
    decision = decide(plan, _measured(plan, {"a": 1.043, "b": 1.2}, {"a": 1.012, "b": 1.1}, gain))
    assert decision.win
    assert decision.reason == "score 1.043 is 3.1% (2.4% to 3.8%) above the champion's 1.012; 1.0% is needed"


@pytest.mark.parametrize("low", [1.01, 1.009, 0.99])
def test_a_gain_whose_low_end_does_not_clear_the_margin_is_slower(low: float) -> None:
    """A lucky middle is not enough; exactly the margin is not either."""
    plan = _plan()
    gain = Interval(value=1.02, low=low, high=1.05)
    decision = decide(plan, _measured(plan, {"a": 1.02, "b": 1.2}, {"a": 1.0, "b": 1.1}, gain))
    assert (decision.win, decision.ending) == (False, Ending.SLOWER)
    assert decision.reason.endswith("; more than 1.0% is needed at the low end")


def test_a_loss_is_told_as_one() -> None:
    """With the interval the right way round."""
    plan = _plan()
    gain = Interval(value=0.95, low=0.94, high=0.97)
    decision = decide(plan, _measured(plan, {"a": 0.95, "b": 1.2}, {"a": 1.0, "b": 1.1}, gain))
    assert decision.reason.startswith("score 0.950 is 5.0% (3.0% to 6.0%) below the champion's 1.000")


def test_the_margin_is_the_tasks_own() -> None:
    """min_gain 0 asks for a low end above 1."""
    plan = _plan(search=Search(min_gain=0.0))
    gain = Interval(value=1.002, low=1.001, high=1.003)
    assert decide(plan, _measured(plan, {"a": 1.002, "b": 1.2}, {"a": 1.0, "b": 1.1}, gain)).win


def test_focus_improving_while_another_falls_below_its_target_is_a_regression() -> None:
    """Faster by score, and still an attempt."""
    plan = _plan(scoring=Scoring.FOCUS, focus_config="a")
    decision = decide(plan, _measured(plan, {"a": 1.5, "b": 0.9}, {"a": 1.0, "b": 1.0}, _exactly(1.5)))
    assert (decision.win, decision.ending) == (False, Ending.REGRESSED)
    assert decision.reason.endswith("but b fell to 0.900, below its target 0.95 (champion 1.000)")


def test_focus_improving_with_its_guardrails_met_wins() -> None:
    """The control of the case above."""
    plan = _plan(scoring=Scoring.FOCUS, focus_config="a")
    assert decide(plan, _measured(plan, {"a": 1.5, "b": 0.96}, {"a": 1.0, "b": 1.2}, _exactly(1.5))).win


def test_weighted_avg_paying_with_a_target_is_a_regression() -> None:
    """The mean rises, one config falls from its target."""
    plan = _plan(scoring=Scoring.WEIGHTED_AVG)
    decision = decide(plan, _measured(plan, {"a": 2.0, "b": 0.9}, {"a": 1.0, "b": 1.0}, _exactly(1.45)))
    assert decision.ending is Ending.REGRESSED


def test_slower_comes_before_regressed() -> None:
    """What is not faster needs no other reason."""
    plan = _plan(scoring=Scoring.FOCUS, focus_config="a")
    decision = decide(plan, _measured(plan, {"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 1.0}, _exactly(1.0)))
    assert decision.ending is Ending.SLOWER


@pytest.mark.parametrize("gain", [None, _exactly(2.0)])
def test_a_measurement_that_lacks_a_config_never_wins_by_the_minimum(gain: Interval | None) -> None:
    """It counts as ratio 0, even for the first kernel."""
    plan = _plan()
    decision = decide(plan, _measured(plan, {"a": 3.0}, {"a": 1.0} if gain else None, gain))
    assert (decision.win, decision.ending) == (False, Ending.SLOWER)
    assert decision.reason == "score 0: no times for b, which count as ratio 0"


def test_leaving_a_guardrail_out_is_a_regression() -> None:
    """Under weighted_avg the rest could carry the mean."""
    plan = _plan(_target("a"), _target("b"), scoring=Scoring.WEIGHTED_AVG)
    measurement = _measured(plan, {"a": 9.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, _exactly(5.0))
    without = measurement.configs[1].model_copy(update={"ratio": _exactly(0.0)})
    decision = decide(plan, measurement.model_copy(update={"configs": (measurement.configs[0], without)}))
    assert decision.ending is Ending.REGRESSED


@given(st.floats(0.5, 2), st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 0.5))
def test_the_low_end_alone_decides_under_min_ratio(value: float, down: float, up: float, margin: float) -> None:
    """For any interval and any margin."""
    plan = _plan(search=Search(min_gain=margin))
    gain = Interval(value=value, low=value - down, high=value + up)
    decision = decide(plan, _measured(plan, {"a": value, "b": 9}, {"a": 1.0, "b": 9}, gain))
    assert decision.win == (gain.low > 1 + margin)


def test_a_reason_fits_a_line_of_the_history() -> None:
    """Whatever the names and their number."""
    plan = _plan(*(_target(f"{i}" + "n" * 190) for i in range(50)), scoring=Scoring.FOCUS, focus_config="0" + "n" * 190)
    before = {c.name: 1.0 for c in plan.configs}
    after = {c.name: 0.5 for c in plan.configs} | {plan.configs[0].name: 2.0}
    for measurement in (_measured(plan, after, before, _exactly(2.0)), _measured(plan, {plan.configs[1].name: 1.0})):
        assert len(decide(plan, measurement).reason) <= 400


@pytest.mark.parametrize(
    ("win", "ending"),
    [(True, Ending.SLOWER), (False, Ending.WIN), (False, Ending.BUILD_FAILED), (False, Ending.VETOED)],
)
def test_a_decision_that_contradicts_itself_cannot_be_built(win: bool, ending: Ending) -> None:
    """A win that is slower, or a measured kernel that was not built."""
    with pytest.raises(ValidationError):
        Decision(win=win, ending=ending, reason="r")


# ---------------------------------------------------------------- self-reported


def _said(plan: Plan, **ratios: float) -> SelfReported:
    return SelfReported(
        program="1" * 64,
        configs=tuple(
            SelfReportedConfig(config=name, ratio=ratio, reason="" if ratio else "INVALID")
            for name, ratio in ratios.items()
        ),
        score=fold(plan.scoring, ratios, plan.configs, plan.focus_config),
        geomean=geomean(ratios, plan.configs),
    )


def test_the_first_program_with_a_score_is_the_champion() -> None:
    """However slow it says it is."""
    decision = decide_self_reported(_plan(), _said(_plan(), a=0.1, b=0.2), None)
    assert decision.win
    assert decision.reason == "first program with a score, self-reported: 0.100"


@pytest.mark.parametrize("champion", [None, {"a": 0.0, "b": 0.0}])
def test_a_program_with_score_0_wins_nothing(champion: dict[str, float] | None) -> None:
    """The reason is the config's."""
    decision = decide_self_reported(_plan(), _said(_plan(), a=2.0, b=0.0), champion)
    assert decision.ending is Ending.SLOWER
    assert decision.reason == "self-reported score 0: b: INVALID"


@pytest.mark.parametrize(("score", "wins"), [(1.0, False), (1.0099, False), (1.01, False), (1.0101, True), (2.0, True)])
def test_the_score_itself_must_clear_min_gain(score: float, wins: bool) -> None:
    """There is no interval: nobody has measured anything."""
    plan = _plan(search=Search(min_gain=0.01))
    decision = decide_self_reported(plan, _said(plan, a=score, b=5.0), {"a": 1.0, "b": 1.0})
    assert decision.win is wins
    assert decision.reason.startswith(f"self-reported score {score:.3f} against the champion's 1.000; ")


def test_guardrails_hold_for_what_a_program_says_too() -> None:
    """As they do for what was measured."""
    plan = _plan(scoring=Scoring.FOCUS, focus_config="a")
    decision = decide_self_reported(plan, _said(plan, a=2.0, b=0.5), {"a": 1.0, "b": 1.0})
    assert decision.ending is Ending.REGRESSED
    assert "but b fell to 0.500, below its target 0.95" in decision.reason
