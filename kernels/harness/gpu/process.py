"""An executor as the gate sees it: started in a sandbox, asked one thing at a time, killed with all it holds."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernels.harness import sandbox
from kernels.harness.arena import CandidateFault
from kernels.harness.gpu import frames
from specs.errors import GateError, MachineError, RunnerLost
from specs.outcomes import FailureKind

HERE = Path(__file__).parent
PROGRAM = "kernels.harness.gpu.executor"
# The driver reads a candidate's bytes in this process. What it dies of then is not the machine's doing.
DIGESTS = ("load", "run", "graph", "graph_window")
DRIVERS_DEATHS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
START_TIMEOUT_S = 120.0  # a driver that was not in use takes its time
STOP_TIMEOUT_S = 10.0
# Vendors' Python libraries compile and cache; everything else of the environment stays outside.
PASSED_ON = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "FLASHINFER_", "NVIDIA_", "TORCH_CUDA_")


class Executor:
    """One process that has the device. Raises MachineError when it cannot start."""

    def __init__(
        self,
        isolation: sandbox.Isolation,
        ordinal: int,
        kernels: Path,
        *,
        arena_fd: int = -1,
        arena_bytes: int = 0,
        program: Path | None = None,
        home: Path | None = None,
        under: tuple[str, ...] = (),
    ) -> None:
        """`program` is what it will be asked to open, `under` a checker's command in front of it.

        `home` is a folder that a vendor's library may keep what it compiles in. No candidate's host code runs here.

        Without an arena its buffers are allocations of their own.
        """
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        passed = [theirs.fileno(), *([arena_fd] if arena_fd >= 0 else [])]
        own = [theirs.fileno(), ordinal, arena_fd, arena_bytes, kernels]
        # Not in isolated mode: a vendor's Python library is found where the gate's own are.
        readable = [HERE, kernels, *([program] if program is not None else [])]
        command = [
            *_walls(isolation, readable, home),
            *under,
            sys.executable,
            "-s",
            "-B",
            "-m",
            PROGRAM,
            *map(str, own),
        ]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors, env=environment(home),
                pass_fds=passed, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise MachineError(f"the executor could not be started: {error}") from error
        finally:
            theirs.close()
        self.asked_to_stop = False

    def await_ready(self) -> None:
        """Raises MachineError when the device has no room or cannot be used."""
        self._channel.settimeout(START_TIMEOUT_S)
        head, _ = self._receive("start")
        if "machine" in head:
            raise MachineError(f"the executor could not start: {head['machine']}")

    def ask(self, what: dict[str, Any], body: bytes = b"", *, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """One question, one answer. Raises CandidateFault for what a kernel did, MachineError for the device."""
        self._channel.settimeout(timeout_s)
        try:
            frames.send(self._channel, what, body)
        except frames.Closed as closed:
            raise self._lost(what["do"], str(closed)) from None
        head, content = self._receive(what["do"])
        if "refused" in head:
            raise CandidateFault(FailureKind.LAUNCH_FAILED, f"could not be launched: {head['refused']}")
        if "fault" in head:
            raise CandidateFault(FailureKind.CRASHED, f"its device code was ended by {head['fault']}")
        if "broken" in head:
            raise GateError(f"the baseline cannot be run: {head['broken']}")
        if "machine" in head:
            raise MachineError(f"the device failed: {head['machine']}")
        return head, content

    def _receive(self, doing: str) -> tuple[dict[str, Any], bytes]:
        try:
            return frames.receive(self._channel)
        except TimeoutError:
            raise CandidateFault(
                FailureKind.HUNG, f"did not finish on the device within {self._channel.gettimeout():g} s"
            ) from None
        except (frames.Closed, ValueError) as error:
            raise self._lost(doing, str(error)) from None

    def _lost(self, doing: str, why: str) -> Exception:
        try:
            status: int | str = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = "still there"
        number = -status if isinstance(status, int) and status < 0 else status - 128 if isinstance(status, int) else 0
        if doing in DIGESTS and number in DRIVERS_DEATHS:
            told = f"the driver died of {signal.Signals(number).name} on its device code (asked to {doing})"
            return CandidateFault(FailureKind.CRASHED, told)
        return RunnerLost(f"the executor is gone (asked to {doing}; status {status}): {self.said() or why}")

    def said(self, limit: int = 2000) -> str:
        """The end of what the process wrote."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors.tell() - limit, 0))
        return self._errors.read().decode(errors="replace").strip().replace("\n", "; ")

    def finish(self) -> int:
        """Let it end by itself (a checker then has its say); its exit status, negative for a signal."""
        self._channel.close()
        try:
            return self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
            raise MachineError("the executor did not end") from None

    def close(self) -> None:
        """Kill it and all it may have started. Safe to repeat."""
        self._channel.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()


def environment(home: Path | None = None) -> dict[str, str]:
    """PATH, the CUDA variables and where Python finds its packages; nothing else of ours."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    folders = [str(HERE.parents[2]), *(place for place in sys.path if place and Path(place).is_dir())]
    libraries = [str(folder) for folder in toolkit_libraries()]
    return {
        **kept,
        **sandbox.ENVIRONMENT,
        "PATH": os.pathsep.join([*_toolkit_programs(), "/usr/bin", "/bin"]),
        "HOME": str(home or "/tmp"),  # noqa: S108  the latter is private to the sandbox
        "PYTHONPATH": os.pathsep.join(folders),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "CUDA_MODULE_LOADING": "EAGER",  # a kernel's first call is not to load code
    }


def descendants(pid: int) -> set[int]:
    """Every process that descends from this one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found.update(children)
        waiting += children
    return found


def toolkit_libraries() -> Iterable[Path]:
    """Folders with the toolkit's shared libraries, the one of nvcc first, then what a Python package brings."""
    found = []
    nvcc = shutil.which("nvcc")
    roots = [Path(nvcc).resolve().parent.parent] if nvcc else []
    roots += [Path(path) for path in sorted(glob.glob("/usr/local/cuda*"))]  # noqa: PTH207
    for root in roots:
        found += [root / "lib64", root / "targets" / "x86_64-linux" / "lib"]
    for place in sys.path:
        found += sorted(Path(place).glob("nvidia/*/lib")) if place else []
    # The driver's own, where the system's loader does not know it.
    found += [Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib")]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def _toolkit_programs() -> list[str]:
    nvcc = shutil.which("nvcc")
    found = [str(Path(nvcc).parent), str(Path(nvcc).resolve().parent)] if nvcc else []
    return [*found, str(Path(sys.executable).parent)]


def _walls(isolation: sandbox.Isolation, readable: Iterable[Path], home: Path | None) -> list[str]:
    """It has the device and can read the system; no network, no other process, nothing to write but its own /tmp."""
    if isolation == "process":
        return []
    private = Path("/tmp")  # noqa: S108
    command = [
        shutil.which("bwrap") or "bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc",
        "--tmpfs", str(private), "--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
        "--die-with-parent", "--cap-drop", "ALL", "--chdir", str(private),
    ]  # fmt: skip
    # What lies in the real /tmp and is needed is shown again.
    shown = [path if path.is_dir() else path.parent for path in readable]
    shown += [HERE.parents[2], *(Path(place) for place in sys.path if place), Path(sys.executable).parent]
    for folder in dict.fromkeys(folder.absolute() for folder in shown):
        if folder.is_relative_to(private) and folder != private and folder.is_dir():
            command += ["--ro-bind", str(folder), str(folder)]
    if home is not None:
        command += ["--bind", str(home), str(home)]
    return command
