"""Are the decisions of the measurement right on a GPU? `python benchmarks/decisions.py [--trials N] [--json OUT]`.

Three questions, each with so many measurements of their own: does a short kernel win against itself, does a longer one,
and is a kernel found that is 2% faster because 2% of its work was removed? A win is what the run calls a win: the low
end of the interval of the gain clears min_gain.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernels.harness import build, gate, machine, trial
from kernels.harness.gate import Case
from kernels.harness.measure import measure
from kernels.harness.requests import Build, Measure, Measured
from specs.loader import load_task
from specs.schema import Task

HERE = Path(__file__).parent / "decisions"
PLAIN = Path(__file__).parents[1] / "tests" / "exploits" / "honest_cuda" / "plain.cu"
REPEATS = 400
FASTER = 1.02


class Bench:
    def __init__(self, folder: Path) -> None:
        self.loaded = load_task(HERE / "task.yaml")
        self.task: Task = self.loaded.task
        assert self.task.gate is not None
        assert self.task.baseline.program is not None
        self.folder = folder
        self.gate = self.loaded.resolve(self.task.gate).absolute()
        self.lock = gate.lock(self.task, self.gate)
        self.baseline = self.built(self.loaded.resolve(self.task.baseline.program).read_text())

    def built(self, source: str) -> Path:
        path = self.folder / f"source-{abs(hash(source))}.cu"
        path.write_text(source)
        answer = build.build(Build(task=self.task, source=path, builds=self.folder / "builds"))
        assert answer.library is not None, answer.result.log_tail
        return answer.library

    def repeating(self, count: int) -> Path:
        return self.built((HERE / "repeats.cu").read_text().replace("REPEATS", str(count)))

    def median_us(self, library: Path, samples: int = 60) -> float:
        rng = trial.secret_rng()
        ready = gate.load(self.task, self.gate, self.lock)
        case = Case(name="rows", args=self.task.configs[0].args)
        with machine.opened(self.task, self.folder / "builds", "preferred") as where, where.lock(60):
            memory = where.memory(trial.shapes(self.task, [case]))
            runner = where.contestant(memory, candidate=library.read_bytes())
            question = trial.ask(ready, self.task, case, "normal", rng)
            times = []
            for _ in range(samples):
                filled, slots = trial.prepare(runner, self.task, question, rng, stages=False)
                times.append(runner.call(filled, slots, rng, flush=True, timeout_s=20).microseconds)
            runner.close()
            memory.close()
        return statistics.median(times)

    def gains(self, candidate: Path, champion: Path, trials: int, max_seconds: float, told: str) -> dict[str, Any]:
        needed = 1 + self.task.search.min_gain
        found, rounds, begin, device = [], [], time.monotonic(), ""
        for number in range(trials):
            answer = measure(
                Measure(
                    task=self.task, gate=self.gate, lock=self.lock, baseline=self.baseline, candidate=candidate,
                    champion=champion, builds=self.folder / "builds", samples=self.folder / "samples.json",
                    max_seconds=max_seconds,
                )
            )  # fmt: skip
            assert isinstance(answer, Measured)
            assert answer.outcome.measurement is not None, answer.outcome.failure
            gain = answer.outcome.measurement.gain
            assert gain is not None
            found.append(gain)
            device = answer.outcome.measurement.device.name
            rounds.append(answer.outcome.measurement.configs[0].candidate.samples)
            if (number + 1) % 20 == 0:
                won = sum(one.low > needed for one in found)
                print(f"  {told}: {number + 1}/{trials}, {won} wins, {time.monotonic() - begin:.0f} s", flush=True)
        values = [one.value for one in found]
        return {
            "question": told,
            "trials": len(found),
            "wins": sum(one.low > needed for one in found),
            "gain_min": min(values),
            "gain_median": statistics.median(values),
            "gain_max": max(values),
            "half_width_median": statistics.median((one.high - one.low) / 2 for one in found),
            "rounds_median": statistics.median(rounds),
            "seconds": round(time.monotonic() - begin, 1),
            "device": device,
        }


def main(
    trials: Annotated[int, typer.Option(help="Of each question; the first two share them.")] = 200,
    max_seconds: float = 15,  # a title takes six sets of processes of 1.7 s each
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        long = bench.repeating(REPEATS)
        # Time is a + b * repeats: two points give what one repeat takes, and a third checks it.
        half_us, long_us = bench.median_us(bench.repeating(REPEATS // 2)), bench.median_us(long)
        each = (long_us - half_us) / (REPEATS - REPEATS // 2)
        fewer = REPEATS - round(long_us * (1 - 1 / FASTER) / each)
        shorter = bench.repeating(fewer)
        print(f"{REPEATS} repeats {long_us:.2f} us, {REPEATS // 2} {half_us:.2f} us", flush=True)
        plain = bench.built(PLAIN.read_text())
        rows = [
            bench.gains(long, long, trials // 2, max_seconds, "a kernel of some 100 us against itself"),
            bench.gains(plain, plain, trials - trials // 2, max_seconds, "a kernel of some 6 us against itself"),
            bench.gains(shorter, long, trials, max_seconds, f"{fewer} repeats against {REPEATS}"),
        ]
    for row in rows:
        print(json.dumps(row))
    if out is not None:
        out.write_text(json.dumps({"long_us": long_us, "fewer": fewer, "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
