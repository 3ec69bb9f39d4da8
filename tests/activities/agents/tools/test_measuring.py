"""The measure tool: judged whole first, then a table against targets, baseline and champion."""

from __future__ import annotations

from typing import Any

import pytest

from activities.agents.tools import measuring
from activities.agents.tools.measuring import Measure
from activities.agents.tools.tool import Desk, NoArguments
from specs.outcomes import ConfigMeasurement, Device, Interval, Measurement, MeasureOutcome, Timing, Verdict
from specs.plan import Plan
from tests.activities.agents.tools.bench import COPY, HALVES, SLOW, in_session, with_champion, working_on


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SAMPLING_S", 0.2)


def measurement(ratios: dict[str, float], champion: float | None = None, gain: float | None = None) -> Measurement:
    def timing(us: float) -> Timing:
        return Timing(median_us=us, q1_us=us, q3_us=us, samples=20)

    def interval(value: float) -> Interval:
        return Interval(value=value, low=value * 0.99, high=value * 1.01)

    configs = tuple(
        ConfigMeasurement(
            config=name, baseline=timing(100), candidate=timing(100 / ratio), ratio=interval(ratio),
            champion_ratio=champion,
        )
        for name, ratio in ratios.items()
    )  # fmt: skip
    lowest = min(ratios.values())
    return Measurement(
        library="0" * 64, configs=configs, score=interval(lowest), geomean=lowest, device=Device(name="d"),
        gain=None if gain is None else interval(gain),
    )  # fmt: skip


async def test_a_right_kernel_is_judged_whole_and_measured_and_told_whether_it_would_win(desk: Desk) -> None:
    there = await working_on(desk, SLOW)
    answer = await Measure().use(there, NoArguments())
    assert not answer.error, answer.text
    assert answer.text.startswith("correct: ")
    assert "It would be a win now: first correct kernel" in answer.text
    assert answer.text.count("<- worst") == 1
    assert answer.workspace is not None
    assert answer.workspace.compiled == there.workspace.kernel


async def test_the_champion_takes_part_in_the_measurement(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided later is decided against it, so a gain is told only beside it."""
    there = await with_champion(await working_on(desk, SLOW), COPY)
    assert there.session.champion is not None
    champion = there.session.champion.library

    async def passed(*given: Any, **more: Any) -> Verdict:
        return Verdict(passed=True, library=given[3].sha256, gate=given[2].digest, cases=9)

    async def measured(*given: Any, max_seconds: float) -> MeasureOutcome:
        assert given[6] == champion
        assert max_seconds == measuring.SAMPLING_S
        return MeasureOutcome(measurement=measurement({"small": 0.5, "large": 0.6}, champion=1.0, gain=0.5))

    monkeypatch.setattr(measuring, "judge_library", passed)
    monkeypatch.setattr(measuring, "measure_library", measured)
    answer = await Measure().use(there, NoArguments())
    assert "It would not be a win now: score 0.500 is 50.0%" in answer.text


async def test_a_wrong_kernel_is_never_timed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*given: object, **more: object) -> None:
        pytest.fail("it was timed")

    monkeypatch.setattr(measuring, "measure_library", never)
    answer = await Measure().use(await working_on(desk, HALVES), NoArguments())
    assert answer.error
    assert answer.text.startswith("FAILED in numerics")


async def test_the_champion_itself_is_not_measured_again(desk: Desk) -> None:
    there = await with_champion(await working_on(desk, COPY + "// once more\n"), COPY)
    answer = await Measure().use(there, NoArguments())
    assert answer.error
    assert "the very object of the champion v001" in answer.text


async def test_without_a_baseline_there_is_nothing_to_measure_against(desk: Desk) -> None:
    answer = await Measure().use(in_session(await working_on(desk, COPY), baseline_library=None), NoArguments())
    assert answer.error
    assert answer.text == measuring.NO_BASELINE


async def test_each_config_has_its_line_and_the_one_farthest_from_its_target_is_marked(desk: Desk) -> None:
    plan = Plan.of(desk.bundle.task, desk.bundle.digest)
    lines = measuring.table(plan, measurement({"small": 1.2, "large": 0.8}, champion=0.75, gain=1.067))
    assert lines[1] == "small | 1.200 (1.188 to 1.212) | 0.9 | 83.33 | 100.00 | 0.750"
    assert lines[2] == "large | 0.800 (0.792 to 0.808) | 0.9 | 125.00 | 100.00 | 0.750  <- worst"
    assert lines[3] == "score 0.800 (min_ratio), geometric mean 0.800, 1.067 times the champion's (1.056 to 1.078)"


async def test_the_focus_comes_first_until_it_has_its_target(desk: Desk) -> None:
    plan = Plan.of(desk.bundle.task, desk.bundle.digest).model_copy(update={"focus_config": "small"})
    assert measuring.worst_config(plan, {"small": 0.8, "large": 0.5}) == "small"
    assert measuring.worst_config(plan, {"small": 0.95, "large": 0.5}) == "large"
