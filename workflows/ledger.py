"""Turning what the children found into the run's history: numbers, champion, stage, stalls. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.dialogue import Mode
from specs.history import Champion, HistoryLine, Tried
from specs.outcomes import Acceptance, Ending, Iteration, Origin, Stage
from specs.plan import Plan
from specs.schema import Provider
from specs.scoring import stage_gate_open
from workflows.budget import iterations_done
from workflows.state import IterationResult, RunState, Submission

MOST_SEARCHED = 200  # settings that a parameter search is told of
TRIED_LENGTH = 16  # hex digits of a normalised digest: 64 bits are plenty among a run's few hundred sources
REASON_LENGTH = 400


def tried(state: RunState) -> dict[str, str]:
    """What a child needs to answer a repeated source from history, kept short since every child carries it."""
    unanswered = (Ending.DUPLICATE, Ending.STOPPED, Ending.UNREVIEWED)
    answered = [line for line in state.history if line.ending not in unanswered]
    return {line.normal[:TRIED_LENGTH]: line.version for line in answered if line.normal}


def searched(plan: Plan, state: RunState) -> tuple[Tried, ...]:
    """What a parameter search learns from; empty for everybody else, since every child carries it."""
    if plan.model.provider is not Provider.TUNE:
        return ()
    lines = [line for line in state.history if line.origin is not None and line.ending is not Ending.STOPPED]
    return tuple(Tried(label=line.label, score=line.score, gain=line.gain) for line in lines[-MOST_SEARCHED:])


@dataclass(frozen=True, slots=True)
class Slot:
    """One iteration of a round, before the run's common data are added to it."""

    index: int
    submission: Submission | None
    script_position: int
    use_seed: bool
    ahead: int = 0  # of the optimiser's own slots in this round that come before this one


def next_round(plan: Plan, state: RunState) -> list[Slot]:
    """The iterations to run side by side: people's kernels first, then the seed alone, then the optimiser's.

    A research turn is alone too: it thinks for all of them.
    """
    width = min(plan.search.width, state.budget.max_iterations - iterations_done(state))
    waiting = state.submissions[:width]
    seed_due = plan.seeded and not any(line.origin is Origin.SEED for line in state.history)
    own = 0 if state.exhausted else width - len(waiting)
    if seed_due or state.mode is Mode.RESEARCH:
        own = min(own, 1)
    return [
        Slot(
            index=state.next_index + position,
            submission=waiting[position] if position < len(waiting) else None,
            script_position=state.script_position + max(0, position - len(waiting)),
            use_seed=seed_due and position >= len(waiting),
            ahead=max(0, position - len(waiting)),
        )
        for position in range(len(waiting) + own)
    ]


def settle(
    plan: Plan, state: RunState, given: Sequence[Slot], results: Sequence[IterationResult], seconds: float
) -> list[Iteration]:
    """Book one round, in order of index; returns its iterations with their final numbers, ready to record."""
    best = _best(results)
    booked = []
    for slot, result in zip(given, results, strict=True):
        state.charge = state.charge + result.charge
        if slot.submission is not None:
            state.submissions.remove(slot.submission)
        elif result.exhausted:
            state.exhausted = True
        elif not slot.use_seed:
            state.script_position += 1
        if result.iteration is None:
            continue
        iteration = _numbered(state, result.iteration, is_best=result is best, best=best)
        state.next_index = max(state.next_index, iteration.index + 1)
        state.history.append(_line(iteration, result, seconds))
        if iteration.ending is Ending.WIN:
            _crown(plan, state, iteration)
        else:
            state.attempts += 1
            # A research turn was asked for no kernel: it is no attempt that failed.
            state.since_win += iteration.ending is not Ending.RESEARCHED
        booked.append(iteration)
    state.stalls = state.since_win // plan.search.stall_after
    _take_over(state, results, best)
    state.mode = _next_mode(plan, state, results)
    return booked


def _take_over(state: RunState, results: Sequence[IterationResult], best: IterationResult | None) -> None:
    """What the conversations leave to the next ones: of several side by side the winner's, else the last one's."""
    for result in (*results, *([best] if best is not None else [])):
        state.notes = result.notes or state.notes
        state.profile = result.profile or state.profile
        if result.lever is not None:
            state.lever, state.objections = result.lever, result.objections
        if state.stop_reason is None and (why := result.over_budget or result.gave_up):
            state.stop_reason = why


def _next_mode(plan: Plan, state: RunState, results: Sequence[IterationResult]) -> Mode:
    """After a stall comes a research turn, after that a pivot."""
    if not plan.thinks:
        return Mode.IMPROVE
    if any(result.ending is Ending.RESEARCHED for result in results):
        state.researched = state.stalls
        return Mode.PIVOT
    return Mode.RESEARCH if state.stalls > state.researched else Mode.IMPROVE


def _best(results: Sequence[IterationResult]) -> IterationResult | None:
    """Of several wins in one round the highest score becomes the champion; the earlier one of two equals."""
    wins = [result for result in results if result.ending is Ending.WIN]
    return max(wins, key=_score, default=None)


def _score(result: IterationResult) -> float:
    report = result.iteration and result.iteration.self_reported
    if report:
        return report.score
    measurement = result.iteration and result.iteration.measurement
    if not measurement:
        return 0.0
    # The gain was taken against the champion in the same rounds, so it compares siblings better than the bare score.
    return measurement.gain.value if measurement.gain is not None else measurement.score.value


def _numbered(state: RunState, iteration: Iteration, *, is_best: bool, best: IterationResult | None) -> Iteration:
    if iteration.ending is Ending.WIN and is_best:
        return iteration.model_copy(update={"version": f"v{state.wins + 1:03d}"})
    update: dict[str, object] = {"version": f"a{state.attempts + 1:03d}"}
    if iteration.ending is Ending.WIN and best is not None:
        update |= {
            "ending": Ending.SLOWER,
            "reason": f"a win, but iteration {best.index} of the same round won by more",
        }
    if iteration.ending is Ending.DUPLICATE:
        update |= {"reason": _answered(state, iteration.reason)}
    return iteration.model_copy(update=update)


def _answered(state: RunState, reason: str) -> str:
    """A repeated source is answered with what came of it the first time."""
    earlier = next((line for line in state.history if reason.endswith(line.version)), None)
    if earlier is None:
        return reason
    return f"{reason}, which ended as {earlier.ending.value.replace('_', ' ')}: {earlier.reason}"[:REASON_LENGTH]


def _line(iteration: Iteration, result: IterationResult, seconds: float) -> HistoryLine:
    measurement, proposal, report = iteration.measurement, iteration.proposal, iteration.self_reported
    score, ratios = _numbers(iteration)
    return HistoryLine(
        index=iteration.index,
        version=iteration.version,
        stage=iteration.stage,
        ending=iteration.ending,
        label=result.label,
        origin=proposal.origin if proposal else None,
        reason=iteration.reason[:REASON_LENGTH],
        source=proposal.source if proposal else None,
        normal=proposal.normal if proposal else None,
        score=score,
        gain=measurement.gain.value if measurement and measurement.gain else None,
        ratios=ratios,
        seconds=round(seconds, 3),
        chapters=iteration.chapters,
        charge=iteration.charge,
        standing=report.label if report else None,
    )


def _numbers(iteration: Iteration) -> tuple[float | None, dict[str, float]]:
    """Score and ratios: measured, or the program's own; a report that was refused has none."""
    report = iteration.self_reported
    if report is not None:
        return (None, {}) if report.refused else (report.score, report.ratios())
    if iteration.measurement is not None:
        return iteration.measurement.score.value, iteration.measurement.ratios()
    return None, {}


def of_record(champion: Champion, acceptance: Acceptance) -> Champion:
    """The champion with the numbers of the acceptance: the one score that is told from then on."""
    measured, report = acceptance.measurement, acceptance.self_reported
    if acceptance.accepted and report is not None:
        return champion.model_copy(
            update={"score": report.score, "ratios": report.ratios(), "searched": champion.score}
        )
    if not acceptance.accepted or measured is None:
        return champion
    update = {"score": measured.score.value, "ratios": measured.ratios(), "searched": champion.score}
    return champion.model_copy(update=update)


def _crown(plan: Plan, state: RunState, iteration: Iteration) -> None:
    """The one place where a candidate becomes the champion."""
    assert iteration.proposal is not None
    assert iteration.build is not None
    assert iteration.build.library is not None
    score, ratios = _numbers(iteration)
    assert score is not None
    report = iteration.self_reported
    state.champion = Champion(
        version=iteration.version,
        index=iteration.index,
        source=iteration.proposal.source,
        library=iteration.build.library,
        score=score,
        ratios=ratios,
        standing=report.label if report else None,
    )
    state.champions.append(state.champion)
    state.measurement, state.self_reported = iteration.measurement, report
    state.wins += 1
    state.since_win = 0
    state.researched = 0
    state.lever, state.objections = None, ""
    if stage_gate_open(plan.stage_gate, state.champion.score, state.champion.ratios, plan.configs):
        state.stage = Stage.OPTIMIZE


def waited_s(results: Sequence[IterationResult]) -> float:
    """Seconds of a round that the budget does not pay: paused, or waiting for a device."""
    # Side by side, only the time in which every one of them waited was waiting.
    return min((result.queue_wait_s + result.paused_s for result in results), default=0.0)
