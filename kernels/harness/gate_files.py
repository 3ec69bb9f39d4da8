"""The gate folder as bytes: hashed once, locked, and never read from disk a second time."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

from kernels.harness.requests import GateLock
from specs.errors import GateError, GateTampered
from specs.schema import Task

MAX_FILE_BYTES = 16 * 2**20
MAX_FILES = 200  # the lock names every file and travels through the run's history


def read(folder: Path) -> dict[str, bytes]:
    """Every file under the gate folder by its posix path in it, `__pycache__` left out.

    Raises GateError for a missing folder, anything that is neither a file nor a folder, and files beyond the limits.
    """
    if not folder.is_dir():
        raise GateError(f"gate folder {folder} is {'not a folder' if folder.exists() else 'missing'}")
    contents: dict[str, bytes] = {}
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if len(contents) == MAX_FILES:
            raise GateError(f"gate folder {folder} has more than {MAX_FILES} files")
        contents[name] = _read_file(path, name)
    for needed in ("gate.yaml", "reference.py"):
        if needed not in contents:
            raise GateError(f"gate folder {folder} has no {needed}")
    return contents


def lock_of(task: Task, contents: dict[str, bytes], calibration: dict[str, dict[str, float]] | None = None) -> GateLock:
    """The lock over these bytes, over what the task says the kernel is called with and built with, and over the limits
    that calibration found.
    """
    files = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    judged = {
        "files": files,
        "interface": task.interface.model_dump(mode="json") if task.interface else None,
        "configs": {config.name: task.variables(config.args) for config in task.configs},
        "language": task.language.value,
        "build": task.build.model_dump(mode="json"),
        "baseline_flags": list(task.baseline.flags),
    }
    if calibration:
        judged["calibration"] = calibration
    canonical = json.dumps(judged, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return GateLock(digest=digest, files=files, calibration=calibration or {})


def verify(task: Task, contents: dict[str, bytes], lock: GateLock) -> None:
    """Raises GateTampered naming the first file that is not what was locked."""
    found = lock_of(task, contents, lock.calibration)
    for name in sorted(lock.files.keys() | found.files.keys()):
        locked, now = lock.files.get(name), found.files.get(name)
        if now is None:
            raise GateTampered(f"gate file {name} is missing; it was locked with sha256 {locked}")
        if locked is None:
            raise GateTampered(f"gate file {name} was added after the lock: sha256 {now} found")
        if locked != now:
            raise GateTampered(f"gate file {name} was changed after the lock: sha256 {locked} locked, {now} found")
    if lock.digest != found.digest:
        raise GateTampered(
            "calibrated limits, or the task's interface, configs or flags were changed after the gate was locked: "
            f"digest {lock.digest} locked, {found.digest} found"
        )


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name == "__pycache__":
            continue
        if entry.is_dir(follow_symlinks=False):
            found += _walk(Path(entry.path))
        else:
            found.append(Path(entry.path))
    return found


def _read_file(path: Path, name: str) -> bytes:
    try:
        # Not following a link and not waiting on a pipe, decided on the very file that is then read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise GateError(f"gate file {name} is a symbolic link; only regular files are accepted") from None
        raise GateError(f"gate file {name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise GateError(f"gate file {name} is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise GateError(f"gate file {name} is larger than {MAX_FILE_BYTES // 2**20} MiB")
    return content
