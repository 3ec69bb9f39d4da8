"""What the run has tried so far, from its logbook."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from activities.agents import logbook
from activities.agents.pages import one_line
from activities.agents.tools.kernel import numbered, source_of
from activities.agents.tools.tool import Answer, Arguments, Desk, Tool, clipped
from specs.outcomes import Iteration, Metrics, labelled

PAGE = 20  # iterations
LOG_TAIL = 1_500  # characters
MOST_CONFIGS = 40


class ReadHistoryArguments(Arguments):
    version: str = Field(default="", max_length=20, description="One iteration, like v003 or a012; empty: the table.")
    source: bool = Field(default=False, description="With version: its source in place of its story.")
    first_line: int = Field(default=1, ge=1, description="With source: where to begin.")
    page: int = Field(default=1, ge=1, description="Of the table; 1 has the newest.")


class ReadHistory(Tool[ReadHistoryArguments]):
    name: ClassVar[str] = "history"
    description: ClassVar[str] = (
        "All iterations of the run and what came of them, newest first; or the whole story or source of one."
    )
    arguments: ClassVar[type[Arguments]] = ReadHistoryArguments

    async def use(self, desk: Desk, given: ReadHistoryArguments) -> Answer:
        iterations = await logbook.read(desk.workshop.store, desk.session.logbook)
        if not iterations:
            return Answer("Nothing has been tried yet.", said="empty")
        if not given.version:
            return _table(iterations, given.page)
        one = next((one for one in iterations if one.version == given.version.strip().lower()), None)
        if one is None:
            newest = ", ".join(iteration.version for iteration in iterations[:-11:-1])
            return Answer(f"version: {given.version!r} given; accepted: {newest}, or an earlier one", error=True)
        if not given.source:
            return Answer(clipped(_story(one)), said=f"{one.version}: {one.ending.value}")
        if one.proposal is None:
            return Answer(f"{one.version} has no source: {one_line(one.reason, 200)}", error=True)
        source = await source_of(desk, one.proposal.source)
        return numbered(
            source, f"source of {one.version}", given.first_line, 0, f"{self.name} with version and source,"
        )


def _table(iterations: list[Iteration], number: int) -> Answer:
    pages = -(-len(iterations) // PAGE)
    if number > pages:
        return Answer(f"page: {number} given; accepted: 1 to {pages}", error=True)
    rows = [_row(one) for one in iterations[::-1][(number - 1) * PAGE : number * PAGE]]
    head = f"{len(iterations)} iterations, page {number} of {pages}; ratio is baseline / kernel"
    return Answer("\n".join([head, *rows]), said=f"page {number} of {pages}")


def _row(one: Iteration) -> str:
    title = f" {one_line(one.proposal.label, 70)}:" if one.proposal else ""
    score = f" score {_score(one)}" if _score(one) else ""
    return f"{one.version} {one.stage.value} {one.ending.value}{score}{title} {one_line(one.reason, 110)}"


def _score(one: Iteration) -> str:
    if one.measurement is not None:
        gain = f", gain {one.measurement.gain.value:.3f}" if one.measurement.gain else ""
        return f"{one.measurement.score.value:.3f}{gain}"
    if one.self_reported is not None:
        return labelled(f"{one.self_reported.score:.3f}", one.self_reported.label)
    return ""


def _story(one: Iteration) -> str:
    lines = [f"{one.version}, {one.stage.value}: {one.ending.value}"]
    if one.proposal is not None:
        lines.append(f"title: {one_line(one.proposal.label, 200)} ({one.proposal.origin.value})")
    lines.append(f"reason: {one_line(one.reason, 600)}")
    if score := _score(one):
        lines.append(f"score: {score}")
    if one.verdict is not None and one.verdict.failure is not None:
        failure = one.verdict.failure
        lines.append(
            f"refused: {failure.kind.value} in {failure.verification.value}, case {one_line(failure.case, 200)}"
        )
        lines.append(f"  {one_line(failure.message, 600)}")
        if failure.first_failing_stage:
            lines.append(f"  first tensor that diverges: {failure.first_failing_stage}")
        if failure.metrics is not None:
            lines.append(f"  {_metrics(failure.metrics)}")
    lines += _ratios(one)
    if one.review is not None:
        lines.append(f"review: {'approved' if one.review.approved else 'vetoed'}: {one_line(one.review.summary, 400)}")
        lines += [f"  {one_line(quote.quote, 300)!r}: {one_line(quote.why, 300)}" for quote in one.review.evidence]
    if one.build is not None and not one.build.ok:
        lines.append(f"build: {one.build.status.value}; the end of its log:\n{one.build.log_tail[-LOG_TAIL:]}")
    return "\n".join(lines)


def _metrics(metrics: Metrics) -> str:
    """The figures that are there."""
    figures = metrics.model_dump(exclude_none=True, exclude={"tensor", "worst_index", "worst_got", "worst_want"})
    told = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
    worst = ""
    if metrics.worst_index:
        index = ", ".join(map(str, metrics.worst_index))
        worst = f"; worst at [{index}]: got {metrics.worst_got}, want {metrics.worst_want}"
    return f"{metrics.tensor}: {told or 'no figure is finite'}{worst}"


def _ratios(one: Iteration) -> list[str]:
    if one.measurement is not None:
        rows = [
            f"  {timed.config}: ratio {timed.ratio.value:.3f} ({timed.ratio.low:.3f} to {timed.ratio.high:.3f}),"
            f" {timed.candidate.median_us:.2f} us"
            for timed in one.measurement.configs
        ]
    elif one.self_reported is not None:
        rows = [f"  {timed.config}: {_said_of(timed.ratio, timed.reason)}" for timed in one.self_reported.configs]
    else:
        return []
    left_out = [f"  and {len(rows) - MOST_CONFIGS} configs more"] if len(rows) > MOST_CONFIGS else []
    return [
        labelled("configs", one.self_reported.label if one.self_reported else None),
        *rows[:MOST_CONFIGS],
        *left_out,
    ]


def _said_of(ratio: float, reason: str) -> str:
    return f"ratio {ratio:.3f}" if not reason else f"no ratio: {one_line(reason, 200)}"
