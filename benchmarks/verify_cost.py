"""What does it cost to verify a kernel? `python benchmarks/verify_cost.py TASK KERNEL`.

Wall time of a whole verification (build, five stages, memory check) over that of its builds and of the kernel's own
calls alone. The harness's tools are built before, as they are once a machine.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernels.harness import build, gate, judge, sanitize, trial
from kernels.harness.requests import Build, Judge
from specs.loader import load_task


def main(task: Annotated[Path, typer.Argument()], kernel: Annotated[Path, typer.Argument()]) -> None:
    loaded = load_task(task)
    spec = loaded.task
    assert spec.gate is not None
    folder = loaded.resolve(spec.gate).absolute()
    with tempfile.TemporaryDirectory() as work:
        builds = Path(work)
        lock = gate.lock(spec, folder)
        other = builds / f"first{spec.language.suffix}"  # brings the tools into being, under another key
        other.write_text(kernel.read_text() + "\n// built first\n")
        _judged(spec, folder, lock, other, builds)
        calls: list[float] = []
        original = trial.put

        def put(*given: Any, **named: Any) -> trial.Answered:
            answered = original(*given, **named)
            calls.append(answered.microseconds / 1e6)
            return answered

        trial.put = put
        begin = time.monotonic()
        built_s, verdict = _judged(spec, folder, lock, kernel, builds)
        whole = time.monotonic() - begin
        assert verdict.passed, verdict.failure
        begin = time.monotonic()
        again = builds / f"again{spec.language.suffix}"
        again.write_text(kernel.read_text() + "\n// built again\n")
        build.build_sanitized(spec, again, sanitize.FLAGS, builds)
        checked_s = time.monotonic() - begin
    alone = built_s + checked_s + sum(calls)
    row = {
        "task": spec.name,
        "kernel": kernel.name,
        "verify_s": round(whole, 2),
        "build_s": round(built_s, 2),
        "sanitized_build_s": round(checked_s, 2),
        "calls": len(calls),
        "calls_s": round(sum(calls), 3),
        "ratio": round(whole / alone, 2),
        "memory_check": verdict.memory_check,
    }
    print(json.dumps(row, indent=1))


def _judged(spec: Any, folder: Path, lock: Any, kernel: Path, builds: Path) -> tuple[float, Any]:
    begin = time.monotonic()
    built = build.build(Build(task=spec, source=kernel.absolute(), builds=builds))
    built_s = time.monotonic() - begin
    assert built.library is not None, built.result.log_tail
    request = Judge(task=spec, gate=folder, lock=lock, library=built.library, builds=builds, source=kernel.absolute())
    return built_s, judge.judge(request)


if __name__ == "__main__":
    typer.run(main)
