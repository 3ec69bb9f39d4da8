"""One compiler a language: where it is, what it is, and the commands that turn a source into a shared object."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels.harness import python_rules, source_rules
from specs.errors import MachineError, UserError
from specs.schema import Language, Task

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
    def product(self) -> str:
        """The file there that a build yields."""
        ...

    @property
    def default_flags(self) -> tuple[str, ...]: ...

    def find(self) -> Compiler:
        """Raises UserError when the compiler is not installed, naming how to get it."""
        ...

    def identity(self, compiler: Compiler, flags: Sequence[str]) -> dict[str, str]:
        """Everything beyond source and flags that can change the object it makes."""
        ...

    def target_flags(self, task: Task, flags: Sequence[str]) -> list[str]:
        """What the task's device adds in front of its flags; raises UserError for a device that nobody knows."""
        ...

    def source_findings(self, text: str) -> list[str]: ...

    def steps(
        self, compiler: Compiler, source: str, flags: Sequence[str], output: str, *, shared: bool
    ) -> list[Step]: ...


class Gxx:
    """g++, in three steps so that the files it read and the assembly it wrote can be looked at."""

    source_name = "kernel.cpp"
    product = "kernel.so"
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

    def target_flags(self, task: Task, flags: Sequence[str]) -> list[str]:
        return []  # a CPU task says -march itself

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


class Nvcc:
    """nvcc for the device's half and g++ for the host's, so that what both read and wrote can be looked at.

    nvcc makes device code and one preprocessed C++ file that carries it; from there on the steps are those of g++. A
    kernel is one file, so nothing is linked on the device's side, which saves a second.
    """

    source_name = "kernel.cu"
    product = "kernel.so"
    default_flags = ("-std=c++17", "-O3", "-lineinfo")

    def find(self) -> Compiler:
        found = shutil.which("nvcc")
        if found is None:
            raise UserError("nvcc is not on PATH; CUDA kernels need it: install the CUDA toolkit, 13.0 or later")
        host = Gxx().find()
        path = Path(found).absolute()
        said = _ask(path, "--version")
        release = re.search(r"\bV(\d+\.\d+\.\d+)", said)
        name = f"nvcc {release.group(1)}" if release else "nvcc"
        return Compiler(path, f"{name}, {host.first_line}\n{said}\n{host.version}", host.target)

    def identity(self, compiler: Compiler, flags: Sequence[str]) -> dict[str, str]:
        return {
            "path": str(compiler.path.resolve()),
            "host": str(Gxx().find().path.resolve()),
            "version": compiler.version,
            "target": compiler.target,
            "libc": " ".join(platform.libc_ver()),
        }

    def target_flags(self, task: Task, flags: Sequence[str]) -> list[str]:
        if any(_CHOOSES_DEVICE.match(flag) for flag in flags):
            return []
        name = device_code(task)
        return [f"-gencode=arch=compute_{name},code=sm_{name}"]

    def source_findings(self, text: str) -> list[str]:
        return source_rules.in_source(text, self.source_name)

    def steps(self, compiler: Compiler, source: str, flags: Sequence[str], output: str, *, shared: bool) -> list[Step]:
        host = Gxx().find()
        toolkit = _toolkit(compiler)
        stem = Path(source).stem
        for flag in flags:
            if re.fullmatch(r"--?(rdc|relocatable-device-code|dc|dlto|dlink-time-opt|device-c)(=.*)?", flag):
                raise UserError(f"build flag {flag}: a kernel is one file that is compiled as a whole; leave it out")
        compiling, for_host, linking = _nvcc_flags(flags)
        # NVTX, which CUDA's own headers bring along, looks for a profiler's library when it is first used.
        ours = ["--no-compress", "-Xcompiler", "-fPIC", "--cuda", "--keep", "-DNVTX_DISABLE"]
        # Unique symbols would bind across objects that are meant to be strangers, even under RTLD_LOCAL.
        host_ours = ["-fPIC", "-fno-gnu-unique", "-fmax-errors=20", "-Wno-psabi"]
        # A toolkit is often found through a link, and names its headers by where it really is.
        places = [found / place for found in (toolkit, toolkit.resolve()) for place in _TOOLKIT_HEADERS]
        roots = [*_include_roots(host), *places, *(place.resolve() for place in places), *_named_by(flags)]

        def look_at_files(folder: Path) -> list[str]:
            rule = (folder / f"{stem}.d").read_text(encoding="utf-8", errors="replace")
            # The rule tells of the pass for the host alone; what the pass for the device read stands in its output.
            passed = (folder / f"{stem}.cpp1.ii").read_text(encoding="utf-8", errors="replace")
            found = source_rules.in_files_read(rule, folder, roots)
            return list(dict.fromkeys([*found, *source_rules.in_line_markers(passed, folder, roots)]))

        def look_at_assembly(folder: Path) -> list[str]:
            assembly = (folder / f"{stem}.s").read_text(encoding="utf-8", errors="replace")
            return source_rules.in_assembly(assembly, source)

        half = f"{stem}.cu.cpp.ii"
        folders = [folder for place in _TOOLKIT_LIBRARIES if (folder := toolkit / place).is_dir()]
        libraries = [f"-L{folder}" for folder in folders]
        if linking or not shared:
            libraries += [f"-Wl,-rpath,{folder}" for folder in folders]
        return [
            Step((str(compiler.path), *compiling, *ours, source, "-o", half, "-MD", "-MF", f"{stem}.d"), look_at_files),
            Step((str(host.path), *for_host, *host_ours, "-S", half, "-o", f"{stem}.s"), look_at_assembly),
            Step((str(host.path), *host_ours, "-c", f"{stem}.s", "-o", f"{stem}.o")),
            Step(
                (
                    str(host.path),
                    f"{stem}.o",
                    *_for_linking(for_host),
                    *libraries,
                    *linking,
                    "-lcudart",
                    *(["-shared", "-Wl,--no-undefined"] if shared else []),
                    "-o",
                    output,
                )
            ),
        ]


_CHOOSES_DEVICE = re.compile(r"--?(gencode|generate-code|arch|gpu-architecture|code|gpu-code)(=|$)")
_TOOLKIT_HEADERS = ("include", f"targets/{platform.machine()}-linux/include", "targets/sbsa-linux/include")
_TOOLKIT_LIBRARIES = ("lib64", f"targets/{platform.machine()}-linux/lib", "targets/sbsa-linux/lib")
_COMPUTE = re.compile(r"(?:sm_?|compute_?)?(\d{2,3}[af]?)|(\d{1,2})\.(\d[af]?)")
_DEVICES = (
    (r"G?H(100|200|800|20)|HOPPER", "90a"),
    (r"G?B(100|200)|BLACKWELL", "100a"),
    (r"G?B300", "103a"),
    (r"A(100|800|30)", "80"),
    (r"A(10|40|6000)|RTX ?(30\d\d|A\d+)", "86"),
    (r"L(4|40)|RTX ?40\d\d", "89"),
    (r"RTX ?50\d\d|RTX ?PRO", "120a"),
)


def device_code(task: Task) -> str:
    """`90a` and the like: what the task's arch says, else what its gpu is."""
    if match := _COMPUTE.fullmatch(task.arch.strip().lower()):
        return match.group(1) or f"{match.group(2)}{match.group(3)}"
    for pattern, name in _DEVICES:
        if re.search(rf"\b({pattern})", task.gpu.upper()):
            return name
    raise UserError(
        f"task {task.name}: neither arch {task.arch!r} nor gpu {task.gpu!r} tells what to compile for; "
        "accepted: an arch such as sm_90a, or a -gencode flag"
    )


def _toolkit(compiler: Compiler) -> Path:
    said = re.search(r"^#\$ TOP=(.+)$", _ask(compiler.path, "--dryrun", "-E", "-x", "cu", "/dev/null"), re.MULTILINE)
    return Path(os.path.normpath(said.group(1).strip() if said else compiler.path.resolve().parent.parent))


def _nvcc_flags(flags: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """What of nvcc's flags each of nvcc, g++ and the linker gets."""
    compiling: list[str] = []
    for_host: list[str] = []
    linking: list[str] = []
    left = iter(flags)
    for flag in left:
        name, _, value = flag.partition("=")
        if name in ("-Xcompiler", "--compiler-options", "-Xlinker", "--linker-options"):
            value = value or next(left, "")
            if name in ("-Xlinker", "--linker-options"):
                linking += [f"-Wl,{value}"]
            else:
                compiling += ["-Xcompiler", value]
                for_host += value.split(",")
        elif _only_links(flag) and flag != "-lineinfo":  # which is no library
            linking.append(flag)
        else:
            compiling.append(flag)
            if re.fullmatch(r"-std=.*|-O\d?|-g", flag):
                for_host.append(flag)
    return compiling, for_host, linking


class Triton:
    """No compiler: a candidate is Python, compiled kernel by kernel when its launcher runs (see triton_host.py).

    What is built is the source itself, once its text has been looked at; that is done by a process of its own.
    """

    source_name = "kernel.py"
    product = "kernel.py"
    default_flags = ()

    def find(self) -> Compiler:
        if importlib.util.find_spec("triton") is None:
            raise UserError("the package triton is not installed; Triton kernels need it: pip install 'ferret[triton]'")
        python = Path(sys.executable).resolve()
        return Compiler(python, f"{_package_version('triton')}\nPython {platform.python_version()}", "cuda")

    def identity(self, compiler: Compiler, flags: Sequence[str]) -> dict[str, str]:
        return {"path": str(compiler.path), "version": compiler.version, "target": compiler.target}

    def target_flags(self, task: Task, flags: Sequence[str]) -> list[str]:
        if flags:
            raise UserError(f"build flags {' '.join(flags)}: a Triton kernel is given no flags; leave them out")
        return []  # the device that it runs on decides

    def source_findings(self, text: str) -> list[str]:
        return []  # in its step

    def steps(self, compiler: Compiler, source: str, flags: Sequence[str], output: str, *, shared: bool) -> list[Step]:
        if not shared:
            raise UserError("language 'triton' makes no self-contained program; accepted: cpp, cuda")

        def look(folder: Path) -> list[str]:
            found: list[str] = json.loads((folder / python_rules.OUTLINE).read_text())["findings"]
            return found

        rules = Path(python_rules.__file__).resolve()
        return [Step((str(compiler.path), "-I", "-S", "-B", str(rules), source, python_rules.OUTLINE), look)]


TOOLCHAINS: dict[Language, Toolchain] = {Language.CPP: Gxx(), Language.CUDA: Nvcc(), Language.TRITON: Triton()}


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
