"""Limits that nobody chose: so many times what the vendor's own baseline is off by, against float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernels.harness import gate, machine, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.compare import errors_of
from kernels.harness.dtypes import eps, numpy_dtype
from kernels.harness.gate import Case, Gate, elements
from kernels.harness.machine import Contestant
from kernels.harness.requests import GateLock, Sandbox
from specs.errors import GateError

METRICS = ("elementwise", "rel_l2")
SEED = 20_260_102  # the numbers are public, and the same on every machine with the same library and processor
CHEAP_ELEMENTS = 4 << 20  # configs up to this size are called with every distribution, else the cheapest alone
DRAWS = 4  # of every case: the worst of them counts
FLOOR_ULPS = 0.5  # what rounding alone costs: a baseline may be exact, and a candidate cannot be more so
DIGITS = 2  # of a limit, rounded up
CALL_TIMEOUT_S = 60.0
DEVICE_WAIT_S = 600.0


def calibrate(loaded: Gate, folder: Path, baseline: Path, builds: Path, sandbox: Sandbox = "preferred") -> GateLock:
    """Run the built baseline on the gate's cases and lock the gate with the limits that follow from its errors.

    A limit is `calibrated` times the worst error over every case, for the metrics `elementwise` and `rel_l2` each.
    Raises GateError when the baseline crashes, is refused by the runner, or is wrong beyond any limit.
    """
    worst = _worst_errors(loaded, baseline, builds, sandbox)
    found: dict[str, dict[str, float]] = {}
    for name in loaded.uncalibrated:
        factor = loaded.limits[name].calibrated
        assert factor is not None
        found[name] = {metric: _rounded_up(factor * error) for metric, error in worst[name].items()}
    return gate.lock(loaded.task, folder, found)


def _worst_errors(loaded: Gate, baseline: Path, builds: Path, sandbox: Sandbox) -> dict[str, dict[str, float]]:
    """Tensor -> metric -> the largest error that was seen, never below what rounding costs."""
    worst = {name: dict.fromkeys(METRICS, FLOOR_ULPS * eps(_dtype(loaded, name))) for name in loaded.uncalibrated}
    pairs = list(_pairs(loaded))
    cases = [case for case, _ in pairs]
    gate.check_memory(loaded.task, cases)
    with (
        machine.opened(loaded.task, builds, sandbox) as where,
        where.lock(DEVICE_WAIT_S, shared=True),
        contextlib.closing(where.memory(trial.shapes(loaded.task, cases))) as memory,
    ):
        try:
            with contextlib.closing(where.contestant(memory, trusted=baseline)) as runner:
                for number, (case, distribution) in enumerate(pairs):
                    for draw in range(DRAWS):
                        rng = np.random.default_rng((SEED, number, draw))
                        for name, errors in _errors(loaded, runner, case, distribution, rng).items():
                            worst[name] = {metric: max(worst[name][metric], errors[metric]) for metric in METRICS}
        except CandidateFault as fault:
            raise GateError(f"the baseline cannot calibrate the gate: {fault.message}") from None
    return worst


def _errors(
    loaded: Gate, runner: Contestant, case: Case, distribution: str, rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """One call of the baseline: tensor -> metric -> error. Raises GateError when a tensor is not even finite."""
    question = trial.ask(loaded, loaded.task, case, distribution, rng)
    answered = trial.put(runner, loaded.task, question, rng, stages=True, flush=False, timeout_s=CALL_TIMEOUT_S)
    golden = loaded.golden(question.inputs, case.args)
    found = {}
    for name in loaded.uncalibrated:
        found[name] = errors_of(name, answered.tensors[name], golden.tensors[name], golden.scales.get(name))
        if not all(map(math.isfinite, found[name].values())):
            raise GateError(f"the baseline cannot calibrate {name}: it is wrong beyond any limit in {question.told}")
    return found


def _dtype(loaded: Gate, name: str) -> np.dtype:
    dtype = next(a.dtype for a in trial.interface_of(loaded.task).arguments if a.name == name)
    assert dtype is not None
    return numpy_dtype(dtype)


def _pairs(loaded: Gate) -> Iterator[tuple[Case, str]]:
    """Every distribution on configs that are cheap to look at, or on the cheapest; edge cases as the judge has them."""
    configs = sorted(
        (Case(name=config.name, args=config.args) for config in loaded.task.configs),
        key=lambda case: elements(loaded.task, case),
    )
    for i, case in enumerate(configs):
        if i == 0 or elements(loaded.task, case) <= CHEAP_ELEMENTS:
            for distribution in loaded.distributions:
                yield case, distribution
    for case in loaded.edges:
        for distribution in loaded.distributions:
            yield case, distribution


def _rounded_up(value: float) -> float:
    """To two significant digits, never down."""
    scale = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / scale) * scale:.{DIGITS}g}")
