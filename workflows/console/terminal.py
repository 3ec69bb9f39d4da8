"""What a person sees of a run on a terminal: pure functions from its values to rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from specs.outcomes import Charge, Ending, Interval, Measurement, SelfReported, Stage, labelled
from specs.plan import Plan
from workflows.budget import counted
from workflows.console.lines import (
    OVER,
    approval_needed,
    clean,
    cost_text,
    duration,
    ending_word,
    interval_text,
    microseconds,
    ratio_text,
    size,
    tokens_text,
    usd_text,
)
from workflows.console.waiting import Notice
from workflows.state import HistoryLine, Phase, RunResult, Status

_ENDING_STYLES = {
    Ending.WIN: "bold green",
    Ending.SLOWER: "yellow",
    Ending.REGRESSED: "yellow",
    Ending.BUILD_FAILED: "red",
    Ending.REFUSED: "red",
    Ending.VETOED: "magenta",
    Ending.DUPLICATE: "dim",
    Ending.NO_PROPOSAL: "dim",
    Ending.STOPPED: "dim",
}
_STAGE_STYLES = {Stage.REPRODUCE: "cyan", Stage.OPTIMIZE: "green"}
_STATE_STYLES = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "terminated": "red",
    "timed out": "red",
    "cancelled": "yellow",
}

WIDE = 100  # columns: below, bars go and reasons get lines of their own

# ---------------------------------------------------------------- per config


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One config as the tables show it. Times in microseconds; None: not known yet."""

    name: str
    target: float
    baseline_us: float | None = None
    kernel_us: float | None = None
    ratio: float | None = None
    interval: Interval | None = None

    @property
    def reached(self) -> bool:
        return self.ratio is not None and self.ratio >= self.target


def config_rows(status: Status) -> list[ConfigRow]:
    """The plan's configs with the best numbers there are: final measurement, else champion, else baseline alone."""
    if (report := _report(status)) is not None:
        return _reported_rows(status.plan, report)
    final = (status.acceptance.measurement if status.acceptance else None) or status.measurement
    measured = {config.config: config for config in final.configs} if final else {}
    rows = []
    for target in status.plan.configs:
        if config := measured.get(target.name):
            rows.append(
                ConfigRow(
                    target.name,
                    target.target_ratio,
                    config.baseline.median_us,
                    config.candidate.median_us,
                    config.ratio.value,
                    config.ratio,
                )
            )
            continue
        timing = status.baseline.timings.get(target.name) if status.baseline else None
        baseline_us = timing.median_us if timing else None
        ratio = status.champion.ratios.get(target.name, 0.0) if status.champion else None
        kernel_us = baseline_us / ratio if baseline_us and ratio else None
        rows.append(ConfigRow(target.name, target.target_ratio, baseline_us, kernel_us, ratio))
    return rows


def _report(status: Status) -> SelfReported | None:
    """What the champion says of itself, at acceptance if it came to that."""
    final = status.acceptance.self_reported if status.acceptance and status.acceptance.accepted else None
    return final or status.self_reported


def _reported_rows(plan: Plan, report: SelfReported) -> list[ConfigRow]:
    said = {one.config: one for one in report.configs}
    return [
        ConfigRow(
            target.name,
            target.target_ratio,
            said[target.name].reference_us,
            said[target.name].ours_us,
            said[target.name].ratio,
        )
        if target.name in said
        else ConfigRow(target.name, target.target_ratio)
        for target in plan.configs
    ]


def worst(rows: Sequence[ConfigRow]) -> str | None:
    """Name of the config with the lowest ratio; None while there is nothing to compare."""
    known = [(row.ratio, row.name) for row in rows if row.ratio is not None]
    return min(known)[1] if len(known) > 1 else None


def ratio_bar(ratio: float, target: float, full: float, width: int) -> Text:
    """A bar of `width` cells in which `full` fills it; the heavy stroke stands at the target."""
    filled = min(width, round(width * ratio / full))
    mark = min(width - 1, round(width * target / full))
    cells = ["━" if cell < filled else "╌" for cell in range(width)]
    cells[mark] = "┃"
    bar = Text("".join(cells), style="green" if ratio >= target else "yellow", no_wrap=True)
    bar.stylize("bold white", mark, mark + 1)
    if filled < width:
        bar.stylize("dim", max(filled, mark + 1) if mark == filled else filled, width)
    return bar


def config_table(status: Status, *, bar_width: int = 20, intervals: bool = False) -> Table:
    """Baseline, champion, ratio and target per config, the worst one marked."""
    rows = config_rows(status)
    last = worst(rows)
    full = max([1.25, *(row.target for row in rows), *(row.ratio for row in rows if row.ratio is not None)])
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    # The only column that gives way in a narrow terminal, into a second line: no number is ever cut.
    table.add_column("config", overflow="fold", max_width=32)
    table.add_column("baseline us", justify="right", no_wrap=True)
    table.add_column("kernel us", justify="right", no_wrap=True)
    # Wrapped in its words where the terminal is narrow, but always there.
    heading = f"{status.plan.standing} ratio" if status.plan.standing else "ratio"
    table.add_column(heading, justify="right", no_wrap=True)
    if intervals and not status.plan.standing:  # what a program says of itself has no interval
        table.add_column("95% interval", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    if bar_width:
        table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        style = "" if row.ratio is None else "bold green" if row.reached else "bold yellow"
        cells: list[RenderableType] = [
            Text(clean(row.name)),
            microseconds(row.baseline_us),
            microseconds(row.kernel_us),
            Text(ratio_text(row.ratio), style=style),
        ]
        if intervals and not status.plan.standing:
            cells.append(interval_text(row.interval) if row.interval else "-")
        cells.append(Text(ratio_text(row.target), style="dim"))
        if bar_width:
            cells.append(ratio_bar(row.ratio, row.target, full, bar_width) if row.ratio is not None else "")
        focus = row.name == status.plan.focus_config
        marks = [word for word, shown in (("focus", focus), ("worst", row.name == last)) if shown]
        cells.append(Text(", ".join(marks), style="red" if row.name == last and not row.reached else "dim"))
        table.add_row(*cells)
    return table


def searched_line(status: Status) -> list[RenderableType]:
    """That there are two scores, once acceptance has measured the champion again."""
    if status.champion is None or status.champion.searched is None:
        return []
    seen = ratio_text(status.champion.searched)
    again = f"{status.plan.standing} again" if status.plan.standing else "measured again"
    return [Text(f"{again} at acceptance; the search had seen {seen}", style="dim")]


def score_line(status: Status) -> Text:
    """Score, geomean and who holds them; one line."""
    final = status.acceptance.measurement if status.acceptance else None
    if final is not None:
        return _measured_score(status.plan, final)
    if status.champion is None:
        return Text("no champion yet", style="dim")
    return Text.assemble(
        ("score ", "dim"),
        (ratio_text(status.champion.score), "bold"),
        (f" ({status.plan.scoring.value}{f', {status.plan.standing}' if status.plan.standing else ''})", "dim"),
        ("   champion ", "dim"),
        (status.champion.version, "bold green"),
        ("   stage gate ", "dim"),
        f"{ratio_text(status.plan.stage_gate.ratio)}{' strict' if status.plan.stage_gate.strict else ''}",
    )


def _measured_score(plan: Plan, final: Measurement) -> Text:
    return Text.assemble(
        ("score ", "dim"),
        (ratio_text(final.score.value), "bold"),
        (f" ({plan.scoring.value}, 95% {interval_text(final.score)})", "dim"),
        ("   geomean ", "dim"),
        (ratio_text(final.geomean), "bold"),
    )


# ---------------------------------------------------------------- a run at work


def header(status: Status) -> RenderableType:
    """Run, task, baseline, device, stage and phase."""
    first = Table.grid(expand=True, padding=(0, 1))
    first.add_column(overflow="fold")
    first.add_column(justify="right", no_wrap=True)
    phase_style = "yellow" if status.paused else "bold"
    first.add_row(
        Text(status.run_id, style="bold"),
        Text.assemble(
            (status.stage.value, _STAGE_STYLES[status.stage]), (" · ", "dim"), (status.phase.value, phase_style)
        ),
    )
    baseline = status.baseline.description if status.baseline and status.baseline.description else status.plan.baseline
    device = (status.baseline.device.name if status.baseline else "") or status.device or status.plan.gpu
    nothing_verified = Text(f"every number below is {status.plan.standing}, none is verified", style="bold yellow")
    second = Text.assemble(
        clean(status.plan.task), (" against ", "dim"), clean(baseline), (" on ", "dim"), clean(device), overflow="fold"
    )
    return Group(first, second, nothing_verified) if status.plan.standing else Group(first, second)


def budget_bars(status: Status, elapsed: timedelta | None = None, *, width: int = 20) -> RenderableType:
    """What has been spent of each limit, and how long the run has existed."""
    budget, charge = status.budget, status.charge
    done = status.wins + status.attempts
    spent: list[tuple[str, float | None, float | None, str]] = [
        ("iterations", done, budget.max_iterations, f"{done} of {budget.max_iterations}"),
        (
            "minutes",
            status.charged_minutes,
            budget.max_wall_minutes,
            f"{status.charged_minutes:.1f} of {budget.max_wall_minutes:g}"
            + (f" charged, {duration(elapsed.total_seconds())} in all" if elapsed else " charged"),
        ),
    ]
    if charge.tokens or budget.max_tokens:
        spent.append(("tokens", charge.tokens, budget.max_tokens, _tokens_spent(charge.tokens, budget.max_tokens)))
    if charge.usd is None or charge.usd or budget.max_usd:
        spent.append(("USD", charge.usd, budget.max_usd, _usd_spent(charge.usd, budget.max_usd)))
    table = Table.grid(padding=(0, 1))
    for label, used, most, text in spent:
        table.add_row(Text(label, style="dim"), _share_bar(used, most, width), text)
    return Group(table, Text(tokens_text(charge), style="dim")) if charge.calls else table


def _tokens_spent(used: int, most: int | None) -> str:
    return f"{size(used)} of {size(most)}, {size(max(0, most - used))} left" if most else size(used)


def _usd_spent(used: float | None, most: float | None) -> str:
    if used is None:
        return f"price unknown, limit {most:g}" if most else "price unknown"
    shown = usd_text(used).removesuffix(" USD")
    return f"{shown} of {most:g}, {max(0.0, most - used):.2f} left" if most else shown


def _share_bar(used: float | None, most: float | None, width: int) -> Text:
    if used is None or not most:
        return Text("╌" * width, style="dim")
    share = min(1.0, used / most)
    filled = round(share * width)
    bar = Text("━" * filled + "╌" * (width - filled), style="red" if share > 0.9 else "blue")
    bar.stylize("dim", filled, width)
    return bar


def history_table(lines: Iterable[HistoryLine], *, width: int = WIDE) -> RenderableType:
    """One row an iteration: version, outcome in its colour, score, seconds, label, reason.

    In less than `WIDE` columns the reason stands in lines of its own, indented.
    """
    lines = list(lines)
    if width < WIDE:
        return _narrow_history(lines)
    paid = any(line.charge is not None for line in lines)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("version", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    if paid:
        table.add_column("tokens", justify="right", no_wrap=True)
        table.add_column("USD", justify="right", no_wrap=True)
    table.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=28)
    table.add_column("reason", overflow="fold")
    for line in lines:
        style = _ENDING_STYLES[line.ending]
        table.add_row(
            Text(line.version, style="bold" if line.is_win else ""),
            Text(labelled(ending_word(line.ending), line.standing), style=style),
            ratio_text(line.score),
            f"{line.seconds:.0f}",
            *(_cost_cells(line.charge) if paid else ()),
            Text(clean(line.label), style="dim"),
            Text(clean(line.reason)),
        )
    return table


def _cost_cells(charge: Charge | None) -> tuple[str, str]:
    if charge is None:
        return "-", "-"
    return size(charge.tokens), "unknown" if charge.usd is None else usd_text(charge.usd).removesuffix(" USD")


def _narrow_history(lines: Iterable[HistoryLine]) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{'version':<9}{'outcome':<14}{'score':>7}{'s':>6}  candidate", style="dim")]
    for line in lines:
        head = Text.assemble(
            (f"{line.version:<9}", "bold" if line.is_win else ""),
            (f"{labelled(ending_word(line.ending), line.standing):<14}", _ENDING_STYLES[line.ending]),
            f"{ratio_text(line.score):>7}{line.seconds:>6.0f}  ",
            (clean(line.label), "dim"),
        )
        head.no_wrap, head.overflow = True, "ellipsis"
        parts += [head, Padding(Text(clean(line.reason)), (0, 0, 0, 4))]
        if line.charge is not None:
            parts.append(Padding(Text(cost_text(line.charge), style="dim"), (0, 0, 0, 4)))
    return Group(*parts)


def run_view(
    status: Status,
    history: Sequence[HistoryLine],
    *,
    elapsed: timedelta | None = None,
    spinner: Spinner | None = None,
    notice: Notice | None = None,
    last: int = 8,
    width: int = 100,
) -> RenderableType:
    """Everything about a run on one screen; `spinner` keeps its own phase between two drawings, so it is passed in."""
    parts: list[RenderableType] = [
        header(status),
        Text(),
        budget_bars(status, elapsed, width=20 if width >= WIDE else 10),
        Text(),
        config_table(status, bar_width=20 if width >= WIDE else 0),
        score_line(status),
        Text(),
    ]
    if status.phase not in OVER:
        at_work = Text(clean(status.activity) or status.phase.value, style="yellow" if status.paused else "")
        if spinner is not None and not status.paused:
            spinner.update(text=at_work)
            parts.append(spinner)
        else:
            parts.append(Text.assemble(("now ", "dim"), at_work))
    for text in _standing_notes(status):
        parts.append(Text(text, style="dim"))
    if notice:
        parts.append(Text(str(notice), style="bold yellow"))
    if shown := list(history)[-last:]:
        if parts[-1] != Text():
            parts.append(Text())
        parts.append(history_table(reversed(shown), width=width))
    return Group(*parts)


def _standing_notes(status: Status) -> list[str]:
    notes = []
    if status.phase is Phase.AWAITING_APPROVAL:
        notes.append(approval_needed(status.run_id))
    if status.pause_reason:
        notes.append(f"paused: {clean(status.pause_reason)}")
    if status.hints:
        notes.append(f"hints: {' | '.join(clean(hint) for hint in status.hints[-3:])}")
    if status.waiting_submissions:
        notes.append(f"{counted(status.waiting_submissions, 'submitted kernel')} waiting in turn")
    if status.stop_reason:
        notes.append(f"ending: {clean(status.stop_reason)}")
    return notes


# ---------------------------------------------------------------- the end of a run


def status_of_result(run_id: str, plan: Plan, result: RunResult, stage: Stage) -> Status:
    """The status of an ended run, from its result alone: no worker has to answer a query for it."""
    return Status(
        run_id=run_id,
        plan=plan,
        phase=Phase.DONE,
        stage=stage,
        iteration=result.iterations,
        activity="",
        champion=result.champion,
        last=None,
        baseline=result.baseline,
        budget=plan.budget,
        charged_minutes=result.charged_minutes,
        charge=result.charge,
        wins=result.wins,
        attempts=result.attempts,
        since_win=0,
        hints=[],
        waiting_submissions=0,
        paused=False,
        stop_reason=result.reason,
        device=result.baseline.device.name if result.baseline else "",
        gate_digest=result.gate_digest,
        acceptance=result.acceptance,
        delivery=result.delivery,
        standing=result.standing,
    )


def accepted(status: Status) -> bool:
    return status.acceptance is not None and status.acceptance.accepted


def result_view(status: Status, outcome: str, reason: str, *, ui: str, width: int = 100) -> RenderableType:
    """How a run ended: verdict, per-config table with intervals, device, gate, and where everything lies."""
    good = accepted(status)
    who = status.acceptance.version if good and status.acceptance else None
    word, bracket, label = outcome.partition(" (")
    headed = f"{word.upper()}{bracket}{label}"  # the label keeps its one spelling
    headline = Text.assemble(
        (headed, "bold green" if outcome == "accepted" else "bold yellow" if good else "bold red"),
        (f" {who}" if who else "", "bold"),
        f" after {counted(status.wins + status.attempts, 'iteration')}"
        f" ({counted(status.wins, 'win')}, {counted(status.attempts, 'attempt')})",
    )
    parts: list[RenderableType] = [headline, Text(clean(reason))]
    if status.acceptance and not good and clean(status.acceptance.reason) != clean(reason):
        parts.append(Text(f"acceptance: {clean(status.acceptance.reason)}", style="red"))
    if status.plan.standing:
        parts.append(Text(f"every number here is {status.plan.standing}, none is verified", style="bold yellow"))
    if status.champion or (status.acceptance and status.acceptance.measurement):
        bar = 20 if width >= 110 else 0
        parts += [Text(), config_table(status, bar_width=bar, intervals=True), score_line(status)]
        parts += searched_line(status)
    # Not wrapped: paths and addresses are there to be copied.
    facts = [
        Text.assemble((f"{label:<13}", "dim"), clean(value), no_wrap=True, overflow="ignore")
        for label, value in _facts(status, ui)
    ]
    return Group(*parts, Text(), *facts)


def _facts(status: Status, ui: str) -> list[tuple[str, str]]:
    final = status.acceptance.measurement if status.acceptance else None
    device = final.device if final else status.baseline.device if status.baseline else None
    facts = []
    report = _report(status)
    if report is not None:
        facts.append(("ran on", f"{report.machine} (sandbox {report.sandbox})"))
    if device:
        facts.append(("device", ", ".join(part for part in (device.name, device.detail, device.toolkit) if part)))
    if status.gate_digest:
        facts.append(("gate", status.gate_digest))
    facts.append(("charged", f"{status.charged_minutes:.1f} min"))
    if status.charge.calls:
        facts.append(("models", cost_text(status.charge)))
    if status.delivery:
        files = f"{status.delivery.folder} ({', '.join(sorted(status.delivery.files))})"
        facts.append(("delivered", labelled(files, status.plan.standing)))
        facts.append(("record", f"{status.delivery.record} (git log --stat)"))
    facts.append(("run", status.run_id))
    facts.append(("Temporal UI", ui))
    return facts


# ---------------------------------------------------------------- several runs


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of `list`, all of it from what the server knows: ended runs and runs without a worker show too."""

    id: str
    task: str
    state: str  # running, completed, ...
    phase: str
    stage: str
    champion: str
    score: float | None
    iteration: int | None
    started: datetime
    tokens: int | None = None  # None: no model was asked
    usd: float | None = None  # None with tokens: the price is unknown


DROPPED = ("task", "stage", "phase", "cost")  # in this order, when the terminal is too narrow for all


def runs_table(rows: Iterable[RunRow], now: datetime, *, width: int = 160) -> Table:
    """One row a run. No cell is ever cut: columns go as a whole, and the run's id never does."""
    cells = [
        {
            "run": Text(row.id, style="bold"),
            "task": Text(clean(row.task)),
            "state": Text(row.state, style=_STATE_STYLES.get(row.state, "yellow")),
            "phase": Text(row.phase),
            "stage": Text(row.stage),
            "champion": Text(row.champion or "-"),
            "score": Text(ratio_text(row.score)),
            "cost": Text("-" if row.tokens is None else f"{size(row.tokens)} tokens, {usd_text(row.usd)}"),
            "started": Text(f"{duration((now - row.started).total_seconds())} ago"),
        }
        for row in rows
    ]
    names = ("run", "task", "state", "phase", "stage", "champion", "score", "cost", "started")
    widths = {name: max(len(name), *(row[name].cell_len for row in cells)) if cells else len(name) for name in names}
    shown = [name for name in names if name != "cost" or any(row[name].plain != "-" for row in cells)]
    for name in DROPPED:
        if name in shown and _joined(widths[one] for one in shown) > width:
            shown.remove(name)
    # At its own width even in a terminal that is narrower still: there the lines go on below.
    table = Table(
        box=None, pad_edge=False, header_style="dim", padding=(0, 1), width=_joined(widths[one] for one in shown)
    )
    for name in shown:
        table.add_column(name, justify="right" if name == "score" else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(row[name] for name in shown))
    return table


def _joined(widths: Iterable[int]) -> int:
    """Width of columns with two blanks between each and the next."""
    each = list(widths)
    return sum(each) + 2 * (len(each) - 1)
