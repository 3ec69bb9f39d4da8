"""What the programs that run a Triton candidate share: frames to the gate, confinement, tensors, and its exceptions.

Runs beside the candidate, in a throw-away process that holds no golden and no GPU. It imports nothing but the standard
library (and Triton where a function needs it), since that is all there is in its sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

HEAD = struct.Struct("<II")  # bytes of the JSON head, bytes of the body
HEAD_LIMIT = 1 << 20
BODY_LIMIT = 64 << 20
MESSAGE_LIMIT = 2000  # characters of a fault's message

# The task file's dtypes as (Triton's name in triton.language, bytes).
DTYPES = {
    "f64": ("float64", 8), "f32": ("float32", 4), "f16": ("float16", 2), "bf16": ("bfloat16", 2),
    "f8e4m3": ("float8e4nv", 1), "f8e5m2": ("float8e5", 1),
    "i64": ("int64", 8), "i32": ("int32", 4), "i16": ("int16", 2), "i8": ("int8", 1),
    "u64": ("uint64", 8), "u32": ("uint32", 4), "u16": ("uint16", 2), "u8": ("uint8", 1),
}  # fmt: skip

AUTOTUNE = (
    "@triton.autotune with several configurations times them, and nothing is timed here: declare one configuration; "
    "ferret's tune provider searches"
)


class Fault(Exception):
    """The candidate's doing; `kind` is the value of a FailureKind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# ---------------------------------------------------------------- frames


class Channel:
    """Frames of a JSON head and bytes over a stream socket's descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        text = json.dumps(head).encode()
        view = memoryview(HEAD.pack(len(text), len(body)) + text + body)
        while view:
            view = view[os.write(self._fd, view) :]

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame; ends the process when the gate has gone."""
        lengths = HEAD.unpack(self._exactly(HEAD.size))
        head = json.loads(self._exactly(lengths[0]))
        return head, self._exactly(lengths[1])

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self._fd, min(count, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


# ---------------------------------------------------------------- confinement

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 4, 38, 22
_SECCOMP_MODE_FILTER = 2
_ALLOW, _EPERM, _ENOSYS, _KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*, as the first argument of clone has them
# Numbers of (x86-64, AArch64); None: the architecture has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "ioctl": (16, 29), "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "socketpair": (53, 199),
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "kill": (62, 129),
    "ptrace": (101, 117), "setpgid": (109, 154), "setsid": (112, 157), "pivot_root": (155, 41), "chroot": (161, 51),
    "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224), "reboot": (169, 142), "init_module": (175, 105),
    "delete_module": (176, 106), "tkill": (200, 130), "io_setup": (206, 0), "kexec_load": (246, 104),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97),
    "perf_event_open": (298, 241), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "setns": (308, 268), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "finit_module": (313, 273),
    "memfd_create": (319, 279), "kexec_file_load": (320, 294), "bpf": (321, 280), "execveat": (322, 281),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsmount": (432, 432), "pidfd_open": (434, 434), "clone3": (435, 435),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "mount_setattr": (442, 442),
}  # fmt: skip
NEW_PROCESS = ("fork", "vfork", "clone", "clone3", "execve", "execveat")
# No driver of a GPU can be spoken to without ioctl; Python itself asks for these: is it a terminal, close on exec.
_IOCTLS = (0x5401, 0x5413, 0x5450, 0x5451)


def limit(*, memory_bytes: int, cpu_s: int, file_bytes: int, processes: int | None) -> None:
    """Limits of this process and all that it starts."""
    wanted = [
        (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 256),
    ]  # fmt: skip
    if processes is not None:
        wanted.append((resource.RLIMIT_NPROC, processes))
    for kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def die_with(parent: int) -> None:
    """End when the process that started this one does (bubblewrap does it by itself)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def filter_calls(*, may_start: bool) -> bool:
    """Refuse the system calls that no launcher needs; whether a filter holds now.

    With `may_start` programs can be started (Triton starts ptxas) and refused calls give EPERM; without it whoever
    starts a thread or a program is killed.
    """
    machine = platform.machine()
    if machine not in ("x86_64", "aarch64"):
        return False
    column, architecture = (0, 0xC000003E) if machine == "x86_64" else (1, 0xC00000B7)
    numbers = {name: columns[column] for name, columns in _CALLS.items()}
    load, equal, above, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number_at, architecture_at, first_at, second_at = 0, 4, 16, 24
    program: list[tuple[int, int, int, int]] = [
        (load, 0, 0, architecture_at), (equal, 1, 0, architecture), (give, 0, 0, _KILL_PROCESS),
        (load, 0, 0, number_at),
        (above, 0, 1, 0x40000000), (give, 0, 0, _KILL_PROCESS),  # the x32 numbers
    ]  # fmt: skip
    for name, number in numbers.items():
        if number is None or name == "ioctl" or (may_start and name in NEW_PROCESS and name != "clone3"):
            continue
        action = _EPERM
        if name in NEW_PROCESS:
            # The flags of clone3 lie in memory, where no filter sees them; without it the C library takes clone.
            action = _ENOSYS if may_start else _KILL_PROCESS
        program += [(equal, 0, 1, number), (give, 0, 0, action)]
    clone, ioctl = numbers["clone"], numbers["ioctl"]
    assert clone is not None
    assert ioctl is not None
    program += [(equal, 0, 4, clone), (load, 0, 0, first_at), (any_bit, 0, 1, _NEW_NAMESPACES), (give, 0, 0, _EPERM)]
    program += [(give, 0, 0, _ALLOW), (equal, 0, len(_IOCTLS) + 2, ioctl), (load, 0, 0, second_at)]
    for place, request in enumerate(_IOCTLS):
        program.append((equal, len(_IOCTLS) - place, 0, request))
    program += [(give, 0, 0, _EPERM), (give, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    block = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(block, len(block)))
    return True


def wall_files(read: Sequence[str], write: Sequence[str]) -> bool:
    """Landlock: nothing but `read` can be read or run, nothing but `write` written; whether the system could do it.

    For processes without a bubblewrap around them.
    """
    create, add, restrict = 444, 445, 446
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    known = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)  # how many rights this system knows
    rights = (1 << known) - 1
    reading = 0b1101  # run, read a file, list a folder
    attributes = struct.pack("<Q", rights)
    ruleset = libc.syscall(create, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for places, allowed in ((read, reading), (write, rights & ~1)):
        for place in places:
            try:
                fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            some = allowed if Path(place).is_dir() else allowed & (0b111 | 1 << 14 | 1 << 15)
            libc.syscall(add, ruleset, 1, ctypes.c_char_p(struct.pack("<Qi", some & rights, fd)), 0)
            os.close(fd)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    held = libc.syscall(restrict, ruleset, 0) == 0
    os.close(ruleset)
    return bool(held)


def _prctl(option: int, *values: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_void_p(v) if isinstance(v, int) else v for v in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


# ---------------------------------------------------------------- what the candidate is given


class Storage:
    """Where a tensor's bytes lie; copies of it are itself, so that a kernel works on the very memory that was given."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size

    def data_ptr(self) -> int:
        return self._address

    def nbytes(self) -> int:
        return self._size

    def cpu(self) -> Storage:
        return self

    def copy_(self, other: object) -> Storage:
        return self


class Tensor:
    """What a launcher gets for a pointer: the little of a torch tensor that launching takes. C order, no data."""

    def __init__(self, address: int, dtype: str, shape: Sequence[int], zero: Callable[[int, int], None]) -> None:
        import triton.language as tl

        name, self._itemsize = DTYPES[dtype]
        self.dtype = getattr(tl, name)
        self.shape = tuple(shape)
        self.device = "cuda:0"
        self.is_cuda = True
        self._address = address
        self._zero = zero

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def data(self) -> Tensor:
        return self

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return prod(self.shape)

    def element_size(self) -> int:
        return self._itemsize

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        strides = tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def is_contiguous(self) -> bool:
        return True

    def storage_offset(self) -> int:
        return 0

    def zero_(self) -> Tensor:
        """All bytes zero, in the order of the launches."""
        self._zero(self._address, self.numel() * self._itemsize)
        return self

    # What the interpreter asks for.

    def untyped_storage(self) -> Storage:
        return Storage(self._address, self.numel() * self._itemsize)

    def new_empty(self, *size: object, device: object = None) -> Tensor:
        copy = object.__new__(Tensor)
        copy.__dict__.update(self.__dict__)
        return copy

    def set_(self, storage: Storage, offset: int, size: object, stride: object) -> Tensor:
        self._address = storage.data_ptr()
        return self

    def __repr__(self) -> str:
        return f"Tensor(dtype={self.dtype}, shape={list(self.shape)})"


def arguments(given: Sequence[Any], base: int, zero: Callable[[int, int], None]) -> list[Any]:
    """The launcher's arguments: `["t", address, dtype, shape]` becomes a Tensor at base + address; else as it is."""
    return [Tensor(base + one[1], one[2], one[3], zero) if isinstance(one, list) else one for one in given]


# ---------------------------------------------------------------- the candidate and its exceptions


def load(path: str, entry: str) -> Callable[..., object]:
    """Import the candidate; raises Fault (not_loaded, exited) when it cannot be."""
    import triton.language as tl

    # Triton's own dtypes stand for torch's; TensorDescriptor asks them one thing more.
    tl.dtype.is_floating_point = property(lambda dtype: dtype.is_floating())
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    with faults("not_loaded", "while it was being loaded"):
        spec.loader.exec_module(module)
    function = getattr(module, entry, None)
    if not callable(function):
        raise Fault("not_loaded", f"defines no function {entry!r}")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def faults(kind: str, when: str) -> Iterator[None]:
    """Whatever the candidate raises inside, as a Fault of `kind` or of a kind that fits the exception better."""
    try:
        yield
    except Fault:
        raise
    except SystemExit as error:
        raise Fault("exited", f"ended by SystemExit({error.code!r}) {when}; a launcher has to return") from None
    except BaseException as error:
        inner: BaseException = error
        while type(inner).__name__ == "InterpreterError" and inner.__cause__ is not None:
            inner = inner.__cause__
        for raised in (error, inner):
            if isinstance(raised, Fault):
                raise raised from None
        raise Fault(*described(inner, kind, when)) from None


def described(error: BaseException, kind: str, when: str) -> tuple[str, str]:
    """Kind and message for an exception of the candidate or of Triton."""
    name = type(error).__name__
    if name in ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError"):
        text = "\n".join(line for line in str(error).splitlines() if line.strip())
        line = getattr(getattr(error, "node", None), "lineno", None)
        cause = error.__cause__ or error.__context__
        why = f"{type(cause).__name__}: {cause}\n" if cause is not None else ""
        at = f" (line {line} of the kernel function)" if line is not None else ""
        return "not_loaded", f"Triton cannot compile it{at}: {why}{text}"
    if name == "OutOfResources":
        return "launch_failed", str(error)
    if isinstance(error, MemoryError):
        return "crashed", f"ran out of the memory that a launcher may have {when}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("kernel.py")
    ]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    at = f" (line {lines[-1]})" if lines and lines[-1] else ""
    return kind, f"{name}: {error}{at} {when}"


def serve(channel: Channel, handle: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> None:
    """Answer frames until the gate goes; a Fault is an answer too."""
    while True:
        head, body = channel.receive()
        try:
            answer, content = handle(head, body)
        except Fault as fault:
            answer, content = {"fault": fault.kind, "message": str(fault)[:MESSAGE_LIMIT]}, b""
        channel.send(answer, content)


def confine(settings: dict[str, Any], *, may_start: bool) -> None:
    """Everything that a process can do about itself before it meets the candidate."""
    if settings["parent"]:
        die_with(settings["parent"])
    limit(
        memory_bytes=settings["memory_bytes"],
        cpu_s=settings["cpu_s"],
        file_bytes=settings["file_bytes"],
        processes=settings["processes"],
    )
    if settings["read"]:
        wall_files(settings["read"], settings["write"])
    filter_calls(may_start=may_start)
