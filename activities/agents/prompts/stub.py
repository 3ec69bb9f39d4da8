"""The kernel that a conversation begins with when there is none: the right signature around nothing."""

from __future__ import annotations

from kernels.harness.interface import prototype
from specs.schema import ArgumentKind, DType, Interface, Language, Task

_HEADERS = {
    DType.F16: "cuda_fp16.h",
    DType.BF16: "cuda_bf16.h",
    DType.F8E4M3: "cuda_fp8.h",
    DType.F8E5M2: "cuda_fp8.h",
}


def stub(task: Task) -> str:
    """Compiles, has the entry that the task asks for, and computes nothing."""
    if task.interface is None:
        mark = "#" if task.language is Language.TRITON else "//"
        return f"{mark} Nothing is here yet.\n"
    if task.language is Language.TRITON:
        return f"import triton\nimport triton.language as tl\n\n\n{launcher(task.interface)}\n    pass\n"
    cuda = task.language is Language.CUDA
    used = {argument.dtype for argument in task.interface.arguments}
    own = sorted({header for dtype, header in _HEADERS.items() if cuda and dtype in used})
    includes = "".join(f"#include <{header}>\n" for header in (*own, "cstdint"))
    return f'{includes}\nextern "C" {prototype(task.interface, cuda=cuda)} {{\n    // Nothing is computed yet.\n}}\n'


def launcher(interface: Interface) -> str:
    """The first line of a Triton candidate's entry."""
    names = [
        argument.name or "stream" if argument.kind is ArgumentKind.STREAM else str(argument.name)
        for argument in interface.arguments
    ]
    return f"def {interface.entry}({', '.join(names)}):"
