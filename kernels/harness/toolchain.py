"""One compiler a language: where it is, what it is, and the commands that turn a source into a shared object."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels.harness import source_rules
from specs.errors import MachineError, UserError
from specs.schema import Language

Look = Callable[[Path], list[str]]  # the compile folder -> findings


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build, run in the compile folder; `look` then searches what it left there."""

    argv: tuple[str, ...]
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Compiler:
    path: Path  # as found on PATH: a wrapper such as ccache decides by the name it is called by
    version: str  # what `--version` prints, all of it
    target: str

    @property
    def first_line(self) -> str:
        return self.version.partition("\n")[0].strip()


class Toolchain(Protocol):
    """What build.py needs to know of a language."""

    @property
    def source_name(self) -> str:
        """The candidate's file in the compile folder."""
        ...

    @property
    def default_flags(self) -> tuple[str, ...]: ...

    def find(self) -> Compiler:
        """Raises UserError when the compiler is not installed, naming how to get it."""
        ...

    def identity(self, compiler: Compiler, flags: Sequence[str]) -> dict[str, str]:
        """Everything beyond source and flags that can change the object it makes."""
        ...

    def source_findings(self, text: str) -> list[str]: ...

    def steps(
        self, compiler: Compiler, source: str, flags: Sequence[str], output: str, *, shared: bool
    ) -> list[Step]: ...


class Gxx:
    """g++, in three steps so that the files it read and the assembly it wrote can be looked at."""

    source_name = "kernel.cpp"
    default_flags = ("-std=c++17", "-O3", "-march=native")

    def find(self) -> Compiler:
        found = shutil.which("g++")
        if found is None:
            raise UserError("g++ is not on PATH; C++ kernels need it: apt-get install g++")
        path = Path(found).absolute()
        return Compiler(path, _ask(path, "--version"), _ask(path, "-dumpmachine").strip())

    def identity(self, compiler: Compiler, flags: Sequence[str]) -> dict[str, str]:
        identity = {
            "path": str(compiler.path.resolve()),
            "version": compiler.version,
            "target": compiler.target,
            "libc": " ".join(platform.libc_ver()),
        }
        if any(re.fullmatch(r"-m(arch|tune|cpu)=native", flag) for flag in flags):
            identity["cpu"] = _cpu()  # the same command makes another object on another CPU
        return identity

    def source_findings(self, text: str) -> list[str]:
        return source_rules.in_source(text, self.source_name)

    def steps(self, compiler: Compiler, source: str, flags: Sequence[str], output: str, *, shared: bool) -> list[Step]:
        program = str(compiler.path)
        stem = Path(source).stem
        compiling = [flag for flag in flags if not _only_links(flag)]
        # Unique symbols would bind across objects that are meant to be strangers, even under RTLD_LOCAL.
        ours = ["-fPIC", "-fno-gnu-unique", "-fmax-errors=20"]

        def look(folder: Path) -> list[str]:
            read = (folder / f"{stem}.d").read_text(encoding="utf-8", errors="replace")
            assembly = (folder / f"{stem}.s").read_text(encoding="utf-8", errors="replace")
            roots = [*_include_roots(compiler), *_named_by(flags)]
            return [*source_rules.in_files_read(read, folder, roots), *source_rules.in_assembly(assembly, source)]

        return [
            Step((program, *compiling, *ours, "-S", source, "-o", f"{stem}.s", "-MD", "-MF", f"{stem}.d"), look),
            Step((program, *compiling, *ours, "-c", f"{stem}.s", "-o", f"{stem}.o")),
            Step(
                (
                    program,
                    f"{stem}.o",
                    *_for_linking(flags),
                    *(["-shared", "-Wl,--no-undefined"] if shared else []),
                    "-o",
                    output,
                )
            ),
        ]


TOOLCHAINS: dict[Language, Toolchain] = {Language.CPP: Gxx()}


def toolchain_for(language: Language) -> Toolchain:
    if language not in TOOLCHAINS:
        accepted = ", ".join(sorted(known.value for known in TOOLCHAINS))
        raise UserError(f"language {language.value!r} cannot be built; accepted: {accepted}")
    return TOOLCHAINS[language]


_PACKAGE = re.compile(r"\{package:([^{}]*)\}")


def expand(flags: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Flags with every `{package:NAME}` replaced by that package's folder, and the packages' versions.

    Raises UserError for a package that is not installed. Nothing is imported.
    """
    versions: dict[str, str] = {}

    def folder(match: re.Match[str]) -> str:
        name = match.group(1)
        found = _package_folder(name)
        if found is None:
            raise UserError(
                f"build flag {match.string!r}: package {name!r} is not installed; "
                "accepted: the import name of an installed Python package"
            )
        versions[name] = _package_version(name)
        return str(found)

    return [_PACKAGE.sub(folder, flag) for flag in flags], versions


def _package_folder(name: str) -> Path | None:
    # find_spec imports the parents of a dotted name, and refuses an empty one with an exception of its own.
    if not name.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]).absolute() if places else None


def _package_version(name: str) -> str:
    distributions = importlib.metadata.packages_distributions().get(name, [])
    return " ".join(sorted(f"{d} {importlib.metadata.version(d)}" for d in set(distributions))) or "unknown"


def _only_links(flag: str) -> bool:
    return flag.startswith(("-l", "-L", "-Wl,")) or flag.endswith((".a", ".so"))


def _for_linking(flags: Sequence[str]) -> list[str]:
    # Linked with these, gcc before 13 adds start-up code that changes how the whole process treats denormals:
    # a library must not do that to the process that loads it.
    fast = {"-ffast-math", "-funsafe-math-optimizations"}
    return ["-O3" if flag == "-Ofast" else flag for flag in flags if flag not in fast]


def _named_by(flags: Sequence[str]) -> list[Path]:
    """Files and folders that the task's own flags let the compiler read."""
    found = []
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        for option in ("-isystem", "-iquote", "-include", "-idirafter", "-I"):
            if flag.startswith(option):
                found.append(flag[len(option) :] or following)
                break
    return [Path(path).absolute() for path in found if path]


@functools.lru_cache(maxsize=16)
def _include_roots(compiler: Compiler) -> tuple[Path, ...]:
    said = _ask(compiler.path, "-E", "-x", "c++", "-v", "/dev/null")
    listed = re.search(r"search starts here:\n(.*?)End of search list", said.replace('#include "..." ', ""), re.DOTALL)
    lines = listed.group(1).splitlines() if listed else []
    return tuple(Path(line.strip()) for line in lines if line.startswith(" /"))


@functools.lru_cache(maxsize=64)
def _ask_once(path: str, modified_ns: int, arguments: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(
            [path, *arguments],
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"{path} {' '.join(arguments)}: {error}") from None
    return answer.stdout.decode(errors="replace")


def _ask(path: Path, *arguments: str) -> str:
    return _ask_once(str(path), path.stat().st_mtime_ns, arguments)


@functools.lru_cache(maxsize=1)
def _cpu() -> str:
    """Model and instruction set of the first core, as the kernel lists them."""
    wanted = (
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "Features",
        "CPU part",
        "CPU implementer",
    )
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in first.splitlines())
    return "\n".join(f"{key.strip()}: {value.strip()}" for key, _, value in lines if key.strip() in wanted)
