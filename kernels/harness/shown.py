"""What a command says: tables and sentences for a person, or one JSON object for a program."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer
from pydantic_core import to_json

from kernels.harness.wording import printable

if TYPE_CHECKING:
    from kernels.harness.admission import Admission
    from kernels.harness.roofline import Peaks
    from specs.outcomes import BuildResult, Failure, Measurement, Metrics, SelfReported, Verdict
    from specs.schema import Task

_answers: io.FileIO | None = None  # where JSON goes in a process that keeps its standard output for it
_owner = os.getpid()


def keep_stdout_for_json() -> None:
    """From here on whatever else is printed, by a gate's code or by a child, goes to standard error."""
    global _answers
    sys.stdout.flush()
    _answers = io.FileIO(os.dup(1), "w")
    os.dup2(2, 1)


def print_json(content: dict[str, Any]) -> None:
    """One object in one line; infinities and NaN, which JSON has not, become null. Raises OSError."""
    if os.getpid() != _owner and _answers is not None:
        return  # a gate's code has forked: one answer is enough
    text = to_json(content, inf_nan_mode="null")
    if _answers is None:
        typer.echo(text.decode())
        return
    line = memoryview(text + b"\n")
    while line:
        line = line[_answers.write(line) :]


def show_verdict(result: BuildResult, verdict: Verdict | None) -> None:
    if verdict is None:
        typer.echo(f"{result.status.value.upper()}: the kernel was not built\n{printable(result.log_tail)}".rstrip())
        return
    if verdict.failure is not None:
        show_failure(verdict.failure)
    else:
        typer.echo(f"PASSED: {verdict.cases} calls checked")
    for metrics in verdict.worst:
        typer.echo(f"  {metrics.tensor}: {_told(metrics)}")
    if verdict.memory_check:
        typer.echo(f"  memory {verdict.memory_check}")
    what = f"library {verdict.library[:12]}, gate {verdict.gate[:12]}"
    typer.echo(f"  {what}, sandbox {verdict.sandbox}, {verdict.seconds:.1f} s")


def show_failure(failure: Failure) -> None:
    stage = f", tensor {failure.first_failing_stage}" if failure.first_failing_stage else ""
    typer.echo(f"REFUSED ({failure.kind.value}) in stage {failure.verification.value}{stage}")
    typer.echo(f"  {printable(failure.message)}")
    if failure.metrics is not None:
        typer.echo(f"  {failure.metrics.tensor}: {_told(failure.metrics)}")


def _told(metrics: Metrics) -> str:
    shown = ("max_abs", "max_rel", "rel_l2", "cosine", "mismatch_fraction")
    known = [(name, getattr(metrics, name)) for name in shown]
    return ", ".join(f"{name} {value:.4g}" for name, value in known if value is not None) or "no finite distance"


def show_report(task: Task, report: SelfReported) -> None:
    """The table of a self-contained program, headed and footed by what it is worth."""
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(f"{report.label}, nothing verified: {task.name} against {task.baseline.source}", soft_wrap=True)
    if report.refused:
        typer.echo(f"REFUSED: {printable(report.refused)}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    times = ("kernel us", "baseline us", "kernel TFLOPS", "baseline TFLOPS")
    for heading in ("config", f"{report.label} ratio", "target", *times):
        table.add_column(heading, justify="left" if heading == "config" else "right", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for one in report.configs:
        table.add_row(
            one.config,
            f"{one.ratio:.3f}",
            f"{task.config(one.config).target_ratio:g}",
            *(number(value) for value in (one.ours_us, one.reference_us, one.ours_tflops, one.reference_tflops)),
            "" if report.refused else one.reason,
        )
    console.print(table)
    console.print(
        f"{report.label} score {report.score:.3f} ({task.scoring.value}), geomean {report.geomean:.3f}", soft_wrap=True
    )
    console.print(f"{report.machine}; sandbox {report.sandbox}, {report.seconds:.1f} s", soft_wrap=True)
    if report.output_tail:
        typer.echo(f"--- what it printed\n{printable(report.output_tail)}")


def show_peaks(peaks: Peaks) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("rate", "best", "median", "at top clock", "unit"):
        table.add_column(heading, justify="left" if heading in ("rate", "unit") else "right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for unit, rates in (("GB/s", peaks.bandwidth), ("GFLOP/s", peaks.flops)):
        for name, rate in rates.items():
            top = "" if rate.at_top_clock is None else f"{rate.at_top_clock / 1e9:,.1f}"
            told = unit if not name.startswith("i") else "GOP/s"
            table.add_row(name, f"{rate.best / 1e9:,.1f}", f"{rate.median / 1e9:,.1f}", top, told, rate.how)
    for name, reason in peaks.missing.items():
        table.add_row(name, "", "", "", "", f"not measured: {reason}")
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    console.print(f"{peaks.device}; last-level cache {peaks.cache_bytes >> 20} MiB", soft_wrap=True)
    times = f"{peaks.runs} calibration" + ("s" if peaks.runs > 1 else "")
    console.print(f"{peaks.measured_at}, {times}, the last took {peaks.seconds:.1f} s", soft_wrap=True)


def show_admission(task: Task, found: Admission, no_device: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("mutant", "fate", "where", "by"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for one in found.mutants:
        told = f"{one.told}; admitted: {one.reason}" if one.reason else one.told
        table.add_row(one.mutant, one.fate.replace("_", " "), one.where, one.by, told)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(table)
    for name, limits in found.limits.items():
        console.print(f"{name}: {', '.join(f'{metric} {limit:g}' for metric, limit in limits.items()) or 'equal'}")
    if found.baseline is None:
        console.print(f"baseline: not judged: {no_device}" if no_device else "baseline: none given, not judged")
    else:
        told = "passes" if found.baseline.passed else "REFUSED"
        console.print(f"baseline: {told}, {found.baseline.cases} calls, {found.baseline.seconds:.1f} s")
    counts = Counter(one.fate.replace("_", " ") for one in found.mutants)
    console.print(", ".join(f"{count} {fate}" for fate, count in counts.items()) + f" in {found.seconds:.1f} s")
    what = f"gate {found.gate[:12]} of {task.name}"
    console.print(f"ADMITTED: {what}" if found.admitted else f"REFUSED: {what}: {found.why_not}", soft_wrap=True)


def show_measurement(task: Task, measurement: Measurement) -> None:
    from rich.console import Console
    from rich.table import Table

    with_champion = any(config.champion is not None for config in measurement.configs)
    champion = ["champion us"] if with_champion else []
    headings = ["config", "baseline us", *champion, "kernel us", "ratio", "95% interval", "spread", "rounds", "target"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "config" else "right", no_wrap=True)
    for config in measurement.configs:
        rival = [f"{config.champion.median_us:.1f}"] if config.champion is not None else []
        table.add_row(
            config.config,
            f"{config.baseline.median_us:.1f}",
            *rival,
            f"{config.candidate.median_us:.1f}",
            f"{config.ratio.value:.3f}",
            f"{config.ratio.low:.3f} to {config.ratio.high:.3f}",
            f"{config.baseline.spread:.1%} / {config.candidate.spread:.1%}",
            str(config.candidate.samples),
            f"{task.config(config.config).target_ratio:g}",
        )
    # A pipe has no width; the usual guess of 80 columns would break every cell.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(f"{task.name} against {task.baseline.source}", soft_wrap=True)
    console.print(table)
    score, gain, device = measurement.score, measurement.gain, measurement.device
    interval = f"{score.low:.3f} to {score.high:.3f}"
    console.print(f"score {score.value:.3f} ({interval}, {task.scoring.value}), geomean {measurement.geomean:.3f}")
    if gain is not None:
        needed = 1 + task.search.min_gain
        console.print(
            f"gain over the champion {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}), over {needed:g} wins"
        )
    console.print(f"{device.name}; {device.detail}; {device.toolkit}", soft_wrap=True)
    console.print(f"sandbox {measurement.sandbox}, {measurement.seconds:.1f} s")
