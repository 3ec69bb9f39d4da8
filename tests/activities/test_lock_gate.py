"""Locking through the real harness: a weak gate stops the run, and calibrated limits come from the built baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle import pack
from activities.lock_gate import GateLocking, LockGateInput, LockGateResult
from activities.workshop import Workshop
from kernels.harness.requests import Judge, Judged
from tests.fakes import GATE, settings_at, write_task

COPY = """
#include <cstdint>
extern "C" void copy(const float* x, float* y, int32_t n) {
    for (int32_t i = 0; i < n; ++i) y[i] = x[i] * SCALE;
}
"""


async def locked(tmp_path: Path, gate_yaml: str, baseline: str) -> tuple[LockGateResult, Workshop, Any]:
    workshop = Workshop(settings_at(tmp_path / "home"))
    loaded = write_task(tmp_path / "task", ["// one"])
    (tmp_path / "task" / "gate" / "gate.yaml").write_text(gate_yaml)
    (tmp_path / "task" / "baseline.cpp").write_text(baseline)
    bundle = await pack(loaded, workshop.store)
    given = LockGateInput(bundle=bundle, sandbox="off")
    result = await ActivityEnvironment().run(GateLocking(workshop).lock_gate, given)
    return result, workshop, await workshop.bundle(bundle)


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))


async def test_a_sound_gate_is_locked_without_building_anything(tmp_path: Path) -> None:
    """No baseline is needed where every limit is a number."""
    result, workshop, _ = await locked(tmp_path, GATE, "this is no C++")
    assert set(result.lock.files) == {"gate.yaml", "reference.py"}
    assert result.lock.calibration == {}
    assert not workshop.settings.builds.exists()


async def test_a_weak_gate_ends_the_run_before_it_is_locked(tmp_path: Path) -> None:
    """One line with the mutants' names, and nothing to retry."""
    with pytest.raises(Exception, match=r"lets \d+ mutants through: .*scaled\(y\)") as caught:
        await locked(tmp_path, GATE.replace("elementwise: 1.0e-6", "cosine: 0.9"), COPY)
    assert "\n" not in str(caught.value)


async def test_calibrated_limits_are_found_and_then_judge(tmp_path: Path) -> None:
    """The baseline is built and run once; the lock with its numbers is one that the judge takes."""
    gate_yaml = GATE.replace("elementwise: 1.0e-6", "calibrated: 3")
    result, workshop, bundle = await locked(tmp_path, gate_yaml, COPY.replace("SCALE", "1.00001f"))
    limits = result.lock.calibration["y"]
    assert 2e-5 < limits["rel_l2"] < 5e-5
    library = next(workshop.settings.builds.glob("*/kernel.so"))
    with workshop.harness.folder() as folder:
        request = Judge(
            task=bundle.task, gate=bundle.gate, lock=result.lock, library=library, role="baseline",
            builds=workshop.settings.builds, sandbox="off",
        )  # fmt: skip
        judged = await workshop.harness.ask(request, Judged, folder)
    assert judged.verdict.passed, judged.verdict.failure


async def test_a_baseline_that_does_not_build_is_told(tmp_path: Path) -> None:
    """It is needed here, and its compiler's words are what helps."""
    gate_yaml = GATE.replace("elementwise: 1.0e-6", "calibrated: 3")
    with pytest.raises(Exception, match=r"baseline\.cpp does not build"):
        await locked(tmp_path, gate_yaml, "this is no C++")
