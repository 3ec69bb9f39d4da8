"""What stands in a built object, in a few lines: counts and short conclusions, never a listing."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernels.harness import cubin, sandbox, sass_code, trial, x86_code
from kernels.harness.arena import CandidateFault
from kernels.harness.gate import Case
from kernels.harness.interface import slots
from kernels.harness.judge import read_library
from kernels.harness.requests import Inspect, Inspected, Sandbox
from kernels.harness.tape import Facts, KernelInfo
from kernels.harness.toolchain import device_code
from specs.errors import UserError
from specs.schema import ArgumentKind, Language, Task

TOOL_TIMEOUT_S = 60.0
MOST_TOLD = 2500  # characters
ALIGNMENT = 256  # bytes, of a buffer
_X86 = (b"\x7fELF\x02\x01", (62).to_bytes(2, "little"))  # ELF of 64 bits, EM_X86_64

# A launcher is recorded as if it were called on a device of the task's kind. What it can ask of one, by number of
# cudaDeviceAttr: threads of a block, warp size, registers, clock, multiprocessors, memory clock and bus, capability,
# shared memory that a block may opt in to.
_SHARED = {8: 166_912, 9: 232_448, 10: 232_448, 12: 101_376}
_ARENA, _HEAP, _STREAM = 0x7F00_0000_0000, 0x7E00_0000_0000, 0x5000
_MULTIPROCESSORS = {8: 108, 9: 132, 10: 148, 12: 170}


def inspect(request: Inspect) -> Inspected:
    """The digest of one object, or why there is none. Raises UserError for a task that names no device."""
    try:
        return Inspected(digest=_clipped(_digest(request)))
    except _Unreadable as unreadable:
        return Inspected(reason=str(unreadable))


class _Unreadable(Exception):
    pass


def _digest(request: Inspect) -> str:
    task, content = request.task, read_library(request.library)
    if task.language is Language.CPP:
        return _host(task, content, request.library)
    if task.language is Language.TRITON:
        images = _triton_images(task, content, request.sandbox)
        named = [(one.image, one.kernels) for image in images if (one := _read(image)).kernels]
        told = [_device(task, image, kernels) for image, kernels in named]
        return f"compiled for the config {task.configs[0].name}:\n" + "\n".join(told)
    found = _read(content)
    if not found.kernels:
        raise _Unreadable("the object holds no kernel")
    return _device(task, found.image, found.kernels)


def _read(content: bytes) -> cubin.DeviceCode:
    try:
        return cubin.read(content)
    except ValueError as error:
        raise _Unreadable(f"the device code cannot be read: {error}") from None


def _host(task: Task, content: bytes, library: Path) -> str:
    if not (content.startswith(_X86[0]) and content[18:20] == _X86[1]):
        raise _Unreadable("only machine code of x86-64 is read, and this is of another processor")
    objdump = shutil.which("objdump")
    if objdump is None:
        raise _Unreadable("objdump is not on PATH of this machine; it comes with binutils, which g++ needs too")
    listing = _run([objdump, "-d", "--no-show-raw-insn", str(library)])
    try:
        return x86_code.digest(listing, trial.interface_of(task).entry, widest=_widest())
    except ValueError as error:
        raise _Unreadable(str(error)) from None


def _device(task: Task, image: bytes, kernels: Mapping[str, KernelInfo]) -> str:
    from kernels.harness.gpu.checked import disassembler

    program = disassembler()
    if program is None:
        raise _Unreadable("cuobjdump is not on PATH of this machine; it comes with the CUDA toolkit and with Triton")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        listing = _run([program, "-sass", file.name])
    try:
        return sass_code.digest(listing, kernels, task.precision)
    except ValueError as error:
        raise _Unreadable(str(error)) from None


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unreadable(f"{Path(command[0]).name}: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise _Unreadable(f"{Path(command[0]).name} ended with status {done.returncode}: {said[0][:200]}")
    return done.stdout.decode(errors="replace")


def _triton_images(task: Task, source: bytes, policy: Sandbox) -> list[bytes]:
    """The device code that one call on the first config compiles, recorded as on a device of the task's kind."""
    from kernels.harness.triton_host import COMPILE_TIMEOUT_S, TritonRecorder

    interface = trial.interface_of(task)
    config = task.configs[0]
    (everything,) = trial.shapes(task, [Case(name=config.name, args=config.args)])
    buffers = [one for one in everything if one.kind is not ArgumentKind.STAGE]  # as in a timed call
    offsets, end = {}, 0
    for buffer in buffers:
        offsets[buffer.name] = end
        end += -(-max(buffer.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    arguments = slots(interface, task.variables(config.args), offsets)
    try:
        with TritonRecorder(source, interface, _facts(task), sandbox.choose(policy)) as recorder:
            recorder.record_call(buffers, arguments, _ARENA, COMPILE_TIMEOUT_S)
            return list(recorder.modules.values())
    except CandidateFault as fault:
        raise _Unreadable(f"its launcher {fault.message}") from None


def _facts(task: Task) -> Facts:
    code = re.match(r"\d+", device_code(task))
    assert code is not None
    major, minor = divmod(int(code.group()), 10)
    if major not in _SHARED:
        raise UserError(
            f"task {task.name}: Triton kernels are inspected for sm_80 and later, not for sm_{code.group()}"
        )
    attributes = {
        1: 1024, 10: 32, 12: 65_536, 13: 1_980_000, 16: _MULTIPROCESSORS[major], 36: 3_201_000, 37: 6_144,
        75: major, 76: minor, 97: _SHARED[major],
    }  # fmt: skip
    return Facts(module="", kernels={}, stream=_STREAM, arena=_ARENA, heap=(_HEAP, 1 << 30), attributes=attributes)


def _widest() -> int:
    """Bits of this processor's widest vector registers."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 128
    return 512 if " avx512f" in flags else 256 if " avx" in flags else 128


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_TOLD else f"{text[: MOST_TOLD - 4].rpartition(chr(10))[0]}\n..."
