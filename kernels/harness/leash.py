"""Run a program that must not outlive us: its own process group, its own limits, killed whole.

The program runs under this very file as a small supervisor. When the starter dies, even of SIGKILL, the kernel tells
the supervisor, which takes the whole group down: a compiler has children that a plain kill would leave behind.
What loses its parent becomes the supervisor's child, whatever session it is in and whatever it has closed, and nothing
of it outlives the program. A program without a sandbox that kills the supervisor first is beyond that.
Run as `python -I -S leash.py STARTER_PID CPU_S MEMORY_BYTES FILE_BYTES PROGRAM ARGUMENT...`.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GONE_S = 10.0  # for all that a program started to be ended


@dataclass(frozen=True)
class Limits:
    cpu_s: int
    memory_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Finished:
    returncode: int  # negative: the signal that ended the supervisor itself
    timed_out: bool
    seconds: float


def run(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    limits: Limits,
    errors: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> Finished:
    """Run `argv` in `folder` with both its outputs appended to `log`, or standard error to `errors` where given.

    It inherits `pass_fds` and no other descriptor of ours.
    OSError when it cannot be started or logged.
    """
    numbers = (os.getpid(), limits.cpu_s, limits.memory_bytes, limits.file_bytes)
    leashed = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *map(str, numbers), *argv]
    started = time.monotonic()
    timed_out = False
    with log.open("ab") as sink, (errors or log).open("ab") as errors_sink:
        process = subprocess.Popen(
            leashed,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=errors_sink,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        try:
            process.wait(timeout=max(timeout_s, 0.001))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.poll() is None:
                _end(process)
            # Also after a normal end: a supervisor that was killed has left the program running.
            _kill_group(process.pid)
            process.wait()
    return Finished(process.returncode, timed_out, time.monotonic() - started)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """Have a supervisor end everything below it; where it cannot (the program may have stopped it), do that here."""
    for signum in (signal.SIGTERM, signal.SIGCONT):
        supervisor.send_signal(signum)
    try:
        supervisor.wait(GONE_S)
    except subprocess.TimeoutExpired:
        for pid in _descendants(supervisor.pid):
            _kill(pid)


def _end_descendants() -> None:
    """Kill whatever is below this process until nothing is: those whose parent dies come to us, a subreaper."""
    end = time.monotonic() + GONE_S / 2
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _descendants(os.getpid()):
            _kill(pid)
        time.sleep(0.001)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # The program's name stands in brackets and may hold brackets itself; then come state and parent.
            parent = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(place.name))
    found, left = [], [root]
    while left:
        below = children.pop(left.pop(), [])
        found += below
        left += below
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _supervise(arguments: list[str]) -> int:
    starter, cpu_s, memory_bytes, file_bytes = (int(number) for number in arguments[:4])

    def end(signum: int, frame: object) -> None:
        if os.getpid() == supervisor:  # not between fork and exec
            _end_descendants()
        os.killpg(0, signal.SIGKILL)

    supervisor = os.getpid()

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != starter:  # it died before the line above took hold
        return 1
    program = os.fork()
    if program == 0:
        try:
            for kind, limit in (
                (resource.RLIMIT_CPU, cpu_s),
                (resource.RLIMIT_AS, memory_bytes),
                (resource.RLIMIT_FSIZE, file_bytes),
                (resource.RLIMIT_CORE, 0),
            ):
                hard = resource.getrlimit(kind)[1]
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(kind, (limit, limit))
            # Python adds LC_CTYPE on its own where LANG is C; the program is to see what it was given and nothing else.
            environment = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
            os.execve(arguments[4], arguments[4:], environment)  # noqa: S606  # no shell is wanted
        except OSError as error:
            os.write(2, f"{arguments[4]}: {error.strerror}\n".encode())
        os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    _end_descendants()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1:]))
