"""Measure the kernel: judged whole, then timed against the baseline and the champion for a short while."""

from __future__ import annotations

from typing import ClassVar

from activities.agents.tools.checking import NO_GATE, failed
from activities.agents.tools.compiling import compiled
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool, clipped
from activities.judge import judge_library
from activities.measure import measure_library
from specs.decision import decide
from specs.outcomes import Measurement
from specs.plan import ConfigTarget, Plan

SAMPLING_S = 20.0  # enough to tell which way to go; what decides is measured again at the end
CONFIGS_TOLD = 40
NO_BASELINE = "the baseline has not been measured yet, so there is nothing to measure against"


class Measure(Tool[NoArguments]):
    name: ClassVar[str] = "measure"
    description: ClassVar[str] = (
        "Compile the kernel, judge it on all cases and time it against the baseline and the champion. Gives ratios per "
        "config and whether it would be a win now. Takes a minute: check first."
    )
    arguments: ClassVar[type[Arguments]] = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        session = desk.session
        if session.lock is None:
            return Answer(NO_GATE, error=True)
        if session.baseline_library is None:
            return Answer(NO_BASELINE, error=True)
        made = await compiled(desk)
        if isinstance(made, Answer):
            return made
        champion = session.champion
        if champion is not None and champion.library == made.library:
            text = f"this compiles to the very object of the champion {champion.version}; change what it does first"
            return Answer(text, error=True, workspace=made.workspace)
        verdict = await judge_library(
            desk.workshop, desk.bundle, session.lock, made.library, session.sandbox, source=made.source
        )
        if verdict.failure is not None:
            return failed(verdict.failure, made.workspace)
        outcome = await measure_library(
            desk.workshop, desk.bundle, session.lock, session.sandbox, session.baseline_library, made.library,
            champion.library if champion is not None else None, max_seconds=SAMPLING_S,
        )  # fmt: skip
        if outcome.measurement is None:
            assert outcome.failure is not None
            return failed(outcome.failure, made.workspace)
        plan = Plan.of(desk.bundle.task, desk.bundle.digest)
        decision = decide(plan, outcome.measurement)
        would = "It would be a win now" if decision.win else "It would not be a win now"
        text = "\n".join(
            [
                f"correct: {verdict.cases} calls on all cases passed",
                *table(plan, outcome.measurement),
                f"{would}: {decision.reason}. (Measured for {SAMPLING_S:.0f} s at most; submitting measures again.)",
            ]
        )
        return Answer(clipped(text), workspace=made.workspace, said=f"{would.lower()}: {decision.reason}"[:300])


def table(plan: Plan, measurement: Measurement) -> list[str]:
    """A line for each config, the worst one marked, then the score."""
    targets = {config.name: config for config in plan.configs}
    marked = worst_config(plan, measurement.ratios())
    lines = ["config | ratio (95% interval) | target | kernel us | baseline us | champion's ratio"]
    for one in measurement.configs[:CONFIGS_TOLD]:
        before = "-" if one.champion_ratio is None else f"{one.champion_ratio:.3f}"
        mark = "  <- worst" if one.config == marked else ""
        lines.append(
            f"{one.config} | {one.ratio.value:.3f} ({one.ratio.low:.3f} to {one.ratio.high:.3f}) | "
            f"{targets[one.config].target_ratio:g} | {one.candidate.median_us:.2f} | {one.baseline.median_us:.2f} | "
            f"{before}{mark}"
        )
    score = f"score {measurement.score.value:.3f} ({plan.scoring.value}), geometric mean {measurement.geomean:.3f}"
    if (gain := measurement.gain) is not None:
        score += f", {gain.value:.3f} times the champion's ({gain.low:.3f} to {gain.high:.3f})"
    return [*lines, score]


def worst_config(plan: Plan, ratios: dict[str, float]) -> str:
    """The config that is farthest from its target; that of the focus where there is one and it misses its target."""

    def reached(config: ConfigTarget) -> float:
        return ratios.get(config.name, 0.0) / config.target_ratio

    focus = next((config for config in plan.configs if config.name == plan.focus_config), None)
    if focus is not None and reached(focus) < 1:
        return focus.name
    return min(plan.configs, key=reached).name
