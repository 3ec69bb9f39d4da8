"""The gate's side of Triton candidates: what they would launch, recorded without a GPU, or their results, interpreted.

Both run the candidate's Python in a throw-away sandboxed process; everything that comes back from it is hostile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from kernels.harness import arena, cubin, device, sandbox, tape, trial
from kernels.harness.arena import Arena, CandidateFault, Filled
from kernels.harness.gate import Gate
from kernels.harness.gpu_state import State
from kernels.harness.interface import POINTERS, Buffer
from kernels.harness.requests import Sandbox
from kernels.harness.roofline import Peaks
from kernels.harness.runner import Called, RunnerKilled
from kernels.harness.sandbox import Isolation
from kernels.harness.triton_child import BODY_LIMIT, HEAD, HEAD_LIMIT, MESSAGE_LIMIT
from specs.errors import MachineError, RunnerLost, UserError
from specs.outcomes import Device, FailureKind
from specs.schema import ArgumentKind, DType, Interface, Language, Task

HERE = Path(__file__).parent
SITE = "/ferret/site"
SOURCE = "/ferret/kernel.py"
SCRATCH = "/tmp"  # noqa: S108  inside the sandbox

START_TIMEOUT_S = 60.0  # reading Triton from a cold disk
LOAD_TIMEOUT_S = 30.0
COMPILE_TIMEOUT_S = 180.0  # of one call: seconds a kernel, for a large one a minute
COMPILE_BUDGET_S = 600.0  # of one recorder, all calls together
# Beyond its time a call may take that long to compile what turns out to be known code: two types of an unused argument.
KNOWN_CODE_S = 5.0
FRAMES_LIMIT = 256  # of one answer
SLOWNESS = 4  # the interpreter gets that many times the time of a call
REST_TIMEOUT_S = 5.0
MEMORY_BYTES = 8 << 30  # address space; Triton's compiler alone maps more than one
FILE_BYTES = 64 << 20  # of one file; all of the private /tmp together has twice that
PROCESSES = 64
CPU_SECONDS = 3600
MODULES_LIMIT = 64
MODULE_BYTES = 256 << 20  # of all modules of one recorder

# Neutral and always the same. One thread: OpenBLAS below numpy would start some.
ENVIRONMENT = {
    **sandbox.ENVIRONMENT,
    "HOME": SCRATCH,
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TRITON_BACKENDS_IN_TREE": "1",
    # The path of the source would stand in the machine code, and make another module of it in every process.
    "TRITON_DISABLE_LINE_INFO": "1",
}
_STRUCT_CODES = {
    DType.F64: "d", DType.F32: "f",
    DType.I64: "q", DType.I32: "i", DType.I16: "h", DType.I8: "b",
    DType.U64: "Q", DType.U32: "I", DType.U16: "H", DType.U8: "B",
}  # fmt: skip
_NULL = 2**64 - 1
UNTIMED = "Triton kernels are timed on a GPU; this machine has none, and its interpreter can only judge them"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A pointer argument: where it lies on the device, and what the launcher is told of it."""

    address: int
    dtype: DType
    shape: tuple[int, ...]


Given = Tensor | int | float | None  # None: a stage tensor that is not asked for


def available() -> str | None:
    """Why Triton candidates cannot be run here; None when Triton is installed. Nothing is imported."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (pip install 'ferret[triton]')"
    return None


def arguments(
    interface: Interface, buffers: Sequence[Buffer], slots: np.ndarray, base: int, stream: int
) -> list[Given]:
    """A launcher's arguments in the interface's order.

    `slots`, u64 `[arguments]`, are those of interface.slots: offsets of pointers, to which `base` is added, and raw
    bytes of scalars.
    """
    shapes = {buffer.name: buffer.shape for buffer in buffers}
    given: list[Given] = []
    for argument, raw in zip(interface.arguments, slots.tolist(), strict=True):
        if argument.kind is ArgumentKind.STREAM:
            given.append(stream)
        elif argument.kind not in POINTERS:
            assert argument.dtype is not None
            given.append(struct.unpack_from(f"<{_STRUCT_CODES[argument.dtype]}", raw.to_bytes(8, "little"))[0])
        elif raw == _NULL:
            given.append(None)
        else:
            assert argument.name is not None
            given.append(Tensor(base + raw, argument.dtype or DType.U8, shapes[argument.name]))
    return given


def _encoded(given: Sequence[Given]) -> list[Any]:
    return [["t", one.address, one.dtype.value, list(one.shape)] if isinstance(one, Tensor) else one for one in given]


# ---------------------------------------------------------------- a confined process


class Confined:
    """A program of ours with a candidate in it: started, asked, stopped, killed."""

    def __init__(
        self,
        program: str,
        source: bytes,
        isolation: Isolation,
        *,
        fds: Sequence[int] = (),
        own: Sequence[int] = (),
        memory_bytes: int = MEMORY_BYTES,
        compile_s: float = 0.0,
    ) -> None:
        """`program` is a module beside this one; its arguments are its channel, then `fds` and `own`.

        It may say that it compiles for `compile_s` seconds in all.

        Raises UserError when Triton is not installed, RunnerLost when the process does not start.
        """
        if reason := available():
            raise UserError(f"Triton candidates cannot be run here: {reason}")
        self.isolation = isolation
        self._memory_bytes = memory_bytes
        self._compile_s = compile_s
        self._keep = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self.pid = -1
        try:
            self._start(program, source, fds, own)
        except BaseException:
            self.close()
            raise

    def _start(self, program: str, source: bytes, fds: Sequence[int], own: Sequence[int]) -> None:
        keep = self._keep
        self._folder = Path(keep.enter_context(tempfile.TemporaryDirectory(prefix="ferret-triton-")))
        kernel = self._folder / "kernel.py"
        kernel.write_bytes(source)
        site = self._folder / "site"
        packages = _packages()
        bubblewrap = self.isolation == "bubblewrap"
        if not bubblewrap:
            # Nothing else of the real site-packages can be imported: a folder of links.
            for name, place in packages.items():
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                (site / name).symlink_to(place)
            (self._folder / "tmp").mkdir()
        ours, theirs = socket.socketpair()
        keep.enter_context(ours)
        self._channel = ours
        self._errors = errors = keep.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  as long as the process
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        keep.callback(os.close, info_read)
        root = SITE if bubblewrap else str(site)
        begin = f"import sys; sys.path.insert(0, {root!r}); from kernels.harness import {program} as p; p.main()"
        python = [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-c", begin]
        walls = _walls(packages, kernel, info_write) if bubblewrap else []
        scratch = SCRATCH if bubblewrap else str(self._folder / "tmp")
        self.source = SOURCE if bubblewrap else str(kernel)
        try:
            self._process = subprocess.Popen(
                [*walls, *python, *map(str, (theirs.fileno(), *fds, *own))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**ENVIRONMENT, "HOME": scratch, "TMPDIR": scratch, "TRITON_CACHE_DIR": f"{scratch}/cache"},
                cwd="/",
                pass_fds=[theirs.fileno(), *fds, info_write],
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"the Triton process could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(info_write)
        if bubblewrap:
            self.pid = _first_pid(info_read)
            if self.pid < 0:
                self._process.wait(REST_TIMEOUT_S)
                raise RunnerLost(f"bubblewrap did not start the Triton process: {self._said()}")
        else:
            self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        keep.callback(os.close, self._pidfd)
        readable = [*_SYSTEM, *_python_files(), *map(str, packages.values()), str(site), str(kernel)]
        self._send(
            {
                "parent": 0 if bubblewrap else os.getpid(),
                "memory_bytes": self._memory_bytes,
                "cpu_s": CPU_SECONDS,
                "file_bytes": FILE_BYTES,
                # Without a user namespace of its own all processes of the user would be counted.
                "processes": PROCESSES if bubblewrap else None,
                "read": [] if bubblewrap else readable,
                "write": [] if bubblewrap else [scratch, "/dev/null"],
            }
        )

    # ------------------------------------------------------------ asking

    def ask(self, head: Mapping[str, Any], timeout_s: float, when: str) -> tuple[dict[str, Any], bytes]:
        """The answer to one frame, bounded and parsed; raises CandidateFault for a fault, an end, or silence.

        While it says that it compiles, its time stands still, up to COMPILE_TIMEOUT_S a question and up to what is left
        to the whole process. It may say so without doing it, which is why it is limited.
        """
        deadline = time.monotonic() + timeout_s
        compiling = allowed = min(COMPILE_TIMEOUT_S, self._compile_s)
        left, since = timeout_s, 0.0
        try:
            self._send(head)
            for _ in range(FRAMES_LIMIT):
                answer, body = self._receive(deadline, when)
                if "compiling" not in answer:
                    break
                now = time.monotonic()
                if answer["compiling"] and not since:
                    left, since = deadline - now, now
                    deadline = now + compiling
                elif since:
                    compiling -= now - since
                    deadline, since = now + left, 0.0
        except (ConnectionError, EOFError):
            raise self._ended(when) from None
        except TimeoutError:
            spent = f", nor compile within {allowed:g} s" if since else ""
            raise CandidateFault(FailureKind.HUNG, f"did not return within {timeout_s:g} s{spent} {when}") from None
        if since:
            compiling -= time.monotonic() - since
        self._compile_s -= allowed - compiling
        if "compiling" in answer:
            raise CandidateFault(FailureKind.CRASHED, f"answered with what is no answer {when}")
        if "fault" in answer:
            raise CandidateFault(_kind(answer["fault"]), printable(answer.get("message")))
        return answer, body

    def _receive(self, deadline: float, when: str) -> tuple[dict[str, Any], bytes]:
        lengths = HEAD.unpack(self._exactly(HEAD.size, deadline))
        if lengths[0] > HEAD_LIMIT or lengths[1] > BODY_LIMIT:
            raise CandidateFault(FailureKind.CRASHED, f"answered with {sum(lengths)} bytes {when}; nobody asked")
        text, body = self._exactly(lengths[0], deadline), self._exactly(lengths[1], deadline)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise CandidateFault(FailureKind.CRASHED, f"answered with what is no answer {when}")
        return answer, body

    def _send(self, head: Mapping[str, Any]) -> None:
        text = json.dumps(head).encode()
        self._channel.settimeout(REST_TIMEOUT_S)
        self._channel.sendall(HEAD.pack(len(text), 0) + text)

    def _exactly(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            part = self._channel.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    # ------------------------------------------------------------ stopping

    def stop(self) -> None:
        """Return when no instruction of it runs any more, until `go`. Raises CandidateFault when it has ended."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + REST_TIMEOUT_S
        while (state := _state(self.pid)) not in ("T", "t"):
            if state in ("Z", "X", ""):
                raise self._ended("after a call")
            if time.monotonic() > deadline:
                raise RunnerLost("the Triton process could not be stopped")
            time.sleep(0.0002)

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    # ------------------------------------------------------------ ending

    def _ended(self, when: str) -> Exception:
        status = self._status()
        if status is None:
            return CandidateFault(FailureKind.EXITED, f"closed its channel to the gate {when}")
        number = -status if status < 0 else status - 128 if status > 128 else 0
        if number == 0:
            said = f": {self._said()}" if status else ""
            return CandidateFault(
                FailureKind.EXITED, f"ended the process with exit status {status} {when}; a launcher returns{said}"
            )
        if number == signal.SIGKILL:
            return RunnerKilled(f"the Triton process was killed (SIGKILL) {when}")
        if number == signal.SIGSYS:
            message = f"tried to start a thread or a program {when} (ended with SIGSYS); a launcher starts none"
            return CandidateFault(FailureKind.THREADS, message)
        name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else f"signal {number}"
        hint = _HINTS.get(name, "")
        return CandidateFault(FailureKind.CRASHED, f"died of {name} {when}{hint}")

    def _status(self) -> int | None:
        """How it ended, as Popen has it; None when it has not. It is not reaped, so that its group stays its own."""
        assert self._process is not None
        deadline = time.monotonic() + REST_TIMEOUT_S
        while time.monotonic() < deadline:
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is not None:
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            time.sleep(0.001)
        return None

    def _said(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors.tell() - 2048, 0))
        return printable(self._errors.read(2048).decode(errors="replace"))

    def close(self) -> None:
        """Kill the process and all it may have started. Safe to repeat."""
        if self._process is not None:
            self._signal(signal.SIGKILL)  # of a pid namespace the first process takes all others along
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        self._keep.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_HINTS = {
    "SIGSEGV": " (a memory access outside every mapping)",
    "SIGBUS": " (a memory access outside what backs a mapping)",
    "SIGXCPU": " (over its limit of processor time)",
    "SIGABRT": " (abort: an assertion of Triton's compiler, say)",
}
_SYSTEM = (*sandbox.SYSTEM, "/dev/null", "/dev/urandom", "/dev/zero")


def _walls(packages: Mapping[str, Path], kernel: Path, info_fd: int) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--cap-drop", "ALL", "--info-fd", str(info_fd)]
    # No /proc and no device of a GPU: --dev makes null, zero, random and the like.
    command += ["--dev", "/dev", "--size", str(2 * FILE_BYTES), "--tmpfs", SCRATCH, "--chdir", SCRATCH]
    for place in (*sandbox.SYSTEM, *_python_folders()):
        if os.path.exists(place):  # noqa: PTH110
            command += ["--ro-bind", place, place]
    for place in _other_packages():
        command += ["--tmpfs", place]
    for name, folder in packages.items():
        command += ["--ro-bind", str(folder), f"{SITE}/{name}"]
    return [*command, "--ro-bind", str(kernel), SOURCE, "--remount-ro", "/"]


def _python_folders() -> list[str]:
    """The interpreter and its standard library, where they are not the system's."""
    found = dict.fromkeys([sys.base_prefix, sys.base_exec_prefix, str(Path(os.__file__).resolve().parent)])
    return [place for place in found if not any(Path(place).is_relative_to(system) for system in sandbox.SYSTEM)]


def _other_packages() -> list[str]:
    """Folders of installed packages beside the standard library: they are none of the candidate's business."""
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [sysconfig.get_path("purelib", vars=base), sysconfig.get_path("platlib", vars=base)]
    places += ["/usr/lib/python3/dist-packages", f"/usr/local/lib/{version}/dist-packages"]
    return [place for place in dict.fromkeys(places) if Path(place).is_dir()]


def _python_files() -> list[str]:
    """The same as _python_folders without _other_packages, one by one: Landlock knows no exceptions."""
    hidden = {Path(place) for place in _other_packages()}
    found: list[str] = []
    waiting = [Path(place) for place in _python_folders()]
    while waiting:
        place = waiting.pop()
        if any(other.is_relative_to(place) for other in hidden):
            waiting += [each for each in place.iterdir() if each not in hidden]
        else:
            found.append(str(place))
    return found


def _packages() -> dict[str, Path]:
    """What can be imported in the sandbox beside the standard library: name below the site folder -> place."""
    found = {
        f"kernels/{name}": HERE.parent / name
        for name in (
            "__init__.py", "harness/__init__.py", "harness/tape.py",
            "harness/triton_child.py", "harness/triton_recorder.py", "harness/triton_interpreter.py",
        )
    }  # fmt: skip
    for name in ("triton", "numpy"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if places:
            found[name] = Path(places[0]).resolve()
            libraries = found[name].with_name(f"{name}.libs")
            if libraries.is_dir():
                found[libraries.name] = libraries
    return found


def _first_pid(info: int) -> int:
    """The process that bubblewrap reports on `info`, -1 when it reports none."""
    text = b""
    while select.select([info], [], [], REST_TIMEOUT_S)[0] and (part := os.read(info, 4096)):
        text += part
        with contextlib.suppress(ValueError):
            return int(json.loads(text)["child-pid"])
    return -1


def _state(pid: int) -> str:
    try:
        # The name, in parentheses, may hold anything, so what follows is found from its end.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[0] if fields else ""


def _kind(given: object) -> FailureKind:
    try:
        return FailureKind(str(given))
    except ValueError:
        return FailureKind.CRASHED


def printable(given: object) -> str:
    """Bounded text without control characters; a candidate may have written it."""
    text = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in str(given)[:MESSAGE_LIMIT])
    return text.strip() or "no message"


# ---------------------------------------------------------------- recording


class TritonRecorder:
    """What a candidate's launcher would do on the device, call by call, as tapes."""

    def __init__(self, source: bytes, interface: Interface, facts: tape.Facts, isolation: Isolation) -> None:
        """Load the candidate. `facts` give the device's attributes, the heap for Triton's scratch and the stream.

        Raises CandidateFault when it cannot be loaded, UserError when Triton is not installed.
        """
        self._facts = facts
        self._interface = interface
        self.modules: dict[str, bytes] = {}  # sha256 -> cubin, of every launch so far
        self._kernels: dict[str, Mapping[str, tape.KernelInfo]] = {}
        self._nonce = secrets.token_bytes(tape.NONCE_BYTES)
        self._process = Confined("triton_recorder", source, isolation, compile_s=COMPILE_BUDGET_S)
        try:
            head = {
                "do": "load",
                "source": self._process.source,
                "entry": interface.entry,
                "nonce": self._nonce.hex(),
                "attributes": {str(number): value for number, value in facts.attributes.items()},
            }
            answer, _ = self._process.ask(head, START_TIMEOUT_S + LOAD_TIMEOUT_S, "while it was being loaded")
            self.description = printable(answer.get("said"))
        except BaseException:
            self.close()
            raise

    def record_call(self, buffers: Sequence[Buffer], slots: np.ndarray, base: int, timeout_s: float) -> tape.Tape:
        """What one call would do; `modules` then holds every module that it names.

        `slots` as for Runner.call, offsets being relative to the device address `base`. Compiling is not counted.
        Raises CandidateFault.
        """
        given = arguments(self._interface, buffers, slots, base, self._facts.stream)
        return self.record_arguments(given, timeout_s)

    def record_arguments(self, given: Sequence[Given], timeout_s: float) -> tape.Tape:
        """The same for a launcher's arguments as they stand."""
        head = {
            "do": "record",
            "arguments": _encoded(given),
            "stream": self._facts.stream,
            "heap": list(self._facts.heap),
        }
        begin, known = time.monotonic(), len(self.modules)
        answer, body = self._process.ask(head, timeout_s, "in the launcher")
        took_s = time.monotonic() - begin
        sizes = answer.get("sizes")
        if (
            not isinstance(sizes, list)
            or not sizes
            or not all(type(size) is int and size >= 0 for size in sizes)
            or sum(sizes) != len(body)
        ):
            raise CandidateFault(FailureKind.CRASHED, "the recording is damaged: its parts do not make up the whole")
        at = sizes[0]
        for size in sizes[1:]:
            self._keep(body[at : at + size])
            at += size
        if len(self.modules) == known and took_s > timeout_s + KNOWN_CODE_S:
            message = f"took {took_s:.1f} s of {timeout_s:g} s in the launcher, and compiled nothing that is new"
            raise CandidateFault(FailureKind.HUNG, message)
        try:
            told = tape.Tape.from_bytes(body[: sizes[0]])
            # Moving parameters may tear a placeholder, or make one: what comes out is read once more.
            told = tape.Tape.from_bytes(dataclasses.replace(told, ops=tuple(map(self._checked, told.ops))).to_bytes())
        except ValueError as error:
            raise CandidateFault(FailureKind.CRASHED, f"the recording is damaged: {printable(error)}") from None
        if told.nonce != self._nonce or told.heap_bytes > self._facts.heap[1]:
            raise CandidateFault(FailureKind.CRASHED, "the recording is damaged: this recorder did not write it")
        return told

    def _keep(self, content: bytes) -> None:
        held = sum(map(len, self.modules.values()))
        if len(self.modules) >= MODULES_LIMIT or held + len(content) > MODULE_BYTES:
            message = f"compiles to more than {MODULES_LIMIT} modules or {MODULE_BYTES >> 20} MiB"
            raise CandidateFault(FailureKind.NOT_LOADED, message)
        digest = hashlib.sha256(content).hexdigest()
        try:
            code = cubin.read(content)
        except ValueError as error:
            raise CandidateFault(FailureKind.NOT_LOADED, f"a module is no cubin: {printable(error)}") from None
        if code.findings:
            raise CandidateFault(FailureKind.NOT_LOADED, printable("; ".join(code.findings)))
        self._kernels[digest] = code.kernels
        self.modules[digest] = content

    def _checked(self, op: tape.Op) -> tape.Op:
        """A launch of a kernel that was sent, every parameter where its machine code wants it; other work as it is."""
        if not isinstance(op, tape.Launch | tape.SetAttribute):
            return op
        kernel = self._kernels.get(op.module, {}).get(op.kernel)
        name = printable(op.kernel)
        if kernel is None:
            raise CandidateFault(FailureKind.LAUNCH_FAILED, f"launches {name}, a kernel that it has not")
        if isinstance(op, tape.SetAttribute):
            return op
        taken = sum(size for _, size in kernel.params)
        if len(op.params) != taken:
            given = f"{len(op.params)} bytes of parameters; it takes {taken}"
            raise CandidateFault(FailureKind.LAUNCH_FAILED, f"launches {name} with {given}")
        laid_out = bytearray(kernel.param_bytes)
        at = 0
        for offset, size in kernel.params:
            laid_out[offset : offset + size] = op.params[at : at + size]
            at += size
        return dataclasses.replace(op, params=bytes(laid_out))

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# ---------------------------------------------------------------- interpreting


class TritonInterpreter:
    """A candidate run by Triton's interpreter, on a machine without a GPU; like runner.Runner, but never timed."""

    def __init__(self, candidate: bytes, interface: Interface, arena: Arena, isolation: Isolation) -> None:
        """Start and load; the arena stays the caller's, and other contestants may share it.

        Raises CandidateFault when it cannot be loaded, UserError when Triton is not installed.
        """
        self.arena = arena
        self._interface = interface
        self._process = Confined(
            "triton_interpreter", candidate, isolation, fds=[arena.fd], own=[arena.size],
            memory_bytes=MEMORY_BYTES + arena.size,
        )  # fmt: skip
        try:
            head = {"do": "load", "source": self._process.source, "entry": interface.entry}
            answer, _ = self._process.ask(head, START_TIMEOUT_S + LOAD_TIMEOUT_S, "while it was being loaded")
            self.description = printable(answer.get("said"))
            self._process.stop()
        except BaseException:
            self.close()
            raise

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
        """One call, untimed (its microseconds are NaN); the process is stopped again when this returns.

        Raises CandidateFault like Runner.call, and UserError when a timed call is asked for (`flush`).
        """
        if flush:
            raise UserError(UNTIMED)
        given = arguments(self._interface, filled.buffers, slots, 0, 0)
        self._process.go()
        asked = {"do": "call", "arguments": _encoded(given)}
        self._process.ask(asked, SLOWNESS * timeout_s, "in the launcher")
        self._process.stop()
        filled.check_surroundings(_differs, everywhere=everywhere)
        return Called(float("nan"), filled.snapshot(), disturbed=False, faults=0)

    def empty(self, rng: np.random.Generator) -> float:
        raise UserError(UNTIMED)

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class InterpreterMachine:
    """A machine.Machine that judges Triton kernels without a GPU, and refuses to time them."""

    rounds_per_process = 1
    processes_differ = False
    watched = False
    checker_core: int | None = None

    def __init__(self, task: Task, isolation: Isolation) -> None:
        self.isolation: str = isolation
        self._isolation = isolation
        self._interface = trial.interface_of(task)

    def memory(self, cases: Sequence[Sequence[Buffer]]) -> Arena:
        return Arena(arena.bytes_needed(cases))

    def expect(self, memory: Arena, contestants: int, trusted: Path | None) -> None:
        """Only who measures expects several."""
        raise UserError(UNTIMED)

    def contestant(
        self, memory: Arena, *, candidate: bytes | None = None, trusted: Path | None = None
    ) -> TritonInterpreter:
        """Raises CandidateFault when it cannot be loaded, UserError for a baseline that is not written in Triton."""
        if trusted is not None:
            if trusted.suffix != Language.TRITON.suffix:
                raise UserError(f"baseline {trusted.name} needs a GPU, and this machine has none")
            candidate = trusted.read_bytes()
        assert candidate is not None
        return TritonInterpreter(candidate, self._interface, memory, self._isolation)

    def check_memory(self, gate: Gate, library: bytes, source: Path | None) -> str:
        """The interpreter's memory is this process's own."""
        return "not checked: the interpreter has no device"

    def host_us(self, contestant: TritonInterpreter, filled: Filled, slots: np.ndarray, timeout_s: float) -> None:
        raise UserError(UNTIMED)

    def lock(self, wait_s: float, *, shared: bool = False) -> contextlib.AbstractContextManager[float]:
        """That of the core on which others time C++ kernels: the interpreter keeps a core busy."""
        return device.lock(device.pick_cores().runner, wait_s, shared=shared)

    def peaks(self, *, again: bool = False) -> Peaks:
        raise UserError(UNTIMED)

    def state(self) -> State:
        raise UserError(UNTIMED)

    def describe(self) -> Device:
        raise UserError(UNTIMED)


@contextlib.contextmanager
def opened(task: Task, policy: Sandbox) -> Iterator[InterpreterMachine]:
    """The interpreter, for a machine without a GPU. Raises UserError when Triton or the isolation is missing."""
    if reason := available():
        raise UserError(f"task {task.name}: {reason}")
    isolation = sandbox.choose(policy)
    with trial.unreadable():
        yield InterpreterMachine(task, isolation)


def _differs(a: np.ndarray, b: np.ndarray) -> int | None:
    """Index of the first byte in which two u8 arrays differ."""
    if np.array_equal(a, b):
        return None
    return int(np.argmax(a != b))
