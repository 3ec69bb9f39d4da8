"""The C function behind a task's interface: its prototype, its buffers and its scalars for one set of arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from kernels.harness.dtypes import numpy_dtype
from specs import expressions
from specs.errors import UserError
from specs.schema import Argument, ArgumentKind, DType, Interface, Scalar

POINTERS = (ArgumentKind.INPUT, ArgumentKind.OUTPUT, ArgumentKind.STAGE, ArgumentKind.WORKSPACE)

_C_TYPES = {
    DType.F64: "double", DType.F32: "float",
    DType.I64: "int64_t", DType.I32: "int32_t", DType.I16: "int16_t", DType.I8: "int8_t",
    DType.U64: "uint64_t", DType.U32: "uint32_t", DType.U16: "uint16_t", DType.U8: "uint8_t",
}  # fmt: skip
_STRUCT_CODES = {
    DType.F64: "d", DType.F32: "f",
    DType.I64: "q", DType.I32: "i", DType.I16: "h", DType.I8: "b",
    DType.U64: "Q", DType.U32: "I", DType.U16: "H", DType.U8: "B",
}  # fmt: skip
# C++ has no portable name for these; a candidate gets the raw bits.
_BITS = {DType.F16: "uint16_t", DType.BF16: "uint16_t", DType.F8E4M3: "uint8_t", DType.F8E5M2: "uint8_t"}
_CUDA_TYPES = {
    DType.F16: "__half", DType.BF16: "__nv_bfloat16", DType.F8E4M3: "__nv_fp8_e4m3", DType.F8E5M2: "__nv_fp8_e5m2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Buffer:
    """One pointer argument for one set of arguments."""

    name: str
    kind: ArgumentKind
    dtype: np.dtype  # uint8 for a workspace
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def prototype(interface: Interface, *, cuda: bool = False) -> str:
    """The declaration a candidate has to export, e.g. `void scale(const float* x, float* y, int32_t n)`.

    With `cuda` a stream is accepted, and the small floating-point types have the names of CUDA's headers.
    """
    parameters = [f"{_c_type(a, named=cuda)} {a.name or 'stream'}" for a in _host_arguments(interface, cuda)]
    return f"void {interface.entry}({', '.join(parameters)})"


def call_source(interface: Interface, *, cuda: bool = False) -> str:
    """C++ text of `ferret_invoke`, which turns the control page's slots into a call with the exact prototype.

    A stream, which `cuda` accepts, is whatever `ferret_stream` holds. Raises UserError for an argument that the C++
    runner cannot pass.
    """
    arguments = _host_arguments(interface, cuda)
    types = ", ".join(_c_type(argument) for argument in arguments)

    def value(index: int, argument: Argument) -> str:
        if argument.kind is ArgumentKind.STREAM:
            return "ferret_stream"
        if argument.kind in POINTERS:
            return f"pointer<{_c_type(argument)}>(arena, slots[{index}])"
        return f"scalar<{_c_type(argument)}>(slots[{index}])"

    values = ",\n        ".join(value(i, argument) for i, argument in enumerate(arguments))
    return f"""\
#include <cstdint>
#include <cstring>

template <typename T> static T pointer(unsigned char* arena, std::uint64_t slot) {{
    return slot == ferret::kNullPointer ? nullptr : reinterpret_cast<T>(arena + slot);
}}

template <typename T> static T scalar(std::uint64_t slot) {{
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}}

[[maybe_unused]] static void* ferret_stream;

static void ferret_invoke(void* entry, unsigned char* arena, const std::uint64_t* slots) {{
    reinterpret_cast<void (*)({types})>(entry)(
        {values});
}}
"""


def buffers(interface: Interface, variables: Mapping[str, Scalar]) -> tuple[Buffer, ...]:
    """Every pointer argument with its shape; raises UserError when an expression has no value for `variables`."""
    found = []
    dimensions: tuple[str, ...]
    for argument in interface.of(*POINTERS):
        assert argument.name is not None
        if argument.kind is ArgumentKind.WORKSPACE:
            assert argument.bytes is not None
            dimensions, dtype = (argument.bytes,), np.dtype(np.uint8)
        else:
            assert argument.dtype is not None
            assert argument.shape is not None
            dimensions, dtype = argument.shape, numpy_dtype(argument.dtype)
        shape = tuple(_evaluate(argument, dimension, variables) for dimension in dimensions)
        found.append(Buffer(argument.name, argument.kind, dtype, shape))
    return tuple(found)


def slots(interface: Interface, variables: Mapping[str, Scalar], offsets: Mapping[str, int]) -> np.ndarray:
    """The control page's slots, u64 `[arguments]`: pointers as offsets into the arena, scalars as raw bytes.

    A name that `offsets` leaves out is a null pointer; a stream's slot is 0, since the callee's side knows it. Raises
    UserError for a scalar without a usable value.
    """
    null = 2**64 - 1
    values = []
    for argument in interface.arguments:
        if argument.kind is ArgumentKind.STREAM:
            values.append(0)
            continue
        assert argument.name is not None
        values.append(offsets.get(argument.name, null) if argument.kind in POINTERS else _scalar(argument, variables))
    return np.array(values, dtype=np.uint64)


def _host_arguments(interface: Interface, cuda: bool) -> tuple[Argument, ...]:
    if not cuda and (streams := interface.of(ArgumentKind.STREAM)):
        name = streams[0].name or "stream"
        raise UserError(f"interface {interface.entry}: argument {name!r} is a stream; a kernel on the CPU has none")
    return interface.arguments


def _c_type(argument: Argument, *, named: bool = False) -> str:
    """The parameter's type; `named` gives it CUDA's names, for people, where the raw form will do for a call."""
    if argument.kind is ArgumentKind.STREAM:
        return "cudaStream_t" if named else "void*"
    if argument.kind is ArgumentKind.WORKSPACE:
        return "void*"
    assert argument.dtype is not None
    if argument.kind is ArgumentKind.SCALAR:
        if argument.dtype not in _C_TYPES:
            accepted = ", ".join(dtype.value for dtype in _C_TYPES)
            given = argument.dtype.value
            raise UserError(f"scalar {argument.name}: {given} cannot be passed by value; accepted: {accepted}")
        return _C_TYPES[argument.dtype]
    pointee = _C_TYPES.get(argument.dtype) or (_CUDA_TYPES if named else _BITS)[argument.dtype]
    return f"const {pointee}*" if argument.kind is ArgumentKind.INPUT else f"{pointee}*"


def _evaluate(argument: Argument, expression: str, variables: Mapping[str, Scalar]) -> int:
    try:
        return expressions.evaluate(expression, variables)
    except ValueError as error:
        raise UserError(f"interface argument {argument.name}: {error}") from None


def _scalar(argument: Argument, variables: Mapping[str, Scalar]) -> int:
    assert argument.name is not None
    assert argument.dtype is not None
    value = argument.value if argument.value is not None else variables.get(argument.name)
    if value is None:
        known = ", ".join(sorted(variables)) or "none"
        raise UserError(f"scalar {argument.name}: no value of its own and no argument of that name (known: {known})")
    code = _STRUCT_CODES.get(argument.dtype)
    if isinstance(value, str) or code is None:
        raise UserError(f"scalar {argument.name}: {value!r} cannot be passed as {argument.dtype.value}")
    try:
        number: float | int = float(value) if code in "fd" else _whole(value)
        raw = struct.pack(f"<{code}", number)
    except (struct.error, OverflowError, ValueError):
        raise UserError(f"scalar {argument.name}: {value!r} does not fit {argument.dtype.value}") from None
    return int.from_bytes(raw.ljust(8, b"\0"), "little")


def _whole(value: bool | int | float) -> int:
    if value != int(value):
        raise ValueError
    return int(value)
