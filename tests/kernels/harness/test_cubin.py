"""Device code is read for what a launch needs to know, and what does not belong into it is named."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.harness import cubin
from kernels.harness.build import build
from kernels.harness.requests import Build
from kernels.harness.tape import Facts, KernelInfo
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


def section_of(library: Path, folder: Path) -> bytes:
    """The content of .nv_fatbin."""
    command = ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", str(library), str(folder / "section")]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "section").read_bytes()


def fatbin_of(cubin: bytes) -> bytes:
    """As nvcc writes one that is not compressed."""
    entry = struct.pack("<HHIQII", 2, 0x101, 64, len(cubin), 0, 0) + struct.pack("<QQQQ", 0x5A_00010008, 0x100011, 0, 0)
    entry = entry.ljust(64, b"\0")
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(cubin)) + entry + cubin


def test_what_is_loaded_is_what_was_read(library: Path, tmp_path: Path) -> None:
    """The very bytes of the one image with kernels: no driver chooses between it and what stands beside it."""
    code = cubin.read(library.read_bytes())
    section = section_of(library, tmp_path)
    assert code.image in section
    assert len(code.image) < len(section)
    assert cubin.read(code.image) == code


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
    image = fatbin_of(honest.image)
    empty = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    entry = 16  # the first entry's kind stands right behind the head of the fatbin
    ptx = image[:entry] + struct.pack("<H", 1) + image[entry + 2 :]
    elf = image.index(b"\x7fELF")
    compressed = image[:elf] + b"\x28\xb5\x2f\xfd" + image[elf + 4 :]
    # What nvcc writes into the head of an image that it compresses: flags, bytes with and bytes without.
    flagged = [bytearray(image) for _ in range(4)]
    for one, (at, value) in zip(flagged, ((40, 0x108011), (40, 0x102011), (16, 99), (56, 99)), strict=True):
        struct.pack_into("<I", one, entry + at, value)

    assert with_section(tmp_path, library, empty + image + bytes(16)) == honest
    for content, message in (
        (image + image, "carries 2 images of device code; one is accepted"),
        (image + ptx, "carries PTX, which would be compiled again; build for one device: code=sm_XX"),
        (image + compressed, "carries device code that is no plain ELF (kind 2); build with --no-compress"),
        *(
            (image + bytes(one), "carries device code that is no plain ELF (kind 2); build with --no-compress")
            for one in flagged
        ),
        (image + b"answers!", "section .nv_fatbin holds 8 bytes that are no fatbin"),
    ):
        assert with_section(tmp_path, library, content).findings == (message,)
    assert with_section(tmp_path, library, empty).kernels == {}


def test_a_fatbin_that_says_more_than_there_is_cannot_be_read(tmp_path: Path, library: Path) -> None:
    """Nothing is read past an end."""
    image = bytearray(fatbin_of(cubin.read(library.read_bytes()).image))
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


def test_the_head_that_nvcc_gives_compressed_code_is_known(tmp_path: Path) -> None:
    """Also where the content could be taken for an ELF: it is the flag that says how a driver reads it."""
    (tmp_path / "k.cu").write_text("__global__ void k(float* y) { y[threadIdx.x] = 1; }")
    for option in ("--no-compress", "--compress-mode=size"):
        command = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", option, "--shared", "-Xcompiler", "-fPIC", "k.cu"]
        subprocess.run([*command, "-o", "k.so"], cwd=tmp_path, check=True, capture_output=True)
        code = cubin.read((tmp_path / "k.so").read_bytes())
        if option == "--no-compress":
            assert (list(code.kernels), code.findings) == (["_Z1kPf"], ())
            continue
        section = bytearray(section_of(tmp_path / "k.so", tmp_path))
        section[16 + 64 : 16 + 68] = b"\x7fELF"
        assert "build with --no-compress" in " ".join(code.findings)
        found = with_section(tmp_path, tmp_path / "k.so", bytes(section))
        assert "build with --no-compress" in found.findings[0]


def test_an_image_beside_the_one_has_nothing_in_it(tmp_path: Path, library: Path) -> None:
    """nvcc's own has neither code nor data; one with code that no symbol names is not that one."""
    honest = cubin.read(library.read_bytes())
    raw = bytearray(honest.image)
    names = elf_sections(bytes(raw))
    begin, size = names[".symtab"]
    raw[begin : begin + size] = bytes(size)
    content = fatbin_of(honest.image) + fatbin_of(bytes(raw))
    (finding,) = with_section(tmp_path, library, content).findings
    assert finding.startswith("carries a second image of device code, with section ")


def elf_sections(raw: bytes) -> dict[str, tuple[int, int]]:
    """Name -> (offset, bytes) of an ELF of 64 bits."""
    elf = ELFFile(io.BytesIO(raw))
    return {section.name: (section["sh_offset"], section["sh_size"]) for section in elf.iter_sections()}


LARGE = """
__device__ float large[1ull << 35];
__global__ void reads(float* y) { y[0] = large[threadIdx.x]; }
"""
DEEP = """
__global__ void deep(float* y) {
    volatile char local[262144];
    for (int i = 0; i < 262144; i++) local[i] = i;
    y[0] = local[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (LARGE, "takes 137438953472 bytes of device memory for its variables; at most 268435456 are accepted"),
        (DEEP, "takes 262144 bytes of local memory a thread; at most 65536 are accepted"),
    ],
)
def test_more_memory_than_a_kernel_needs_is_named(tmp_path: Path, source: str, told: str) -> None:
    """Loading takes variables, and launching local memory for all threads of the device, from where the data lies."""
    (tmp_path / "k.cu").write_text(source)
    command = ["nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "k.cu", "-o", "k.cubin"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert cubin.read((tmp_path / "k.cubin").read_bytes()).findings == (told,)


def section_fields(raw: bytes, name: str) -> int:
    """Where the header of a section begins."""
    at = int.from_bytes(raw[40:48], "little")
    return at + 64 * list(elf_sections(raw)).index(name)


def test_numbers_that_no_cubin_has_are_refused(library: Path) -> None:
    """Offsets past the end, sections on each other, sizes of no device: nothing of it gets to a driver."""
    good = cubin.read(library.read_bytes()).image
    shared = section_fields(good, f".nv.shared.{PAIRED}")
    text = section_fields(good, f".text.{PLAIN}")
    symbols = section_fields(good, ".symtab")
    (segments,) = struct.unpack_from("<Q", good, 32)
    for at, form, value, told in (
        (32, "<Q", 2**63, "segments at"),
        (54, "<I", 2**32 - 1, "65535 segments of 65535 bytes"),
        (40, "<Q", 2**63, "sections at"),
        (58, "<H", 0, "sections of 0 bytes"),
        (60, "<H", 0, "0 sections of"),
        (62, "<H", 2**16 - 1, "no names"),
        (segments + 32, "<Q", 2**40, "a segment at"),
        (shared + 32, "<Q", 2**62, "bytes of shared memory; at most 1048576 are possible"),
        (text + 24, "<Q", 2**62, "a section at"),
        (text + 32, "<Q", len(good) - 4096, "a section"),
        (text, "<I", 2**32 - 1, "a name without an end"),
        (symbols + 40, "<I", 2**31, "cannot be read"),
    ):
        raw = bytearray(good)
        struct.pack_into(form, raw, at, value)
        with pytest.raises(ValueError, match=told):
            cubin.read(bytes(raw))


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
    # What can be read can be told to a recorder.
    variables = {name: (0, size) for name, size in code.variables.items()}
    Facts("m", code.kernels, stream=5, arena=1, heap=(1, 1), variables=variables).to_bytes()
    for kernel in code.kernels.values():
        assert all(offset + size <= kernel.param_bytes for offset, size in kernel.params)
