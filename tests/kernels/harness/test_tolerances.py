"""Calibrated limits: so many times the baseline's own error, locked with the gate, and enough to judge by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import admission, gate
from kernels.harness.judge import judge
from kernels.harness.requests import GateLock, Judge, Locked, LockGate
from kernels.harness.serve import answer
from kernels.harness.tolerances import calibrate
from specs.errors import GateError, GateTampered
from specs.outcomes import FailureKind
from tests.kernels.harness.conftest import Bench, kernel

CALIBRATED = {"tensors": {"rstd": {"elementwise": 1e-5}, "y": {"calibrated": 4}}}
HALF_ULP = 2.0**-24


def calibrated(bench: Bench, baseline: str) -> GateLock:
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    return calibrate(loaded, bench.gate, bench.library(baseline), bench.builds)


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(gate_yaml=CALIBRATED)


def test_the_limits_follow_from_the_baselines_own_error(bench: Bench) -> None:
    """Plain float32 is off by a few units of the last place: four times that, rounded up, for both metrics."""
    lock = calibrated(bench, kernel())
    assert set(lock.calibration) == {"y"}
    assert set(lock.calibration["y"]) == {"elementwise", "rel_l2"}
    for limit in lock.calibration["y"].values():
        assert 4 * HALF_ULP <= limit < 1e-5
        assert float(f"{limit:.2g}") == limit


def test_a_worse_baseline_gives_wider_limits(bench: Bench) -> None:
    """A candidate may be so many times as inexact as the vendor, whatever the vendor is."""
    exact, rough = (
        calibrated(bench, kernel()),
        calibrated(bench, kernel(after="for (int i = 0; i < M * N; ++i) y[i] *= 1.0001f;")),
    )
    assert 3e-4 < rough.calibration["y"]["rel_l2"] < 6e-4
    assert rough.calibration["y"]["rel_l2"] > 100 * exact.calibration["y"]["rel_l2"]


def test_an_exact_baseline_leaves_room_for_rounding(make_bench: Callable[..., Bench]) -> None:
    """Limits never fall below so many half units of the last place."""
    copy: dict[str, Any] = {
        "interface": {
            "entry": "copy",
            "arguments": [
                {"name": "x", "kind": "input", "dtype": "f32", "shape": ["N"]},
                {"name": "y", "kind": "output", "dtype": "f32", "shape": ["N"]},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        }
    }
    reference = """
import numpy as np
def make_inputs(rng, args, distribution):
    return {"x": rng.standard_normal(args["N"]).astype(np.float32)}
def reference(inputs, args):
    return {"y": inputs["x"].astype(np.float64)}
"""
    yaml = {"tensors": {"y": {"calibrated": 2}}, "distributions": ["normal"], "edges": [], "held_out": []}
    bench = make_bench(task=copy, gate_yaml=yaml, reference=reference)
    source = '#include <cstring>\nextern "C" void copy(const float* x, float* y, int n) { std::memcpy(y, x, 4 * n); }'
    assert calibrated(bench, source).calibration["y"] == {"elementwise": 1.2e-7, "rel_l2": 1.2e-7}


def test_the_numbers_are_the_same_again(bench: Bench) -> None:
    """The same baseline on the same processor locks the same gate."""
    assert calibrated(bench, kernel()) == calibrated(bench, kernel())


def test_the_digest_covers_the_numbers(bench: Bench) -> None:
    """A lock whose limits were widened afterwards opens nothing."""
    lock = calibrated(bench, kernel())
    assert lock.digest != bench.lock().digest
    wider = lock.model_copy(update={"calibration": {"y": {"elementwise": 1.0, "rel_l2": 1.0}}})
    with pytest.raises(GateTampered, match="calibrated limits"):
        gate.load(bench.task, bench.gate, wider)


def test_the_judge_uses_the_numbers(bench: Bench) -> None:
    """What is as exact as the baseline passes; what is far less so is refused, by a limit that nobody chose."""
    lock = calibrated(bench, kernel())

    def verdict(source: str) -> Any:
        library = bench.library(source)
        return judge(Judge(task=bench.task, gate=bench.gate, lock=lock, library=library, builds=bench.builds))

    assert verdict(kernel()).passed
    failure = verdict(kernel(after="for (int i = 0; i < M * N; ++i) y[i] *= 1.0001f;")).failure
    assert failure.kind is FailureKind.WRONG
    assert f"elementwise {lock.calibration['y']['elementwise']:g}" in failure.message


def test_a_lock_without_numbers_judges_nothing(bench: Bench) -> None:
    """Never anything goes: without its limits a gate is no gate."""
    lock = bench.lock()
    loaded = gate.load(bench.task, bench.gate, lock)
    assert loaded.uncalibrated == ("y",)
    with pytest.raises(GateError, match="calibrated, but the lock carries no numbers"):
        admission.admit(loaded, lock)
    with pytest.raises(GateError, match="calibrated, but the lock carries no numbers"):
        bench.judge(kernel())


def test_a_baseline_that_is_plainly_wrong_calibrates_nothing(bench: Bench) -> None:
    """NaN has no size, and a crash no answer."""
    for spoilt in ('y[0] = __builtin_nanf("");', "__builtin_trap();"):
        with pytest.raises(GateError, match="cannot calibrate"):
            calibrated(bench, kernel(after=spoilt))


def test_a_rough_baseline_makes_a_gate_that_admission_refuses(bench: Bench, builds: Path) -> None:
    """Limits of a sloppy vendor let half precision through, and then the gate is not locked."""
    rough = bench.library(kernel(after="for (int i = 0; i < M * N; ++i) y[i] *= 1.01f;"))
    refusal = answer(LockGate(task=bench.task, gate=bench.gate, baseline=rough, builds=builds)).refusal
    assert refusal is not None
    assert "reduced_precision(y.bf16)" in refusal.message


def test_a_lock_is_made_in_two_steps(bench: Bench, builds: Path) -> None:
    """Without a baseline the reply names what is missing; with one it carries the numbers."""
    first = answer(LockGate(task=bench.task, gate=bench.gate)).result
    assert isinstance(first, Locked)
    assert (first.uncalibrated, first.lock.calibration) == (("y",), {})
    request = LockGate(task=bench.task, gate=bench.gate, baseline=bench.library(kernel()), builds=builds)
    second = answer(request).result
    assert isinstance(second, Locked)
    assert second.uncalibrated == ()
    assert set(second.lock.calibration) == {"y"}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"calibrated": 4, "rel_l2": 1e-5}, "calibrated finds elementwise and rel_l2 itself"),
        ({"calibrated": 0.5}, "gate.yaml: tensors.y.calibrated"),
        ({"calibrated": "four"}, "gate.yaml: tensors.y.calibrated"),
    ],
)
def test_nonsense_is_refused(make_bench: Callable[..., Bench], limits: dict[str, Any], said: str) -> None:
    """A baseline cannot be asked to be worse than itself, and a limit is not given twice."""
    bench = make_bench(gate_yaml={"tensors": {"rstd": {"elementwise": 1e-5}, "y": limits}})
    with pytest.raises(GateError, match=said):
        gate.load(bench.task, bench.gate, bench.lock())
