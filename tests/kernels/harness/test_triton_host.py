"""Launchers run where there is no GPU: what they would launch is written down, and nothing they do gets further."""

from __future__ import annotations

import ast
import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.harness import cubin, sandbox, triton_host
from kernels.harness.arena import CandidateFault
from kernels.harness.interface import Buffer, buffers
from kernels.harness.interface import slots as interface_slots
from kernels.harness.sandbox import Isolation
from kernels.harness.tape import Launch, Memset, SetAttribute, Tape
from kernels.harness.triton_host import Given, TritonRecorder
from specs.errors import RunnerLost
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind, DType
from tests.kernels.harness.triton_kernels import (
    ARENA,
    COPY,
    HEAD,
    HEAP,
    PLAIN,
    facts,
    given,
    interface,
    launcher,
    needs_triton,
    tensor,
)

pytestmark = needs_triton

ISOLATIONS: list[Isolation] = ["process", *(["bubblewrap"] if sandbox.unusable() is None else [])]  # type: ignore[list-item]
BEST = ISOLATIONS[-1]
Recorded = Callable[..., TritonRecorder]


@pytest.fixture
def recorder() -> Iterator[Recorded]:
    with contextlib.ExitStack() as keep:

        def make(source: bytes, isolation: Isolation = BEST, **changes: Any) -> TritonRecorder:
            return keep.enter_context(TritonRecorder(source, interface(), facts(**changes), isolation))

        yield make


def launches(tape: Tape) -> list[Launch]:
    return [op for op in tape.ops if isinstance(op, Launch)]


def fault(recorder: Recorded, source: bytes, timeout_s: float = 20, **changes: Any) -> CandidateFault:
    with pytest.raises(CandidateFault) as caught:
        recorder(source, **changes).record_arguments(given(), timeout_s)
    return caught.value


# ---------------------------------------------------------------- what is written down


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_launch_is_recorded_as_the_driver_would_get_it(recorder: Recorded, isolation: Isolation) -> None:
    made = recorder(PLAIN, isolation)
    tape = made.record_arguments(given(1000), 20)
    (launch,) = launches(tape)
    assert (launch.kernel, launch.grid, launch.block) == ("copy", (4, 1, 1), (128, 1, 1))
    # Two pointers, n, and behind them Triton's own two pointers to scratch, which this kernel has not.
    assert launch.params == struct.pack("<QQixxxxQQ", ARENA, ARENA + (1 << 20), 1000, 0, 0)
    info = cubin.read(made.modules[launch.module]).kernels["copy"]
    assert info.params == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
    assert info.binary_version == 90
    assert made.description.startswith("Triton ")


def test_both_isolations_make_the_same_machine_code(recorder: Recorded) -> None:
    digests: set[str] = set()
    for isolation in ISOLATIONS:
        made = recorder(PLAIN, isolation)
        made.record_arguments(given(), 20)
        digests |= made.modules.keys()
    assert len(digests) == 1


def test_every_call_has_its_own_addresses_and_code_is_sent_once(recorder: Recorded) -> None:
    made = recorder(PLAIN)
    first = launches(made.record_arguments(given(), 20))[0]
    moved: list[Given] = [tensor(4096, 1000), tensor(1 << 21, 1000), 1000]
    second = launches(made.record_arguments(moved, 20))[0]
    assert first.module == second.module
    assert second.params[:16] == struct.pack("<QQ", ARENA + 4096, ARENA + (1 << 21))
    assert list(made.modules) == [first.module]


def test_arguments_come_in_the_interfaces_order_with_shapes_scalars_and_stream() -> None:
    wanted = interface(
        {"name": "x", "kind": "input", "dtype": "bf16", "shape": ["n", "2"]},
        {"name": "s", "kind": "stage", "dtype": "f32", "shape": ["n"]},
        {"name": "y", "kind": "output", "dtype": "f8e4m3", "shape": ["n"]},
        {"name": "eps", "kind": "scalar", "dtype": "f32"},
        {"name": "n", "kind": "scalar", "dtype": "i64"},
        {"name": "w", "kind": "workspace", "bytes": "16"},
        {"kind": "stream"},
    )
    shapes = (
        Buffer("x", ArgumentKind.INPUT, np.dtype(np.uint16), (3, 2)),
        Buffer("y", ArgumentKind.OUTPUT, np.dtype(np.uint8), (3,)),
        Buffer("w", ArgumentKind.WORKSPACE, np.dtype(np.uint8), (16,)),
    )
    raw = [64, 2**64 - 1, 128, int.from_bytes(struct.pack("<f", 1e-6), "little"), 2**64 - 3, 192, 0]
    expected = [
        triton_host.Tensor(1064, DType.BF16, (3, 2)), None, triton_host.Tensor(1128, DType.F8E4M3, (3,)),
        struct.unpack("<f", struct.pack("<f", 1e-6))[0], -3, triton_host.Tensor(1192, DType.U8, (16,)), 77,
    ]  # fmt: skip
    slots = np.array(raw, dtype=np.uint64)
    assert triton_host.arguments(wanted, shapes, slots, 1000, 77) == expected


def test_a_call_is_recorded_from_the_slots_that_every_contestant_gets(recorder: Recorded) -> None:
    wanted = interface()
    shapes = buffers(wanted, {"n": 1000})
    slots = interface_slots(wanted, {"n": 1000}, {"x": 64, "y": 8192})
    (launch,) = launches(recorder(PLAIN).record_call(shapes, slots, ARENA, 20))
    assert launch.params[:20] == struct.pack("<QQi", ARENA + 64, ARENA + 8192, 1000)


def test_tensors_tell_what_launchers_ask(recorder: Recorded) -> None:
    asked = """
assert (x.shape, x.dtype, x.ndim, x.device) == ((1000,), tl.float32, 1, "cuda:0"), x
assert (x.stride(), x.stride(0), x.numel(), x.element_size(), x.size(0)) == ((1,), 1, 1000, 4, 1000)
assert x.is_contiguous() and x.data_ptr() == 0x7F00_0000_0000
y.zero_()
copy[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
"""
    first, second = recorder(launcher(asked)).record_arguments(given(), 20).ops
    assert first == Memset(dst=ARENA + (1 << 20), value=0, width=1, count=4000)
    assert isinstance(second, Launch)


def test_every_dtype_of_an_interface_has_a_pointer_type(recorder: Recorded) -> None:
    made = recorder(PLAIN)
    for dtype in DType:
        same: list[Given] = [tensor(0, 1000, dtype=dtype), tensor(1 << 20, 1000, dtype=dtype), 1000]
        assert len(launches(made.record_arguments(same, 20))) == 1


SCALARS = launcher(
    "pack[(1,)](y, 1.5, -2.5, 2**40, True, -3, STAGE=None, one=1)",
    HEAD
    + """
@triton.jit
def pack(y, a: tl.float64, h: tl.float16, big, flag, small, STAGE, one):
    tl.store(y, a + h + big + flag + small + one)
""",
)


def test_scalars_are_packed_at_their_own_size_and_constants_are_left_out(recorder: Recorded) -> None:
    (launch,) = launches(recorder(SCALARS).record_arguments(given(), 20))
    assert launch.params == struct.pack(
        "<Q d e 6x q B 3x i Q Q".replace(" ", ""), ARENA + (1 << 20), 1.5, -2.5, 2**40, 1, -3, 0, 0
    )


GEMM = HEAD + (
    """
@triton.jit
def gemm(x, y, K, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros([B, B], dtype=tl.float32)
    for k in range(0, K, B):
        a = tl.load(x + at[:, None] * K + k + at[None, :])
        b = tl.load(x + (k + at)[:, None] * B + at[None, :])
        total = tl.dot(a, b, total)
    tl.store(y + at[:, None] * B + at[None, :], total)
"""
)


def test_shared_memory_beyond_the_usual_is_asked_for_before_the_first_launch(recorder: Recorded) -> None:
    source = launcher(
        "for _ in range(2):\n    gemm[(1,)](x, y, 512, B=128, num_stages=3, num_warps=8)",
        GEMM,
    )
    half: list[Given] = [tensor(0, 1 << 16, dtype=DType.F16), tensor(1 << 20, 1 << 14), 1000]
    ask, first, second = recorder(source).record_arguments(half, 60).ops
    assert isinstance(ask, SetAttribute)
    assert isinstance(first, Launch)
    assert first == second
    assert first.shared > 48 << 10
    assert (ask.module, ask.kernel, ask.attribute, ask.value) == (first.module, "gemm", 8, first.shared)
    assert first.block == (256, 1, 1)


def test_more_shared_memory_than_the_device_has_is_a_failed_launch(recorder: Recorded) -> None:
    source = launcher("gemm[(1,)](x, y, 1024, B=128, num_stages=6, num_warps=8)", GEMM)
    failed = fault(recorder, source, 60)
    assert failed.kind is FailureKind.LAUNCH_FAILED
    assert "out of resource: shared memory, Required" in failed.message


def test_clusters_and_launch_flags_are_recorded(recorder: Recorded) -> None:
    source = launcher(
        "copy[(4,)](x, y, n, BLOCK=256, num_ctas=2)\n"
        "copy[(4,)](x, y, n, BLOCK=256, launch_cooperative_grid=True)\n"
        "copy[(4,)](x, y, n, BLOCK=256, launch_pdl=True)"
    )
    cluster, cooperative, programmatic = launches(recorder(source).record_arguments(given(), 60))
    assert (cluster.cluster, cluster.grid) == ((2, 1, 1), (8, 1, 1))
    assert (cooperative.cluster, cooperative.cooperative, cooperative.programmatic) == (None, True, False)
    assert (programmatic.cooperative, programmatic.programmatic) == (False, True)


DESCRIPTOR = launcher(
    "copy[({grid},)](x, y, n, BLOCK=256)",
    HEAD
    + """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    tl.store(y + tl.arange(0, BLOCK), source.load([tl.program_id(0) * BLOCK]))
""",
).decode()


def test_scratch_that_triton_needs_lies_in_the_heap(recorder: Recorded) -> None:
    """A descriptor made in the kernel takes 128 bytes a program."""
    tape = recorder(DESCRIPTOR.replace("{grid}", "3").encode()).record_arguments(given(1024), 20)
    (launch,) = launches(tape)
    assert launch.params == struct.pack("<QQixxxxQQ", ARENA, ARENA + (1 << 20), 1024, HEAP, 0)
    assert 3 * 128 <= tape.heap_bytes <= 1024


HOST_DESCRIPTORS = launcher(
    """
a = TensorDescriptor.from_tensor(x, [64, 32])
b = TensorDescriptor(y, [128, n], [n, 1], [64, 32], padding="nan")
move[(2, n // 32)](a, b, n)
move[(2, n // 32)](a, b, n)
""",
    HEAD
    + """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def move(a, b, n):
    at = [tl.program_id(0) * 64, tl.program_id(1) * 32]
    b.store(at, a.load(at) + 1)
""",
)


def test_a_launchers_own_descriptors_are_asked_for_and_stand_in_the_parameters(recorder: Recorded) -> None:
    """As arguments of cuTensorMapEncodeTiled, innermost dimension first, each once however often it is used."""
    made = recorder(HOST_DESCRIPTORS)
    both: list[Given] = [tensor(at, 128, 1024, dtype=DType.F16) for at in (0, 1 << 20)]
    recorded = made.record_arguments([*both, 1024], 20)
    read, write = recorded.tensor_maps
    assert (read.address, write.address) == (ARENA, ARENA + (1 << 20))
    assert (read.dims, read.strides, read.box, read.element_strides) == ((1024, 128), (2048,), (32, 64), (1, 1))
    assert (read.dtype, read.oob, write.oob) == (6, 0, 1)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    first, second = launches(recorded)
    assert first.params == second.params
    places = cubin.read(made.modules[first.module]).kernels["move"].params
    assert recorded.placeholders(first.params) == [
        (offset, index) for index, offset in enumerate(offset for offset, size in places if size == 128)
    ]
    at = dict(enumerate(offset for offset, _ in places))
    assert struct.unpack_from("<ii", first.params, at[1]) == (128, 1024)
    assert struct.unpack_from("<qq", first.params, at[3]) == (1024, 1)


def test_scratch_beyond_the_heap_is_a_failed_launch(recorder: Recorded) -> None:
    failed = fault(recorder, DESCRIPTOR.replace("{grid}", "1 << 20").encode())
    assert failed.kind is FailureKind.LAUNCH_FAILED
    assert "global scratch" in failed.message


def test_an_empty_grid_launches_nothing(recorder: Recorded) -> None:
    assert recorder(launcher("copy[(0,)](x, y, n, BLOCK=256)")).record_arguments(given(), 20).ops == ()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("source", "kind", "told"),
    [
        (b"import torch\n", FailureKind.NOT_LOADED, "No module named 'torch' (line 1) while it was being loaded"),
        (b"def other(): pass\n", FailureKind.NOT_LOADED, "defines no function 'launch'"),
        (b"raise SystemExit(0)\n", FailureKind.EXITED, "SystemExit(0) while it was being loaded"),
        (launcher("raise SystemExit(0)"), FailureKind.EXITED, "SystemExit(0) in the launcher"),
        (launcher("import os\nos._exit(0)"), FailureKind.EXITED, "exit status 0 in the launcher"),
        (launcher("return n / 0"), FailureKind.CRASHED, "ZeroDivisionError: division by zero (line 11)"),
        (launcher("import os\nos.abort()"), FailureKind.CRASHED, "died of SIG"),
        (launcher("import ctypes\nctypes.string_at(8)"), FailureKind.CRASHED, "died of SIGSEGV"),
        (launcher("bytearray(1 << 40)"), FailureKind.CRASHED, "ran out of the memory"),
        (launcher("copy[(-1,)](x, y, n, BLOCK=256)"), FailureKind.LAUNCH_FAILED, "copy launched with a grid of [-1"),
        (launcher("copy[(1.5,)](x, y, n, BLOCK=256)"), FailureKind.LAUNCH_FAILED, "whole numbers are needed"),
        (launcher("copy[(1,)](x, y, n)"), FailureKind.CRASHED, "BLOCK"),
        (launcher("for _ in range(5000):\n    y.zero_()"), FailureKind.LAUNCH_FAILED, "more than 4096"),
        (launcher("copy[(1 << 31,)](x, y, n, BLOCK=256)"), FailureKind.LAUNCH_FAILED, "a grid of (2147483648"),
    ],
)
def test_what_a_candidate_does_wrong_is_its_own_fault(
    recorder: Recorded, source: bytes, kind: FailureKind, told: str
) -> None:
    failed = fault(recorder, source)
    assert (failed.kind, told in failed.message) == (kind, True), failed.message


def test_a_kernel_that_does_not_compile_is_told_with_its_line(recorder: Recorded) -> None:
    failed = fault(recorder, PLAIN.replace(b"tl.load(x + at", b"tl.lode(x + at"))
    assert failed.kind is FailureKind.NOT_LOADED
    assert "Triton cannot compile it (line 3 of the kernel function)" in failed.message
    assert "lode" in failed.message


def test_autotuning_is_refused_with_what_to_do_instead(recorder: Recorded) -> None:
    tuned = PLAIN.replace(
        b"@triton.jit",
        b"@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2)], key=['n'])\n@triton.jit",
    )
    failed = fault(recorder, tuned)
    assert failed.kind is FailureKind.NOT_LOADED
    assert "declare one configuration" in failed.message
    one = PLAIN.replace(b"@triton.jit", b"@triton.autotune([triton.Config({}, num_warps=2)], key=['n'])\n@triton.jit")
    assert launches(recorder(one).record_arguments(given(), 20))[0].block == (64, 1, 1)


def test_device_code_that_prints_is_refused(recorder: Recorded) -> None:
    source = PLAIN.replace(b"    tl.store(", b"    tl.device_print('score', at)\n    tl.store(")
    failed = fault(recorder, source)
    assert failed.kind is FailureKind.NOT_LOADED
    assert "vprintf" in failed.message


def test_a_launcher_that_does_not_return_is_stopped(recorder: Recorded) -> None:
    failed = fault(recorder, launcher("while True: pass"), timeout_s=0.5)
    assert failed.kind is FailureKind.HUNG
    assert failed.message == "did not return within 0.5 s in the launcher"


def test_compiling_does_not_count_as_the_launchers_time(recorder: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """But it has a limit of its own, which saying that one compiles does not stretch."""
    slow = b"""
import triton.compiler.compiler as c, time
compiled = c.compile
def slowly(*given, **options):
    time.sleep(1.5)
    return compiled(*given, **options)
import triton.compiler
triton.compiler.compile = slowly
"""
    assert launches(recorder(COPY.encode() + slow + PLAIN).record_arguments(given(), 1.0))
    monkeypatch.setattr(triton_host, "COMPILE_TIMEOUT_S", 0.5)
    failed = fault(recorder, COPY.encode() + slow + PLAIN, timeout_s=1.0)
    assert failed.kind is FailureKind.HUNG


# ---------------------------------------------------------------- what it says is a proposal, and it reaches nothing

FORGE = """
import os, struct
from kernels.harness import tape, triton_child
def say(head, body=b""):
    for fd in range(3, 1024):
        try:
            os.fstat(fd)
            triton_child.Channel(fd).send(head, body)
        except OSError:
            pass
def raw(data):
    for fd in range(3, 1024):
        try:
            os.write(fd, data)
        except OSError:
            pass
LAUNCH = tape.Launch(module="0" * 64, kernel="copy", grid=(1, 1, 1), block=(1, 1, 1), shared=0, params=b"")
def say_tape(told, *modules):
    say({"sizes": [len(told), *map(len, modules)]}, told + b"".join(modules))
def own_nonce():
    import gc
    return next(one._nonce for one in gc.get_objects() if type(one).__name__ == "Recording")
def with_number(told, number):
    '''Another first number in the first record: an attribute, or the dtype of a tensor map.'''
    return told[:56] + struct.pack("<i", number) + told[60:]
"""
FORGED_ATTRIBUTE = "with_number(tape.Tape((tape.SetAttribute('0' * 64, 'copy', 9, 1),)).to_bytes(), 9999)"
FORGED_MAP = "with_number(tape.Tape((), (tape.TensorMapRequest(7, 16, (1,), (), (1,), (1,)),)).to_bytes(), 99)"
FORGED_CUBIN = """
code = bytearray(copy[(1,)](x, y, n, BLOCK=256).asm["cubin"])
code[32:40] = struct.pack("<Q", 2**63)
say_tape(tape.Tape(ops=()).to_bytes(), bytes(code))
"""


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        ("raw(struct.pack('<II', 2**32 - 1, 2**32 - 1))", "nobody asked"),
        ("raw(struct.pack('<II', 4, 0) + b'nope')", "what is no answer"),
        ("raw(struct.pack('<II', 100000, 0) + b'[' * 100000)", "what is no answer"),
        ("raw(struct.pack('<II', 2, 0) + b'[]')", "what is no answer"),
        ("say({'sizes': [-5, 5]})", "its parts do not make up the whole"),
        ("say({'sizes': [2**63]})", "its parts do not make up the whole"),
        ("say({'sizes': [True]}, b'1')", "its parts do not make up the whole"),
        ("say_tape(b'no tape at all')", "the recording is damaged: tape"),
        ("say_tape(tape.Tape(ops=(LAUNCH,)).to_bytes())", "launches copy, a kernel that it has not"),
        ("say_tape(tape.Tape(ops=()).to_bytes(), b'\\x7fELF no cubin')", "a module is no cubin"),
        ("say_tape(tape.Tape(ops=()).to_bytes(), *[b'x' * 2**20] * 63)", "a module is no cubin"),
        ("say_tape(tape.Tape(ops=()).to_bytes())", "this recorder did not write it"),
        ("say_tape(tape.Tape((), (), 2**62, own_nonce()).to_bytes())", "this recorder did not write it"),
        (f"say_tape({FORGED_ATTRIBUTE})", "the recording is damaged: tape: function attribute 9999"),
        (f"say_tape({FORGED_MAP})", "the recording is damaged: tape: a tensor map with dtype 99"),
        (FORGED_CUBIN, "a module is no cubin: the device code has"),
        ("say({'fault': 'passed', 'message': 'all good\\x1b[2J'})", "all good [2J"),
        ("say({'fault': ['wrong'], 'message': {}})", "{}"),
        ("for _ in range(300): say({'compiling': True})", "what is no answer"),
    ],
)
def test_forged_answers_are_the_candidates_fault_and_never_a_tape(recorder: Recorded, forged: str, told: str) -> None:
    failed = fault(recorder, launcher(forged, COPY + FORGE), timeout_s=5)
    assert failed.kind is not FailureKind.HUNG
    assert told in failed.message, failed.message


SAYS_THAT_IT_COMPILES = launcher(
    """
copy[(1,)](x, y, n, BLOCK=256)
if n == 2:
    say({"compiling": True})
    time.sleep(2)
    say({"compiling": False})
""",
    COPY + FORGE + "import time\n",
)


def test_a_call_that_compiles_nothing_new_has_no_more_than_its_time(
    recorder: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says of compiling, which stops the clock while it waits for an answer."""
    monkeypatch.setattr(triton_host, "KNOWN_CODE_S", 0.5)
    made = recorder(SAYS_THAT_IT_COMPILES)
    assert launches(made.record_arguments(given(3), 20))
    with pytest.raises(CandidateFault, match="compiled nothing that is new") as caught:
        made.record_arguments(given(2), 1.0)
    assert caught.value.kind is FailureKind.HUNG


def test_all_calls_of_a_recorder_share_one_time_to_compile(recorder: Recorded) -> None:
    """Every call could bring one more module, or say so."""
    made = recorder(SAYS_THAT_IT_COMPILES)
    made.record_arguments(given(3), 20)
    assert 0 < made._process._compile_s < triton_host.COMPILE_BUDGET_S
    made._process._compile_s = 0.25
    with pytest.raises(CandidateFault, match=r"nor compile within 0\.25 s in the launcher") as caught:
        made.record_arguments(given(2), 20)
    assert caught.value.kind is FailureKind.HUNG


def test_an_answer_in_the_middle_of_compiling_is_paid_for_too(recorder: Recorded) -> None:
    """The frame that ends it need not come."""
    source = SAYS_THAT_IT_COMPILES.replace(b'    say({"compiling": False})\n', b"").replace(b"sleep(2)", b"sleep(0.5)")
    made = recorder(source)
    made.record_arguments(given(3), 20)
    left = made._process._compile_s
    made.record_arguments(given(2), 20)
    assert made._process._compile_s < left


def test_a_forged_launch_needs_the_parameters_that_its_kernel_takes(recorder: Recorded) -> None:
    """It can propose any work for the kernels it has: no more than a launcher could."""
    cut = """
from kernels.harness import triton_recorder
triton_recorder.packed_parameters = lambda types, values: b"\\0" * 8
"""
    failed = fault(recorder, PLAIN.replace(b"\ndef launch", cut.encode() + b"\ndef launch"))
    assert failed.kind is FailureKind.LAUNCH_FAILED
    assert failed.message == "launches copy with 8 bytes of parameters; it takes 36"


REACHES = """
import os, socket, ctypes
def tried(what):
    try:
        return repr(eval(what))
    except BaseException as error:
        return type(error).__name__
"""
DENIED = ("PermissionError", "FileNotFoundError", "OSError")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_launcher_reaches_nothing(recorder: Recorded, tmp_path: Path, isolation: Isolation) -> None:
    """No file but the system's and Triton's, no network, no GPU, no process, no other package, nothing of our own."""
    secret = tmp_path / "golden"
    secret.write_text("42")
    reaches: dict[str, tuple[str, ...]] = {
        f"open({str(secret)!r}).read()": DENIED,
        f"os.listdir({str(tmp_path)!r})": DENIED,
        f"open({str(secret.with_suffix('.new'))!r}, 'w')": DENIED,
        f"os.remove({str(secret)!r})": DENIED,
        f"open({str(Path(triton_host.__file__))!r}).read()": DENIED,
        "open(__file__, 'a')": DENIED,
        "open(triton.__file__, 'a')": DENIED,
        "socket.socket()": ("PermissionError",),
        "socket.socketpair()": ("PermissionError",),
        "os.kill(os.getppid(), 9)": ("PermissionError",),
        "os.open('/dev/nvidiactl', os.O_RDWR)": DENIED,
        "open('/proc/%d/mem' % os.getppid())": DENIED,
        "ctypes.CDLL(None).ioctl(0, 0xC0204600, 0)": ("-1",),
        "ctypes.CDLL(None).unshare(0x10000000)": ("-1",),
        "ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)": ("-1",),
        "ctypes.CDLL(None).syscall(319, b'', 0)": ("-1",),
        "__import__('torch')": ("ModuleNotFoundError",),
        "__import__('yaml')": ("ModuleNotFoundError",),
        f"os.listdir({triton_host._other_packages()[0]!r})": ("[]", "PermissionError"),
    }
    asks = f"raise RuntimeError([tried(what) for what in {[*reaches, 'sorted(os.environ)']!r}])"
    failed = fault(recorder, launcher(asks, COPY + REACHES), isolation=isolation)
    *said, names = ast.literal_eval(failed.message.removeprefix("RuntimeError: ").partition(" (line")[0])
    for (what, accepted), came in zip(reaches.items(), said, strict=True):
        assert came in accepted, f"{what}: {came}"
    own = {*triton_host.ENVIRONMENT, "TMPDIR", "TRITON_CACHE_DIR", "LC_CTYPE", "PWD"}
    assert set(ast.literal_eval(names)) <= own, names
    assert [path.name for path in tmp_path.iterdir()] == ["golden"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_it_started_ends_with_it(recorder: Recorded, isolation: Isolation) -> None:
    """A child that closes everything and sleeps is gone once the recorder is closed."""
    marker = f"{time.time_ns()}.5"
    made = recorder(launcher(f"import subprocess\nsubprocess.Popen(['/usr/bin/sleep', '{marker}'])\n", COPY), isolation)
    made.record_arguments(given(), 20)

    def running() -> bool:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if marker.encode() in entry.read_bytes().split(b"\0"):
                    return True
        return False

    # That it was started is known, for the launch was recorded; by now it may have been ended already.
    made.close()
    deadline = time.monotonic() + 10
    while running():
        assert time.monotonic() < deadline, "it is still there"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_recorder_that_is_killed_from_outside_is_no_verdict(recorder: Recorded, isolation: Isolation) -> None:
    made = recorder(PLAIN, isolation)
    made._process._signal(9)
    with pytest.raises(RunnerLost, match="SIGKILL"):
        made.record_arguments(given(), 20)
