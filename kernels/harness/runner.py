"""A throw-away process that holds one shared object: started, called, stopped, read, killed. All from outside."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels.harness import sandbox
from kernels.harness.arena import Arena, CandidateFault, Filled
from kernels.harness.build import compile_tool
from kernels.harness.clock import HERE, Answer, Clock, Cores, Kind, Line, Reading
from kernels.harness.interface import call_source
from specs.errors import MachineError, RunnerLost
from specs.outcomes import FailureKind
from specs.schema import Interface

LOAD_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0  # a signal to a running process takes microseconds; longer means that the machine is in trouble
CPU_SECONDS = 3600  # a backstop behind the deadline of each call
ADDRESS_SLACK = 4 << 30  # bytes over the arena: the loader, libraries, a kernel's own scratch
NO_SLOTS = np.zeros(1, dtype=np.uint64)
NO_RANGES = np.zeros((0, 2), dtype=np.uint64)

# Where things stand behind `state` on the control page; protocol.h says what they are.
_STATE, _TRAPPED, _TEXT, _TEXT_BYTES = 0, 4, 8, 2048
_STARTING, _LOADING, _LOADED, _NOT_LOADED = range(4)

_PREEMPTIONS = "nonvoluntary_ctxt_switches"
_NEW_PROCESS = {"x86_64": {56, 57, 58, 59, 322}, "aarch64": {220, 221, 281}}  # clone, fork, vfork, execve, execveat


class RunnerKilled(RunnerLost):
    """Ended by SIGKILL that the gate did not send: perhaps the machine, perhaps a trick of the candidate."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every runner of one interface shares."""

    program: Path
    entry: str
    clock: Clock
    cores: Cores
    isolation: sandbox.Isolation


def build_runner(interface: Interface, builds: Path) -> Path:
    """Compile the runner for one interface; the same interface is the same file."""
    return compile_tool(
        "runner",
        HERE / "runner.cpp",
        ["-std=c++17", "-O2", "-ldl"],
        builds,
        extra={"protocol.h": (HERE / "protocol.h").read_text(), "call.inc": call_source(interface)},
    )


@dataclass(frozen=True, slots=True)
class Called:
    reading: Reading
    disturbed: bool  # runner or clock lost its core to somebody else meanwhile; known of flushed calls only


class Runner:
    """One object in one process. Stopped (SIGSTOP) whenever it is not in a call."""

    def __init__(
        self, tools: Tools, arena: Arena, *, candidate: bytes | None = None, trusted: Path | None = None
    ) -> None:
        """Start and load; exactly one of `candidate` (the object's bytes) and `trusted` (its path) is given.

        The arena stays the caller's; runners may share one, since no two of them ever run at the same time.

        Raises CandidateFault when the object cannot be loaded, RunnerLost when the runner itself did not start.

        Call it from a thread that outlives the runner: the system kills the runner when that thread ends.
        """
        assert (candidate is None) != (trusted is None)
        self._tools = tools
        self.arena = arena
        self._resources = contextlib.ExitStack()
        self._token = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None  # pidfd of bubblewrap's first process
        self.description = ""
        try:
            self._start(candidate, trusted)
            self._await_load()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ starting

    def _start(self, candidate: bytes | None, trusted: Path | None) -> None:
        tools, keep = self._tools, self._resources
        control_fd = _memory_file("ferret-control", keep)
        os.ftruncate(control_fd, tools.clock.control_bytes)
        self._control = np.frombuffer(mmap.mmap(control_fd, tools.clock.control_bytes), dtype=np.uint8)
        fds = [self.arena.fd, control_fd]
        library_fd = -1
        if candidate is not None:
            library_fd = _memory_file("kernel.so", keep)
            with open(library_fd, "wb", closefd=False) as file:
                file.write(candidate)
            os.lseek(library_fd, 0, os.SEEK_SET)
            fds.append(library_fd)
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        keep.callback(os.close, info_read)
        self._errors = errors = keep.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  as long as the runner
        try:
            how = sandbox.launch(
                tools.isolation, tools.program, library_fd=library_fd, trusted=trusted, info_fd=info_write
            )
            own = [
                self.arena.fd, control_fd, self.arena.size, how.library, tools.entry,
                tools.cores.runner, int(tools.cores.spin), int(trusted is not None),
                self.arena.size + ADDRESS_SLACK, CPU_SECONDS,
                os.getpid() if tools.isolation == "process" else 0,  # bubblewrap dies with its parent by itself
            ]  # fmt: skip
            self._process = subprocess.Popen(
                [*how.prefix, how.program, *map(str, own)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=sandbox.ENVIRONMENT,
                cwd="/",
                pass_fds=[*fds, info_write],
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"the runner could not be started: {error}") from error
        finally:
            os.close(info_write)
        if tools.isolation == "bubblewrap":
            self._first = _first_process(info_read)
            if self._first is None:
                self._process.wait(STOP_TIMEOUT_S)
                raise RunnerLost(f"bubblewrap did not start the runner: {self._said()}")
            keep.callback(os.close, self._first)

    def _await_load(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while (state := self._word(_STATE)) in (_STARTING, _LOADING):
            if self._process.poll() is not None:
                if self._word(_STATE) == _STARTING:
                    raise RunnerLost(f"the runner ended before it loaded anything: {self._text() or self._said()}")
                raise self._ended("while it was being loaded")
            if time.monotonic() > deadline:
                if state == _STARTING:
                    raise RunnerLost(f"the runner did not start within {LOAD_TIMEOUT_S:g} s")
                raise CandidateFault(FailureKind.HUNG, f"could not be loaded within {LOAD_TIMEOUT_S:g} s")
            time.sleep(0.0002)
        if state == _NOT_LOADED:
            raise CandidateFault(FailureKind.NOT_LOADED, f"could not be loaded: {self._text()}")
        self.description = self._text()
        self.pid = self._find_pid()
        self._pidfd = os.pidfd_open(self.pid)
        self._resources.callback(os.close, self._pidfd)
        self._line = Line(self._control.ctypes.data, self.arena.address, self._pidfd, self._tools.cores)
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        self._await_stop("while it was being loaded")

    def _find_pid(self) -> int:
        assert self._process is not None
        if self._first is None:
            return self._process.pid
        first = _pid_of(self._first)
        for pid in _children(first):
            return pid
        raise self._ended("while it was being loaded")

    # ------------------------------------------------------------ calling

    def call(
        self, filled: Filled, slots: np.ndarray, rng: np.random.Generator, *, flush: bool, timeout_s: float
    ) -> Called:
        """One call, timed by the gate; the runner is stopped again when this returns.

        Raises CandidateFault when it crashes, exits or hangs, when threads or processes are left behind, when anything
        outside outputs, stage tensors and workspace was changed, or when an output changed after the answer.
        """
        before = int(_status(self.pid).get(_PREEMPTIONS, 0)) if flush else 0
        reading = self._exchange(Kind.CALL, slots, filled.ranges, rng, flush=flush, timeout_s=timeout_s)
        differs = self._tools.clock.differs
        filled.check_surroundings(differs)
        status = _status(self.pid)
        self._check_alone(status)
        filled.check_late(reading.snapshot, reading.probes, reading.probed, differs)
        return Called(reading, disturbed=reading.preempted + int(status.get(_PREEMPTIONS, 0)) > before)

    def empty(self, rng: np.random.Generator) -> float:
        """Microseconds of a hand-shake that calls nothing."""
        return self._exchange(Kind.EMPTY, NO_SLOTS, NO_RANGES, rng, flush=False, timeout_s=STOP_TIMEOUT_S).microseconds

    def _exchange(
        self,
        kind: Kind,
        slots: np.ndarray,
        ranges: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
    ) -> Reading:
        token = self._token
        while token in (0, self._token):
            token = secrets.randbits(32)
        self._token = token
        reading = self._tools.clock.call(self._line, token, kind, slots, ranges, rng, flush=flush, timeout_s=timeout_s)
        match reading.answer:
            case Answer.DEADLINE:
                raise CandidateFault(FailureKind.HUNG, f"did not return within {timeout_s:g} s")
            case Answer.NOT_ARMED:
                raise CandidateFault(FailureKind.HUNG, "left the runner unable to take the next call")
            case Answer.ENDED:
                raise self._ended("in the call")
            case Answer.ANSWERED:
                self._await_stop("right after the call had answered")
                return reading

    def _await_stop(self, when: str) -> None:
        """Until the runner stands still; what is read from its memory after that cannot change under the reader."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (state := _state(self.pid)) not in "Tt":
            if state in "ZX" or _gone(self._pidfd):
                raise self._ended(when)
            if time.monotonic() > deadline:
                raise RunnerLost(f"the runner did not stop within {STOP_TIMEOUT_S:g} s of SIGSTOP (state {state})")

    def _check_alone(self, status: dict[str, str]) -> None:
        threads = int(status.get("Threads", 1))
        if threads > 1:
            raise CandidateFault(
                FailureKind.THREADS,
                f"{threads - 1} thread(s) still exist after the call; a kernel runs on the one core it is given",
            )
        # Where the system call filter holds (2) no process can have been started, and the walk through /proc is saved.
        if status.get("Seccomp") != "2" and (children := list(_children(self.pid))):
            raise CandidateFault(FailureKind.THREADS, f"{len(children)} process(es) were started; a kernel starts none")

    # ------------------------------------------------------------ ending

    def _ended(self, when: str) -> Exception:
        """What it means that the runner is gone: the candidate's fault, or RunnerKilled."""
        assert self._process is not None
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return RunnerLost(f"the runner is gone {when}, but its sandbox still stands")
        number = -status if status < 0 else status - 128 if self._first is not None and status > 128 else 0
        if number == 0:
            return CandidateFault(
                FailureKind.EXITED, f"ended the process with exit status {status} {when}; an entry has to return"
            )
        if number == signal.SIGKILL:
            return RunnerKilled(f"the runner was killed (SIGKILL) {when}")
        if number == signal.SIGSYS and (trapped := self._word(_TRAPPED)):
            call = f"system call {trapped - 1}"
            if trapped - 1 in _NEW_PROCESS.get(os.uname().machine, ()):
                message = f"tried to start a process ({call}) {when}; a kernel starts none"
                return CandidateFault(FailureKind.THREADS, message)
            message = f"made {call} {when}, which a kernel may not; it was ended with SIGSYS"
            return CandidateFault(FailureKind.CRASHED, message)
        name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else f"signal {number}"
        return CandidateFault(FailureKind.CRASHED, f"died of {name} {when}{_HINTS.get(name, '')}")

    def close(self) -> None:
        """Kill the runner and all it may have started. Safe to repeat."""
        if self._process is not None:
            if self._first is not None:
                # The first process of a pid namespace takes everything in it along.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._resources.close()
        self._first = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the control page

    def _word(self, offset: int) -> int:
        return ctypes.c_uint32.from_address(self._control.ctypes.data + self._tools.clock.state_offset + offset).value

    def _text(self) -> str:
        """The bounded text channel; printable characters only, since a candidate may have written it."""
        begin = self._tools.clock.state_offset + _TEXT
        raw = bytes(self._control[begin : begin + _TEXT_BYTES]).split(b"\0", 1)[0]
        return re.sub(r"[^\x20-\x7e]+", " ", raw.decode(errors="replace")).strip()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read(2048).decode(errors="replace").strip().replace("\n", "; ") or "it said nothing"


_HINTS = {
    "SIGSEGV": " (a memory access outside every mapping)",
    "SIGBUS": " (a memory access outside what backs a mapping, or misaligned)",
    "SIGILL": " (an instruction that this processor does not have)",
    "SIGFPE": " (an integer division by zero or overflow)",
    "SIGSYS": " (a system call that a kernel may not make: a process, a socket, a timer, a signal to others)",
    "SIGABRT": " (abort, an uncaught exception, or the C library found its heap damaged)",
    "SIGXCPU": " (over its limit of processor time)",
    "SIGXFSZ": " (tried to write a file)",
}


def _memory_file(name: str, keep: contextlib.ExitStack) -> int:
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise MachineError(f"no anonymous memory for {name}: {error}") from error
    keep.callback(os.close, fd)
    return fd


def _first_process(info: int) -> int | None:
    """pidfd of the process that bubblewrap reports on `info`; None when it reports none."""
    text = b""
    while select.select([info], [], [], STOP_TIMEOUT_S)[0] and (part := os.read(info, 4096)):
        text += part
        with contextlib.suppress(ValueError):
            return os.pidfd_open(int(json.loads(text)["child-pid"]))
    return None


def _pid_of(pidfd: int) -> int:
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    match = re.search(r"^Pid:\s*(-?\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else -1


def _children(parent: int) -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and _parent(int(entry.name)) == parent:
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    try:
        # The name, in parentheses, may hold anything, so what follows is found from its end.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or ["X"])[0]


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else -1


def _status(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"^(\w+):\s*(\S+)", text, re.MULTILINE))


def _gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
