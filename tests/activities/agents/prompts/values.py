"""A task, a run's past and everything else that prompts are made of, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from activities.agents.prompts.optimizer import Bottleneck, View
from kernels.harness import gate_yaml
from specs.dialogue import Mode
from specs.history import Champion
from specs.notes import Notes, Section
from specs.outcomes import (
    BlobRef,
    BuildResult,
    BuildStatus,
    ConfigMeasurement,
    Device,
    Ending,
    Interval,
    Iteration,
    Measurement,
    Origin,
    Proposal,
    Stage,
    Timing,
    Verdict,
)
from specs.schema import Task

BLOB = BlobRef(sha256="b" * 64, size=1234)
BASELINE_US = {"m1_n8192": 3.1, "m128_n8192": 6.42, "m4096_n4096": 31.5}
RATIOS = {"m1_n8192": 1.12, "m128_n8192": 0.93, "m4096_n4096": 1.04}
SOURCE = """\
#include <cuda_bf16.h>

extern "C" void rmsnorm(const __nv_bfloat16* x, float* rstd, __nv_bfloat16* y, void* scratch, float eps, int32_t M,
                        int32_t N, cudaStream_t stream) {
    rms<<<M, 256, 0, stream>>>(x, rstd, y, eps, N);
}
"""
GATE = gate_yaml.parse(
    b"""\
contract: |
  rstd[M] = 1 / sqrt(mean(x^2 over N) + eps), y = x * rstd, summed in float32 or wider, y rounded once to bf16.
deterministic: true
distributions: [normal, shifted, tiny]
tensors:
  rstd: {calibrated: 4}
  y: {elementwise: 3.95e-3, worst_row_cosine: 0.9999}
edges:
  - {name: one_element, args: {M: 1, N: 1}}
  - {name: odd, args: {M: 7, N: 17}}
held_out:
  - {name: nobody_is_told, args: {M: 13, N: 777}}
"""
)
CALIBRATION = {"rstd": {"elementwise": 2.4e-6, "rel_l2": 1.1e-6}}
TOOLS = ("assembly", "check", "compile", "measure", "profile", "sass", "submit")
PLAN = """\
Lever: one warp a row, the row held in registers
Why: the two passes read x twice; 128 rows fill 128 of 132 multiprocessors with one block each
Steps:
1. load a row into registers with 16 byte loads
2. reduce by shuffles
Expected gain: 1.25 on m128_n8192
"""


def make_task(**changes: Any) -> Task:
    """A task for a GPU; with `language="cpp"` the same for a CPU."""
    arguments = [
        {"kind": "input", "name": "x", "dtype": "bf16", "shape": ["M", "N"]},
        {"kind": "stage", "name": "rstd", "dtype": "f32", "shape": ["M"]},
        {"kind": "output", "name": "y", "dtype": "bf16", "shape": ["M", "N"]},
        {"kind": "workspace", "name": "scratch", "bytes": "4 * M"},
        {"kind": "scalar", "name": "eps", "dtype": "f32"},
        {"kind": "scalar", "name": "M", "dtype": "i32"},
        {"kind": "scalar", "name": "N", "dtype": "i32"},
    ]
    if changes.get("language") != "cpp":
        arguments.append({"kind": "stream"})
    return Task.model_validate(
        {
            "name": "rmsnorm-bf16",
            "gpu": "H200",
            "arch": "sm_90a",
            "precision": "BF16",
            "problem": {"description": "y = x * rstd, rstd = 1 / sqrt(mean(x^2) + eps).\n", "shapes": {"eps": 1e-6}},
            "baseline": {"source": "FlashInfer's rmsnorm", "program": "/somewhere/on/this/machine/baseline.py"},
            "configs": [
                {"name": "m1_n8192", "args": {"M": 1, "N": 8192}, "target_ratio": 1.0},
                {"name": "m128_n8192", "args": {"M": 128, "N": 8192}, "target_ratio": 1.05, "weight": 2.0},
                {"name": "m4096_n4096", "args": {"M": 4096, "N": 4096}, "target_ratio": 1.0},
            ],
            "interface": {"entry": "rmsnorm", "arguments": arguments},
            "work": {"flops": "4 * M * N", "bytes": "4 * M * N"},
            "gate": "/somewhere/on/this/machine/gate",
            "build": {"flags": ["-std=c++17", "-O3"]},
            "constraints": ["All work in the given stream.", "f32 sums and f32 products."],
            "hints": ["Sixteen bytes are eight values."],
            "notes": {"customer": "decode"},
            **changes,
        }
    )


def make_champion(**changes: Any) -> Champion:
    values: dict[str, Any] = {"version": "v003", "index": 4, "source": BLOB, "library": BLOB, "score": 0.93}
    return Champion(**{**values, "ratios": RATIOS, **changes})


def make_measurement(ratios: dict[str, float], gain: float | None) -> Measurement:
    def timing(us: float) -> Timing:
        return Timing(median_us=us, q1_us=us, q3_us=us, samples=200)

    def interval(value: float) -> Interval:
        return Interval(value=value, low=value * 0.99, high=value * 1.01)

    return Measurement(
        library=BLOB.sha256,
        configs=tuple(
            ConfigMeasurement(
                config=name,
                baseline=timing(BASELINE_US[name]),
                candidate=timing(BASELINE_US[name] / value),
                ratio=interval(value),
            )
            for name, value in ratios.items()
        ),
        score=interval(min(ratios.values())),
        geomean=min(ratios.values()),
        gain=None if gain is None else interval(gain),
        device=Device(name="H200"),
    )


def make_iteration(
    index: int,
    version: str,
    ending: Ending,
    title: str = "",
    reason: str = "",
    *,
    score: float | None = None,
    origin: Origin = Origin.OPTIMIZER,
) -> Iteration:
    measured = None if score is None else make_measurement({**RATIOS, "m128_n8192": score}, 1.04)
    built = measured is not None
    return Iteration(
        index=index,
        version=version,
        stage=Stage.REPRODUCE,
        ending=ending,
        reason=reason,
        proposal=Proposal(source=BLOB, normal=BLOB.sha256, origin=origin, label=title) if title else None,
        build=BuildResult(status=BuildStatus.BUILT, key=BLOB.sha256, library=BLOB) if built else None,
        verdict=Verdict(passed=True, library=BLOB.sha256, gate=BLOB.sha256, cases=40) if built else None,
        measurement=measured,
    )


def make_past() -> list[Iteration]:
    return [
        make_iteration(0, "v001", Ending.WIN, "seed", "first correct kernel", score=0.4, origin=Origin.SEED),
        make_iteration(1, "a001", Ending.BUILD_FAILED, "packed loads", "error: identifier bf162 is undefined"),
        make_iteration(2, "v002", Ending.WIN, "packed loads", "it is faster", score=0.81),
        make_iteration(3, "a002", Ending.REFUSED, "one pass", "wrong in case 'odd' at rstd: off by 3.2 at [6]"),
        make_iteration(4, "v003", Ending.WIN, "a row in registers", "it is faster", score=0.93),
        make_iteration(5, "a003", Ending.SLOWER, "blocks by rows", "score 0.900 is 3.2% below the best", score=0.9),
        make_iteration(6, "a004", Ending.NO_PROPOSAL, reason="all 40 steps were used without handing in"),
    ]


def make_long_past(count: int) -> list[Iteration]:
    """A run of many iterations, every fifth of them a win."""
    wins, attempts, past = 0, 0, []
    for index in range(count):
        won = index % 5 == 0
        wins, attempts = wins + won, attempts + (not won)
        version = f"v{wins:03d}" if won else f"a{attempts:03d}"
        ending = Ending.WIN if won else Ending.SLOWER
        title, reason = f"lever number {index}, a change of the tiling", f"score 0.9 is 2.0% below; {'because ' * 40}"
        past.append(make_iteration(index, version, ending, title, reason[:400], score=0.93))
    return past


def make_notes(tried: int = 2, untried: int = 2, length: int = 60) -> Notes:
    notes = Notes()
    for index in range(tried):
        notes = notes.with_note(Section.TRIED, f"tried {index}: {'shared memory gained nothing ' * 20}"[:length])
    for index in range(untried):
        notes = notes.with_note(Section.UNTRIED, f"hard {index}: {'a persistent kernel, pipelined ' * 20}"[:length])
    return notes


def make_view(**changes: Any) -> View:
    """OPTIMIZE in the middle of a run, with everything there is to tell."""
    values: dict[str, Any] = {
        "task": make_task(),
        "stage": Stage.OPTIMIZE,
        "mode": Mode.IMPROVE,
        "source": SOURCE,
        "source_is": "the champion v003",
        "champion": make_champion(),
        "baseline_us": BASELINE_US,
        "past": make_past(),
        "notes": make_notes(),
        "tools": TOOLS,
        "bottleneck": Bottleneck("memory", "m128_n8192", "dram 71% of peak, l2 hit 12%", of_this_kernel=True),
    }
    return View(**{**values, **changes})


def make_first_view(**changes: Any) -> View:
    """The first conversation of a run whose seed has won."""
    past: Sequence[Iteration] = make_past()[:1]
    champion = make_champion(version="v001", index=0, score=0.4, ratios=dict.fromkeys(RATIOS, 0.4))
    values: dict[str, Any] = {
        "stage": Stage.REPRODUCE,
        "past": past,
        "notes": Notes(),
        "bottleneck": None,
        "champion": champion,
        "source_is": "the champion v001",
    }
    return make_view(**{**values, **changes})
