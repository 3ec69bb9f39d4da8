"""What stands in a candidate's device code: the bytes to load, its kernels' parameters, its variables, and oddities.

Reads the object that nvcc links (section .nv_fatbin) or a bare cubin. Everything in it may be made up, so a reader of
it gets a ValueError and never trust: the driver that loads the same bytes has the last word.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kernels.harness.tape import MAX_NAME, MAX_PARAMS, Dim3, KernelInfo

DATA_LIMIT = 64 * 1024  # bytes of constants and initialised variables, zeros not counted, as for the host's data
IMAGE_LIMIT = 16 * 2**20  # bytes of device code with its line tables
MEMORY_LIMIT = 256 * 2**20  # bytes of device memory that loading takes: variables and code
LOCAL_LIMIT = 64 * 1024  # bytes a thread: the driver sets that aside for every thread that the device can hold
_SHARED_LIMIT = _CONSTANT_LIMIT = 2**20  # bytes; no device has as much
_REGISTERS_LIMIT = 255
_NAMES_LIMIT = 16 * 2**20  # bytes of all names together: few bytes of a file can stand for many of them
_SYMBOLS_LIMIT = 4096  # kernels, and variables
_IMAGES_LIMIT = 16  # of one object; nvcc makes two

_FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of this head, bytes behind it
# Kind, version, bytes of this head, bytes behind it, bytes of those that are compressed, flags, bytes when unpacked.
_ENTRY = struct.Struct("<HHIQI20xQ8xQ")
_PACKED = 0xF000  # of the flags: what nvcc sets with each of its ways to compress (0x2000, 0x8000) and their kin
_MAGIC = 0xBA55ED50
_PTX, _ELF = 1, 2
_CUDA_MACHINE = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, addresses, bytes in the file, bytes in memory, alignment
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, bytes, link, info, alignment, entry bytes
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_NULL, _NOBITS, _ALLOCATED, _LOAD = 0, 8, 2, 1  # SHT_NULL, SHT_NOBITS, SHF_ALLOC, PT_LOAD
_COMPRESSED = 0x800  # SHF_COMPRESSED
# What stands in the image without code that nvcc puts beside every other one.
_EMPTY = frozenset({"", ".shstrtab", ".strtab", ".symtab", ".symtab_shndx", ".note.nv.tkinfo", ".note.nv.cuinfo"})
_EMPTY |= {".nv.info", ".nv.compat", ".nv.callgraph", ".nv.prototype", ".nv.rel.action"}
_OBJECT, _ENTRY_POINT = 1, 0x10  # STT_OBJECT; the bit of st_other that marks a kernel

# .nv.info: a format, an attribute, then a value of that format.
_SIZED = 0x04  # u16 bytes, then the value; the other formats have two bytes in place of the count
_PARAMETER, _PARAMETER_BYTES, _MAX_THREADS, _REQUIRED_THREADS, _CLUSTER = 0x17, 0x19, 0x05, 0x10, 0x3D
_REGISTERS, _FRAME, _STACK, _MOST_STACK = 0x2F, 0x11, 0x12, 0x23
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
    image: bytes  # a cubin, for cuModuleLoadData: just the bytes that were read; empty when there is no device code
    sm: int  # 90 for sm_90 and sm_90a; 0 without device code
    kernels: Mapping[str, KernelInfo] = field(default_factory=dict)  # mangled name -> what its cubin says
    variables: Mapping[str, int] = field(default_factory=dict)  # __device__ and __constant__, mangled name -> bytes
    findings: tuple[str, ...] = ()  # what an audit refuses, each a sentence


def read(library: bytes) -> DeviceCode:
    """The device code of a shared object or of a bare cubin. Raises ValueError for one that cannot be read."""
    try:
        if library.startswith(b"\x7fELF") and library[18:20] == _CUDA_MACHINE.to_bytes(2, "little"):
            return _Cubin(library).device_code([])
        section = ELFFile(io.BytesIO(library)).get_section_by_name(".nv_fatbin")
        return _from_fatbins(_content(section)) if section is not None else DeviceCode(b"", 0)
    except ValueError:
        raise
    except (ELFError, struct.error, AttributeError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise ValueError(f"the device code cannot be read: {error}") from None


def _from_fatbins(section: bytes) -> DeviceCode:
    findings: list[str] = []
    found: list[_Cubin] = []
    for fatbin in _fatbins(section, findings):
        for kind, packed, payload in _entries(fatbin):
            if kind == _PTX:
                findings.append("carries PTX, which would be compiled again; build for one device: code=sm_XX")
            elif kind != _ELF or packed or not payload.startswith(b"\x7fELF"):
                findings.append(f"carries device code that is no plain ELF (kind {kind}); build with --no-compress")
            elif len(found) == _IMAGES_LIMIT:
                raise ValueError(f"the device code has more than {_IMAGES_LIMIT} images")
            else:
                found.append(_Cubin(payload))
    useful = [one for one in found if one.kernels or one.variables]
    if len(useful) > 1:
        findings.append(f"carries {len(useful)} images of device code; one is accepted")
    findings += [
        f"carries a second image of device code, with section {named}; one is accepted"
        for one in found
        if one not in useful and (named := one.more_than_nothing())
    ]
    return useful[0].device_code(findings) if useful else DeviceCode(b"", 0, findings=tuple(findings))


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


def _entries(fatbin: bytes) -> Iterator[tuple[int, bool, bytes]]:
    """(kind, whether it is compressed, content) of each image."""
    at = _FATBIN.unpack_from(fatbin)[2]
    while at < len(fatbin):
        kind, _, head, size, packed_bytes, flags, unpacked_bytes = _ENTRY.unpack_from(fatbin, at)
        if head < _ENTRY.size or size > len(fatbin) - at - head:
            raise ValueError(f"an entry of the fatbin says {size} bytes and there are {len(fatbin) - at - head}")
        packed = bool(flags & _PACKED or packed_bytes or unpacked_bytes)
        yield kind, packed, fatbin[at + head : at + head + size]
        at += head + size


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


class _Cubin:
    """One ELF of device code, which is what the driver is given.

    Not read by pyelftools, which believes counts and offsets: the driver's own reader of it runs beside the golden, so
    that whatever points outside of the file is refused here.
    """

    def __init__(self, image: bytes) -> None:
        self.image = image
        self._names_left = _NAMES_LIMIT
        head = _HEADER.unpack_from(image)
        ident, machine, flags = head[0], head[2], head[7]
        segments_at, sections_at = head[5:7]
        segment_bytes, segments, section_bytes, sections, names_in = head[9:]
        if machine != _CUDA_MACHINE:
            raise ValueError("the device code is an ELF of another machine")
        if ident[:6] != b"\x7fELF\x02\x01":
            raise ValueError("the device code is no ELF of 64 bits")
        self.sm = (flags >> 8) & 0xFF if ident[8] >= 8 else flags & 0xFF
        self._memory = self._check_segments(segments_at, segment_bytes, segments)
        if section_bytes != _SECTION.size or not names_in < sections:
            raise ValueError(f"the device code has {sections} sections of {section_bytes} bytes, and no names")
        self._inside("sections", sections_at, sections * _SECTION.size)
        raw = [_SECTION.unpack_from(image, sections_at + i * _SECTION.size) for i in range(sections)]
        stored = 0
        for _, kind, _, _, offset, size, *_ in raw:
            if kind not in (_NULL, _NOBITS):
                self._inside("a section", offset, size)
                stored += size
        if stored > len(image):
            raise ValueError("the device code has sections that lie on each other")
        names = image[raw[names_in][4] : raw[names_in][4] + raw[names_in][5]]
        self._sections = [
            _Section(self._text(names, name), kind, flags, offset, size, link)
            for name, kind, flags, _, offset, size, link, _, _, _ in raw
        ]
        self._by_name = {section.name: section for section in self._sections}
        twice = [name for name, count in Counter(s.name for s in self._sections).items() if count > 1]
        if named := [name for name in twice if name.startswith((".nv.", ".symtab", ".strtab"))]:
            raise ValueError(f"the device code has two sections {named[0]}")
        allocated = (s.size for s in self._sections if s.flags & _ALLOCATED and not s.name.startswith(".nv.shared"))
        self._memory = max(self._memory, sum(allocated))
        self._symbols = list(self._read_symbols())
        self.variables = {}
        for name, kind, _, index, size in self._symbols:
            place = self._sections[index] if 0 < index < len(self._sections) else None
            if kind != _OBJECT or place is None or not place.name.startswith((".nv.global", ".nv.constant")):
                continue
            if len(name.encode()) > MAX_NAME:
                raise ValueError(f"a variable's name has {len(name.encode())} bytes; at most {MAX_NAME} are accepted")
            self.variables[name] = size
        self._memory = max(self._memory, sum(self.variables.values()))
        self.kernels = self._kernels()
        if len(self.kernels) > _SYMBOLS_LIMIT or len(self.variables) > _SYMBOLS_LIMIT:
            raise ValueError(f"the device code has over {_SYMBOLS_LIMIT} kernels or variables")

    def _inside(self, what: str, at: int, size: int) -> None:
        if at + size > len(self.image):
            raise ValueError(f"the device code has {len(self.image)} bytes and {what} at {at} to {at + size}")

    def _check_segments(self, at: int, each: int, count: int) -> int:
        """Bytes that the segments take of the device's memory."""
        if count and each != _SEGMENT.size:
            raise ValueError(f"the device code has {count} segments of {each} bytes")
        self._inside("segments", at, count * _SEGMENT.size)
        total = 0
        for i in range(count):
            kind, _, offset, _, _, in_file, in_memory, _ = _SEGMENT.unpack_from(self.image, at + i * _SEGMENT.size)
            self._inside("a segment", offset, in_file)
            total += in_memory if kind == _LOAD else 0
        return total

    def _text(self, strings: bytes, at: int) -> str:
        end = strings.find(b"\0", at, at + MAX_NAME + 64)
        if end < 0:
            raise ValueError(f"the device code has a name without an end, or of more than {MAX_NAME} bytes")
        self._names_left -= end - at
        if self._names_left < 0:
            raise ValueError(f"the device code has more than {_NAMES_LIMIT} bytes of names")
        try:
            return strings[at:end].decode()
        except UnicodeDecodeError:
            raise ValueError("the device code has a name that is not UTF-8") from None

    def _read_symbols(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(name, type, other, section index, bytes)."""
        if ".symtab" not in self._by_name:
            return
        table = self._by_name[".symtab"]
        strings = self._content(self._sections[table.link])
        data = self._content(table)
        for at in range(0, len(data) - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, other, section, _, size = _SYMBOL.unpack_from(data, at)
            yield self._text(strings, name), info & 0xF, other, section, size

    def more_than_nothing(self) -> str | None:
        """A section that the toolchain's empty image has not; None for such an image."""
        return next((section.name for section in self._sections if section.name not in _EMPTY), None)

    def _kernels(self) -> dict[str, KernelInfo]:
        registers: dict[int, int] = {}
        frames: dict[int, int] = {}
        self._local = 0
        for attribute, value in _info(self._data(".nv.info")):
            if attribute not in (_REGISTERS, _FRAME, _STACK, _MOST_STACK) or len(value) != 8:
                continue
            symbol, number = struct.unpack("<II", value)
            if attribute == _REGISTERS:
                registers[symbol] = number
                continue
            self._local = max(self._local, number)
            if attribute == _FRAME:
                frames[symbol] = number
        constant = sum(section.size for section in self._sections if section.name == ".nv.constant3")
        found = {}
        for index, (name, _, other, section, _) in enumerate(self._symbols):
            if name in found:
                raise ValueError(f"the device code has two kernels {name[:100]}")
            if name and other & _ENTRY_POINT and section:
                found[name] = self._kernel(name, registers.get(index, 0), frames.get(index, 0), constant)
        return found

    def _kernel(self, name: str, registers: int, frame: int, constant: int) -> KernelInfo:
        params: list[tuple[int, int, int]] = []
        total, threads = 0, 1024
        if len(name.encode()) > MAX_NAME:
            raise ValueError(f"a kernel's name has {len(name.encode())} bytes; at most {MAX_NAME} are accepted")
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
        static = shared.size if shared is not None else 0
        if self.sm >= _RESERVED_FROM:
            static = max(0, static - _RESERVED_SHARED)
        for what, given, most in (
            ("registers", registers, _REGISTERS_LIMIT),
            ("bytes of shared memory", static, _SHARED_LIMIT),
            ("bytes of constants", constant, _CONSTANT_LIMIT),
        ):
            if given > most:
                raise ValueError(f"{name} says that it has {given} {what}; at most {most} are possible")
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
            for name, section in self._by_name.items()
            if (name == ".nv.global.init" or (name.startswith(".nv.constant") and not name.startswith(".nv.constant0")))
            and any(data := self._content(section))
        }
        if sum(stored.values()) > DATA_LIMIT:
            largest = max(stored, key=lambda name: stored[name])
            yield (
                f"carries {sum(stored.values())} bytes of constants and initialised variables in its device code, most "
                f"of it in {largest}; at most {DATA_LIMIT} are accepted"
            )
        if len(self.image) > IMAGE_LIMIT:
            yield f"has {len(self.image)} bytes of device code; at most {IMAGE_LIMIT} are accepted"
        if self._memory > MEMORY_LIMIT:
            yield f"takes {self._memory} bytes of device memory for its variables; at most {MEMORY_LIMIT} are accepted"
        if self._local > LOCAL_LIMIT:
            yield f"takes {self._local} bytes of local memory a thread; at most {LOCAL_LIMIT} are accepted"
        for name, _, _, section, _ in self._symbols:
            if name and section == 0 and not name.startswith(".nv.") and name not in _RESOLVED:
                if name.startswith(("cudaLaunch", "cudaCDP", "cudaGetParameterBuffer", "cudaDevice", "cudaStream")):
                    what = "starts kernels from the device"
                else:
                    what = _CALLS.get(name, "calls a device function that is not its own")
                yield f"the device code {what} ({name}); it is not accepted"

    def _data(self, name: str) -> bytes:
        section = self._by_name.get(name)
        return self._content(section) if section is not None else b""

    def _content(self, section: _Section) -> bytes:
        if section.kind == _NOBITS or section.flags & _COMPRESSED:
            raise ValueError(f"section {section.name} is not plain data")
        return self.image[section.offset : section.offset + section.size]


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
