"""The CPU that times are taken on: what it is, which cores to use, and the lock that keeps others off it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

from kernels.harness.clock import Cores
from specs.errors import DeviceBusy, MachineError
from specs.outcomes import Device

log = structlog.get_logger()

CPUS = Path("/sys/devices/system/cpu")
FALLBACK_LLC = 32 << 20  # bytes; where sysfs does not say (some virtual machines)
FALLBACK_PRIVATE = 2 << 20
LOCKS = Path("/tmp")  # noqa: S108  fixed on purpose: two values of TMPDIR are still one machine
LOCKS_VARIABLE = "FERRET_LOCKS"
POLL_S = 0.05  # between attempts at the lock


def pick_cores() -> Cores:
    """The last allowed core for the runner and one that is not its hyper-thread for the gate.

    The last, because the first is where a kernel tends to put interrupts and its own work.
    """
    allowed = sorted(os.sched_getaffinity(0))
    runner = allowed[-1]
    others = [core for core in allowed if core != runner]
    apart = [core for core in others if core not in _siblings(runner)]
    return Cores(gate=(apart or others or [runner])[-1], runner=runner)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep the calling thread on one core, then put its cores back."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cache_bytes(core: int) -> tuple[int, int]:
    """Sizes of the last-level cache and of the largest private one below it, in bytes."""
    sizes: dict[int, int] = {}
    for index in (CPUS / f"cpu{core}" / "cache").glob("index*"):
        if _read(index / "type") != "Instruction":
            sizes[int(_read(index / "level") or 0)] = _size(_read(index / "size"))
    if not any(sizes.values()):
        return FALLBACK_LLC, FALLBACK_PRIVATE
    levels = sorted(level for level, size in sizes.items() if size)
    return sizes[levels[-1]], sizes[levels[-2]] if len(levels) > 1 else sizes[levels[-1]]


def describe(cores: Cores) -> Device:
    """Model, pinned cores, caches, governor and compiler, each left out where the machine does not say."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    last, private = cache_bytes(cores.runner)
    governor = _read(CPUS / f"cpu{cores.runner}" / "cpufreq" / "scaling_governor")
    where = f"runner on core {cores.runner}, clock on " + (f"core {cores.gate}" if cores.spin else "the same core")
    detail = [where, f"last-level cache {last >> 20} MiB, private cache {private >> 10} KiB"]
    detail += [f"governor {governor}"] if governor else []
    return Device(
        name=model.group(1).strip() if model else platform.machine(),
        detail=", ".join([*detail, f"Linux {platform.release()}"]),
        toolkit=_compiler(),
    )


@contextlib.contextmanager
def lock(device: int | str, wait_s: float, *, shared: bool = False) -> Iterator[float]:
    """Hold a core, or a device by its name (`gpu-<uuid>`), across processes; yields how many seconds it took to get it.

    Judging takes it shared (judges may run side by side), timing takes it alone. The operating system drops the lock
    when its holder dies. Raises DeviceBusy after `wait_s`.
    """
    name, told = (f"cpu{device}", f"core {device}") if isinstance(device, int) else (device, device)
    path = lock_folder() / f"ferret-{name}.lock"
    descriptor = _open_lock(path)
    begin = time.monotonic()
    said = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - begin
                if waited >= wait_s:
                    holder = f"{told} is held by another ferret process ({path})"
                    raise DeviceBusy(f"{holder}; waited {waited:.0f} s of {wait_s:.0f} s") from None
                if not said:
                    said = True
                    log.info("device_busy", device=name, lock=str(path), wait_s=wait_s)
                time.sleep(min(POLL_S, wait_s))
        yield time.monotonic() - begin
    finally:
        os.close(descriptor)


def lock_folder() -> Path:
    """Where device locks lie: the same place for every user and every TMPDIR, unless FERRET_LOCKS names another."""
    return Path(os.environ.get(LOCKS_VARIABLE) or LOCKS)


def _open_lock(path: Path) -> int:
    """Open for everybody: a core has one lock, whoever made the file. Raises MachineError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW  # flock needs no right to write
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(descriptor, 0o644)  # whatever the umask
            return descriptor
        return os.open(path, flags)
    except OSError as error:
        told = f"the device lock {path} cannot be opened: {error.strerror}"
        raise MachineError(
            f"{told}; set {LOCKS_VARIABLE} to a folder that all who time on this machine share"
        ) from None


def _siblings(core: int) -> set[int]:
    found: set[int] = set()
    for part in _read(CPUS / f"cpu{core}" / "topology" / "thread_siblings_list").split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _compiler() -> str:
    try:
        answer = subprocess.run(["g++", "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.partition("\n")[0].strip()
