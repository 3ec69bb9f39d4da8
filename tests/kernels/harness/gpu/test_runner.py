"""What the gate looks at in a tape before a device sees it. No device is needed for that."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from kernels.harness import interface
from kernels.harness.arena import CandidateFault, Prepared
from kernels.harness.gpu.runner import GpuRunner, Parts
from kernels.harness.tape import Copy, Launch, Memset, Op, Tape, Upload
from specs.outcomes import FailureKind
from specs.schema import Interface
from tests.kernels.harness.gpu.conftest import CUDA_TASK

ARENA, HEAP = (0x1000_0000, 0x10_0000), (0x9000_0000, 0x100_0000)


class _NoExecutor:
    def close(self) -> None: ...


@pytest.fixture
def runner() -> GpuRunner:
    parts = Parts(Interface.model_validate(CUDA_TASK["interface"]), "process", 0, cast(Any, None))
    made = GpuRunner(parts, cast(Any, None), cast(Any, _NoExecutor()))
    made._ranges = [ARENA, HEAP]
    return made


@pytest.mark.parametrize(
    "op",
    [
        Memset(ARENA[0] + ARENA[1] - 4, 0, 4, 2),
        Memset(0x1000, 0, 1, 1),
        Copy(ARENA[0], ARENA[0] - 16, 32),
        Copy(HEAP[0] + HEAP[1], ARENA[0], 1),
        Upload(0x7F00_0000_0000, b"verdict"),
    ],
)
def test_an_operation_outside_the_kernels_memory_is_refused(runner: GpuRunner, op: Op) -> None:
    with pytest.raises(CandidateFault, match="none of the kernel's memory") as caught:
        runner._look_through(Tape((op,)))
    assert caught.value.kind is FailureKind.CRASHED


def test_operations_inside_it_are_let_through(runner: GpuRunner) -> None:
    launch = Launch("kernel", "rms", (1, 1, 1), (32, 1, 1), 0, b"")
    runner._look_through(
        Tape((Memset(ARENA[0], 0, 4, ARENA[1] // 4), Copy(HEAP[0], ARENA[0], 64), Upload(HEAP[0], b"table"), launch))
    )
    assert runner.launches == 1


def test_a_heap_that_grows_in_every_call_is_a_leak(runner: GpuRunner) -> None:
    for call in range(1, 9):
        runner._look_through(Tape((), heap_bytes=call << 20))
    with pytest.raises(CandidateFault, match="allocated more device memory in each of 9 calls"):
        runner._look_through(Tape((), heap_bytes=9 << 20))


def test_scratch_that_is_taken_once_is_none(runner: GpuRunner) -> None:
    for _ in range(50):
        runner._look_through(Tape((), heap_bytes=512 << 20))


def test_a_trusted_program_gets_what_the_slots_say(runner: GpuRunner) -> None:
    given = Interface.model_validate(CUDA_TASK["interface"])
    variables: dict[str, Any] = {"M": 2, "N": 3}
    buffers = interface.buffers(given, variables)
    offsets = {b.name: 256 * i for i, b in enumerate(buffers) if b.name != "rstd"}
    slots = interface.slots(given, variables, offsets)
    told = runner._arguments(cast(Any, Prepared(buffers, offsets, {}, {})), slots)
    assert [argument["kind"] for argument in told] == ["pointer"] * 4 + ["scalar"] * 3 + ["pointer", "stream"]
    assert told[0] == {"kind": "pointer", "offset": offsets["x"], "dtype": "f32", "shape": [2, 3]}
    assert told[2]["offset"] == 2**64 - 1  # the stage tensor that is not asked for
    assert told[4]["value"] == pytest.approx(1e-6)
    assert [told[5]["value"], told[6]["value"]] == [2, 3]
    assert isinstance(slots, np.ndarray)
