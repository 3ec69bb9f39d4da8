"""Do the clock of record and other timers agree? `python benchmarks/timer_agreement.py TASK KERNEL [--json OUT]`.

For every config: the time by the judge's window (events round one replay, L2 flushed, launches hidden), twice in fresh
processes; by events round a CUDA graph of the same launches after the same flush; and by the difference of a graph of
many flushes with and without the call, which uses no event near the call at all.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from kernels.harness import build, gate, machine, trial
from kernels.harness.gate import Case
from kernels.harness.requests import Build
from specs.loader import load_task

SAMPLES = 60


def main(
    task: Annotated[Path, typer.Argument()],
    kernel: Annotated[Path, typer.Argument()],
    out: Annotated[Path | None, typer.Option("--json")] = None,
    modes: Annotated[str, typer.Option(help="Ways to flush, in this order.")] = "read",
) -> None:
    loaded = load_task(task)
    spec = loaded.task
    assert spec.gate is not None
    folder = loaded.resolve(spec.gate).absolute()
    locked = gate.lock(spec, folder)
    ready = gate.load(spec, folder, locked)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        built = build.build(Build(task=spec, source=kernel.absolute(), builds=Path(work)))
        if built.library is None:
            sys.exit(built.result.log_tail)
        library = built.library.read_bytes()
        rng = trial.secret_rng()
        with machine.opened(spec, Path(work), "preferred") as where, where.lock(60):
            print(where.describe())
            cases = [Case(name=c.name, args=c.args) for c in spec.configs]
            memory = where.memory(trial.shapes(spec, cases))
            for mode in modes.split(","):
                where.flush_by(mode)  # type: ignore[attr-defined]
                for case in cases:
                    rows.append({"flush": mode, **_row(where, memory, library, ready, spec, case, rng)})
                    print(_told(rows[-1]), flush=True)
            memory.close()
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))


def _row(where: Any, memory: Any, library: bytes, ready: Any, spec: Any, case: Case, rng: Any) -> dict[str, Any]:
    windows: list[list[float]] = []
    for _ in range(2):
        runner = where.contestant(memory, candidate=library)
        question = trial.ask(ready, spec, case, ready.distributions[0], rng)
        times = []
        for _ in range(SAMPLES):
            filled, slots = trial.prepare(runner, spec, question, rng, stages=False)
            times.append(runner.call(filled, slots, rng, flush=True, timeout_s=20).microseconds)
        windows.append(times)
        graph = runner.graph_window_us(filled, slots, replays=SAMPLES, timeout_s=60)
        apart = runner.graph_us(filled, slots, copies=20, replays=10, timeout_s=60)
        runner.close()
    first, second = (statistics.median(times) for times in windows)
    return {
        "config": case.name,
        "window_us": first,
        "again_us": second,
        "quartiles_us": statistics.quantiles(windows[0], n=4),
        "graph_window_us": statistics.median(graph),
        "graph_difference_us": statistics.median(apart),
    }


def _told(row: dict[str, Any]) -> str:
    first, second, graph = row["window_us"], row["again_us"], row["graph_window_us"]
    return (
        f"{row['flush']:12} {row['config']:28} window {first:8.2f} again {second:8.2f} ({second / first - 1:+.2%})  "
        f"graph {graph:8.2f} ({first - graph:+.2f} us, {first / graph - 1:+.2%})  "
        f"by difference {row['graph_difference_us']:8.2f}"
    )


if __name__ == "__main__":
    typer.run(main)
