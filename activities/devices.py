"""The devices of this machine, and which run has claimed which."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from activities.settings import Settings, folder_name


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One physical device, served by one queue with one slot."""

    kind: str  # as task files write it in `gpu`, lower case: cpu, h200
    queue: str  # ferret-<host>-<device>
    description: str

    @property
    def plan_queue(self) -> str:
        """Queue of every machine that has such a device."""
        return f"ferret-{self.kind}"


def detect() -> tuple[LocalDevice, ...]:
    """What this machine can build for, judge and time on. So far that is its processor, as one device."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-") or "host"
    return (LocalDevice(kind="cpu", queue=f"ferret-{host}-cpu", description=f"{_processor()} on {host}"),)


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
