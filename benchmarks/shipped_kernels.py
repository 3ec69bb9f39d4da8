"""Time every correct candidate of a shipped task beside the champion of its moment, as a table.

    python benchmarks/shipped_kernels.py specs/tasks/skinny-gemm-f32-cpu.yaml [--max-seconds 60] [--json FILE]

The seed comes first, then the script in its order. A candidate that the judge refuses is listed with the reason; one
whose gain clears the task's `min_gain` becomes the champion, as in a run. Ratios are baseline / kernel, paired in the
same rounds; behind each median stands the interquartile range over the median.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from specs.loader import load_task

ROOT = Path(__file__).resolve().parents[1]


def bench(task: Path, kernel: Path, champion: Path | None, max_seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "kernels.harness", "bench", str(task), str(kernel), "--json"]
    command += ["--max-seconds", str(max_seconds), *(["--champion", str(champion)] if champion else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        sys.exit(f"{kernel}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(answer: dict[str, Any]) -> str | None:
    """Why there is no measurement; None when there is one."""
    if "outcome" in answer:
        failure = answer["outcome"]["failure"]
        return None if failure is None else f"{failure['kind']}: {failure['message']}"
    if answer["verdict"] is None:
        return str(answer["build"]["status"])
    failure = answer["verdict"]["failure"]
    return f"{failure['verification']}, {failure['kind']}: {failure['message']}"


def told(value: dict[str, float] | None) -> str:
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})" if value else ""


def timing(value: dict[str, float]) -> str:
    return f"{value['median_us']:.0f} ({(value['q3_us'] - value['q1_us']) / value['median_us']:.1%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=Path)
    parser.add_argument("--max-seconds", type=float, default=60, help="sampling of one kernel stops here")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    given = parser.parse_args()

    loaded = load_task(given.task)
    task = loaded.task
    if task.seed is None or task.model.script is None:
        sys.exit(f"{given.task}: seed and model.script are needed")
    script = sorted(loaded.resolve(task.model.script).glob(f"*{task.language.suffix}"))
    champion: Path | None = None
    figures = []
    print(f"| kernel | {' | '.join(config.name for config in task.configs)} | score | gain over the champion |")
    print(f"|---|{'---|' * (len(task.configs) + 2)}")
    for kernel in [loaded.resolve(task.seed), *script]:
        answer = bench(given.task, kernel, champion, given.max_seconds)
        reason = refused(answer)
        figures.append({"kernel": kernel.name, "champion": champion and champion.name, "refused": reason, **answer})
        if reason is not None:
            print(
                f"| `{kernel.stem}` | {' | '.join('' for _ in task.configs)} | refused | {reason[:100]} |", flush=True
            )
            continue
        measured = answer["outcome"]["measurement"]
        ratios = " | ".join(f"{config['ratio']['value']:.3f}" for config in measured["configs"])
        print(f"| `{kernel.stem}` | {ratios} | {told(measured['score'])} | {told(measured['gain'])} |", flush=True)
        if champion is None or measured["gain"]["low"] > 1 + task.search.min_gain:
            champion, last = kernel, measured
    assert champion is not None
    print(f"\n{champion.name}, the last champion:\n\n| config | baseline us | kernel us | ratio | rounds |")
    print("|---|---|---|---|---|")
    for config in last["configs"]:
        times = f"{timing(config['baseline'])} | {timing(config['candidate'])}"
        print(f"| {config['config']} | {times} | {told(config['ratio'])} | {config['candidate']['samples']} |")
    device = last["device"]
    print(f"\n{device['name']}; {device['detail']}; {device['toolkit']}; sandbox {last['sandbox']}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
