"""What bounds a kernel, derived from its time: the class, both roofs, and what is missing to tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.harness import machine
from kernels.harness.profile import derive, profile
from kernels.harness.requests import Bottleneck, Profile
from kernels.harness.roofline import Demand, Peaks, Rate
from specs.errors import UserError
from tests.kernels.harness.conftest import Bench

GIGA = 1e9
PEAKS = Peaks(
    kind="cpu", device="planted", key="0" * 64, bandwidth={"dram_read": Rate(best=10 * GIGA, median=10 * GIGA)},
    flops={"f32": Rate(best=100 * GIGA, median=100 * GIGA)},
)  # fmt: skip


def demand(flops: int | None, moved: int | None) -> Demand:
    return Demand(flops=flops, bytes=moved, read_bytes=moved, width=32, native="f32")


# In 100 us, this device moves a million bytes or does ten million operations.
@pytest.mark.parametrize(
    ("flops", "moved", "bottleneck"),
    [
        (1_000_000, 900_000, "memory"),
        (9_000_000, 100_000, "compute"),
        (9_000_000, 900_000, "balanced"),
        (1_000_000, 100_000, "latency"),
        (None, 900_000, "unknown"),
        (9_000_000, None, "unknown"),
    ],
)
def test_the_class_follows_from_the_shares_of_both_roofs(
    flops: int | None, moved: int | None, bottleneck: Bottleneck
) -> None:
    assert derive(demand(flops, moved), PEAKS, 100.0) == bottleneck


def test_without_peaks_nothing_is_known() -> None:
    assert derive(demand(1, 1), None, 100.0) == "unknown"


def asked(bench: Bench, **changes: object) -> Profile:
    fields = {"config": "wide", "time_us": 400.0, **changes}
    return Profile(
        task=bench.task, gate=bench.gate, lock=bench.lock(), library=Path("unused.so"), builds=bench.builds,
        sandbox="off", **fields,
    )  # fmt: skip


def test_a_profile_says_what_was_measured_and_what_was_derived(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.Cpu, "peaks", lambda self: PEAKS)
    bench = make_bench({"work": {"flops": "4 * M * N", "bytes": "4 * (2 * M * N + N)"}})
    found = profile(asked(bench))
    assert (found.bottleneck, found.source) == ("latency", "roofline")
    assert "measured: 400.00 us a call" in found.digest
    assert "derived: 0.135 MB, 0.3 GB/s, 3% of memory's; 0.066 MFLOP, 0.2 GFLOP/s, 0% of f32" in found.digest
    assert "far from both roofs" in found.digest
    assert len(found.digest) < 1_000


def test_a_task_that_says_nothing_of_its_work_is_told_what_is_needed(bench: Bench) -> None:
    found = profile(asked(bench))
    assert found.bottleneck == "unknown"
    assert "the task gives no work.flops and no work.bytes, which is needed for both roofs" in found.digest


def test_an_unknown_config_is_the_callers_mistake(bench: Bench) -> None:
    with pytest.raises(UserError, match=r"config 'huge' is none of task tiny-rmsnorm; accepted: small, wide"):
        profile(asked(bench, config="huge"))
