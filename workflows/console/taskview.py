"""A task file as a person checks it, and how two sources differ: pure functions to rich renderables."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specs import references
from specs.errors import Problem
from specs.loader import LoadedTask
from specs.schema import Argument, Harness, Interface, Provider, Task
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
    models = f"{model.optimizer}, reviewer {model.reviewer or 'none: wins are not reviewed'}"
    at = f", at {model.base_url}" if model.base_url else ""
    played = {
        Provider.SCRIPTED: f"script {model.script}",
        Provider.REPLAY: f"recording {model.recording}",
        Provider.TUNE: "no model: the parameters that a kernel declares",
    }.get(model.provider, f"{models}{at}")
    facts = [
        ("device", f"{task.gpu}, {task.arch}, {task.precision}, {task.language.value}"),
        ("problem", task.problem.description),
        ("shapes", shapes or "none"),
        ("baseline", task.baseline.source + program),
        ("scoring", f"{task.scoring.value}; stage gate at {task.stage_gate.ratio:g}{strict}"),
        ("interface", _signature(task.interface) if task.interface else "none"),
        ("gate", task.gate or _no_gate(task)),
        ("canonical", ", ".join(task.canonical) or "none"),
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
    approved = ", and waits for a person's approval" if task.approve_gate else ""
    return f"none: one is written first{approved} (a program that reports on itself needs `harness: self_contained`)"


def _signature(interface: Interface) -> str:
    def shown(argument: Argument) -> str:
        shape = f"[{', '.join(argument.shape)}]" if argument.shape is not None else ""
        typed = f"{argument.dtype.value}{shape} " if argument.dtype else ""
        return f"{argument.name or 'stream'}: {typed}{argument.kind.value}"

    return f"{interface.entry}({', '.join(shown(argument) for argument in interface.arguments)})"


def counted_references(tasks: Iterable[LoadedTask]) -> tuple[Counter[str], list[Problem]]:
    """How many references of these tasks come from each source, and those that are not there."""
    found: Counter[str] = Counter()
    missing = []
    for task in tasks:
        for index, entry in enumerate(task.task.references):
            place = references.resolve(entry, task.path.parent)
            if place is None:
                what = f"{references.name_of(entry)!r} is neither beside the task nor in {references.FOLDER}/"
                missing.append(task.problem(("references", index), what))
            else:
                found[references.source_of(place, task.path.parent)] += 1
    return found, missing


def references_table(found: Counter[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("source", overflow="fold")
    table.add_column("references", justify="right", no_wrap=True)
    for source, count in found.most_common():
        table.add_row(Text(clean(source)), str(count))
    table.add_row(Text("together", style="dim"), Text(str(found.total()), style="dim"))
    return table


def diff_lines(old: str, new: str, old_name: str, new_name: str) -> list[Text]:
    """Unified diff, a line each; empty when the sources are equal."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return [
        Text(printable_source(line), style="bold" if line.startswith(("+++", "---")) else styles.get(line[:1], ""))
        for line in lines
    ]
