"""Clocks and company of a GPU, and samples that are not to be believed; NVML is a fake with the real one's names."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.gpu_state import HARDWARE, Process, State, Watch, dashed, judge_samples, reasons, watching
from specs.errors import MachineError

UUID = "8d3f2a10001122334455667788990011"


class Refused(Exception):
    """What the fake raises, as pynvml raises NVMLError."""


@dataclass
class Nvml:
    """The calls of pynvml that are used; the names in `refuses` raise."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    refuses: set[str] = field(default_factory=set)
    bits: int = 0
    processes: list[SimpleNamespace] = field(default_factory=list)
    open: int = 0
    asked_for: str = ""

    def _may(self, name: str) -> None:
        if name in self.refuses:
            raise Refused(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self._may("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._may("nvmlDeviceGetHandleByUUID")
        self.asked_for = uuid
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:  # noqa: N802
        self._may("nvmlDeviceGetClockInfo")
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        self._may("nvmlDeviceGetPowerUsage")
        return 310_400

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        self._may("nvmlDeviceGetTemperature")
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        self._may("nvmlDeviceGetCurrentClocksEventReasons")
        return self.bits

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        self._may("nvmlDeviceGetCurrentClocksThrottleReasons")
        return self.bits

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        self._may("nvmlDeviceGetComputeRunningProcesses")
        return self.processes


ALL_QUESTIONS = {name for name in vars(Nvml) if name.startswith("nvmlDeviceGet")} - {"nvmlDeviceGetHandleByUUID"}


def looked_at(nvml: Nvml) -> State:
    with watching(UUID, nvml) as watch:
        return watch.state()


# ---------------------------------------------------------------- one look


def test_a_look_gives_clocks_power_and_temperature() -> None:
    """MHz, watts and degrees, in one line for people."""
    state = looked_at(Nvml())
    assert state == State(sm_mhz=1980, memory_mhz=3201, power_w=310.4, temperature_c=41, throttle=())
    assert state.told == "SM 1980 MHz, memory 3201 MHz, 310 W, 41 C, not throttled"


def test_reasons_are_told_in_words() -> None:
    """A new driver's bit keeps its number instead of being lost."""
    assert reasons(0) == ()
    assert reasons(0x4 | 0x40) == ("power cap", "hardware thermal slowdown")
    assert reasons(0x1000 | 0x8) == ("hardware slowdown", "reason 0x1000")
    assert looked_at(Nvml(bits=0x84)).told.endswith("clocks held by power cap and hardware power brake")


def test_the_words_are_those_of_the_real_library() -> None:
    """Each bit against pynvml's own constant, where it is installed."""
    pynvml = pytest.importorskip("pynvml")
    named = {
        "idle": "GpuIdle", "application clocks": "ApplicationsClocksSetting", "power cap": "SwPowerCap",
        "hardware slowdown": "HwSlowdown", "sync boost": "SyncBoost", "software thermal slowdown": "SwThermalSlowdown",
        "hardware thermal slowdown": "HwThermalSlowdown", "hardware power brake": "HwPowerBrakeSlowdown",
        "display clocks": "DisplayClockSetting",
    }  # fmt: skip
    for word, name in named.items():
        assert reasons(getattr(pynvml, f"nvmlClocksEventReason{name}")) == (word,)
    for question in ALL_QUESTIONS | {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByUUID"}:
        assert callable(getattr(pynvml, question))


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    """The reasons were called throttle reasons before."""
    assert looked_at(Nvml(refuses={"nvmlDeviceGetCurrentClocksEventReasons"}, bits=0x8)).throttle == (
        "hardware slowdown",
    )


@pytest.mark.parametrize("question", sorted(ALL_QUESTIONS))
def test_a_question_that_is_refused_leaves_the_rest(question: str) -> None:
    """A virtual GPU tells its clocks but not its power, or the other way round."""
    state = looked_at(Nvml(refuses={question}))
    assert state.told != "unknown"


def test_a_device_that_answers_nothing_is_unknown() -> None:
    """Not zero MHz."""
    assert looked_at(Nvml(refuses=set(ALL_QUESTIONS))) == State()
    assert State().told == "unknown"


def test_a_device_is_found_by_its_uuid_however_it_is_written() -> None:
    """Its number may differ from process to process."""
    written = "GPU-8d3f2a10-0011-2233-4455-667788990011"
    assert dashed(UUID) == dashed(written) == dashed(UUID.upper()) == written
    nvml = Nvml()
    looked_at(nvml)
    assert nvml.asked_for == written


# ---------------------------------------------------------------- without NVML


def absent(monkeypatch: pytest.MonkeyPatch) -> Nvml | None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return None


@pytest.mark.parametrize(
    "made",
    [
        absent,
        lambda _: Nvml(refuses={"nvmlInit"}),
        lambda _: Nvml(refuses={"nvmlDeviceGetHandleByUUID"}),
    ],
    ids=["not installed", "no driver", "no such device"],
)
def test_without_nvml_everything_is_unknown(
    made: Callable[[pytest.MonkeyPatch], Nvml | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing fails."""
    with watching(UUID, made(monkeypatch)) as watch:
        assert not watch.known
        assert watch.state() == State()
        assert watch.foreign_processes({1}) is None
    assert judge_samples([None] * 5, [None] * 5) == []


def test_what_was_opened_is_closed_again() -> None:
    """Also when the body fails and when the device is not there."""
    nvml = Nvml()
    with pytest.raises(KeyError), watching(UUID, nvml):
        raise KeyError
    looked_at(Nvml(refuses={"nvmlDeviceGetHandleByUUID"}))
    assert nvml.open == 0


# ---------------------------------------------------------------- company


def test_strangers_on_the_device_are_named() -> None:
    """Ours are left out; memory may be unknown."""
    nvml = Nvml(processes=[SimpleNamespace(pid=9, usedGpuMemory=None), SimpleNamespace(pid=7, usedGpuMemory=1 << 30)])
    nvml.processes.append(SimpleNamespace(pid=5, usedGpuMemory=1))
    with watching(UUID, nvml) as watch:
        assert watch.foreign_processes({5}) == (Process(pid=7, memory_bytes=1 << 30), Process(pid=9))
        assert watch.foreign_processes({5, 7, 9}) == ()


def test_company_that_cannot_be_seen_is_not_an_empty_device() -> None:
    """None is no promise."""
    with watching(UUID, Nvml(refuses={"nvmlDeviceGetComputeRunningProcesses"})) as watch:
        assert watch.foreign_processes(set()) is None
    assert Watch().foreign_processes(set()) is None


# ---------------------------------------------------------------- samples


def test_samples_at_a_lower_clock_are_dropped() -> None:
    """1500 MHz among 1980 MHz is another device; a step or two of 15 MHz is not."""
    assert judge_samples([1980, 1965, 1500, 1980, 1950, 1980, 1980]) == [2]


def test_a_hardware_slowdown_drops_a_sample_whatever_its_clock() -> None:
    """A power cap alone does not: a kernel that draws much lives with it."""
    held: list[tuple[str, ...] | None] = [(), ("power cap",), ("hardware thermal slowdown", "power cap"), None, ()]
    assert judge_samples([1980] * 5, held) == [2]
    assert judge_samples([None] * 5, held) == [2]


@pytest.mark.parametrize("low", [4, 5, 9, 11])
def test_too_many_throttled_samples_are_the_machines_trouble(low: int) -> None:
    """Up to the point where hardly any is left at the full clock: no verdict on anybody."""
    clocks = [1200.0] * low + [1980.0] * (12 - low)
    if low <= 4:
        assert judge_samples(clocks) == list(range(low))
        return
    if low == 11:  # one boost above a steady clock is the odd one out, not eleven throttled samples
        assert judge_samples(clocks) == []
        return
    with pytest.raises(MachineError, match=rf"throttled in {low} of 12 samples: lowest SM clock 1200 MHz of usually"):
        judge_samples(clocks)


def test_the_reason_is_part_of_the_message() -> None:
    """Whoever reads it knows where to look."""
    with pytest.raises(MachineError, match=r"4 of 4 samples \(hardware power brake, power cap\)"):
        judge_samples([1980] * 4, [("power cap", "hardware power brake")] * 4)


def test_clocks_and_reasons_come_in_pairs() -> None:
    """A list that is too short would shift every reason."""
    with pytest.raises(ValueError, match="2 clocks and 1 throttle reasons"):
        judge_samples([1, 2], [None])


def test_no_samples_none_dropped() -> None:
    """An empty run is somebody else's trouble."""
    assert judge_samples([]) == []


@given(
    st.lists(st.tuples(st.none() | st.integers(300, 2000), st.none() | st.sets(st.sampled_from(sorted(HARDWARE))))),
    st.floats(0, 1),
)
def test_never_more_is_dropped_than_allowed(samples: list[tuple[int | None, set[str] | None]], most: float) -> None:
    """No sample with a hardware reason is kept, and none is dropped for its clock while a slower one is kept."""
    clocks, held = [clock for clock, _ in samples], [words for _, words in samples]
    try:
        dropped = judge_samples(clocks, held, dropped_at_most=most)
    except MachineError:
        return
    assert len(dropped) <= most * len(samples)
    kept = [i for i in range(len(samples)) if i not in dropped]
    assert not any(held[i] for i in kept)
    lowest_kept = min((clock for i in kept if (clock := clocks[i]) is not None), default=math.inf)
    assert not any((clocks[i] or 0) >= lowest_kept and not held[i] for i in dropped)
    assert dropped == sorted(set(dropped))
