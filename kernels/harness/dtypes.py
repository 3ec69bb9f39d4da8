"""The dtypes of a task file as numpy knows them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from specs.schema import DType

_NUMPY: dict[DType, np.dtype] = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    # CUDA's e4m3 is the finite-only kind: no infinities, one NaN.
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16),
    DType.I8: np.dtype(np.int8),
    DType.U64: np.dtype(np.uint64),
    DType.U32: np.dtype(np.uint32),
    DType.U16: np.dtype(np.uint16),
    DType.U8: np.dtype(np.uint8),
}


def numpy_dtype(dtype: DType) -> np.dtype:
    """The numpy dtype of the same bytes; bf16 and the 8-bit floats come from ml_dtypes."""
    return _NUMPY[dtype]


def eps(dtype: np.dtype) -> float:
    """Distance from 1 to the next larger number of a floating dtype."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def largest(dtype: np.dtype) -> float:
    """The largest finite number of a floating dtype."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def is_integer(dtype: DType) -> bool:
    return numpy_dtype(dtype).kind in "iu"
