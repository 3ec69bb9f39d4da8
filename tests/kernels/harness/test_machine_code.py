"""What stands in built objects, counted: real compilers' work, and conclusions that follow from the counts."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import machine_code, sass_code, x86_code
from kernels.harness.gpu import checked
from kernels.harness.loops import Instruction
from kernels.harness.machine_code import inspect
from kernels.harness.requests import Inspect, Inspected
from kernels.harness.tape import KernelInfo
from specs.schema import Task
from tests.kernels.harness.tasks import task
from tests.kernels.harness.test_recorder import cuda_task
from tests.kernels.harness.triton_kernels import PLAIN, interface, needs_triton

needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="needs x86-64 and objdump"
)
needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None or checked.disassembler() is None, reason="needs nvcc and cuobjdump"
)

HOST = """
#include <cmath>
#define EXPORT extern "C" void
static __attribute__((noinline)) float helped(float v) { return v * 3 + 1; }
EXPORT in_order(const float* x, const float* g, float* y, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i] * g[i];
    *y = sum;
}
EXPORT tiled(const float* __restrict x, const float* __restrict g, float* __restrict y, int n) {
    typedef float V __attribute__((vector_size(32), aligned(4)));
    V a{}, b{}, c{}, d{}, e{}, f{};
    for (int i = 0; i < n; i += 8) {
        const V w = *(const V*)(g + i);
        a += w * x[0]; b += w * x[1]; c += w * x[2]; d += w * x[3]; e += w * x[4]; f += w * x[5];
    }
    *(V*)y = a + b + c + d + e + f;
}
EXPORT one_sum(const double* x, const double* g, double* y, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum = std::fma(x[i], g[i], sum);
    *y = sum;
}
EXPORT divides(const float* __restrict x, const float* __restrict g, float* __restrict y, int n) {
    for (int i = 0; i < n; ++i) y[i] = x[i] / g[i];
}
EXPORT calls(const float* x, const float* g, float* y, int n) {
    for (int i = 0; i < n; ++i) y[i] = helped(expf(x[i]));
}
EXPORT straight(const float* x, const float* g, float* y, int n) { *y = *x + *g; }
"""


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("host")
    (folder / "k.cpp").write_text(HOST)
    flags = ["-std=c++17", "-O3", "-mavx2", "-mfma", "-ffp-contract=fast", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, "k.cpp", "-o", "k.so"], cwd=folder, check=True)
    dump = ["objdump", "-d", "--no-show-raw-insn", "k.so"]
    return subprocess.run(dump, cwd=folder, check=True, capture_output=True, text=True).stdout


@needs_x86
@pytest.mark.parametrize(
    ("entry", "told", "untold"),
    [
        ("in_order", ["scalar"], ["gathers"]),
        (
            "tiled",
            ["FMA 6 ymm", "widest register used: 256 bits; this processor has 512"],
            ["it sums into", "scalar"],
        ),
        ("one_sum", ["no vector arithmetic", "it sums into 1 register(s)"], ["widest"]),
        ("divides", ["divides or roots: each takes"], ["it sums into"]),
        ("calls", ["and 1 more that it calls", "calls outside of the object: expf", "calls in it: "], []),
        ("straight", ["no loop"], ["hottest"]),
    ],
)
def test_what_stands_out_in_a_loop_is_said(listing: str, entry: str, told: list[str], untold: list[str]) -> None:
    text = x86_code.digest(listing, entry, widest=512)
    assert all(one in text for one in told), text
    assert not any(one in text for one in untold), text
    assert len(text) < machine_code.MOST_TOLD


@needs_x86
def test_a_listing_without_the_entry_has_no_digest(listing: str) -> None:
    with pytest.raises(ValueError, match="no function nobody"):
        x86_code.digest(listing, "nobody", widest=256)


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("vmovups", ("(%rdi,%rax,4)", "%ymm0"), (True, False)),
        ("vmovups", ("%ymm0", "(%rdi,%rax,4)"), (False, True)),
        ("vfmadd231ps", ("(%rsi)", "%ymm1", "%ymm0"), (True, False)),
        ("addl", ("$0x1", "(%rdi)"), (True, True)),
        ("cmpl", ("$0x1", "(%rdi)"), (True, False)),
        ("lea", ("0x8(%rdi)", "%rax"), (False, False)),
        ("prefetcht0", ("(%rdi)",), (False, False)),
        ("vaddps", ("%ymm1", "%ymm0", "%ymm0"), (False, False)),
    ],
)
def test_reads_and_writes_of_memory_are_told_apart(
    name: str, operands: tuple[str, ...], expected: tuple[bool, bool]
) -> None:
    assert x86_code.accesses(Instruction(0, name, operands)) == expected


# ---------------------------------------------------------------- device code

SASS = """
		Function : _Z4gemmPK6__half
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                      /* 0x00000a00ff017b82 */
                                                                               /* 0x000ff00000000800 */
        /*0010*/                   LDG.E.U16.CONSTANT R3, desc[UR4][R2.64] ;   /* 0x0000000402037981 */
        /*0020*/                   STS.U16 [R3], R3 ;                          /* 0x0000000402037981 */
        /*0030*/                   HMMA.16816.F32 R4, R12.reuse, R2, R4 ;      /* 0x000000020c04723c */
        /*0040*/                   STL.64 [R1], R4 ;                           /* 0x000000020c04723c */
        /*0050*/              @!P0 BRA 0x10 ;                                 /* 0xfffffff400b08947 */
        /*0060*/                   EXIT ;                                      /* 0x000000000000794d */
        /*0070*/                   BRA 0x70;                                   /* 0xfffffffc00fc7947 */
"""
DEVICE = """
__global__ void twice(float4* x) { x[threadIdx.x].x *= 2; }
__global__ void sums(const float* x, float* y, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
}
"""
INFO: dict[str, Any] = {
    "params": ((0, 8),), "param_bytes": 8, "registers": 168, "static_shared": 4096, "max_threads": 256, "local": 16,
    "constant": 0, "cluster": None, "binary_version": 90,
}  # fmt: skip


def test_device_code_is_told_by_families_with_what_stands_out() -> None:
    text = sass_code.digest(SASS, {"_Z4gemmPK6__half": KernelInfo(**INFO)}, "BF16")
    assert "168 registers, 4096 B static shared memory, 16 B stack a thread, 1 spill moves" in text
    assert "tensor 1 (HMMA.16816.F32 1); global loads 1 (16 bit 1)" in text
    assert "hottest-looking loop (1 innermost ones; depth 1, 5 instructions)" in text
    assert "data reaches shared memory through registers" in text
    assert "1 of 1 global loads are narrower than 128 bits" in text
    assert "its registers leave room for 384 of 2048 threads" in text
    assert "no tensor-core instruction" not in text


def test_a_listing_of_other_kernels_has_no_digest() -> None:
    with pytest.raises(ValueError, match="no kernel of this object"):
        sass_code.digest(SASS, {}, "FP32")


@needs_nvcc
def test_what_nvcc_makes_is_read_kernel_by_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(DEVICE)
    command = ["nvcc", "-cubin", "-arch=sm_90a", "k.cu", "-o", "k.cubin"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    seen = inspect(Inspect(task=cuda_task(), library=tmp_path / "k.cubin"))
    assert "_Z5twiceP6float4: " in seen.digest
    assert "_Z4sumsPKfPfi: " in seen.digest
    assert "hottest-looking loop" in seen.digest
    assert "0 spill moves" in seen.digest


@needs_triton
def test_a_triton_launcher_is_recorded_for_what_it_compiles(tmp_path: Path) -> None:
    seen = inspected_triton(tmp_path, PLAIN)
    assert seen.digest.startswith("compiled for the config one:\ncopy: ")
    assert "global loads" in seen.digest


@needs_triton
def test_a_launcher_that_fails_is_a_reason(tmp_path: Path) -> None:
    seen = inspected_triton(tmp_path, b"def launch(x, y, n):\n    raise ValueError('no such luck')\n")
    assert "no such luck" in seen.reason


def inspected_triton(folder: Path, source: bytes) -> Inspected:
    library = folder / "kernel.py"
    library.write_bytes(source)
    given = interface().model_dump(exclude_none=True)
    made: Task = task(
        language="triton", gpu="H200", arch="sm_90a", configs=[{"name": "one", "args": {"n": 4096}}], interface=given
    )
    return inspect(Inspect(task=made, library=library))


def test_bytes_that_are_no_machine_code_are_a_reason(tmp_path: Path) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"nothing of the kind")
    assert "only machine code of x86-64" in inspect(Inspect(task=task(), library=library)).reason
    assert "the device code cannot be read" in inspect(Inspect(task=cuda_task(), library=library)).reason


@needs_x86
def test_a_machine_without_objdump_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + (62).to_bytes(2, "little"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "objdump is not on PATH" in inspect(Inspect(task=task(), library=library)).reason
