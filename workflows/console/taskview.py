"""A task file as a person checks it, and how two sources differ: pure functions to rich renderables."""

from __future__ import annotations

import difflib

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specs.schema import Argument, Harness, Interface, Task
from workflows.console.lines import budget_text, clean, printable_source


def task_view(task: Task, file: str) -> RenderableType:
    """A parsed task as a person checks it: every field that decides something, defaults filled in."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _task_facts(task):
        facts.add_row(label, Text(clean(value)))
    configs = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    configs.add_column("config", overflow="fold")
    configs.add_column("args", overflow="fold")
    configs.add_column("target", justify="right", no_wrap=True)
    configs.add_column("weight", justify="right", no_wrap=True)
    for config in task.configs:
        args = ", ".join(f"{name}={value}" for name, value in config.args.items())
        focus = " (focus)" if config.name == task.focus_config else ""
        configs.add_row(
            Text(clean(config.name) + focus), Text(clean(args)), f"{config.target_ratio:g}", f"{config.weight:g}"
        )
    return Group(
        Text.assemble((clean(task.name), "bold"), (f"  {file}", "dim"), overflow="fold"), facts, Text(), configs
    )


def _task_facts(task: Task) -> list[tuple[str, str]]:
    shapes = ", ".join(f"{name}={value}" for name, value in task.problem.shapes.items())
    program = f" ({' '.join((task.baseline.program, *task.baseline.flags))})" if task.baseline.program else ""
    strict = ", strict: every config must also reach its own target" if task.stage_gate.strict else ""
    search, model = task.search, task.model
    played = f"script {model.script}" if model.script else f"{model.optimizer}, reviewer {model.reviewer}"
    facts = [
        ("device", f"{task.gpu}, {task.arch}, {task.precision}, {task.language.value}"),
        ("problem", task.problem.description),
        ("shapes", shapes or "none"),
        ("baseline", task.baseline.source + program),
        ("scoring", f"{task.scoring.value}; stage gate at {task.stage_gate.ratio:g}{strict}"),
        ("interface", _signature(task.interface) if task.interface else "none"),
        ("gate", task.gate or _no_gate(task)),
        ("seed", task.seed or "none"),
        ("search", f"width {search.width}, stall after {search.stall_after}, minimum gain {search.min_gain:g}"),
        ("optimizer", f"{model.provider.value}: {played}"),
        ("budget", budget_text(task.budget)),
    ]
    if task.harness is Harness.SELF_CONTAINED:
        facts.append(("harness", "self_contained: every result is self-reported, never verified"))
    flags = " ".join((*task.build.flags, *task.build.production_flags))
    if flags:
        facts.append(("build flags", flags))
    if task.acceptance:
        facts.append(("acceptance", " ".join(task.acceptance.command)))
    facts += [
        (label, str(len(values)))
        for label, values in (("references", task.references), ("constraints", task.constraints), ("hints", task.hints))
        if values
    ]
    if task.notes:
        facts.append(("notes", ", ".join(task.notes)))
    return facts


def _no_gate(task: Task) -> str:
    if task.harness is Harness.SELF_CONTAINED:
        return "none: nothing is verified"
    return "none: one is written first (a program that reports on itself needs `harness: self_contained`)"


def _signature(interface: Interface) -> str:
    def shown(argument: Argument) -> str:
        shape = f"[{', '.join(argument.shape)}]" if argument.shape is not None else ""
        typed = f"{argument.dtype.value}{shape} " if argument.dtype else ""
        return f"{argument.name or 'stream'}: {typed}{argument.kind.value}"

    return f"{interface.entry}({', '.join(shown(argument) for argument in interface.arguments)})"


def diff_lines(old: str, new: str, old_name: str, new_name: str) -> list[Text]:
    """Unified diff, a line each; empty when the sources are equal."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return [
        Text(printable_source(line), style="bold" if line.startswith(("+++", "---")) else styles.get(line[:1], ""))
        for line in lines
    ]
