"""Devices: what a machine has, by which words, and how runs spread over them and keep the one they have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from activities import devices
from activities.devices import Claims, LocalDevice, detect, kind_of, visible_to
from tests.fakes import settings_at

FIRST = "GPU-8d3f2a10-0011-2233-4455-667788990011"
SECOND = "GPU-8d3f77aa-0011-2233-4455-667788990022"
THIRD = "GPU-0c0c0c0c-0011-2233-4455-667788990033"
LISTED = f"0, {FIRST}, NVIDIA H200, 143771 MiB\n1, {SECOND}, NVIDIA H200, 143771 MiB\n2, {THIRD}, Tesla T4, [N/A]\n"

TWO = tuple(LocalDevice(kind="h200", queue=f"ferret-host-gpu{n}", description="") for n in range(2))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without pynvml whose nvidia-smi is the file given back; to be written by the test."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def answers(path: Path, listed: str) -> None:
    """Only to the very question that lists the GPUs."""
    path.with_name("listed").write_text(listed)
    query = "--query-gpu=index,uuid,name,memory.total --format=csv,noheader"
    write_program(path, f'[ "$*" = "{query}" ] && exec /bin/cat "{path.with_name("listed")}"')


def gpus(environ: dict[str, str] | None = None) -> list[str]:
    return [device.uuid for device in detect(environ or {}) if device.uuid]


def test_this_machine_offers_its_processor(smi: Path) -> None:
    """On queues named as the tasks and the design name them; alone where no driver tells of a GPU."""
    assert not smi.exists()
    (device,) = detect({})
    assert (device.kind, device.plan_queue, device.uuid) == ("cpu", "ferret-cpu", "")
    assert device.queue.startswith("ferret-")
    assert device.queue.endswith("-cpu")


def test_every_gpu_is_a_device_of_its_own(smi: Path) -> None:
    """With what nvidia-smi says of it, and a queue that follows the card, whatever its number."""
    answers(smi, LISTED)
    cpu, first, second, third = detect({})
    host = cpu.queue.removeprefix("ferret-").removesuffix("-cpu")
    assert first == LocalDevice(
        kind="h200",
        queue=f"ferret-{host}-gpu-8d3f2a10",
        description=f"NVIDIA H200, 140 GiB, on {host}",
        uuid=FIRST,
    )
    assert (second.plan_queue, second.queue) == ("ferret-h200", f"ferret-{host}-gpu-8d3f77aa")
    assert (third.kind, third.description) == ("t4", f"Tesla T4, on {host}")
    answers(smi, f"0, {SECOND}, NVIDIA H200, 143771 MiB\n")  # the first has failed
    assert [device.queue for device in detect({})] == [cpu.queue, second.queue]


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("1", [SECOND]),
        ("2,0", [THIRD, FIRST]),
        (FIRST, [FIRST]),
        ("GPU-8d3f77", [SECOND]),
        ("GPU-8d3f", []),  # two begin so
        ("1,7,0", [SECOND]),  # CUDA stops at the first that is not there
        ("0,0", [FIRST]),
        ("-1", []),
        ("", []),
    ],
)
def test_what_cuda_may_see_is_all_that_is_served(smi: Path, asked: str, seen: list[str]) -> None:
    """A person who keeps a GPU for something else says so as for any CUDA program."""
    answers(smi, LISTED)
    assert gpus({"CUDA_VISIBLE_DEVICES": asked}) == seen


@pytest.mark.parametrize(
    "script",
    [
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "echo 'No devices were found'",
        "exec /bin/sleep 1000",
    ],
)
def test_a_driver_that_does_not_answer_is_no_gpu(smi: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The processor is served all the same, and soon."""
    monkeypatch.setattr(devices, "SMI_S", 0.3)
    write_program(smi, script)
    assert gpus() == []


class Lost(Exception):
    """What the fake raises, as pynvml raises NVMLError."""


@dataclass
class Nvml:
    """The calls of pynvml that are used, for H200s with these UUIDs; one that is "" fell off the bus."""

    uuids: Sequence[str]
    starts: bool = True
    calls: list[str] = field(default_factory=list)

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("init")
        if not self.starts:
            raise Lost("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        if not self.uuids[number]:
            raise Lost("GPU is lost")
        return number

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self.uuids[handle]

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802  bytes: older releases
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=143771 << 20)


def test_the_library_says_the_same_as_the_program(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is asked first, and let go of again."""
    answers(smi, f"0, {FIRST}, NVIDIA H200, 143771 MiB\n")
    by_program = detect({})
    write_program(smi, "exit 1")
    nvml = Nvml([FIRST])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert detect({}) == by_program
    assert nvml.calls == ["init", "shutdown"]


def test_a_lost_card_does_not_take_the_others_along(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(["", SECOND]))
    assert gpus() == [SECOND]


def test_a_library_that_does_not_start_leaves_it_to_the_program(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    answers(smi, LISTED)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([THIRD], starts=False))
    assert gpus() == [FIRST, SECOND, THIRD]


def test_the_real_library_has_the_calls() -> None:
    """The fake is no better than the names it has."""
    pynvml = pytest.importorskip("pynvml")
    for name in (name for name in vars(Nvml) if name.startswith("nvml")):
        assert callable(getattr(pynvml, name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GPU", "gpu"),
    ],
)
def test_a_kind_is_what_task_files_call_it(name: str, kind: str) -> None:
    """Whatever else the driver puts into a name."""
    assert kind_of(name) == kind


def test_work_of_a_queue_sees_the_gpus_of_that_queue() -> None:
    """One's own, those of a kind where no device is claimed yet, and nothing is said where there is none."""
    here = (
        LocalDevice("cpu", "ferret-host-cpu", ""),
        LocalDevice("h200", "ferret-host-gpu-1", "", "GPU-1"),
        LocalDevice("t4", "ferret-host-gpu-2", "", "GPU-2"),
        LocalDevice("h200", "ferret-host-gpu-3", "", "GPU-3"),
    )
    assert visible_to("ferret-host-gpu-3", here) == "GPU-3"
    assert visible_to("ferret-h200", here) == "GPU-1,GPU-3"
    assert [visible_to(queue, here) for queue in ("ferret-cpu", "ferret-host-cpu", "another", "")] == [None] * 4


def test_runs_spread_over_the_devices(tmp_path: Path) -> None:
    """The least claimed one is next."""
    claims = Claims(settings_at(tmp_path), TWO)
    assert {claims.claim(run, "h200").queue for run in ("a", "b")} == {device.queue for device in TWO}


def test_a_retry_gets_the_same_device(tmp_path: Path) -> None:
    """Even from another worker process of the same home."""
    first = Claims(settings_at(tmp_path), TWO).claim("a", "h200")
    Claims(settings_at(tmp_path), TWO).claim("b", "h200")
    assert Claims(settings_at(tmp_path), TWO).claim("a", "h200") == first


def test_a_silent_device_is_left_for_another(tmp_path: Path) -> None:
    """Unless there is no other: it may have come back."""
    claims = Claims(settings_at(tmp_path), TWO)
    first = claims.claim("a", "h200")
    assert claims.claim("a", "h200", avoid=first.queue) != first
    only = Claims(settings_at(tmp_path / "one"), TWO[:1])
    assert only.claim("a", "h200", avoid=TWO[0].queue) == TWO[0]


def test_a_released_device_is_free_again(tmp_path: Path) -> None:
    """Releasing twice does no harm."""
    claims = Claims(settings_at(tmp_path), TWO)
    first = claims.claim("a", "h200")
    claims.release("a", first.queue)
    claims.release("a", first.queue)
    assert claims.claim("b", "h200") == first


def test_a_kind_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    """A run for another device must not get this one."""
    with pytest.raises(LookupError):
        Claims(settings_at(tmp_path), TWO).claim("a", "b200")
