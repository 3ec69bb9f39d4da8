"""What a person reads of a run as plain text: numbers, words, and one line per event."""

from __future__ import annotations

from collections.abc import Iterable

from activities.interpreter import command
from specs.outcomes import Charge, Ending, Interval, labelled
from specs.schema import Budget
from workflows.budget import counted
from workflows.state import HistoryLine, Phase, Status

OVER = {Phase.DONE, Phase.CANCELLED}


def clean(text: str) -> str:
    """`text` on one line with nothing in it that a terminal would obey: labels and reasons come from candidates."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def printable_source(text: str) -> str:
    """`text` with its lines and tabs kept and every other control character replaced."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def microseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def ratio_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def interval_text(interval: Interval) -> str:
    return f"{ratio_text(interval.low)} to {ratio_text(interval.high)}"


def duration(seconds: float) -> str:
    """A span of time for people: `41 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: float) -> str:
    """A count for people: `950`, `12.5k`, `20M`."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return f"{count:g}"


def budget_text(budget: Budget) -> str:
    tokens = f", {size(budget.max_tokens)} tokens" if budget.max_tokens else ""
    usd = f", {budget.max_usd:g} USD" if budget.max_usd else ""
    iterations = counted(budget.max_iterations, "iteration")
    return f"{iterations}, {counted(budget.max_wall_minutes, 'minute')}{tokens}{usd}"


def usd_text(usd: float | None) -> str:
    """`3.41 USD`; what is less than one to a hundredth of a cent, and what nobody knows by that name."""
    if usd is None:
        return "price unknown"
    return f"{usd:.2f} USD" if usd >= 1 or usd == 0 else f"{usd:.4f} USD"


def tokens_text(charge: Charge) -> str:
    """`340k in, 800k cached, 60k out, 41 calls`; what was written to a server's cache was read in, too."""
    read = charge.input_tokens + charge.cache_write_tokens
    calls = counted(charge.calls, "call")
    return f"{size(read)} in, {size(charge.cache_read_tokens)} cached, {size(charge.output_tokens)} out, {calls}"


def cost_text(charge: Charge) -> str:
    return f"{tokens_text(charge)}, {usd_text(charge.usd)}"


def ending_word(ending: Ending) -> str:
    return ending.value.replace("_", " ")


def history_line(line: HistoryLine) -> str:
    """`a002 refused 02_tail.cpp: wrong at n4096: ...`"""
    ratios = ", ".join(f"{name} {ratio_text(ratio)}" for name, ratio in line.ratios.items())
    # Decisions name the score in their reason already.
    score = f", score {ratio_text(line.score)}" if line.score is not None and "score" not in line.reason else ""
    shown = f" ({clean(ratios)})" if ratios else ""
    label = f" {clean(line.label)}" if line.label else ""
    ending = labelled(ending_word(line.ending), line.standing)
    cost = f" [{cost_text(line.charge)}]" if line.charge is not None else ""
    return f"{line.version} {ending}{label}: {clean(line.reason)}{score}{shown}{cost}"


def events(before: Status | None, after: Status, fresh: Iterable[HistoryLine]) -> list[str]:
    """What happened between two looks at a run, one plain line each; `fresh` are the iterations ended meanwhile."""
    lines = []
    if before is None:
        told = f"{after.run_id}: {clean(after.plan.task)} against {clean(after.plan.baseline)}"
        lines.append(labelled(told, after.plan.standing))
    if after.gate_digest and not (before and before.gate_digest):
        lines.append(f"gate locked: {after.gate_digest[:12]}")
    if after.baseline and not (before and before.baseline):
        times = ", ".join(
            f"{name} {microseconds(timing.median_us)} us" for name, timing in after.baseline.timings.items()
        )
        lines.append(f"baseline {clean(after.baseline.description or after.plan.baseline)}: {clean(times)}")
        lines.append(f"device {clean(' '.join((after.baseline.device.name, after.baseline.device.detail)))}")
    lines.extend(history_line(line) for line in fresh)
    if before and after.stage is not before.stage:
        lines.append(f"stage {after.stage.value}")
    if before and after.budget != before.budget:
        lines.append(f"budget now {budget_text(after.budget)}")
    known = len(before.hints) if before else 0
    lines.extend(f"hint: {clean(hint)}" for hint in after.hints[known:])
    if after.pause_reason and after.pause_reason != (before.pause_reason if before else None):
        lines.append(f"paused: {clean(after.pause_reason)}")
    if after.stop_reason and not (before and before.stop_reason):
        lines.append(f"ending: {clean(after.stop_reason)}")
    if after.phase not in OVER and (before is None or after.phase is not before.phase):
        lines.append(after.phase.value)
        if after.phase is Phase.AWAITING_APPROVAL:
            lines.append(approval_needed(after.run_id))
    return lines


def approval_needed(run_id: str) -> str:
    """What a run that waits for a person's word on its gate wants."""
    read, approve = command("client.py", "gate", run_id), command("client.py", "approve-gate", run_id)
    return f"read the gate: {read}; then: {approve} (or with --refuse --reason TEXT)"
