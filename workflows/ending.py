"""The end of a run in figures: what is delivered, and what the workflow returns. Pure functions of the run's state."""

from __future__ import annotations

from datetime import datetime

from activities.summary import RunSummary
from specs.history import Champion
from specs.outcomes import Acceptance, labelled
from specs.plan import Plan
from workflows.state import RunResult, RunState


def outcome(plan: Plan, champion: Champion | None, acceptance: Acceptance | None) -> str:
    """`accepted`, `best effort` (a config is below its target, or acceptance did not end) or `no kernel`."""
    if champion is None:
        return "no kernel"
    evidence = (acceptance.measurement or acceptance.self_reported) if acceptance and acceptance.accepted else None
    if evidence is None:
        return labelled("best effort", plan.standing)
    ratios = evidence.ratios()
    reached = all(ratios.get(config.name, 0.0) >= config.target_ratio for config in plan.configs)
    return labelled("accepted" if reached else "best effort", plan.standing)


def reason(state: RunState) -> str:
    """Why the search ended, and why the champion was not accepted if it was not."""
    if state.acceptance is not None and not state.acceptance.accepted:
        return f"{state.stop_reason}; {state.acceptance.version} was not accepted: {state.acceptance.reason}"
    return state.stop_reason or ""


def summary(
    plan: Plan, state: RunState, run_id: str, times: tuple[datetime, datetime], *, cancelled: bool
) -> RunSummary:
    """What result.json holds and report.html draws; `times` are the run's start and end."""
    accepted = state.acceptance if state.acceptance and state.acceptance.accepted else None
    newest = state.champion is not None and state.champion.version == state.champions[-1].version
    return RunSummary(
        run_id=run_id,
        task=plan.task,
        task_digest=plan.digest,
        scoring=plan.scoring.value,
        baseline_name=plan.baseline,
        targets={config.name: config.target_ratio for config in plan.configs},
        outcome=labelled("cancelled", plan.standing) if cancelled else outcome(plan, state.champion, state.acceptance),
        standing=plan.standing,
        reason=reason(state),
        stage=state.stage.value,
        started=times[0],
        ended=times[1],
        gate_digest=state.lock.digest if state.lock else None,
        device=state.device.description if state.device else "",
        champion=state.champion,
        measurement=(accepted and accepted.measurement) or (state.measurement if newest else None),
        self_reported=(accepted and accepted.self_reported) or (state.self_reported if newest else None),
        acceptance=state.acceptance,
        baseline=state.baseline,
        history=tuple(state.history),
        wins=state.wins,
        attempts=state.attempts,
        charge=state.charge,
        charged_minutes=state.charged_s / 60,
    )


def result(plan: Plan, state: RunState) -> RunResult:
    return RunResult(
        outcome=outcome(plan, state.champion, state.acceptance),
        reason=reason(state),
        champion=state.champion,
        acceptance=state.acceptance,
        delivery=state.delivery,
        baseline=state.baseline,
        gate_digest=state.lock.digest if state.lock else None,
        iterations=len(state.history),
        standing=plan.standing,
        wins=state.wins,
        attempts=state.attempts,
        charge=state.charge,
        charged_minutes=state.charged_s / 60,
    )
