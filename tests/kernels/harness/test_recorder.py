"""A recorder turns a call of a candidate's host code into the exact list of what is to be done, or names the fault."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.harness import cubin, device, sandbox
from kernels.harness.arena import CandidateFault
from kernels.harness.audit import audit, exported_functions
from kernels.harness.build import build
from kernels.harness.clock import Clock
from kernels.harness.interface import slots
from kernels.harness.recorder import Recorder, build_runtime
from kernels.harness.requests import Build
from kernels.harness.runner import Tools, build_runner
from kernels.harness.symbols import CUDA_RUNTIME
from kernels.harness.tape import (
    Copy,
    Facts,
    Launch,
    Memset,
    SetAttribute,
    Tape,
    TensorMapRequest,
    Upload,
)
from specs.outcomes import FailureKind
from specs.schema import Language, Task
from tests.kernels.harness.tasks import task

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
pytestmark = needs_nvcc

SOURCE = Path(__file__).parent / "recorded.cu"
ARENA, HEAP, STREAM = 0x7000_0000_0000, 0x7100_0000_0000, 0x5EED_57E4_4D00
X, Y = 0x1000, 0x20000  # offsets in the arena
PLAIN, SCALED = "_Z5plainPKfPfi", "_Z6scaledILi3EEvPf5Mixedc"
PAIRED, DESCRIBED, TOGETHER = "_Z6pairedPf", "_Z9described14CUtensorMap_stPfi", "_Z8togetherPf"
TIMEOUT_S = 20.0


def cuda_task() -> Task:
    tensor = {"dtype": "f32", "shape": ["M", "N"]}
    arguments = [
        {"name": "x", "kind": "input", **tensor},
        {"name": "y", "kind": "output", **tensor},
        {"name": "M", "kind": "scalar", "dtype": "i32"},
        {"kind": "stream"},
    ]
    interface = {"entry": "launches", "arguments": arguments}
    return task(language="cuda", gpu="H200", arch="sm_90a", interface=interface)


@pytest.fixture(scope="module")
def library(builds: Path) -> Path:
    """Built as a baseline, so that the audit does not refuse what these tests are about."""
    built = build(Build(task=cuda_task(), source=SOURCE, role="baseline", builds=builds))
    assert built.library is not None, built.result.log_tail
    return built.library


@pytest.fixture(scope="module")
def code(library: Path) -> cubin.DeviceCode:
    return cubin.read(library.read_bytes())


@pytest.fixture(scope="module")
def tools(builds: Path) -> Iterator[Tools]:
    interface = cuda_task().interface
    assert interface is not None
    clock = Clock(builds, flush_bytes=1 << 20, private_bytes=1 << 18)
    program = build_runner(interface, builds, cuda=True)
    yield Tools(program, "launches", clock, device.pick_cores(), sandbox.choose("preferred"))
    clock.close()


def facts_for(code: cubin.DeviceCode) -> Facts:
    at = 0x7200_0000_0000
    variables = {}
    for name, size in code.variables.items():
        variables[name] = (at, size)
        at += 4096
    return Facts(
        module="kernel",
        kernels=code.kernels,
        stream=STREAM,
        arena=ARENA,
        heap=(HEAP, 1 << 20),
        variables=variables,
        arena_bytes=1 << 32,
        attributes={1: 1024, 2: 1024, 8: 49152, 10: 32, 16: 132, 39: 2048, 97: 232448},
        properties=struct.pack("<i", 77) * 128,
    )


Start = Callable[[str], Recorder]


@pytest.fixture
def start(tools: Tools, library: Path, code: cubin.DeviceCode) -> Iterator[Start]:
    started: list[Recorder] = []

    def make(entry: str) -> Recorder:
        started.append(Recorder(replace(tools, entry=entry), library.read_bytes(), facts_for(code)))
        return started[-1]

    yield make
    for recorder in started:
        recorder.close()


def arguments(n: int = 1000) -> np.ndarray:
    interface = cuda_task().interface
    assert interface is not None
    return slots(interface, {"M": n}, {"x": X, "y": Y})


def recorded(recorder: Recorder, n: int = 1000, timeout_s: float = TIMEOUT_S) -> Tape:
    return recorder.record(arguments(n), timeout_s)


def test_launches_are_written_down_with_every_byte_of_their_parameters(start: Start) -> None:
    """Plain, templated with a struct by value, and of a kernel compiled for clusters."""
    tape = recorded(start("launches"))
    # The gaps of Mixed hold what the compiler left there, so they are not compared.
    _, scaled, _ = tape.ops
    assert isinstance(scaled, Launch)
    mixed = bytearray(scaled.params)
    assert len(mixed) == 33
    mixed[9:16] = bytes(7)
    mixed[26:32] = bytes(6)
    assert replace(scaled, params=bytes(mixed)) == Launch(
        "kernel", SCALED, (2, 1, 1), (32, 8, 1), 1024, struct.pack("<Qb7xdh6xc", ARENA + Y, 1, 2.0, 3, b"z")
    )
    assert tape.ops[0] == Launch(
        "kernel", PLAIN, (4, 2, 1), (256, 1, 1), 0, struct.pack("<QQi", ARENA + X, ARENA + Y, 1000)
    )
    assert tape.ops[2] == Launch("kernel", PAIRED, (4, 1, 1), (128, 1, 1), 0, struct.pack("<Q", ARENA + Y))
    assert len(tape.ops) == 3
    assert (tape.tensor_maps, tape.heap_bytes) == ((), 0)


def test_a_process_without_bubblewrap_records_the_same(tools: Tools, library: Path, code: cubin.DeviceCode) -> None:
    """And refuses the same: the filter of system calls is not the sandbox's."""
    bare = replace(tools, isolation="process")
    facts = facts_for(code)
    with Recorder(replace(bare, entry="with_attributes"), library.read_bytes(), facts) as recorder:
        assert [type(op) for op in recorded(recorder).ops] == [Launch] * 3
    with (
        Recorder(replace(bare, entry="starts_a_thread"), library.read_bytes(), facts) as recorder,
        pytest.raises(CandidateFault, match="tried to start a thread"),
    ):
        recorded(recorder)


def test_each_call_has_a_tape_of_its_own(start: Start) -> None:
    """Arguments and addresses are those of the call; `base` moves all pointers."""
    recorder = start("launches")
    first = recorded(recorder, 256)
    second = recorder.record(arguments(512), TIMEOUT_S, base=0x7300_0000_0000)
    grids = [tape.ops[0].grid for tape in (first, second) if isinstance(tape.ops[0], Launch)]
    assert grids == [(1, 2, 1), (2, 2, 1)]
    assert isinstance(second.ops[0], Launch)
    assert second.ops[0].params[:8] == struct.pack("<Q", 0x7300_0000_0000 + X)


def test_launch_attributes_are_kept(start: Start) -> None:
    """Cluster size, programmatic serialization, and cooperative launches by both ways."""
    params = struct.pack("<QQi", ARENA + X, ARENA + Y, 1000)
    alone = struct.pack("<Q", ARENA + Y)
    assert recorded(start("with_attributes")).ops == (
        Launch("kernel", PLAIN, (8, 1, 1), (64, 1, 1), 0, params, cluster=(4, 1, 1), programmatic=True),
        Launch("kernel", TOGETHER, (132, 1, 1), (32, 1, 1), 0, alone, cooperative=True),
        Launch("kernel", TOGETHER, (8, 1, 1), (64, 1, 1), 0, alone, cooperative=True),
    )


def test_copies_and_fills_are_written_down(start: Start, code: cubin.DeviceCode) -> None:
    """Symbols, uploads, copies on the device, fills; the kind of a copy may be left to the addresses."""
    variables = facts_for(code).variables
    host = struct.pack("<4f", 1, 2, 3, 4)
    assert recorded(start("moves_memory")).ops == (
        Upload(variables["table"][0] + 8, host),
        Memset(ARENA + Y, 0xFF, 1, 64),
        Copy(ARENA + Y, ARENA + X, 4000),
        Upload(ARENA + Y + 4000, host),
        Memset(variables["counters"][0], 0, 1, 256),
        Copy(ARENA + Y, ARENA + X, 16),
        Copy(ARENA + Y + 64, ARENA + X + 32, 16),
    )


def test_kernels_and_variables_are_found_whatever_scope_they_have(start: Start) -> None:
    """Static, in namespaces with and without a name, of templates, called with a functor."""
    ops = recorded(start("finds_its_names")).ops
    launches = [op for op in ops if isinstance(op, Launch)]
    assert [launch.grid[0] for launch in launches] == [1, 2, 3]
    assert "anonymous" in launches[0].kernel
    assert launches[2].params == struct.pack("<f4xQ", 2, ARENA + Y)


def test_device_memory_comes_from_the_heap(start: Start) -> None:
    """Aligned, reused when it was given back, and refused as the runtime refuses it when there is no more."""
    recorder = start("takes_memory")
    for _ in range(3):
        tape = recorded(recorder)
        assert tape.ops == (Memset(HEAP + 1024, 1, 1, 300), Memset(HEAP, 2, 1, 100))
        assert tape.heap_bytes == 1024 + 512


def test_a_function_attribute_is_on_every_tape(start: Start) -> None:
    """Also of calls that rely on an earlier one to have set it."""
    recorder = start("raises_shared")
    expected = SetAttribute("kernel", SCALED, 8, 200000)
    for _ in range(2):
        first, launch = recorded(recorder).ops
        assert first == expected
        assert isinstance(launch, Launch)
        assert launch.shared == 150000


def test_tensor_maps_are_requests_and_placeholders(start: Start) -> None:
    """One that is encoded in the call, and one that the candidate has kept since its first."""
    recorder = start("describes_tensors")

    def request(address: int) -> TensorMapRequest:
        return TensorMapRequest(7, address, (64, 32), (256,), (32, 8), (1, 1), swizzle=3, l2=2)

    for _ in range(2):
        tape = recorded(recorder)
        assert tape.tensor_maps == (request(ARENA + Y), request(ARENA + X))
        for index, launch in enumerate(tape.ops):
            assert isinstance(launch, Launch)
            ((offset, size), *_) = recorder._facts.kernels[DESCRIBED].params
            assert size == 128
            assert tape.placeholders(launch.params) == [(offset, index)]
            assert launch.params[offset : offset + 128] == tape.placeholder(index)
            assert launch.params[-12:] == struct.pack("<Qi", ARENA + Y, 5 + index)


def test_questions_are_answered_from_the_facts(start: Start) -> None:
    """Device, properties, occupancy by the documented rule, no capture, nothing pending."""
    (upload,) = recorded(start("asks")).ops
    assert isinstance(upload, Upload)
    told = struct.unpack("<12i", upload.data)
    # 100 KiB of shared memory and the reserved KiB fit twice into a multiprocessor's 228 KiB.
    assert told == (2, 0, 1, 132, 49152, 256, 2 * 132, 1024, 77, 0, 0, 0)


def test_a_looked_at_error_is_no_fault(start: Start) -> None:
    """A launch that fails is known to who asks; what it does then is its business."""
    (launch,) = recorded(start("looks_at_the_error")).ops
    assert isinstance(launch, Launch)
    assert launch.block == (1024, 1, 1)


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        (
            "on_default_stream",
            FailureKind.WRONG_STREAM,
            r"launched plain\(.*\) on the default stream; the stream it was",
        ),
        ("on_per_thread_stream", FailureKind.WRONG_STREAM, "on the per-thread stream; the stream it was given"),
        ("on_made_up_stream", FailureKind.WRONG_STREAM, "called cudaMemsetAsync on another stream"),
        ("reads_back", FailureKind.CRASHED, "called cudaMemcpyAsync from device to host: a kernel's host side sees no"),
        ("reads_back_by_address", FailureKind.CRASHED, "called cudaMemcpy from device to host"),
        ("uploads_much", FailureKind.LAUNCH_FAILED, "copies more than 65536 bytes from the host to the device"),
        ("launches_forever", FailureKind.LAUNCH_FAILED, "put more than 4096 operations on the stream in one call"),
        ("asks_the_driver", FailureKind.CRASHED, "asked for cuStreamCreate of the driver"),
        ("pins_l2", FailureKind.CRASHED, r"attribute 1 \(access policy window\), which is not accepted"),
        ("block_too_large", FailureKind.LAUNCH_FAILED, r"plain.*\(1025, 1, 1\) threads; at most 1024 are possible"),
        ("bounds_ignored", FailureKind.LAUNCH_FAILED, "a block of 512 threads; it was compiled for at most 256"),
        (
            "shared_too_large",
            FailureKind.LAUNCH_FAILED,
            "100000 bytes of dynamic shared memory; at most 49152 are allowed",
        ),
        (
            "grid_not_of_clusters",
            FailureKind.LAUNCH_FAILED,
            r"\(3, 1, 1\) is no multiple of its cluster of \(2, 1, 1\)",
        ),
        ("too_many_together", FailureKind.LAUNCH_FAILED, "a cooperative launch of 100000 blocks; 4224 fit at once"),
        ("edits_a_tensor_map", FailureKind.CRASHED, "was changed after it had been encoded"),
        ("reads_device_memory", FailureKind.CRASHED, "died of SIGSEGV in the call"),
        ("exits", FailureKind.EXITED, "ended the process with exit status 3"),
        ("aborts", FailureKind.CRASHED, "died of SIGABRT"),
        ("starts_a_thread", FailureKind.THREADS, "tried to start a thread"),
        ("not_there", FailureKind.NOT_LOADED, "undefined symbol: not_there"),
    ],
)
def test_what_a_host_side_may_not_do_is_named(start: Start, entry: str, kind: FailureKind, message: str) -> None:
    """A fault of the candidate, with the call and what is accepted."""
    with pytest.raises(CandidateFault, match=message) as caught:
        recorded(start(entry))
    assert caught.value.kind is kind


def test_a_host_side_that_does_not_return_hangs(start: Start) -> None:
    """Within its time limit, and not for longer."""
    with pytest.raises(CandidateFault, match=r"did not return within 0\.5 s") as caught:
        recorded(start("never_returns"), timeout_s=0.5)
    assert caught.value.kind is FailureKind.HUNG


def test_host_memory_that_is_never_given_back_is_a_leak(start: Start) -> None:
    """As for a kernel of the CPU."""
    recorder = start("keeps_host_memory")

    def many() -> None:
        for _ in range(64):
            recorded(recorder)

    with pytest.raises(CandidateFault, match="held more memory after each of") as caught:
        many()
    assert caught.value.kind is FailureKind.LEAK


def changed(tape: Tape, at: int, value: int) -> bytes:
    """The bytes of a tape with another u32, as only a forger writes it."""
    raw = bytearray(tape.to_bytes())
    struct.pack_into("<I", raw, at, value)
    return bytes(raw)


def test_an_error_that_a_candidate_made_up_is_told_as_such(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number stands in memory that the candidate can write; a message without words helps nobody."""
    recorder = start("launches")
    call = recorder._call_untimed

    def forged(slots: np.ndarray, timeout_s: float) -> None:
        call(slots, timeout_s)
        recorder._shared[28:32] = b"\xff" * 4

    monkeypatch.setattr(recorder, "_call_untimed", forged)
    with pytest.raises(CandidateFault) as caught:
        recorded(recorder)
    assert caught.value.message == "says that a launch failed, and not which or why (error 4294967295)"


def test_facts_that_a_made_up_cubin_blows_up_are_its_own_fault(
    tools: Tools, library: Path, code: cubin.DeviceCode
) -> None:
    """Device code says how much it takes; no number of its makes an exception of ours."""
    facts = replace(facts_for(code), kernels={"k": replace(code.kernels[PLAIN], static_shared=2**62)})
    with pytest.raises(CandidateFault, match="could not be loaded") as caught:
        Recorder(tools, library.read_bytes(), facts)
    assert caught.value.kind is FailureKind.NOT_LOADED


def test_a_tape_of_another_is_refused(start: Start) -> None:
    """A process may write what it likes into the memory that it shares; it is parsed as what it is."""
    recorder = start("launches")
    tape = recorded(recorder)
    launch = tape.ops[0]
    assert isinstance(launch, Launch)
    foreign = replace(tape, ops=(replace(launch, kernel="_Z5otherv"),))
    short = replace(tape, ops=(replace(launch, params=b""),))
    for wrong, message in (
        (replace(tape, nonce=bytes(16)).to_bytes(), "this recorder did not write"),
        (replace(tape, heap_bytes=1 << 21).to_bytes(), "this recorder did not write"),
        (foreign.to_bytes(), "a kernel that is not its own: _Z5otherv"),
        (short.to_bytes(), "a kernel that is not its own"),
        (changed(replace(tape, ops=(SetAttribute("kernel", PLAIN, 9, 1),)), 56, 9999), "function attribute 9999"),
        (b"FERRETTP" + bytes(100), "no tape"),
        (b"FERRETTP" + b"\xff" * 100, "at most 4194304 are accepted"),
    ):
        begin = recorder._tape_at
        recorder._shared[begin : begin + len(wrong)] = wrong
        with pytest.raises(CandidateFault, match=message):
            recorder._tape()


def test_recording_is_quick(start: Start) -> None:
    """A guard against something grossly wrong; what it costs is in the docs."""
    recorder = start("launches")
    recorded(recorder)
    begin = time.perf_counter()
    for _ in range(50):
        recorded(recorder)
    assert time.perf_counter() - begin < 5


def test_the_recorder_has_what_the_audit_lets_pass(builds: Path) -> None:
    """The list of accepted calls and the library that serves them are one."""
    served = {name for name in exported_functions(build_runtime(builds)) if not name.startswith("ferret_")}
    assert served == CUDA_RUNTIME


def test_an_honest_kernel_passes_the_audit(tmp_path: Path, builds: Path, library: Path) -> None:
    """Of the file of these tests only what its entries import beyond that is refused."""
    assert [finding.partition(":")[0] for finding in audit(library, Language.CUDA)] == [
        "imports _exit",
        "imports pthread_create",
    ]
