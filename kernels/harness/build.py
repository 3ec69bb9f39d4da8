"""Sources to shared objects, named by everything that can change them and published all at once.

A build is `builds/<key>/{kernel.so, build.json, log.txt}`, made in a sibling folder and renamed into place. A source
that does not compile is a result like any other and is kept too; only a time-out is tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from elftools.common.exceptions import ELFError

from kernels.harness import audit, cubin, leash, products, python_rules, requests, source_rules, symbols, toolchain
from kernels.harness.toolchain import Compiler, Step, Toolchain
from specs.errors import GateError, MachineError, RunnerLost, UserError
from specs.outcomes import BlobRef, BuildResult, BuildStatus
from specs.schema import Harness, Interface, Language, Task

log = structlog.get_logger(__name__)

_RULES = (audit, cubin, symbols, source_rules, python_rules, toolchain)
FORMAT = 1  # raise it when a build is made or looked at differently, so that no older product is believed
PROGRAM = "kernel"

LOG_LIMIT = 4096  # characters; both ends of a long log are kept: the first error and the compiler's last word
SOURCE_LIMIT = 4 * 2**20  # bytes; ten times more than the largest source a run has to carry, 300 kB
MEMORY_LIMIT = 8 * 2**30  # address space of one compiler process: a template bomb must not take the machine with it
FILE_LIMIT = 512 * 2**20  # bytes of any one file it writes; assembly runs to a few MB, so this only stops a runaway
TOOL_TIMEOUT_S = 300.0
NEARLY_FULL = 16 * 2**20  # bytes free below which "No space left" is the machine's fault and not a text in a source


def build(request: requests.Build) -> requests.Built:
    """Compile one source, or find it compiled.

    Raises UserError for a task or a machine that cannot build (no interface, no compiler, an unknown package) and
    MachineError when the disk is full or the compiler is killed from outside. A source that does not compile, takes too
    long or is refused is a result.
    """
    task = request.task
    if task.harness is Harness.SELF_CONTAINED:
        return build_program(request)
    if task.interface is None:
        raise UserError(f"task {task.name} has no interface; a build needs the name of the function to export")
    language = _language(request)
    tools = toolchain.toolchain_for(language)
    compiler = tools.find()
    source = read_source(request.source)
    flags, packages = toolchain.expand(_flags(task, request, tools))
    key = _key(
        source=hashlib.sha256(source).hexdigest(),
        flags=flags,
        compiler=tools.identity(compiler, flags),
        packages=packages,
        interface=task.interface.model_dump(mode="json"),
        role=request.role,
        language=language.value,
    )

    def make(work: _Work) -> BuildResult:
        candidate = request.role == "candidate"
        if candidate and (findings := _source_findings(tools, source)):
            return work.ended(BuildStatus.REFUSED, "\n".join(findings))
        work.write(tools.source_name, source)
        steps = tools.steps(compiler, tools.source_name, flags, tools.product, shared=True)
        if stopped := work.run(steps, request.timeout_s, look=candidate):
            return stopped
        assert task.interface is not None
        if missing := _missing_entry(work.folder / tools.product, task.interface, language):
            return work.ended(BuildStatus.FAILED, missing)
        machine_code = language is not Language.TRITON
        if candidate and machine_code and (findings := audit.audit(work.folder / tools.product, language)):
            return work.ended(BuildStatus.REFUSED, "\n".join(findings))
        return work.built(tools.product)

    result, folder = products.cached_or_made(
        request.builds, key, _in_work(key, compiler, make), compiler=tools.identity(compiler, flags)
    )
    log.info("build", status=result.status.value, role=request.role, key=key[:12], cached=result.cached)
    return requests.Built(result=result, library=folder / tools.product if folder is not None and result.ok else None)


def build_program(request: requests.Build) -> requests.Built:
    """Compile a self-contained program, which has a `main` and its own baseline; errors and results as with `build`.

    What it may read while it is compiled is looked at as for any candidate. The executable itself is not audited:
    nothing that it says is believed, so there is nothing that it could cheat.
    """
    task = request.task
    tools = toolchain.toolchain_for(task.language)
    compiler = tools.find()
    source = read_source(request.source)
    flags, packages = toolchain.expand([*_flags(task, request, tools), *task.baseline.flags])
    key = _key(
        program=hashlib.sha256(source).hexdigest(),
        flags=flags,
        compiler=tools.identity(compiler, flags),
        packages=packages,
        language=task.language.value,
    )

    def make(work: _Work) -> BuildResult:
        if findings := _source_findings(tools, source):
            return work.ended(BuildStatus.REFUSED, "\n".join(findings))
        work.write(tools.source_name, source)
        steps = tools.steps(compiler, tools.source_name, flags, PROGRAM, shared=False)
        return work.run(steps, request.timeout_s, look=True) or work.built(PROGRAM)

    result, folder = products.cached_or_made(
        request.builds, key, _in_work(key, compiler, make), compiler=tools.identity(compiler, flags)
    )
    log.info("build_program", status=result.status.value, key=key[:12], cached=result.cached)
    return requests.Built(result=result, library=folder / PROGRAM if folder is not None and result.ok else None)


def build_sanitized(
    task: Task, source: Path, flags: Sequence[str], builds: Path, timeout_s: float = TOOL_TIMEOUT_S
) -> Path | None:
    """A candidate's source built once more, with `flags` after the task's own; None when it does not build so.

    What it may read while it is compiled is looked at again, since it can tell one build from another. The object is
    not audited: a sanitizer brings constructors and libraries of its own. Errors as with `build`.
    """
    tools = toolchain.toolchain_for(task.language)
    compiler = tools.find()
    content = read_source(source)
    expanded, packages = toolchain.expand([*(task.build.flags or tools.default_flags), *flags])
    key = _key(
        sanitized=hashlib.sha256(content).hexdigest(),
        flags=expanded,
        compiler=tools.identity(compiler, expanded),
        packages=packages,
        language=task.language.value,
    )

    def make(work: _Work) -> BuildResult:
        if findings := _source_findings(tools, content):
            return work.ended(BuildStatus.REFUSED, "\n".join(findings))
        work.write(tools.source_name, content)
        steps = tools.steps(compiler, tools.source_name, expanded, tools.product, shared=True)
        return work.run(steps, timeout_s, look=True) or work.built(tools.product)

    result, folder = products.cached_or_made(
        builds, key, _in_work(key, compiler, make), compiler=tools.identity(compiler, expanded)
    )
    log.info("build_sanitized", status=result.status.value, key=key[:12], cached=result.cached)
    return folder / tools.product if folder is not None and result.ok else None


def compile_tool(
    name: str,
    source: Path,
    flags: Sequence[str],
    builds: Path,
    extra: Mapping[str, str] | None = None,
    shared: bool = False,
) -> Path:
    """Compile one of the harness's own C++ programs, or a library with `shared`; its path under `builds`.

    `extra` are generated headers, name -> text, put beside the source. Raises GateError with the compiler's words:
    a failure here is ours, never a candidate's.
    """
    tools = toolchain.Gxx()
    compiler = tools.find()
    content = source.read_bytes()
    headers = dict(extra or {})
    product = f"{name}.so" if shared else name
    identity = tools.identity(compiler, flags)
    key = _key(
        tool=name,
        source=hashlib.sha256(content).hexdigest(),
        flags=list(flags),
        compiler=identity,
        extra=headers,
        shared=shared,
    )

    def make(work: _Work) -> BuildResult:
        work.write(source.name, content)
        for header, text in headers.items():
            work.write(header, text.encode())
        steps = tools.steps(compiler, source.name, flags, product, shared=shared)
        return work.run(steps, TOOL_TIMEOUT_S, look=False) or work.built(product)

    result, folder = products.cached_or_made(
        builds, key, _in_work(key, compiler, make), compiler=identity, keep_failures=False
    )
    if folder is None or not result.ok:
        raise GateError(f"{source.name} does not build ({result.status.value}):\n{result.log_tail}")
    return folder / product


# ---------------------------------------------------------------- what goes in


def _flags(task: Task, request: requests.Build, tools: Toolchain) -> list[str]:
    # A baseline in another language than the task's has flags of its own only.
    own = task.build.flags if _language(request) is task.language else ()
    flags = [*(own or tools.default_flags)]
    if request.production:
        flags += task.build.production_flags
    if request.role == "baseline":
        flags += task.baseline.flags
    return [*tools.target_flags(task, flags), *flags]


def read_source(path: Path) -> bytes:
    """Raises UserError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"source {path}: {error.strerror}; a readable file is needed") from None


def _source_findings(tools: Toolchain, source: bytes) -> list[str]:
    if len(source) > SOURCE_LIMIT:
        return [f"{tools.source_name}: {len(source)} bytes; at most {SOURCE_LIMIT} are accepted"]
    return tools.source_findings(source.decode("utf-8", errors="replace"))


def _key(**parts: Any) -> str:
    # The rules are part of the key: a verdict of older rules is not this build's verdict.
    rules = {str(module.__name__): products.file_digest(Path(module.__file__ or "")) for module in _RULES}
    canonical = json.dumps({"format": FORMAT, "rules": rules, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


# ---------------------------------------------------------------- one build in its own folder


def _in_work(key: str, compiler: Compiler, make: Callable[[_Work], BuildResult]) -> products.Make:
    def in_folder(root: Path, product: Path) -> tuple[BuildResult, products.Commands]:
        work = _Work(root, product, key, compiler)
        return make(work), tuple(work.commands)

    return in_folder


class _Work:
    """The temporary folder of one build: `compile` is all that the compiler sees, `product` is what gets published."""

    def __init__(self, root: Path, product: Path, key: str, compiler: Compiler) -> None:
        self.folder = root / "compile"
        self.product = product
        self._scratch = root / "scratch"
        for folder in (self.folder, self._scratch):
            folder.mkdir()
        self._root, self._key, self._compiler = root, key, compiler
        self._log = root / products.LOG
        self._started = time.monotonic()
        self.commands: list[tuple[str, ...]] = []

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def run(self, steps: Sequence[Step], timeout_s: float, *, look: bool) -> BuildResult | None:
        """Run the steps in order; the result of the one that ends the build early, None when all went well."""
        # Nothing of our own environment: it may hold keys, and a compiler reads many variables.
        # TMPDIR is inside the build's folder, so that a compiler which is killed leaves nothing elsewhere.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C", "TMPDIR": str(self._scratch)}
        limits = leash.Limits(cpu_s=int(timeout_s) + 5, memory_bytes=MEMORY_LIMIT, file_bytes=FILE_LIMIT)
        for step in steps:
            self.commands.append(step.argv)
            left = timeout_s - (time.monotonic() - self._started)
            finished = leash.run(
                step.argv, folder=self.folder, environment=environment, log=self._log, timeout_s=left, limits=limits
            )
            if finished.timed_out:
                return self.ended(BuildStatus.TIMED_OUT, f"the compiler was stopped after {timeout_s:g} s")
            if finished.returncode < 0 or finished.returncode == 128 + 9:
                raise RunnerLost(f"{step.argv[0]} was killed from outside while compiling")
            if finished.returncode != 0:
                if "No space left on device" in self._said() and _nearly_full(self._root):
                    raise MachineError(f"disk full while compiling in {self._root.parent}")
                return self.ended(
                    BuildStatus.FAILED, f"{Path(step.argv[0]).name} ended with status {finished.returncode}"
                )
            if look and step.look is not None and (findings := step.look(self.folder)):
                return self.ended(BuildStatus.REFUSED, "\n".join(findings))
        return None

    def built(self, product: str) -> BuildResult:
        shutil.move(self.folder / product, self.product / product)
        content = (self.product / product).read_bytes()
        library = BlobRef(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        return self._result(BuildStatus.BUILT, library=library, said=self._said())

    def ended(self, status: BuildStatus, why: str) -> BuildResult:
        """A build without a product; `why` stands last, after whatever the compiler said."""
        said = self._said()
        return self._result(status, said=f"{said.rstrip()}\n{why}" if said.strip() else why)

    def _result(self, status: BuildStatus, said: str, library: BlobRef | None = None) -> BuildResult:
        (self.product / products.LOG).write_text(said, encoding="utf-8")
        return BuildResult(
            status=status,
            key=self._key,
            library=library,
            log_tail=_both_ends(said),
            compiler=self._compiler.first_line,
            seconds=time.monotonic() - self._started,
        )

    def _said(self) -> str:
        if not self._log.exists():
            return ""
        text = self._log.read_bytes()[: 4 * 2**20].decode("utf-8", errors="replace")
        for folder in (self.folder, self._scratch):
            text = text.replace(f"{folder}/", "")
        return text


def _both_ends(text: str) -> str:
    if len(text) <= LOG_LIMIT:
        return text
    cut = "\n[...]\n"
    head = (LOG_LIMIT - len(cut)) // 2
    return text[:head] + cut + text[-(LOG_LIMIT - len(cut) - head) :]


def _nearly_full(folder: Path) -> bool:
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize < NEARLY_FULL or free.f_favail == 0


def _language(request: requests.Build) -> Language:
    """The task's; a baseline's is what its file's name says, since a Triton task can be timed against CUDA code."""
    if request.role == "baseline":
        return next((one for one in Language if one.suffix == request.source.suffix), request.task.language)
    return request.task.language


def _missing_entry(library: Path, interface: Interface, language: Language) -> str | None:
    if language is Language.TRITON:
        known = json.loads((library.parent / python_rules.OUTLINE).read_text())["functions"]
        names = [argument.name or argument.kind.value for argument in interface.arguments]
        return python_rules.missing_entry(known, interface.entry, names)
    try:
        exported = audit.exported_functions(library)
    except (ELFError, OSError) as error:
        return f"the linker's output is not a shared object: {error}"
    if interface.entry in exported:
        return None
    shown = ", ".join(exported[:10]) + (f" and {len(exported) - 10} more" if len(exported) > 10 else "")
    return f'exports no function {interface.entry!r} (extern "C" is needed); it exports: {shown or "nothing"}'
