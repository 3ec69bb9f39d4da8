"""How a task file and a difference between two sources are shown."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from specs.loader import load_task
from workflows.console.taskview import counted_references, diff_lines, references_table, task_view

TASK = """
name: rmsnorm
gpu: CPU
arch: x86-64
precision: f32
problem: {description: "y = x / rms(x)", shapes: {M: 4}}
baseline: {source: plain C++, program: baseline.cpp, flags: [-O3]}
configs:
  - {name: small, args: {N: 64}, target_ratio: 1.1}
  - {name: large, args: {N: 4096}, weight: 2}
scoring: focus
focus_config: large
interface:
  entry: rmsnorm
  arguments:
    - {name: x, kind: input, dtype: f32, shape: [M, N]}
    - {name: y, kind: output, dtype: f32, shape: [M, N]}
    - {name: N, kind: scalar, dtype: i32}
gate: gate
seed: seed.cpp
model: {provider: scripted, script: script}
budget: {max_iterations: 7, max_usd: 5}
surprise: kept
"""


def shown(tmp_path: Path, text: str) -> str:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    console = Console(file=io.StringIO(), width=140)
    console.print(task_view(load_task(path).task, "task.yaml"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_that_decides_is_shown(tmp_path: Path) -> None:
    """Scoring, interface, gate, budget and configs of a task are there, defaults filled in."""
    text = shown(tmp_path, TASK)

    for part in (
        "rmsnorm(x: f32[M, N] input, y: f32[M, N] output, N: i32 scalar)",
        "plain C++ (baseline.cpp -O3)",
        "focus; stage gate at 0.9",
        "scripted: script script",
        "7 iterations, 120 minutes, 5 USD",
        "large (focus)",
        "N=4096",
        "0.95",
        "surprise",
    ):
        assert part in text


def test_self_reported_results_are_named(tmp_path: Path) -> None:
    """A task in the original form is never taken for a verified one."""
    assert "self-reported, never verified" in shown(tmp_path, TASK + "harness: self_contained\n")


def test_a_difference_is_a_unified_diff() -> None:
    """Removed and added lines stand under the names of the two versions."""
    lines = [line.plain for line in diff_lines("a\nb\n", "a\nc\n", "v001", "v002")]

    assert lines == ["--- v001", "+++ v002", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]


def test_equal_sources_differ_in_no_line() -> None:
    """The same source twice gives nothing to show."""
    assert diff_lines("a\n", "a\n", "v001", "best") == []


def test_a_source_cannot_command_the_terminal() -> None:
    """An escape sequence inside a source is not passed on."""
    assert all("\x1b" not in line.plain for line in diff_lines("", "\x1b[2J\n", "a", "b"))


def test_who_proposes_is_shown_with_its_address(tmp_path: Path) -> None:
    """Models by name and where another server is; or the recording that is played."""
    model = "model: {provider: local, optimizer: qwen, reviewer: small, base_url: http://127.0.0.1:8080}"
    replay = "model: {provider: replay, recording: run.jsonl}"
    script = "model: {provider: scripted, script: script}"

    told = "local: qwen, reviewer small, at http://127.0.0.1:8080"
    assert told in shown(tmp_path, TASK.replace(script, model))
    assert "replay: recording run.jsonl" in shown(tmp_path, TASK.replace(script, replay))


def test_a_gate_that_waits_for_a_person_is_announced(tmp_path: Path) -> None:
    """With what it is written from."""
    text = shown(tmp_path, TASK.replace("gate: gate", "canonical: [model.py]\napprove_gate: true"))

    assert "one is written first, and waits for a person's approval" in text
    assert "model.py" in text


def test_references_are_counted_by_source_and_missing_ones_named(tmp_path: Path) -> None:
    """With task and line, so that an editor finds them."""
    (tmp_path / "notes.md").write_text("n")
    path = tmp_path / "task.yaml"
    path.write_text(TASK + "references:\n  - notes.md   \n  - 'resources/absent    # the baseline'\n")
    found, missing = counted_references([load_task(path)])
    console = Console(file=io.StringIO(), width=80)
    console.print(references_table(found))
    assert isinstance(console.file, io.StringIO)

    assert [line.split() for line in console.file.getvalue().splitlines()][1:] == [
        ["task", "folder", "1"],
        ["together", "1"],
    ]
    line = len(path.read_text().splitlines())
    assert [str(one) for one in missing] == [
        f"{path}:{line}: references[1]: 'resources/absent' is neither beside the task nor in resources/"
    ]
