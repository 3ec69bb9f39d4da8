"""The devices of this machine, and which run has claimed which."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from activities.process import clean_environment
from activities.settings import Settings, folder_name

SMI = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader")
SMI_S = 20.0  # a driver that was not in use takes seconds to answer
# Words of a driver's name that do not tell one kind from another: the maker, the size and kind of memory, the socket.
_SAID_ANYWAY = re.compile(
    r"nvidia|tesla|geforce|gpu|generation|\d+ ?g(i?b)?|hbm\d\w*|gddr\d\w*|sxm\d*|pcie|nvl|oam", re.IGNORECASE
)

log = structlog.get_logger("ferret.devices")


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One physical device, served by one queue with one slot."""

    kind: str  # as task files write it in `gpu`, lower case: cpu, h200
    queue: str  # ferret-<host>-<device>
    description: str
    uuid: str = ""  # of a GPU, as CUDA_VISIBLE_DEVICES takes it

    @property
    def plan_queue(self) -> str:
        """Queue of every machine that has such a device."""
        return f"ferret-{self.kind}"


@dataclass(frozen=True, slots=True)
class _Gpu:
    uuid: str  # GPU-8d3f2a10-...
    name: str  # the driver's
    mib: int | None  # of memory


def detect(environ: Mapping[str, str] = os.environ) -> tuple[LocalDevice, ...]:
    """What this machine can build for, judge and time on: its processor as one device, and every GPU that it shows.

    CUDA_VISIBLE_DEVICES narrows the GPUs as it does for a CUDA program; numbers count as nvidia-smi does. No CUDA
    context is made: the driver's management library is asked, or nvidia-smi where its Python package is missing.

    A GPU's queue carries the first digits of its UUID. Its number would change with a card that fails, and with what a
    container is shown, and a run would then go on another device than the one it has claimed.
    """
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-") or "host"
    found = [LocalDevice(kind="cpu", queue=f"ferret-{host}-cpu", description=f"{_processor()} on {host}")]
    for gpu in _visible(_gpus(), environ.get("CUDA_VISIBLE_DEVICES")):
        size = "" if gpu.mib is None else f", {gpu.mib / 1024:.0f} GiB"
        digits = gpu.uuid.lower().removeprefix("gpu-")[:8]
        found.append(
            LocalDevice(
                kind=kind_of(gpu.name),
                queue=f"ferret-{host}-gpu-{digits}",
                description=f"{gpu.name}{size}, on {host}",
                uuid=gpu.uuid,
            )
        )
    return tuple(found)


def kind_of(name: str) -> str:
    """What task files call a GPU in `gpu`, lower case, from the driver's name for it.

    Its words, joined by '-', without the maker's (NVIDIA, Tesla, GeForce, GPU, Generation), the size and kind of its
    memory, and how it is plugged in: `h200` from "NVIDIA H200", `a100` from "NVIDIA A100-SXM4-80GB", `rtx-4090` from
    "NVIDIA GeForce RTX 4090". A name that has nothing else is `gpu`.
    """
    words = [word for word in re.split(r"[^A-Za-z0-9.]+", name) if word and not _SAID_ANYWAY.fullmatch(word)]
    return "-".join(words).lower() or "gpu"


def visible_to(queue: str, devices: Sequence[LocalDevice]) -> str | None:
    """CUDA_VISIBLE_DEVICES for work of this queue: its GPU, or all of its kind; None for a queue without GPUs."""
    return ",".join(one.uuid for one in devices if one.uuid and queue in (one.queue, one.plan_queue)) or None


def _gpus() -> list[_Gpu]:
    """In the order of nvidia-smi."""
    by_library = _by_library()
    return _by_program() if by_library is None else by_library


def _by_library() -> list[_Gpu] | None:
    """None where NVML or its Python package is missing."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # pynvml's errors share no base class with anything
        return None
    try:
        return [gpu for number in range(nvml.nvmlDeviceGetCount()) if (gpu := _one_by_library(nvml, number))]
    except Exception as error:
        log.warning("gpus not listed", reason=str(error))
        return None
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _one_by_library(nvml: Any, number: int) -> _Gpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
    except Exception as error:  # a card that fell off the bus must not take the others along
        log.warning("gpu left out", number=number, reason=str(error))
        return None
    mib = None
    with contextlib.suppress(Exception):
        mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    return _Gpu(uuid, name, mib)


def _text(said: str | bytes) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def _by_program() -> list[_Gpu]:
    try:
        answer = subprocess.run(
            SMI, stdin=subprocess.DEVNULL, capture_output=True, timeout=SMI_S, check=True, env=clean_environment()
        )
    except FileNotFoundError:
        return []
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("gpus not listed", reason=str(error))
        return []
    found = []
    for line in answer.stdout.decode(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].startswith("GPU-"):
            size = re.fullmatch(r"(\d+) MiB", cells[3])
            found.append(_Gpu(cells[1], cells[2], int(size[1]) if size else None))
    return found


def _visible(gpus: list[_Gpu], asked: str | None) -> list[_Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names; as with CUDA, the first word that names none ends the list."""
    if asked is None:
        return gpus
    found: list[_Gpu] = []
    for word in (part.strip() for part in asked.split(",")):
        if word.isdigit():
            named = gpus[int(word) : int(word) + 1]
        else:
            named = [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return f"{match[1].strip() if match else 'CPU'}, {os.cpu_count()} cores"


class Claims:
    """Runs by device, as files under home, so that several runs spread over a machine's devices."""

    def __init__(self, settings: Settings, devices: tuple[LocalDevice, ...]) -> None:
        self._folder = settings.home / "claims"
        self._devices = devices

    def claim(self, run_id: str, kind: str, avoid: str | None = None) -> LocalDevice:
        """The device this run already has, else the least claimed one; `avoid` names a queue that went silent."""
        fitting = [device for device in self._devices if device.kind == kind]
        if avoid is not None:
            self.release(run_id, avoid)
        held = [device for device in fitting if (self._file(device.queue, run_id)).exists()]
        # A silent device is better than none: it may have come back.
        wanted = [device for device in fitting if device.queue != avoid] or fitting
        if not wanted:
            raise LookupError(kind)
        device = held[0] if held else min(wanted, key=lambda one: self._claimed(one.queue))
        file = self._file(device.queue, run_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return device

    def release(self, run_id: str, queue: str) -> None:
        self._file(queue, run_id).unlink(missing_ok=True)

    def _claimed(self, queue: str) -> int:
        folder = self._folder / queue
        return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0

    def _file(self, queue: str, run_id: str) -> Path:
        return self._folder / queue / folder_name(run_id)
