"""What a runner is shut into: a bubblewrap of its own where there is one, a bare process with limits where not."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from kernels.harness.requests import Sandbox
from specs.errors import UserError

log = structlog.get_logger()

Isolation = Literal["bubblewrap", "process"]

# Neutral and always the same, so that a candidate cannot tell who is calling it.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C"}
SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")  # what the dynamic loader reads
RUNNER = "/ferret/runner"
LIBRARY = "/ferret/kernel.so"
RUNTIME = "/ferret/libcudart.so"
PROBE_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a program: the argument vector in front of its own arguments, and its path as it sees it itself."""

    prefix: tuple[str, ...]
    program: str
    library: str
    runtime: str = "-"


def choose(policy: Sandbox) -> Isolation:
    """The isolation that a policy gives on this machine.

    `off` gives "process" too: limits, the system call filter and a clean environment are never dropped. Raises
    UserError when bubblewrap is required and cannot be used.
    """
    if policy == "off":
        return "process"
    reason = unusable()
    if reason is None:
        return "bubblewrap"
    if policy == "required":
        raise UserError(
            f"sandbox: 'required', but bubblewrap cannot be used here: {reason}; install it (apt-get install "
            "bubblewrap) and allow user namespaces, or accept less with 'preferred' or 'off'"
        )
    log.warning("no_bubblewrap", reason=reason, using="process")
    return "process"


@functools.cache
def unusable() -> str | None:
    """Why bubblewrap cannot be used; None when it really ran a program. Tried once a process."""
    program = shutil.which("true") or "/usr/bin/true"
    if shutil.which("bwrap") is None:
        return "there is no bwrap on PATH"
    try:
        command = [*_walls(), "--remount-ro", "/", program]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode != 0:
        return answer.stderr.strip().replace("\n", "; ") or f"bwrap ended with status {answer.returncode}"
    return None


def launch(
    isolation: Isolation,
    runner: Path,
    *,
    library_fd: int,
    trusted: Path | None,
    info_fd: int,
    runtime: Path | None = None,
) -> Launch:
    """Start `runner` with the object behind `library_fd`, or with the `trusted` one at its own path.

    A candidate is handed over by descriptor: what runs is what was hashed, whatever becomes of the file. `info_fd` is
    where bubblewrap tells the pid of its first process, `runtime` a library of ours that is loaded first.
    """
    if isolation == "process":
        library = str(trusted) if trusted else f"/proc/self/fd/{library_fd}"
        return Launch((), str(runner), library, str(runtime or "-"))
    binds = ["--ro-bind", str(runner), RUNNER, "--info-fd", str(info_fd)]
    if trusted is None:
        binds += ["--perms", "0444", "--ro-bind-data", str(library_fd), LIBRARY]
    else:
        for place in (trusted, *search_folders(trusted)):
            binds += ["--ro-bind", str(place), str(place)]
    if runtime is not None:
        binds += ["--ro-bind", str(runtime), RUNTIME]
    # Last, since the files above are bound below it.
    binds += ["--remount-ro", "/"]
    library = str(trusted) if trusted else LIBRARY
    return Launch((*_walls(), *binds), RUNNER, library, RUNTIME if runtime is not None else "-")


def enclosed(files: Mapping[Path, str], environment: Mapping[str, str]) -> list[str]:
    """The words in front of a program that runs in walls of its own, sees `files` at the places given, and has a /proc.

    That /proc is of the new pid namespace: it shows the program itself and nobody else.
    """
    command = [*_walls(), "--proc", "/proc"]
    for path, place in files.items():
        command += ["--ro-bind", str(path), place]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    return [*command, "--remount-ro", "/"]


def _walls() -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL"]
    for place in SYSTEM:
        if os.path.exists(place):  # noqa: PTH110
            command += ["--ro-bind", place, place]
    # No /proc: a candidate finds neither its own memory map nor anybody else's.
    command += ["--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp", "--clearenv"]  # noqa: S108
    for name, value in ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return command


def search_folders(library: Path) -> tuple[Path, ...]:
    """Folders outside the system's in which the loader will look for what `library` needs, directly or not."""
    folders: dict[Path, None] = {}
    waiting = [library.resolve()]
    seen = set(waiting)
    while waiting:
        current = waiting.pop()
        needed, paths = _dynamic(current)
        for path in paths:
            folder = Path(path.replace("${ORIGIN}", str(current.parent)).replace("$ORIGIN", str(current.parent)))
            if not folder.is_dir():
                continue
            if not any(folder.is_relative_to(place) for place in SYSTEM):
                folders[folder] = None
            for name in needed:
                found = (folder / name).resolve()
                if found.is_file() and found not in seen:
                    seen.add(found)
                    waiting.append(found)
                    folders[found.parent] = None
    return tuple(folder for folder in folders if not any(folder.is_relative_to(place) for place in SYSTEM))


def _dynamic(library: Path) -> tuple[Sequence[str], Sequence[str]]:
    needed: list[str] = []
    paths: list[str] = []
    try:
        with library.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, DynamicSection):
                    for tag in section.iter_tags():
                        if tag.entry.d_tag == "DT_NEEDED":
                            needed.append(getattr(tag, "needed"))  # noqa: B009  the stubs do not know it
                        elif tag.entry.d_tag == "DT_RUNPATH":
                            paths += str(getattr(tag, "runpath")).split(":")  # noqa: B009
                        elif tag.entry.d_tag == "DT_RPATH":
                            paths += str(getattr(tag, "rpath")).split(":")  # noqa: B009
    except (ELFError, OSError):
        return (), ()  # the loader will say what is wrong, in its own words
    return needed, paths
