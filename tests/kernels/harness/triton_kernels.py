"""Small Triton candidates and the interface they are launched through."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.harness import triton_host
from kernels.harness.tape import Facts
from kernels.harness.triton_host import Given, Tensor
from specs.schema import DType, Interface

needs_triton = pytest.mark.skipif(triton_host.available() is not None, reason="triton is not installed")

HEAD = "import triton\nimport triton.language as tl\n"
ARENA, HEAP = 0x7F00_0000_0000, 0x7E00_0000_0000
# As an H200 answers cudaDeviceGetAttribute.
H200 = {1: 1024, 10: 32, 12: 65536, 13: 1980000, 16: 132, 36: 3201000, 37: 6144, 75: 9, 76: 0, 97: 232448}


def facts(**changes: Any) -> Facts:
    fields = {
        "module": "", "kernels": {}, "stream": 0x5000, "arena": ARENA, "heap": (HEAP, 1 << 20), "attributes": H200,
    }  # fmt: skip
    return Facts(**{**fields, **changes})


def interface(*arguments: dict[str, Any], entry: str = "launch") -> Interface:
    """A launcher with these arguments; by default `launch(x, y, n)` in f32."""
    usual: list[dict[str, Any]] = [
        {"name": "x", "kind": "input", "dtype": "f32", "shape": ["n"]},
        {"name": "y", "kind": "output", "dtype": "f32", "shape": ["n"]},
        {"name": "n", "kind": "scalar", "dtype": "i32"},
    ]
    return Interface.model_validate({"entry": entry, "arguments": list(arguments) or usual})


def tensor(offset: int, *shape: int, dtype: DType = DType.F32) -> Tensor:
    return Tensor(ARENA + offset, dtype, shape)


def given(n: int = 1000) -> list[Given]:
    return [tensor(0, n), tensor(1 << 20, n), n]


COPY = (
    HEAD
    + """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

"""
)


def launcher(body: str, top: str = COPY) -> bytes:
    """A candidate whose launcher is `body`."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"{top}\ndef launch(x, y, n):\n{lines}\n".encode()


PLAIN = launcher("copy[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)")
