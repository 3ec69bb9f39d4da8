"""The physics floor: a true lower bound, whatever the task leaves unsaid."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.harness.roofline import (
    COPY,
    DRAM_READ,
    SLACK,
    Demand,
    Kind,
    Peaks,
    Rate,
    demand,
    fastest,
    floor_us,
    floors_us,
    ideal_us,
    impossible,
    sol,
)
from specs.errors import UserError
from specs.loader import load_task
from tests.kernels.harness.tasks import task

ROOT = Path(__file__).parents[3]
SHIPPED = {"rmsnorm-f32-cpu": "rmsnorm_f32", "skinny-gemm-f32-cpu": "skinny_gemm_f32"}


def rate(best: float, top: float | None = None) -> Rate:
    return Rate(best=best, median=best, at_top_clock=top)


def planted(
    kind: Kind = "cuda",
    read: float = 4e12,
    missing: tuple[str, ...] = (),
    *,
    rates: Mapping[str, float] | None = None,
    **flops: float,
) -> Peaks:
    """Peaks of a device that does not exist; `flops` (or `rates`) by class."""
    return Peaks(
        kind=kind,
        device="planted",
        key="0" * 64,
        bandwidth={DRAM_READ: rate(read), COPY: rate(read)} if read else {},
        flops={name: rate(value) for name, value in (rates or flops).items()},
        missing=dict.fromkeys(missing, "not measured"),
    )


HOPPER = planted(f64=60e12, f32=60e12, tf32=450e12, f16=900e12, bf16=900e12, f8=1800e12, i8=1800e12)


def wanted(**changes: Any) -> Demand:
    fields: dict[str, Any] = {"flops": None, "bytes": None, "read_bytes": None, "width": 32, "native": "f32"}
    return Demand(**{**fields, **changes})


def typed(*dtypes: str, precision: str = "") -> Demand:
    """What a task asks for whose inputs are of these types."""
    arguments = [{"name": f"x{i}", "kind": "input", "dtype": d, "shape": ["M"]} for i, d in enumerate(dtypes)]
    arguments.append({"name": "y", "kind": "output", "dtype": dtypes[0], "shape": ["M"]})
    given = task(precision=precision or dtypes[0], interface={"entry": "kernel", "arguments": arguments})
    return demand(given, {"M": 4, "N": 4})


# ---------------------------------------------------------------- what a call needs


def test_only_what_must_come_in_is_counted() -> None:
    """x is 4 x 8 f32; top and y may still lie in a cache when the call ends."""
    got = demand(task(work={"bytes": "4 * (2 * M * N + M)", "flops": "2 * M * N"}), {"M": 4, "N": 8})
    assert got == Demand(flops=64, bytes=272, read_bytes=128, width=32, native="f32")


def test_inputs_that_a_task_says_are_read_in_part_count_in_part() -> None:
    """A gather reads one row of a table: its work says so, the size of the table does not matter."""
    got = demand(task(work={"bytes": "4 * (N + M * N + M)"}), {"M": 64, "N": 8})
    assert got.read_bytes == 4 * 8


def test_inputs_count_once_however_often_the_task_counts_them() -> None:
    """Read twice, they come from memory once."""
    assert demand(task(work={"bytes": "400 * M * N"}), {"M": 4, "N": 8}).read_bytes == 4 * 4 * 8


def test_a_task_that_counts_no_outputs_is_not_driven_below_zero() -> None:
    """The floor then loses its memory part, and nothing else."""
    got = demand(task(work={"bytes": "4 * N", "flops": 8}), {"M": 4, "N": 8})
    assert got.read_bytes == 0
    floor = floor_us(got, HOPPER)
    assert floor is not None
    assert floor == floor_us(wanted(flops=8), HOPPER)


def test_a_task_without_work_has_no_floor() -> None:
    """Sizes of inputs alone bound nothing: a page table may leave most of them alone."""
    given = task()
    assert demand(given, {"M": 4, "N": 8}).read_bytes is None
    assert floors_us(given, given.configs, HOPPER) == {}


def test_work_that_cannot_be_worked_out_is_named() -> None:
    """The task, the key and the name that nobody knows."""
    with pytest.raises(UserError, match=r"task small: work\.flops: .*'K'"):
        demand(task(work={"flops": "2 * K"}), {"M": 4, "N": 4})


# ---------------------------------------------------------------- the floor


def test_the_floor_is_the_larger_of_moving_and_computing() -> None:
    """4 MB at 4 TB/s is 1 us; 1.8 GFLOP in one format narrower than f32, at 900 TFLOP/s, is 2 us."""
    slack = SLACK["cuda"]
    assert floor_us(wanted(read_bytes=4_000_000), HOPPER) == pytest.approx(slack * 1.0)
    assert floor_us(wanted(read_bytes=4_000_000, flops=1_800_000_000), HOPPER) == pytest.approx(slack * 2.0)
    assert floor_us(wanted(read_bytes=12_000_000, flops=1_800_000_000), HOPPER) == pytest.approx(slack * 3.0)


def test_a_kernel_at_the_devices_very_best_is_above_the_floor() -> None:
    """Slack is a share below one on every kind of device."""
    for kind in ("cpu", "cuda"):
        peaks = planted(kind, f32=1e12)
        need = wanted(read_bytes=1 << 30, bytes=1 << 30, flops=1 << 20)
        ideal = ideal_us(need, peaks)
        assert ideal is not None
        assert impossible("c", ideal, {"c": floor_us(need, peaks) or math.inf}) is None


@pytest.mark.parametrize(
    ("dtypes", "fastest_rate"),
    [
        (("f64", "f64"), 450e12),
        (("f32", "f32"), 900e12),
        (("f32", "i32"), 900e12),
        (("bf16", "bf16"), 1800e12),
        (("f16", "f32"), 1800e12),
        (("f8e4m3", "f32"), 1800e12),
        (("bf16", "u8"), 1800e12),
    ],
)
def test_arithmetic_may_be_one_format_narrower_than_the_data(dtypes: tuple[str, ...], fastest_rate: float) -> None:
    """f32 in TF32 or BF16 is for the gate's limits to refuse, not for the floor; the narrowest tensor counts."""
    assert fastest(HOPPER, typed(*dtypes).width) == fastest_rate


@pytest.mark.parametrize(
    ("precision", "width"),
    [("FP32", 32), ("BF16", 32), ("fp8_e4m3", 8), ("W8A8", 8), ("INT8", 8), ("NVFP4", 4), ("w4a16", 4), ("mxfp4", 4)],
)
def test_a_precision_narrower_than_the_tensors_counts(precision: str, width: int) -> None:
    """A task may quantise inside: f32 in, eight bits in the products."""
    assert typed("f32", precision=precision).width == width


def test_a_class_that_could_not_be_measured_leaves_no_bound_on_arithmetic() -> None:
    """A bound over the rest would not be one; the memory part stays."""
    crippled = planted(f32=60e12, tf32=450e12, f16=900e12, missing=("bf16",))
    assert fastest(crippled, 32) is None
    assert floor_us(wanted(flops=10**12), crippled) is None
    assert floor_us(wanted(flops=10**12, read_bytes=4_000_000), crippled) == pytest.approx(SLACK["cuda"])
    assert fastest(crippled, 64) == 450e12  # out of reach of f64 data: not needed


def test_four_bit_data_has_no_bound_where_four_bit_arithmetic_is_not_measured() -> None:
    """Nothing that is measured is as quick."""
    assert fastest(planted(f8=1e15, missing=("f4",)), 4) is None
    assert fastest(planted(f8=1e15), 4) == 1e15
    assert fastest(planted(f8=1e15, missing=("f4",)), 8) == 1e15


def test_the_top_clock_counts_where_the_measured_rate_was_throttled() -> None:
    """A short call runs at clocks that a calibration under full power does not see."""
    peaks = HOPPER.model_copy(update={"flops": {"bf16": rate(600e12, top=1000e12)}, "missing": {}})
    assert fastest(peaks, 32) == 1000e12


RATES = st.dictionaries(st.sampled_from(["f64", "f32", "tf32", "f16", "bf16", "f8"]), st.floats(1e9, 1e16), min_size=1)


@given(
    RATES,
    st.floats(1e9, 1e13),
    st.floats(1, 10),
    st.integers(0, 2**40),
    st.integers(0, 2**50),
    st.sampled_from([8, 16, 32, 64]),
)
def test_a_quicker_device_never_has_a_higher_floor(
    flops: dict[str, float], read: float, factor: float, read_bytes: int, work: int, width: int
) -> None:
    """Whatever rate rises."""
    need = wanted(read_bytes=read_bytes, flops=work, width=width)
    before = floor_us(need, planted(read=read, rates=flops))
    raised = {name: value * factor for name, value in flops.items()}
    for peaks in (planted(read=read * factor, rates=flops), planted(read=read, rates=raised)):
        after = floor_us(need, peaks)
        assert (after is None) == (before is None)
        assert after is None or before is None or after <= before * (1 + 1e-12)


# ---------------------------------------------------------------- what is void


def test_a_time_under_the_floor_of_planted_peaks_is_impossible() -> None:
    """On a device that reads 1 MB/us, 8 MB in 3 us cannot have been read; in 5 us they can."""
    given = task(
        work={"bytes": "4 * (2 * M * N + M)"},
        configs=[{"name": "big", "args": {"M": 1024, "N": 2048}}, {"name": "empty", "args": {"M": 0, "N": 0}}],
    )
    floors = floors_us(given, given.configs, planted("cpu", read=1e12))
    assert floors == {"big": pytest.approx(4.194304)}
    said = impossible("big", 3.0, floors)
    assert said is not None
    assert "3.000 us is under the physics floor of 4.194 us" in said
    assert impossible("big", 5.0, floors) is None
    assert impossible("empty", 0.001, floors) is None


@pytest.mark.parametrize("time_us", [math.nan, 0.0, -1.0, -math.inf])
def test_what_is_no_time_is_impossible_with_a_floor_and_without(time_us: float) -> None:
    """NaN fails every comparison, so it has to fail this one too."""
    assert impossible("c", time_us, {"c": 1.0}) is not None
    assert impossible("c", time_us, {}) is not None


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_winners_are_well_above_the_floor(name: str) -> None:
    """Against a core with twice the bandwidth and rates of the one that the README's times were taken on."""
    given = load_task(ROOT / f"specs/tasks/{name}.yaml").task
    fast = planted("cpu", read=50e9, f64=125e9, f32=250e9, bf16=500e9, i16=500e9, i8=1e12)
    floors = floors_us(given, given.configs, fast)
    measured = (ROOT / f"kernels/{SHIPPED[name]}/README.md").read_text()
    for config in given.configs:
        row = re.search(rf"^\| {config.name} \| [\d.]+ \(.*?\) \| ([\d.]+) \(", measured, re.MULTILINE)
        assert row is not None, config.name
        assert float(row[1]) > 2 * floors[config.name] > 0


# ---------------------------------------------------------------- for tables


def test_the_speed_of_light_score_is_one_on_the_roofline() -> None:
    """All bytes at memory bandwidth: 8 MB at 4 TB/s is 2 us, so 4 us is half of it."""
    need = wanted(bytes=8_000_000, read_bytes=4_000_000, flops=1000)
    assert ideal_us(need, HOPPER) == pytest.approx(2.0)
    assert sol(2.0, need, HOPPER) == pytest.approx(1.0)
    assert sol(4.0, need, HOPPER) == pytest.approx(0.5)


def test_the_score_takes_the_datas_own_arithmetic() -> None:
    """bf16 products are held to the rate of bf16, although the floor has to allow for less."""
    need = typed("bf16", "bf16")
    assert need.native == "bf16"
    assert ideal_us(wanted(flops=900_000_000, native="bf16", width=16), HOPPER) == pytest.approx(1.0)


def test_nothing_known_gives_no_score() -> None:
    """A table then leaves the cell empty."""
    assert sol(1.0, wanted(), HOPPER) is None
    assert sol(1.0, wanted(bytes=8), planted(read=0)) is None
    assert sol(math.nan, wanted(bytes=8), HOPPER) is None


def test_a_rate_is_a_finite_positive_number_in_order() -> None:
    """What a calibrator prints is checked before it is believed."""
    for best, median in ((0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, 2.0)):
        with pytest.raises(ValidationError):
            Rate(best=best, median=median)


def test_a_task_without_an_interface_has_the_lowest_floor() -> None:
    """Nothing says what its data are, so everything is within reach."""
    got = demand(task(interface=None, work={"flops": "M", "bytes": "M"}), {"M": 4, "N": 4})
    assert got.width == 4
    assert got.read_bytes is None
