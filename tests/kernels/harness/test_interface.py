"""From a task's interface to a C prototype, buffers and slots."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from kernels.harness.interface import buffers, call_source, prototype, slots
from specs.errors import UserError
from specs.schema import ArgumentKind, Interface

ARGUMENTS: list[dict[str, Any]] = [
    {"name": "x", "kind": "input", "dtype": "bf16", "shape": ["M", "2 * N"]},
    {"name": "y", "kind": "output", "dtype": "f32", "shape": ["M"]},
    {"name": "s", "kind": "stage", "dtype": "f64", "shape": [3]},
    {"name": "eps", "kind": "scalar", "dtype": "f32", "value": 0.5},
    {"name": "M", "kind": "scalar", "dtype": "i32"},
    {"name": "tmp", "kind": "workspace", "bytes": "8 * M"},
]


def interface(*extra: dict[str, Any]) -> Interface:
    return Interface.model_validate({"entry": "f", "arguments": [*ARGUMENTS, *extra]})


def test_the_prototype_is_c() -> None:
    """Inputs are const, 16-bit floats come as their bits, a workspace as void*, scalars by value."""
    assert prototype(interface()) == ("void f(const uint16_t* x, float* y, double* s, float eps, int32_t M, void* tmp)")


def test_the_generated_call_has_the_same_types() -> None:
    """The runner's call goes through a function pointer of exactly the prototype's types."""
    assert "void (*)(const uint16_t*, float*, double*, float, int32_t, void*)" in call_source(interface())


def test_a_cuda_kernel_is_given_a_stream() -> None:
    """With CUDA's names for people; the call itself passes raw bits and the handle that its process knows."""
    with_stream = interface({"kind": "stream"})
    assert prototype(with_stream, cuda=True) == (
        "void f(const __nv_bfloat16* x, float* y, double* s, float eps, int32_t M, void* tmp, cudaStream_t stream)"
    )
    source = call_source(with_stream, cuda=True)
    assert "void (*)(const uint16_t*, float*, double*, float, int32_t, void*, void*)" in source
    assert "ferret_stream);" in source
    assert slots(with_stream, {"M": 1}, {}).tolist()[-1] == 0


def test_shapes_are_evaluated_for_the_arguments_given() -> None:
    """Every pointer argument becomes a buffer with its numbers filled in."""
    found = {b.name: (b.kind, b.shape, b.nbytes) for b in buffers(interface(), {"M": 3, "N": 4})}
    assert found == {
        "x": (ArgumentKind.INPUT, (3, 8), 48),
        "y": (ArgumentKind.OUTPUT, (3,), 12),
        "s": (ArgumentKind.STAGE, (3,), 24),
        "tmp": (ArgumentKind.WORKSPACE, (24,), 24),
    }


def test_slots_hold_offsets_scalars_and_null() -> None:
    """Pointers are offsets, a stage that is not asked for is null, scalars are their bytes."""
    values = slots(interface(), {"M": -7}, {"x": 64, "y": 128, "tmp": 256})
    eps = int.from_bytes(struct.pack("<f", 0.5), "little")
    assert values.dtype == np.uint64
    assert values.tolist() == [64, 128, 2**64 - 1, eps, 2**32 - 7, 256]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"N": 4}, "scalar M: no value"),
        ({"M": 2**31, "N": 4}, "does not fit i32"),
        ({"M": 1.5, "N": 4}, "does not fit i32"),
        ({"M": "three", "N": 4}, "cannot be passed as i32"),
    ],
)
def test_a_scalar_without_a_usable_value_is_named(variables: dict[str, Any], message: str) -> None:
    """What was given for which scalar, in one line."""
    with pytest.raises(UserError, match=message):
        slots(interface(), variables, {})


def test_an_unknown_name_in_a_shape_is_named() -> None:
    """A shape that cannot be evaluated says which argument and which name."""
    with pytest.raises(UserError, match=r"interface argument x: .*'N'"):
        buffers(interface(), {"M": 3})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"name": "h", "kind": "scalar", "dtype": "f16", "value": 1},
            "scalar h: f16 cannot be passed by value; accepted: f64",
        ),
        ({"kind": "stream"}, "argument 'stream' is a stream"),
    ],
)
def test_what_a_cpu_kernel_cannot_be_given_is_refused(extra: dict[str, Any], message: str) -> None:
    """No silent conversion: the argument is named and what is accepted is listed."""
    with pytest.raises(UserError, match=message):
        call_source(interface(extra))
