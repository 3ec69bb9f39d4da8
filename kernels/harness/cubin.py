"""What stands in a candidate's device code: the bytes to load, its kernels' parameters, its variables, and oddities.

Reads the object that nvcc links (section .nv_fatbin) or a bare cubin. Everything in it may be made up, so a reader of
it gets a ValueError and never trust: the driver that loads the same bytes has the last word.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kernels.harness.tape import MAX_NAME, MAX_PARAMS, Dim3, KernelInfo

DATA_LIMIT = 64 * 1024  # bytes of constants and initialised variables, zeros not counted, as for the host's data
IMAGE_LIMIT = 16 * 2**20  # bytes of device code with its line tables

_FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of this head, bytes behind it
_ENTRY = struct.Struct("<HHIQ")  # kind, version, bytes of this head, bytes behind it
_MAGIC = 0xBA55ED50
_PTX, _ELF = 1, 2
_CUDA_MACHINE = "EM_CUDA"
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_COMPRESSED = 0x800  # SHF_COMPRESSED
_OBJECT, _ENTRY_POINT = 1, 0x10  # STT_OBJECT; the bit of st_other that marks a kernel

# .nv.info: a format, an attribute, then a value of that format.
_SIZED = 0x04  # u16 bytes, then the value; the other formats have two bytes in place of the count
_PARAMETER, _PARAMETER_BYTES, _MAX_THREADS, _REQUIRED_THREADS, _CLUSTER = 0x17, 0x19, 0x05, 0x10, 0x3D
_REGISTERS, _FRAME = 0x2F, 0x11
# On these, the first bytes of every block's shared memory are the system's own and stand in the section's size.
_RESERVED_FROM, _RESERVED_SHARED = 90, 1024
# What a kernel may leave to the driver to resolve.
_RESOLVED = frozenset({"__assertfail"})
_CALLS = {
    "vprintf": "prints from the device",
    "malloc": "takes memory from the device's own heap",
    "free": "takes memory from the device's own heap",
}


@dataclass(frozen=True, slots=True)
class DeviceCode:
    image: bytes  # a fatbin or a cubin, for cuModuleLoadData; empty when there is no device code
    sm: int  # 90 for sm_90 and sm_90a; 0 without device code
    kernels: Mapping[str, KernelInfo] = field(default_factory=dict)  # mangled name -> what its cubin says
    variables: Mapping[str, int] = field(default_factory=dict)  # __device__ and __constant__, mangled name -> bytes
    findings: tuple[str, ...] = ()  # what an audit refuses, each a sentence


def read(library: bytes) -> DeviceCode:
    """The device code of a shared object or of a bare cubin. Raises ValueError for one that cannot be read."""
    try:
        elf = ELFFile(io.BytesIO(library))
        if elf["e_machine"] == _CUDA_MACHINE:
            return _Cubin(library, library).device_code([])
        section = elf.get_section_by_name(".nv_fatbin")
        return _from_fatbins(_content(section)) if section is not None else DeviceCode(b"", 0)
    except ValueError:
        raise
    except (ELFError, struct.error, AttributeError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise ValueError(f"the device code cannot be read: {error}") from None


def _from_fatbins(section: bytes) -> DeviceCode:
    findings: list[str] = []
    found: list[tuple[bytes, bytes]] = []  # fatbin, cubin
    for fatbin in _fatbins(section, findings):
        for kind, payload in _entries(fatbin):
            if kind == _PTX:
                findings.append("carries PTX, which would be compiled again; build for one device: code=sm_XX")
            elif kind != _ELF or not payload.startswith(b"\x7fELF"):
                findings.append(f"carries device code that is no plain ELF (kind {kind}); build with --no-compress")
            else:
                found.append((fatbin, payload))
    cubins = [_Cubin(fatbin, cubin) for fatbin, cubin in found]
    useful = [one for one in cubins if one.kernels or one.variables]
    if not useful:
        return DeviceCode(b"", 0, findings=tuple(findings))
    if len(useful) > 1:
        findings.append(f"carries {len(useful)} images of device code; one is accepted")
    return useful[0].device_code(findings)


def _fatbins(section: bytes, findings: list[str]) -> Iterator[bytes]:
    at = 0
    while at < len(section):
        if not any(section[at : at + 8]) and at % 8 == 0:
            at += 8  # the linker's padding
            continue
        if len(section) - at < _FATBIN.size or _FATBIN.unpack_from(section, at)[0] != _MAGIC:
            findings.append(f"section .nv_fatbin holds {len(section) - at} bytes that are no fatbin")
            return
        _, _, head, size = _FATBIN.unpack_from(section, at)
        if head < _FATBIN.size or size > len(section) - at - head:
            raise ValueError(f"the fatbin at byte {at} says {size} bytes and there are {len(section) - at - head}")
        yield section[at : at + head + size]
        at += head + size


def _entries(fatbin: bytes) -> Iterator[tuple[int, bytes]]:
    at = _FATBIN.unpack_from(fatbin)[2]
    while at < len(fatbin):
        kind, _, head, size = _ENTRY.unpack_from(fatbin, at)
        if head < _ENTRY.size or size > len(fatbin) - at - head:
            raise ValueError(f"an entry of the fatbin says {size} bytes and there are {len(fatbin) - at - head}")
        yield kind, fatbin[at + head : at + head + size]
        at += head + size


class _Cubin:
    """One ELF of device code, inside the image that the driver would be given."""

    def __init__(self, image: bytes, cubin: bytes) -> None:
        self.image = image
        elf = ELFFile(io.BytesIO(cubin))
        if elf["e_machine"] != _CUDA_MACHINE:
            raise ValueError("the device code is an ELF of another machine")
        flags, version = elf["e_flags"], elf["e_ident"]["EI_ABIVERSION"]
        self.sm = (flags >> 8) & 0xFF if version >= 8 else flags & 0xFF
        self._sections: list[tuple[str, Any]] = [(section.name, section) for section in elf.iter_sections()]
        self._by_name = dict(self._sections)
        self._symbols = list(self._read_symbols())
        self.variables = {
            name: size
            for name, kind, _, section, size in self._symbols
            if kind == _OBJECT and self._section_name(section).startswith((".nv.global", ".nv.constant"))
        }
        self.kernels = self._kernels()

    def _read_symbols(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(name, type, other, section index, bytes): pyelftools drops the bit of st_other that marks a kernel."""
        if ".symtab" not in self._by_name:
            return
        table = self._by_name[".symtab"]
        strings = _content(self._sections[table["sh_link"]][1])
        data = _content(table)
        for at in range(0, len(data) - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, other, section, _, size = _SYMBOL.unpack_from(data, at)
            yield _text(strings, name), info & 0xF, other, section, size

    def _section_name(self, index: int) -> str:
        return self._sections[index][0] if 0 < index < len(self._sections) else ""

    def _kernels(self) -> dict[str, KernelInfo]:
        registers: dict[int, int] = {}
        frames: dict[int, int] = {}
        for attribute, value in _info(self._data(".nv.info")):
            if attribute in (_REGISTERS, _FRAME) and len(value) == 8:
                symbol, number = struct.unpack("<II", value)
                (registers if attribute == _REGISTERS else frames)[symbol] = number
        constant = sum(s["sh_size"] for name, s in self._sections if name == ".nv.constant3")
        found = {}
        for index, (name, _, other, section, _) in enumerate(self._symbols):
            if name and other & _ENTRY_POINT and section:
                found[name] = self._kernel(name, registers.get(index, 0), frames.get(index, 0), constant)
        return found

    def _kernel(self, name: str, registers: int, frame: int, constant: int) -> KernelInfo:
        params: list[tuple[int, int, int]] = []
        total, threads = 0, 1024
        if len(name) > MAX_NAME:
            raise ValueError(f"a kernel's name has {len(name)} characters; at most {MAX_NAME} are accepted")
        cluster: Dim3 | None = None
        for attribute, value in _info(self._data(f".nv.info.{name}")):
            if attribute == _PARAMETER:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                params.append((ordinal, offset, packed >> 18))
            elif attribute == _PARAMETER_BYTES:
                (total,) = struct.unpack("<H", value)
            elif attribute in (_MAX_THREADS, _REQUIRED_THREADS):
                x, y, z = struct.unpack("<III", value)
                threads = min(threads, x * y * z)
            elif attribute == _CLUSTER:
                cluster = struct.unpack("<III", value)
        params.sort()
        ends = [offset + size for _, offset, size in params]
        if [ordinal for ordinal, _, _ in params] != list(range(len(params))) or any(end > total for end in ends):
            raise ValueError(f"the parameters of {name} do not fit together")
        if total > MAX_PARAMS:
            raise ValueError(f"the parameters of {name} have {total} bytes; at most {MAX_PARAMS} are accepted")
        shared = self._by_name.get(f".nv.shared.{name}")
        static = shared["sh_size"] if shared is not None else 0
        if self.sm >= _RESERVED_FROM:
            static = max(0, static - _RESERVED_SHARED)
        return KernelInfo(
            params=tuple((offset, size) for _, offset, size in params),
            param_bytes=total,
            registers=registers,
            static_shared=static,
            max_threads=threads,
            local=frame,
            constant=constant,
            cluster=cluster if cluster is not None and all(cluster) else None,
            binary_version=self.sm,
        )

    def device_code(self, findings: list[str]) -> DeviceCode:
        return DeviceCode(self.image, self.sm, self.kernels, self.variables, (*findings, *self._findings()))

    def _findings(self) -> Iterator[str]:
        stored = {
            name: len(data)
            for name, section in self._sections
            if (name == ".nv.global.init" or (name.startswith(".nv.constant") and not name.startswith(".nv.constant0")))
            and any(data := _content(section))
        }
        if sum(stored.values()) > DATA_LIMIT:
            largest = max(stored, key=lambda name: stored[name])
            yield (
                f"carries {sum(stored.values())} bytes of constants and initialised variables in its device code, most "
                f"of it in {largest}; at most {DATA_LIMIT} are accepted"
            )
        if len(self.image) > IMAGE_LIMIT:
            yield f"has {len(self.image)} bytes of device code; at most {IMAGE_LIMIT} are accepted"
        for name, _, _, section, _ in self._symbols:
            if name and section == 0 and not name.startswith(".nv.") and name not in _RESOLVED:
                if name.startswith(("cudaLaunch", "cudaCDP", "cudaGetParameterBuffer", "cudaDevice", "cudaStream")):
                    what = "starts kernels from the device"
                else:
                    what = _CALLS.get(name, "calls a device function that is not its own")
                yield f"the device code {what} ({name}); it is not accepted"

    def _data(self, name: str) -> bytes:
        section = self._by_name.get(name)
        return _content(section) if section is not None else b""


def _info(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of a .nv.info section."""
    at = 0
    while at + 4 <= len(data):
        kind, attribute, count = struct.unpack_from("<BBH", data, at)
        if kind == _SIZED:
            if count > len(data) - at - 4:
                raise ValueError(f".nv.info: an attribute of {count} bytes, and {len(data) - at - 4} are left")
            yield attribute, data[at + 4 : at + 4 + count]
            at += 4 + count
        else:
            yield attribute, data[at + 2 : at + 4]
            at += 4


def _content(section: Any) -> bytes:
    """What stands in the file, and no more: a few bytes there can stand for a section of any size."""
    if section["sh_type"] == "SHT_NOBITS" or section["sh_flags"] & _COMPRESSED:
        raise ValueError(f"section {section.name} is not plain data")
    return bytes(section.data())


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    return strings[at : end if end >= 0 else None].decode("utf-8", errors="replace")
