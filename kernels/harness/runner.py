"""A throw-away process that holds one shared object: started, called, read, killed. All from outside."""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
from typing import Self

import numpy as np

from kernels.harness import sandbox, symbols
from kernels.harness.arena import Arena, CandidateFault, Filled
from kernels.harness.build import compile_tool
from kernels.harness.clock import HERE, Answer, Clock, Cores, Kind, Line, Reading
from kernels.harness.interface import call_source
from specs.errors import MachineError, RunnerLost
from specs.outcomes import FailureKind
from specs.schema import Interface

LOAD_TIMEOUT_S = 30.0
REST_TIMEOUT_S = 5.0  # from its answer to its wait a runner takes microseconds
CPU_SECONDS = 3600  # a backstop behind the deadline of each call
ADDRESS_SLACK = 4 << 30  # bytes over the arena: the loader, libraries, a kernel's own scratch
NO_SLOTS = np.zeros(1, dtype=np.uint64)
NO_RANGES = np.zeros((0, 2), dtype=np.uint64)
_UNUSED = np.random.default_rng(0)  # without ranges nothing is drawn

# Where things stand behind `state` on the control page; protocol.h says what they are.
_STATE, _TRAPPED, _LEFT, _TEXT, _TEXT_BYTES = 0, 4, 8, 16, 2048
_STARTING, _LOADING, _LOADED, _NOT_LOADED = range(4)

_PREEMPTIONS = "nonvoluntary_ctxt_switches"
_NEW_PROCESS = {"clone", "clone3", "fork", "vfork", "execve", "execveat"}
_LEFT_CHANGED = {1: "the rounding or flush-to-zero mode (MXCSR)", 2: "the x87 control word", 4: "the direction flag"}

# Processor time and wall time of a call are two accounts of one thing. Wall time far over processor time means that the
# core was somebody else's for a while; the other way round the work went on after the answer.
SLACK_US = 150.0  # waking a core that idles
SLACK_SHARE = 0.1
OVERTIME_SHARE = 0.2
# Such work is in the time of record anyway; interrupts of a busy machine land on the runner too, so be sure of it.
OVERTIME_US = 1_000.0

# Memory that is held after a call. Scratch that is made once, or grown to a larger shape, is a kernel's right.
HELD_BYTES = 1 << 30
LEAK_BYTES = 4 << 20
LEAK_CALLS = 8  # calls after which more was held than ever before


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

    @property
    def builds(self) -> Path:
        """The folder of builds that the program lies in."""
        return self.program.parent.parent


def build_runner(interface: Interface, builds: Path, *, cuda: bool = False) -> Path:
    """Compile the runner for one interface; the same interface is the same file. Only `cuda` accepts a stream."""
    return compile_tool(
        "runner",
        HERE / "runner.cpp",
        ["-std=c++17", "-O2", "-ldl", "-Wl,-z,relro,-z,now"],
        builds,
        extra={
            "protocol.h": (HERE / "protocol.h").read_text(),
            "tape.h": (HERE / "tape.h").read_text(),
            "call.inc": call_source(interface, cuda=cuda),
        },
    )


@dataclass(frozen=True, slots=True)
class Called:
    microseconds: float  # processor time that the kernel charged to the runner, from sleep to sleep
    snapshot: np.ndarray  # u8, outputs and stage tensors one after the other
    disturbed: bool  # runner or clock lost its core to somebody else meanwhile; known of flushed calls only
    faults: int  # minor page faults of the runner; known of flushed calls only


@dataclass(frozen=True, slots=True)
class Ground:
    """The memory that a process works on, and the library of ours that it loads first."""

    fd: int = -1  # an arena
    size: int = 0  # bytes
    address: int = 0  # in the gate
    runtime: Path | None = None
    recording_fd: int = -1  # where the runtime library writes
    recording_bytes: int = 0
    reserved: int = 0  # bytes of address space that the runtime library keeps clear


class Contained:
    """One object in one process. Asleep whenever it is not in a call."""

    def __init__(
        self, tools: Tools, ground: Ground, *, candidate: bytes | None = None, trusted: Path | None = None
    ) -> None:
        """Start and load; exactly one of `candidate` (the object's bytes) and `trusted` (its path) is given.

        Raises CandidateFault when the object cannot be loaded, RunnerLost when the process itself did not start.

        Call it from a thread that outlives the process: the system kills it when that thread ends.
        """
        assert (candidate is None) != (trusted is None)
        self._tools = tools
        self._ground = ground
        self._resources = contextlib.ExitStack()
        self._token = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None  # pidfd of bubblewrap's first process
        self.description = ""
        self._held = self._leaked = self._leaks = 0
        try:
            self._start(candidate, trusted)
            self._await_load()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ starting

    def _start(self, candidate: bytes | None, trusted: Path | None) -> None:
        tools, keep = self._tools, self._resources
        control_fd = memory_file("ferret-control", keep)
        os.ftruncate(control_fd, tools.clock.control_bytes)
        self._control = np.frombuffer(mmap.mmap(control_fd, tools.clock.control_bytes), dtype=np.uint8)
        ground = self._ground
        fds = [control_fd, *(fd for fd in (ground.fd, ground.recording_fd) if fd >= 0)]
        library_fd = -1
        if candidate is not None:
            library_fd = memory_file("kernel.so", keep)
            with open(library_fd, "wb", closefd=False) as file:
                file.write(candidate)
            os.lseek(library_fd, 0, os.SEEK_SET)
            fds.append(library_fd)
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        keep.callback(os.close, info_read)
        self._errors = errors = keep.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  as long as the runner
        try:
            how = sandbox.launch(
                tools.isolation, tools.program, library_fd=library_fd, trusted=trusted, info_fd=info_write,
                runtime=ground.runtime,
            )  # fmt: skip
            own = [
                ground.fd, control_fd, ground.size, how.library, tools.entry,
                tools.cores.runner, int(tools.cores.spin), int(trusted is not None),
                ground.size + ground.reserved + ADDRESS_SLACK, CPU_SECONDS,
                os.getpid() if tools.isolation == "process" else 0,  # bubblewrap dies with its parent by itself
                how.runtime, ground.recording_fd, ground.recording_bytes,
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
                self._process.wait(REST_TIMEOUT_S)
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
        self._line = Line(self._control.ctypes.data, self._ground.address, self._pidfd, self._tools.cores)
        self._await_rest("while it was being loaded")
        self._processor_clock = _processor_clock(self.pid)
        self._held = _kilobytes(_status(self.pid), "VmData")

    def _find_pid(self) -> int:
        assert self._process is not None
        if self._first is None:
            return self._process.pid
        first = _pid_of(self._first)
        for pid in _children(first):
            return pid
        raise self._ended("while it was being loaded")

    # ------------------------------------------------------------ calling

    def _call_untimed(self, slots: np.ndarray, timeout_s: float) -> None:
        """One call without an arena. Raises CandidateFault as `Runner.call` does, for what it leaves behind too."""
        switches = _switches(_status(self.pid))
        microseconds, reading = self._exchange(
            Kind.CALL, slots, NO_RANGES, _UNUSED, flush=False, timeout_s=timeout_s, switches=switches
        )
        status = _status(self.pid)
        self._check_alone(status, microseconds, reading.wall_us)
        self._check_left(status)

    def _exchange(
        self,
        kind: Kind,
        slots: np.ndarray,
        ranges: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
        switches: int,
    ) -> tuple[float, Reading]:
        """Microseconds of processor time and what the clock saw; `switches` is how often it has given up its core."""
        token = self._token
        while token in (0, self._token):
            token = secrets.randbits(32)
        self._token = token
        # Both readings are taken of a process that sleeps, so nothing that it ever does is free, and the account is
        # exact: of a process that runs the kernel only knows what it had used up at the last tick.
        begin = self._charged_ns()
        reading = self._tools.clock.call(self._line, token, kind, slots, ranges, rng, flush=flush, timeout_s=timeout_s)
        match reading.answer:
            case Answer.DEADLINE:
                raise CandidateFault(FailureKind.HUNG, f"did not return within {timeout_s:g} s")
            case Answer.ENDED:
                raise self._ended("in the call")
            case Answer.ANSWERED:
                self._await_rest("right after the call had answered", switches)
                return (self._charged_ns() - begin) / 1000, reading

    def _charged_ns(self) -> int:
        try:
            return time.clock_gettime_ns(self._processor_clock)
        except OSError:  # there is no such process any more
            raise self._ended("in the call") from None

    def _await_rest(self, when: str, switches: int = 0) -> None:
        """Until the runner sleeps in its wait, the only one that its filter allows and which only the gate can end.

        It has left its core, and its time has been accounted for, once it has given it up more than `switches` times.
        """
        deadline = time.monotonic() + REST_TIMEOUT_S
        while (state := (status := _status(self.pid)).get("State", "X")) != "S" or _switches(status) <= switches:
            if state in "ZX" or _gone(self._pidfd):
                raise self._ended(when)
            if time.monotonic() > deadline:
                raise CandidateFault(FailureKind.LATE_WRITE, f"was still at work {REST_TIMEOUT_S:g} s after its answer")

    def _check_alone(self, status: dict[str, str], microseconds: float, wall_us: float) -> None:
        threads = int(status.get("Threads", 1))
        if threads > 1:
            raise CandidateFault(
                FailureKind.THREADS,
                f"{threads - 1} thread(s) still exist after the call; a kernel runs on the one core it is given",
            )
        if microseconds > wall_us * (1 + OVERTIME_SHARE) + OVERTIME_US:
            times = f"{microseconds:.0f} us of processor time, and answered after {wall_us:.0f} us"
            raise CandidateFault(FailureKind.LATE_WRITE, f"went on working when it had answered: used {times}")
        # Where the system call filter holds (2) no process can have been started, and the walk through /proc is saved.
        if status.get("Seccomp") != "2" and (children := list(_children(self.pid))):
            raise CandidateFault(FailureKind.THREADS, f"{len(children)} process(es) were started; a kernel starts none")

    def _check_left(self, status: dict[str, str]) -> None:
        if left := self._word(_LEFT):
            changed = " and ".join(name for bit, name in _LEFT_CHANGED.items() if left & bit) or "the processor's state"
            message = f"came back with {changed} changed; what a kernel changes there it has to put back"
            raise CandidateFault(FailureKind.LEFT_STATE, message)
        held = _kilobytes(status, "VmData")
        if held > self._held:
            self._leaks += 1
            self._leaked += held - self._held
            self._held = held
        if held > HELD_BYTES:
            message = f"holds {held >> 20} MiB after the call; at most {HELD_BYTES >> 20} MiB are accepted"
            raise CandidateFault(FailureKind.LEAK, message)
        if self._leaks >= LEAK_CALLS and self._leaked > LEAK_BYTES:
            message = f"held more memory after each of {self._leaks} calls, {self._leaked >> 10} KiB in all"
            raise CandidateFault(FailureKind.LEAK, f"{message}; what a call takes it has to give back")

    # ------------------------------------------------------------ ending

    def _ended(self, when: str) -> Exception:
        """What it means that the runner is gone: the candidate's fault, or RunnerKilled."""
        assert self._process is not None
        try:
            status = self._process.wait(REST_TIMEOUT_S)
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
            call = system_calls().get(trapped - 1, str(trapped - 1))
            if call in _NEW_PROCESS:
                message = f"tried to start a thread or a process (system call {call}) {when}; a kernel starts none"
                return CandidateFault(FailureKind.THREADS, message)
            message = f"made system call {call} {when}, which a kernel may not; it was ended with SIGSYS"
            return CandidateFault(FailureKind.CRASHED, message)
        if number == signal.SIGABRT and (thrown := re.match(r"uncaught exception (\S*)", self._text())):
            told = symbols.readable_type(thrown[1])
            return CandidateFault(FailureKind.CRASHED, f"ended by an uncaught exception ({told}) {when}")
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
                self._process.wait(REST_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._resources.close()
        self._first = None

    def __enter__(self) -> Self:
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


class Runner(Contained):
    """A kernel of a CPU: called on an arena, timed from outside."""

    def __init__(
        self, tools: Tools, arena: Arena, *, candidate: bytes | None = None, trusted: Path | None = None
    ) -> None:
        """Start and load, as `Contained` does, with its errors.

        The arena stays the caller's; runners may share one, since no two of them ever run at the same time.
        """
        self.arena = arena
        ground = Ground(arena.fd, arena.size, arena.address)
        super().__init__(tools, ground, candidate=candidate, trusted=trusted)

    def call(
        self,
        filled: Filled,
        slots: np.ndarray,
        rng: np.random.Generator,
        *,
        flush: bool,
        timeout_s: float,
        everywhere: bool = False,
    ) -> Called:
        """One call, timed by the gate; the runner is asleep again when this returns.

        `everywhere` looks at every byte of the arena that is no buffer's, not only at the guards. Raises CandidateFault
        when it crashes, exits or hangs, when threads, processes, memory or a changed processor mode are left behind,
        when anything outside outputs, stage tensors and workspace was changed, or when an output changed after the
        answer.
        """
        before, faults = _status(self.pid), _faults(self.pid)
        microseconds, reading = self._exchange(
            Kind.CALL, slots, filled.ranges, rng, flush=flush, timeout_s=timeout_s, switches=_switches(before)
        )
        differs = self._tools.clock.differs
        filled.check_surroundings(differs, everywhere=everywhere)
        status = _status(self.pid)
        self._check_alone(status, microseconds, reading.wall_us)
        self._check_left(status)
        snapshot = filled.snapshot()
        filled.check_late(snapshot, reading.probes, reading.probed, differs)
        # Where nobody spins the gate runs on the same core, and wall time says nothing.
        away = self._tools.cores.spin and reading.wall_us > microseconds * (1 + SLACK_SHARE) + SLACK_US
        lost = reading.preempted or status.get(_PREEMPTIONS) != before.get(_PREEMPTIONS)
        return Called(microseconds, snapshot, disturbed=bool(lost or away), faults=_faults(self.pid) - faults)

    def empty(self, rng: np.random.Generator) -> float:
        """Microseconds of a call that does nothing, with flushed caches."""
        switches = _switches(_status(self.pid))
        return self._exchange(
            Kind.EMPTY, NO_SLOTS, NO_RANGES, rng, flush=True, timeout_s=REST_TIMEOUT_S, switches=switches
        )[0]


_HINTS = {
    "SIGSEGV": " (a memory access outside every mapping)",
    "SIGBUS": " (a memory access outside what backs a mapping, or misaligned)",
    "SIGILL": " (an instruction that this processor does not have)",
    "SIGFPE": " (an integer division by zero or overflow, or a floating-point trap that was switched on)",
    "SIGSYS": " (a system call that a kernel may not make: it gets memory, and nothing else of the system)",
    "SIGABRT": " (abort, an uncaught exception, or the C library found its heap damaged)",
    "SIGXCPU": " (over its limit of processor time)",
    "SIGXFSZ": " (tried to write a file)",
}


def memory_file(name: str, keep: contextlib.ExitStack) -> int:
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise MachineError(f"no anonymous memory for {name}: {error}") from error
    keep.callback(os.close, fd)
    return fd


def _first_process(info: int) -> int | None:
    """pidfd of the process that bubblewrap reports on `info`; None when it reports none."""
    text = b""
    while select.select([info], [], [], REST_TIMEOUT_S)[0] and (part := os.read(info, 4096)):
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


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else -1


def _status(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"^(\w+):\s*(\S+)", text, re.MULTILINE))


def _kilobytes(status: dict[str, str], name: str) -> int:
    """A field of /proc/PID/status that is given in kB, as bytes."""
    return int(status.get(name, 0)) << 10


def _switches(status: dict[str, str]) -> int:
    return int(status.get("voluntary_ctxt_switches", 0))


def _processor_clock(pid: int) -> int:
    """Number of the clock of all processor time that a process has used (what clock_getcpuclockid gives)."""
    per_process_scheduler_time = 2
    return (~pid << 3) | per_process_scheduler_time


def _faults(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[7]) if len(fields) > 7 else 0


@functools.cache
def system_calls() -> dict[int, str]:
    """Names of the system calls, from the headers that the compiler brings; empty where there are none."""
    asked = subprocess.run(
        ["g++", "-E", "-dM", "-x", "c++", "-include", "sys/syscall.h", os.devnull],
        capture_output=True, text=True, timeout=30, check=False, env=sandbox.ENVIRONMENT,
    )  # fmt: skip
    return {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", asked.stdout, re.MULTILINE)}


def _gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
