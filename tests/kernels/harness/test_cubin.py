"""Device code is read for what a launch needs to know, and what does not belong into it is named."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.harness import cubin
from kernels.harness.build import build
from kernels.harness.requests import Build
from kernels.harness.tape import KernelInfo
from tests.kernels.harness.test_recorder import DESCRIBED, PAIRED, PLAIN, SCALED, SOURCE, TOGETHER, cuda_task

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

ODDITIES = """
#include <cassert>
#include <cstdio>
__device__ float stored[20000] = {1, 2, 3};
__device__ float zeros[200000];
__global__ void __launch_bounds__(96) odd(float* x, char a, double b, int n) {
    __shared__ float s[20];
    assert(n > 0);
    s[threadIdx.x % 20] = x[n];
    __syncthreads();
    printf("%d", n);
    float* more = static_cast<float*>(malloc(n));
    x[0] = s[n % 20] + a + b + *more + stored[n] + zeros[n];
}
"""


@pytest.fixture(scope="module")
def library(builds: Path) -> Path:
    built = build(Build(task=cuda_task(), source=SOURCE, role="baseline", builds=builds))
    assert built.library is not None, built.result.log_tail
    return built.library


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bare cubin, as Triton's and nvcc's -cubin are."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.cu").write_text(ODDITIES)
    command = ["nvcc", "-cubin", "-gencode=arch=compute_80,code=sm_80", "odd.cu", "-o", "odd.cubin"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "odd.cubin").read_bytes()


def test_kernels_have_their_parameters_where_the_compiler_put_them(library: Path) -> None:
    """Offsets and sizes, shared memory without the system's part, limits, cluster sizes."""
    code = cubin.read(library.read_bytes())
    assert (code.sm, code.findings) == (90, ())
    assert code.variables.items() >= {"table": 64, "counters": 256, "own": 16, "_Z5typedIfE": 128}.items()
    assert set(code.kernels) >= {PLAIN, SCALED, PAIRED, DESCRIBED, TOGETHER}
    kernels = code.kernels
    assert (kernels[PLAIN].params, kernels[PLAIN].param_bytes) == (((0, 8), (8, 8), (16, 4)), 20)
    assert (kernels[SCALED].params, kernels[SCALED].max_threads) == (((0, 8), (8, 24), (32, 1)), 256)
    assert (kernels[PAIRED].cluster, kernels[PAIRED].static_shared) == ((2, 1, 1), 512)
    # A descriptor lies at a multiple of its own size in the constant bank, where parameters begin at byte 0x210.
    assert (kernels[DESCRIBED].params, kernels[DESCRIBED].param_bytes) == (((112, 128), (240, 8), (248, 4)), 252)
    assert all(0 < kernel.registers <= 255 and kernel.binary_version == 90 for kernel in kernels.values())


def test_the_image_is_the_fatbin_with_the_kernels(library: Path) -> None:
    """Nothing more and nothing less than its head says, from its first byte."""
    image = cubin.read(library.read_bytes()).image
    magic, _, head, size = struct.unpack_from("<IHHQ", image)
    assert (magic, head + size) == (0xBA55ED50, len(image))


def test_a_bare_cubin_is_read_too(odd: bytes) -> None:
    """Of a device without reserved shared memory; what may not be in it is named."""
    code = cubin.read(odd)
    assert (code.image, code.sm) == (odd, 80)
    (kernel,) = code.kernels.values()
    assert isinstance(kernel, KernelInfo)
    assert kernel.params == ((0, 8), (8, 1), (16, 8), (24, 4))
    assert (kernel.static_shared, kernel.max_threads) == (80, 96)
    assert code.variables["zeros"] == 800000
    stored, *calls = code.findings
    assert stored.endswith("most of it in .nv.global.init; at most 65536 are accepted")
    assert sorted(calls) == [
        "the device code prints from the device (vprintf); it is not accepted",
        "the device code takes memory from the device's own heap (malloc); it is not accepted",
    ]


def with_section(folder: Path, library: Path, content: bytes) -> cubin.DeviceCode:
    """The library with another .nv_fatbin."""
    (folder / "fatbin").write_bytes(content)
    changed = folder / "changed.so"
    command = ["objcopy", "--update-section", f".nv_fatbin={folder / 'fatbin'}", str(library), str(changed)]
    subprocess.run(command, check=True, capture_output=True)
    return cubin.read(changed.read_bytes())


def test_what_stands_beside_the_one_image_is_named(tmp_path: Path, library: Path) -> None:
    """A second image, PTX, compressed code, loose bytes; an empty fatbin is nothing."""
    honest = cubin.read(library.read_bytes())
    image = honest.image
    empty = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    entry = 16  # the first entry's kind stands right behind the head of the fatbin
    ptx = image[:entry] + struct.pack("<H", 1) + image[entry + 2 :]
    elf = image.index(b"\x7fELF")
    compressed = image[:elf] + b"\x28\xb5\x2f\xfd" + image[elf + 4 :]

    assert with_section(tmp_path, library, empty + image + bytes(16)) == honest
    for content, message in (
        (image + image, "carries 2 images of device code; one is accepted"),
        (image + ptx, "carries PTX, which would be compiled again; build for one device: code=sm_XX"),
        (image + compressed, "carries device code that is no plain ELF (kind 2); build with --no-compress"),
        (image + b"answers!", "section .nv_fatbin holds 8 bytes that are no fatbin"),
    ):
        assert with_section(tmp_path, library, content).findings == (message,)
    assert with_section(tmp_path, library, empty).kernels == {}


def test_a_fatbin_that_says_more_than_there_is_cannot_be_read(tmp_path: Path, library: Path) -> None:
    """Nothing is read past an end."""
    image = bytearray(cubin.read(library.read_bytes()).image)
    for at in (8, 16 + 8):
        longer = image.copy()
        longer[at : at + 8] = struct.pack("<Q", 2**63)
        with pytest.raises(ValueError, match="says 9223372036854775808 bytes"):
            with_section(tmp_path, library, bytes(longer))


def test_an_object_without_device_code_has_none(tmp_path: Path) -> None:
    """A shared object of g++ is no error, and a text is."""
    flags = ["-x", "c++", "/dev/null"]
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "empty.so", *flags], check=True, capture_output=True)
    assert cubin.read((tmp_path / "empty.so").read_bytes()) == cubin.DeviceCode(b"", 0)
    with pytest.raises(ValueError, match="cannot be read"):
        cubin.read(b"no ELF at all")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_device_code_is_refused_or_read_and_breaks_nothing(odd: bytes, data: st.DataObject) -> None:
    """Whatever byte is changed, the reader ends with an answer or a ValueError."""
    damaged = bytearray(odd)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        code = cubin.read(bytes(damaged))
    except ValueError:
        return
    for kernel in code.kernels.values():
        assert all(offset + size <= kernel.param_bytes for offset, size in kernel.params)
