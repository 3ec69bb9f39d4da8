"""What a candidate's shared object may bring: libraries, symbols, start-up code and data, from an allow-list.

A tripwire and not a wall: the runner's isolation holds whatever passes here. It turns the well-known ways out of a
kernel into a message that names the symbol, before any time is spent on judging.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from kernels.harness import cubin, symbols
from specs.schema import Language

DATA_LIMIT = 64 * 1024  # bytes of initialised data: room for look-up tables, too little for stored answers
LOADED_LIMIT = 4 * 2**20  # bytes of the whole file that get mapped: constants can hide in code and unwind tables too
FINDINGS_LIMIT = 20  # more would only repeat the first

# Sections that grow with the code and that the linker writes itself; LOADED_LIMIT still covers them.
_LINKERS_TYPES = frozenset(
    {
        "SHT_DYNSYM",
        "SHT_STRTAB",
        "SHT_HASH",
        "SHT_GNU_HASH",
        "SHT_GNU_versym",
        "SHT_GNU_verneed",
        "SHT_GNU_verdef",
        "SHT_RELA",
        "SHT_REL",
        "SHT_RELR",
        "SHT_DYNAMIC",
        "SHT_NOBITS",
    }
)
_DEVICE_CODE = ".nv_fatbin"  # read by cubin.py, with limits of its own
_UNWIND = frozenset({".eh_frame", ".eh_frame_hdr", ".gcc_except_table"})
# What crti.o and crtn.o of glibc put there, with and without branch protection.
_START_UP_BYTES = {
    "EM_X86_64": {".init": {23, 27}, ".fini": {9, 13}},
    "EM_AARCH64": {".init": {20, 24}, ".fini": {16, 20}},
}
_RELOCATIONS = {"EM_X86_64": (8, 37), "EM_AARCH64": (1027, 1032)}  # R_*_RELATIVE, R_*_IRELATIVE
_OTHER_LOADERS = {"DT_AUDIT", "DT_DEPAUDIT", "DT_FILTER", "DT_AUXILIARY"}
_INSTRUCTIONS = re.compile(
    r"\t(?P<name>syscall|sysenter|int +\$0x80|svc|rdtscp?|rdpmc|mrs +\w+, *cntv?ct_el0|wr[fg]sbase|wrpkru)\b"
)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_EXECUTABLE, _ALLOCATED = 0x4, 0x2  # SHF_*
_PF_X, _PF_W = 0x1, 0x2


def audit(library: Path, language: Language) -> list[str]:
    """Findings, each one sentence that names the symbol, library or section; empty when nothing is wrong."""
    if language not in (Language.CPP, Language.CUDA):
        raise NotImplementedError(f"no audit for {language.value}")
    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            found = list(_findings(elf, language))
        if language is Language.CUDA:
            found += cubin.read(library.read_bytes()).findings
    except (ELFError, AttributeError, KeyError, ValueError, OverflowError) as error:
        return [f"the shared object cannot be read: {error}"]
    found += _instruction_findings(library)
    hidden = len(found) - FINDINGS_LIMIT
    return found if hidden <= 0 else [*found[:FINDINGS_LIMIT], f"and {hidden} more"]


def exported_functions(library: Path) -> list[str]:
    """Names of the functions that a shared object defines for others, sorted. Raises ELFError for another file."""
    with library.open("rb") as file:
        return sorted(
            symbol.name
            for symbol in _dynamic_symbols(ELFFile(file))
            if _defined(symbol) and symbol["st_info"]["type"] == "STT_FUNC"
        )


def _findings(elf: Any, language: Language) -> Iterator[str]:
    yield from _library_findings(elf, language)
    yield from _import_findings(elf, language)
    yield from _definition_findings(elf, language)
    yield from _start_up_findings(elf, language)
    yield from _memory_findings(elf, language)


def _library_findings(elf: Any, language: Language) -> Iterator[str]:
    for tag in _dynamic_tags(elf):
        if tag.entry.d_tag == "DT_NEEDED" and not symbols.library_allowed(tag.needed, language):
            yield f"needs library {tag.needed}; accepted: {', '.join(symbols.libraries(language))}"
        if tag.entry.d_tag in _OTHER_LOADERS:
            yield f"has a {tag.entry.d_tag} entry, which makes the loader bring in another object"


def _import_findings(elf: Any, language: Language) -> Iterator[str]:
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        return
    owners = _owners(elf)
    for index, symbol in enumerate(table.iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF" or not symbol.name:
            continue
        weak = symbol["st_info"]["bind"] == "STB_WEAK"
        if reason := symbols.objection(symbol.name, owners.get(index), weak=weak, language=language):
            yield f"imports {_readable(symbol.name)}: {reason}"


def _definition_findings(elf: Any, language: Language) -> Iterator[str]:
    whose = (
        "the C library, the C++ runtime or CUDA" if language is Language.CUDA else "the C library or the C++ runtime"
    )
    for symbol in _dynamic_symbols(elf):
        if _defined(symbol) and symbols.must_not_be_defined(symbol.name, language):
            yield f"defines {_readable(symbol.name)}, a name of {whose}"
    # pyelftools knows the number of STT_GNU_IFUNC only as the first of the system-specific ones.
    system_specific = ("STT_LOOS", "STT_GNU_IFUNC")
    indirect = {s.name for s in _all_symbols(elf) if s["st_info"]["type"] in system_specific and _defined(s)}
    for name in sorted(indirect):
        yield f"{_readable(name)} is an IFUNC, code that runs while the object is loaded"


def _start_up_findings(elf: Any, language: Language) -> Iterator[str]:
    """Code that would run when the object is loaded or unloaded, beyond what the toolchain itself puts there."""
    word = elf.elfclass // 8
    addends, indirect = _relocations(elf)
    names = {s["st_value"]: s.name for s in _all_symbols(elf) if s["st_info"]["type"] == "STT_FUNC" and _defined(s)}
    for name, own in ((".init_array", "frame_dummy"), (".fini_array", "__do_global_dtors_aux")):
        for section in elf.iter_sections():
            if section.name != name and not section.name.startswith(f"{name}."):
                continue
            targets = []
            for offset in range(0, section["sh_size"], word):
                in_place = int.from_bytes(section.data()[offset : offset + word], "little")
                targets.append(addends.get(section["sh_addr"] + offset, in_place))
            called = [names.get(target, f"code at {target:#x}") for target in targets]
            if own in called:
                called.remove(own)
            elif called and elf.get_section_by_name(".symtab") is None:
                called.pop(0)  # a stripped object: one entry is the toolchain's, whatever its name was
            if language is Language.CUDA and name == ".init_array" and symbols.REGISTRATION in called:
                called.remove(symbols.REGISTRATION)
            when = "loaded" if name == ".init_array" else "unloaded"
            for function in called:
                yield (f"{_readable(function)} runs when the object is {when} ({name}); {_advice(function)}")
    if indirect:
        yield "has IRELATIVE relocations, code that runs while the object is loaded"
    for tag in _dynamic_tags(elf):
        if tag.entry.d_tag == "DT_PREINIT_ARRAY":
            yield "has a .preinit_array, code that runs before everything else"
    for name, sizes in _START_UP_BYTES.get(elf["e_machine"], {}).items():
        section = elf.get_section_by_name(name)
        if section is not None and section["sh_size"] not in sizes:
            yield f"section {name} holds {section['sh_size']} bytes, not the toolchain's own {_either(sizes)}"


def _advice(function: str) -> str:
    if "_GLOBAL__sub_I" in function or "__static_initialization" in function:
        return "a global with a constructor: make it constexpr or a local static"
    if function == "__cpu_indicator_init":
        return "it comes with __builtin_cpu_supports; a kernel is built for the processor that it runs on"
    return "global constructors and destructors are not accepted"


def _memory_findings(elf: Any, language: Language) -> Iterator[str]:
    device = elf.get_section_by_name(_DEVICE_CODE) if language is Language.CUDA else None
    device_bytes = device["sh_size"] if device is not None else 0
    if device_bytes > cubin.IMAGE_LIMIT:
        yield f"carries {device_bytes} bytes of device code; at most {cubin.IMAGE_LIMIT} are accepted"
    sizes = {
        section.name: section["sh_size"]
        for section in elf.iter_sections()
        if section["sh_flags"] & _ALLOCATED
        and not section["sh_flags"] & _EXECUTABLE
        and section["sh_type"] not in _LINKERS_TYPES
        and section.name not in _UNWIND
        and (device is None or section.name != _DEVICE_CODE)
    }
    if sum(sizes.values()) > DATA_LIMIT:
        largest = max(sizes, key=lambda name: sizes[name])
        symbol = _largest_object(elf)
        what = f", the largest object is {_readable(symbol)}" if symbol else ""
        yield (
            f"carries {sum(sizes.values())} bytes of initialised data, most of it in {largest}{what}; "
            f"at most {DATA_LIMIT} are accepted"
        )
    loaded = 0
    for segment in elf.iter_segments():
        flags = segment["p_flags"]
        if segment["p_type"] == "PT_LOAD":
            loaded += segment["p_filesz"]
            if flags & _PF_W and flags & _PF_X:
                yield "has memory that is both writable and executable"
        if segment["p_type"] == "PT_GNU_STACK" and flags & _PF_X:
            yield "asks for an executable stack"
    loaded -= device_bytes
    if loaded > LOADED_LIMIT:
        without = " without its device code" if device_bytes else ""
        yield f"is {loaded} bytes when loaded{without}; at most {LOADED_LIMIT} are accepted"


def _instruction_findings(library: Path) -> list[str]:
    """System calls and clock reads by instruction, from a disassembly and not from a search for their bytes.

    The two bytes of `syscall` also occur inside constants and offsets of honest code. A disassembly has no such false
    alarms, and misses what is hidden inside another instruction: that is for the runner's system call filter.
    """
    objdump = shutil.which("objdump")
    if objdump is None:
        return ["objdump is not on PATH, so the code cannot be looked at: apt-get install binutils"]
    listing = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", "-w", str(library)],
        env={"LANG": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    if listing.returncode != 0:
        return ["the code cannot be disassembled"]
    found: dict[str, None] = {}
    function = "?"
    for line in listing.stdout.decode(errors="replace").splitlines():
        if header := _FUNCTION.match(line):
            function = header.group(1)
        elif match := _INSTRUCTIONS.search(line):
            name = " ".join(match.group("name").split())
            kind = "reads a clock or counter" if name.startswith(("rd", "mrs")) else "leaves the kernel's own code"
            found[f"{_readable(function)} holds the instruction '{name}', which {kind}; it is not accepted"] = None
    return list(found)


# ---------------------------------------------------------------- reading ELF


def _dynamic_tags(elf: Any) -> Iterator[Any]:
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            yield from section.iter_tags()


def _dynamic_symbols(elf: Any) -> Iterator[Any]:
    table = elf.get_section_by_name(".dynsym")
    if table is not None:
        yield from table.iter_symbols()


def _all_symbols(elf: Any) -> Iterator[Any]:
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            yield from section.iter_symbols()


def _defined(symbol: Any) -> bool:
    return bool(symbol.name) and symbol["st_shndx"] != "SHN_UNDEF"


def _owners(elf: Any) -> dict[int, str]:
    """Index in .dynsym -> the library that the linker bound the symbol to; symbols without a version are absent."""
    needed: dict[int, str] = {}
    versions = None
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for library, auxiliaries in section.iter_versions():
                for auxiliary in auxiliaries:
                    needed[auxiliary["vna_other"]] = str(library.name)
        if isinstance(section, GNUVerSymSection):
            versions = section
    if versions is None:
        return {}
    indices = ((i, versions.get_symbol(i)["ndx"]) for i in range(versions.num_symbols()))
    return {i: needed[ndx & 0x7FFF] for i, ndx in indices if isinstance(ndx, int) and ndx & 0x7FFF in needed}


def _relocations(elf: Any) -> tuple[dict[int, int], bool]:
    """Address -> the address written there at load time, and whether any of it is computed by running code."""
    addends: dict[int, int] = {}
    relative, indirect = _RELOCATIONS.get(elf["e_machine"], (-1, -1))
    has_indirect = False
    table = elf.get_section_by_name(".dynsym")
    tables = (section for section in elf.iter_sections() if isinstance(section, RelocationSection))
    for relocations in tables:
        for relocation in relocations.iter_relocations():
            kind = relocation["r_info_type"]
            has_indirect |= kind == indirect
            if not relocation.is_RELA():
                continue
            if kind == relative:
                addends[relocation["r_offset"]] = relocation["r_addend"]
            elif table is not None and relocation["r_info_sym"]:
                value = table.get_symbol(relocation["r_info_sym"])["st_value"]
                addends[relocation["r_offset"]] = value + relocation["r_addend"]
    return addends, has_indirect


def _largest_object(elf: Any) -> str | None:
    objects = [
        (s["st_size"], s.name) for s in _all_symbols(elf) if s["st_info"]["type"] == "STT_OBJECT" and _defined(s)
    ]
    return max(objects)[1] if objects else None


def _either(sizes: set[int]) -> str:
    return " or ".join(str(size) for size in sorted(sizes))


def _readable(name: str) -> str:
    """The name as the source has it, when c++filt can tell; the symbol itself stays beside it."""
    if not name.startswith("_Z") or (program := shutil.which("c++filt")) is None:
        return name
    told = subprocess.run([program, name], capture_output=True, text=True, timeout=10, check=False, env={"LANG": "C"})
    plain = told.stdout.strip()
    return f"{plain} ({name})" if told.returncode == 0 and plain and plain != name else name
