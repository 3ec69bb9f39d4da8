"""How a run's end is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specs.history import Champion
from specs.outcomes import Acceptance
from specs.plan import Plan
from tests.fakes import write_task
from workflows import ending
from workflows.state import RunState

SHA = "ab" * 32
BLOB = {"sha256": SHA, "size": 1}
CHAMPION = Champion.model_validate(
    {"version": "v001", "index": 0, "source": BLOB, "library": BLOB, "score": 1.0, "ratios": {}}
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    loaded = write_task(tmp_path, ["// one"])
    return Plan.of(loaded.task, loaded.digest)


def acceptance(accepted: bool, **ratios: float) -> Acceptance:
    timing = {"median_us": 10.0, "q1_us": 9.0, "q3_us": 11.0, "samples": 5}

    def interval(value: float) -> dict[str, Any]:
        return {"value": value, "low": value, "high": value}

    configs = [
        {"config": name, "baseline": timing, "candidate": timing, "ratio": interval(ratio)}
        for name, ratio in ratios.items()
    ]
    measurement = {
        "library": SHA, "configs": configs, "score": interval(1.0), "geomean": 1.0, "device": {"name": "cpu"},
    }  # fmt: skip
    return Acceptance.model_validate(
        {"version": "v001", "accepted": accepted, "reason": "too big", "measurement": measurement}
    )


@pytest.mark.parametrize(
    ("accepted", "ratios", "outcome"),
    [
        (True, {"small": 0.9, "large": 0.9}, "accepted"),
        (True, {"small": 5.0, "large": 0.89}, "best effort"),
        (True, {"small": 5.0}, "best effort"),
        (False, {"small": 5.0, "large": 5.0}, "best effort"),
    ],
)
def test_only_a_kernel_at_all_its_targets_is_accepted(
    plan: Plan, accepted: bool, ratios: dict[str, float], outcome: str
) -> None:
    """Each config's own target_ratio, in the times of the acceptance; a config without a time is below it."""
    assert ending.outcome(plan, CHAMPION, acceptance(accepted, **ratios)) == outcome


def test_without_a_champion_there_is_no_kernel(plan: Plan) -> None:
    """Whatever an earlier one was told."""
    assert ending.outcome(plan, None, acceptance(True, small=1.0, large=1.0)) == "no kernel"


def test_a_refusal_is_part_of_the_reason(plan: Plan) -> None:
    """After why the search ended."""
    state = RunState(budget=plan.budget, stop_reason="enough", acceptance=acceptance(False, small=1.0))
    assert ending.reason(state) == "enough; v001 was not accepted: too big"
