"""The Markdown that the Temporal UI shows while a run or an iteration is at work."""

from __future__ import annotations

from collections.abc import Sequence

from specs.history import Champion, HistoryLine
from specs.outcomes import BuildResult, Measurement, Proposal, SelfReported, Verdict, labelled
from specs.plan import Plan
from workflows.budget import iterations_done
from workflows.state import GateInput, IterationInput, IterationResult, Phase, RunState

LAST = 8  # iterations shown: the details are for a glance, the `history` query has them all


def run(plan: Plan, state: RunState, phase: Phase, activity: str) -> str:
    champion = state.champion
    rows = [
        ("phase", phase.value + (f": {activity}" if activity else "")),
        ("stage", state.stage.value),
        (
            "score",
            labelled(
                f"**{champion.score:.4f}** ({plan.scoring.value}, {champion.version}{_searched(champion)})",
                champion.standing,
            )
            if champion
            else "no kernel yet",
        ),
        ("wins, attempts", f"{state.wins}, {state.attempts}; {state.since_win} since the last win"),
        ("iterations", f"{iterations_done(state)} of {state.budget.max_iterations}"),
        ("minutes", f"{state.charged_s / 60:.1f} of {state.budget.max_wall_minutes:g}"),
        ("cost", _cost(state)),
        ("device", state.device.description if state.device else "none yet"),
        ("gate", state.lock.digest[:16] if state.lock else _no_gate(plan)),
    ]
    if state.stop_reason:
        rows.append(("search ended", state.stop_reason))
    if state.acceptance:
        verdict = labelled("accepted" if state.acceptance.accepted else "not accepted", plan.standing)
        rows.append(("acceptance", f"{state.acceptance.version} {verdict}: {state.acceptance.reason}"))
    head = labelled(f"{_cell(plan.task)} against {_cell(plan.baseline)}", plan.standing)
    parts = [f"### {head}", _table(("", ""), rows)]
    accepted = state.acceptance if state.acceptance and state.acceptance.accepted else None
    final = accepted and (accepted.measurement or accepted.self_reported)
    if (shown := final or state.measurement or state.self_reported) is not None:
        targets = {config.name: config.target_ratio for config in plan.configs}
        parts += [f"#### {labelled('Ratio to the baseline', plan.standing)}", _ratios(shown, targets)]
    if state.history:
        last = state.history[-LAST:]
        parts += [f"#### {labelled('Last iterations', plan.standing)}", _history(last, plan.standing)]
    if state.delivery is not None:
        parts.append(f"{labelled('Delivered', plan.standing)} to `{state.delivery.folder}`")
    return "\n\n".join(parts)


def iteration(
    given: IterationInput,
    step: str,
    proposal: Proposal | None,
    built: BuildResult | None,
    verdict: Verdict | None,
    measurement: Measurement | SelfReported | None,
    result: IterationResult | None,
    paused: bool,
) -> str:
    rows = [
        (
            "step",
            (result.ending.value.replace("_", " ") if result else step)
            + (" (paused)" if paused and not result else ""),
        ),
        (
            "candidate",
            f"{proposal.label} (`{proposal.source.sha256[:12]}`, {proposal.source.size} bytes)" if proposal else "",
        ),
        (
            "build",
            f"{built.status.value} in {built.seconds:.1f} s" + (" (cached)" if built.cached else "") if built else "",
        ),
        ("verdict", f"passed {verdict.cases} calls" if verdict and verdict.passed else "refused" if verdict else ""),
        (
            "champion",
            labelled(f"{given.champion.version}, score {given.champion.score:.4f}", given.champion.standing)
            if given.champion
            else "none",
        ),
        ("why", result.reason if result else ""),
    ]
    parts = [
        f"### {labelled(f'Iteration {given.index}', given.plan.standing)}",
        _table(("", ""), [row for row in rows if row[1]]),
    ]
    if measurement is not None:
        parts.append(_ratios(measurement, {config.name: config.target_ratio for config in given.plan.configs}))
    return "\n\n".join(parts)


def gate(given: GateInput, step: str, round_: int, paused: bool) -> str:
    rows = [
        ("step", step + (" (paused)" if paused else "")),
        ("round", str(round_)),
        ("objections so far", given.feedback),
    ]
    return "\n\n".join([f"### The gate of {_cell(given.plan.task)}", _table(("", ""), [row for row in rows if row[1]])])


def figures(measurement: Measurement, reason: str) -> str:
    """What the clock has said of a kernel, for a reviewer."""
    ratios = ", ".join(f"{one.config} {one.ratio.value:.3f}" for one in measurement.configs[:12])
    return f"score {measurement.score.value:.3f}; ratios to the baseline: {ratios}; {reason}"[:1000]


def _searched(champion: Champion) -> str:
    return f"; search {champion.searched:.4f}" if champion.searched is not None else ""


def _no_gate(plan: Plan) -> str:
    return "none: nothing is verified" if plan.self_contained else "not locked yet"


def _reported(report: SelfReported, targets: dict[str, float]) -> str:
    rows = [(one.config, f"{one.ratio:.4f}", f"{targets.get(one.config, 1.0):g}", one.reason) for one in report.configs]
    return _table(("config", f"ratio, {report.label}", "target", "why not"), rows)


def _ratios(measurement: Measurement | SelfReported, targets: dict[str, float]) -> str:
    if isinstance(measurement, SelfReported):
        return _reported(measurement, targets)
    worst = min(measurement.configs, key=lambda one: one.ratio.value).config
    rows = [
        (
            f"{one.config} (worst)" if one.config == worst and len(measurement.configs) > 1 else one.config,
            f"{one.ratio.value:.4f}",
            f"{one.ratio.low:.4f} to {one.ratio.high:.4f}",
            f"{targets.get(one.config, 1.0):g}",
            f"{one.candidate.median_us:.2f}",
            f"{one.baseline.median_us:.2f}",
        )
        for one in measurement.configs
    ]
    return _table(("config", "ratio", "95% interval", "target", "kernel us", "baseline us"), rows)


def _history(lines: Sequence[HistoryLine], standing: str | None) -> str:
    rows = [
        (
            line.version,
            line.ending.value.replace("_", " "),
            line.label,
            "" if line.score is None else f"{line.score:.4f}",
            line.reason,
        )
        for line in reversed(lines)
    ]
    return _table(("", "ending", "candidate", f"score, {standing}" if standing else "score", "why"), rows)


def _cost(state: RunState) -> str:
    charge = state.charge
    price = "price unknown" if charge.usd is None else f"{charge.usd:.2f} USD"
    return f"{charge.calls} calls, {charge.tokens} tokens ({charge.cache_read_tokens} from a cache), {price}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text from tasks and compilers must not end a cell or start a tag, a link or a picture."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "&#91;")
