"""A run's values made by hand: four configs, one of them behind its target, four iterations."""

from __future__ import annotations

from typing import Any

from specs.history import Champion, HistoryLine
from specs.outcomes import (
    Acceptance,
    BaselineTimes,
    BlobRef,
    Charge,
    ConfigMeasurement,
    Device,
    Ending,
    Interval,
    Measurement,
    Origin,
    Stage,
    Timing,
    Verdict,
)
from specs.plan import ConfigTarget, Plan
from specs.schema import Budget, Language, Model, Scoring, Search, StageGate
from workflows.state import Delivery, Phase, RunResult, Status

RUN = "skinny-gemm-f32-cpu-3f2a1c-1130-0312"
DIGEST = "3f2a1c" + "0" * 58
BLOB = BlobRef(sha256="b" * 64, size=1234)
RATIOS = {"n1024": 1.12, "n4096": 0.93, "n11008": 1.31, "k11008": 0.71}
WORST = "k11008"
BASELINE_US = {"n1024": 61.25, "n4096": 248.5, "n11008": 912.0, "k11008": 1250.0}
DEVICE = Device(name="AMD EPYC 7B13", detail="core 1 pinned", toolkit="g++ 12.2.0")


def make_plan(**changes: Any) -> Plan:
    plan = Plan(
        task="skinny-gemm-f32-cpu",
        digest=DIGEST,
        gpu="CPU",
        language=Language.CPP,
        baseline="OpenBLAS",
        scoring=Scoring.MIN_RATIO,
        focus_config=None,
        configs=tuple(ConfigTarget(name=name, target_ratio=1.0, weight=1.0) for name in RATIOS),
        stage_gate=StageGate(),
        search=Search(),
        model=Model(),
        budget=Budget(max_iterations=20, max_wall_minutes=30),
        seeded=True,
    )
    return plan.model_copy(update=changes)


def make_timing(median_us: float) -> Timing:
    return Timing(median_us=median_us, q1_us=median_us * 0.99, q3_us=median_us * 1.02, samples=200)


def make_interval(value: float) -> Interval:
    return Interval(value=value, low=value * 0.98, high=value * 1.02)


def make_baseline() -> BaselineTimes:
    return BaselineTimes(
        timings={name: make_timing(us) for name, us in BASELINE_US.items()},
        device=DEVICE,
        description="OpenBLAS 0.3.30 SkylakeX, 1 thread",
    )


def make_champion() -> Champion:
    return Champion(version="v002", index=3, source=BLOB, library=BLOB, score=min(RATIOS.values()), ratios=RATIOS)


def make_measurement() -> Measurement:
    return Measurement(
        library=BLOB.sha256,
        configs=tuple(
            ConfigMeasurement(
                config=name,
                baseline=make_timing(BASELINE_US[name]),
                candidate=make_timing(BASELINE_US[name] / ratio),
                ratio=make_interval(ratio),
            )
            for name, ratio in RATIOS.items()
        ),
        score=make_interval(min(RATIOS.values())),
        geomean=0.992,
        device=DEVICE,
    )


def make_acceptance(*, accepted: bool = True, reason: str = "passed once more") -> Acceptance:
    verdict = Verdict(passed=True, library=BLOB.sha256, gate=DIGEST, cases=40)
    return Acceptance(version="v002", accepted=accepted, reason=reason, verdict=verdict, measurement=make_measurement())


def make_delivery() -> Delivery:
    return Delivery(folder="runs/r/delivered", files={"kernel.cpp": BLOB, "result.json": BLOB}, record="runs/r/record")


def make_line(index: int, version: str, ending: Ending, label: str, reason: str, **more: Any) -> HistoryLine:
    return HistoryLine(
        index=index,
        version=version,
        stage=Stage.REPRODUCE,
        ending=ending,
        label=label,
        reason=reason,
        source=more.pop("source", BLOB),
        **more,
    )


def make_history() -> list[HistoryLine]:
    return [
        make_line(0, "v001", Ending.WIN, "seed", "first correct kernel", score=0.12, origin=Origin.SEED),
        make_line(1, "a001", Ending.BUILD_FAILED, "01_typo.cpp", "expected ';' before '}' token"),
        make_line(2, "a002", Ending.REFUSED, "02_tail.cpp", "wrong at n4096: y differs by 3.2 at [0, 4095]"),
        make_line(3, "v002", Ending.WIN, "03_tiled.cpp", "5.9 times the champion", score=0.71, ratios=RATIOS),
    ]


def make_status(**changes: Any) -> Status:
    plan = changes.pop("plan", make_plan())
    values: dict[str, Any] = {
        "run_id": RUN,
        "plan": plan,
        "phase": Phase.ITERATING,
        "stage": Stage.REPRODUCE,
        "iteration": 4,
        "activity": "measuring 04_vector.cpp",
        "champion": make_champion(),
        "last": make_history()[-1],
        "baseline": make_baseline(),
        "budget": plan.budget,
        "charged_minutes": 3.24,
        "charge": Charge(),
        "wins": 2,
        "attempts": 2,
        "since_win": 0,
        "hints": [],
        "waiting_submissions": 0,
        "paused": False,
        "stop_reason": None,
        "device": "ferret-host-cpu1",
        "gate_digest": DIGEST,
        "acceptance": None,
        "delivery": None,
    }
    return Status(**{**values, **changes})


def make_result(**changes: Any) -> RunResult:
    values: dict[str, Any] = {
        "outcome": "accepted",
        "reason": "the script's 8 candidates were all played",
        "champion": make_champion(),
        "acceptance": make_acceptance(),
        "delivery": make_delivery(),
        "baseline": make_baseline(),
        "gate_digest": DIGEST,
        "iterations": 4,
        "wins": 2,
        "attempts": 2,
        "charge": Charge(),
        "charged_minutes": 3.24,
    }
    return RunResult(**{**values, **changes})
