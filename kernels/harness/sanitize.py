"""The memory check of C++ kernels: built again with AddressSanitizer and UBSan, and called in a process of its own.

It finds mistakes: reads and writes past the end of a buffer, use after free, signed overflow, leaks. It is no wall
against a hostile kernel, which could tell that it is watched: that is what the arena's guards and the runner's filter
are for. Reads of memory that nobody wrote are not found (that takes MemorySanitizer, which g++ does not have).
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from kernels.harness import build, leash, sandbox, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.clock import HERE
from kernels.harness.gate import Case, Gate, elements
from kernels.harness.interface import POINTERS, call_source, slots
from kernels.harness.trial import Question
from specs.errors import GateError
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind, Interface, Language, Task

log = structlog.get_logger()

# Counted: everything of `undefined` that is a mistake on every machine, signed overflow, misaligned and null accesses,
# shifts and bounds among it. Not counted: unsigned wrap-around, which is defined; division of a float by zero and a
# conversion out of an integer's range, which are no part of `undefined` and have a meaning in IEEE arithmetic and in
# the instruction sets; vptr, which needs type information that a task's flags may have switched off.
FLAGS = (
    "-O1", "-g", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all",
    "-U__SANITIZE_ADDRESS__",  # the source is to compile as it always does
)  # fmt: skip
OPTIONS = (
    "exitcode=86:detect_leaks={leaks}:handle_abort=1:detect_stack_use_after_return=1:allocator_may_return_null=0:"
    "max_allocation_size_mb=4096:print_legend=0:print_full_thread_history=0:color=never"
)
CHEAP_ELEMENTS = 4 << 20  # of all tensors together, up to which the cheapest config is called too
TIMEOUT_S = 60.0
LOG_BYTES = 4 << 20
ADDRESS_SPACE = 1 << 46  # a sanitizer reserves terabytes for its shadow and touches little of it
# Reports that say something of the machine or of the check, and nothing of the kernel.
_NO_FINDING = ("out of memory", "out-of-memory", "allocation size", "failed to allocate", "CHECK failed")
_OPTS_OUT = re.compile(r"\bno_sanitize|\b__(?:lsan|asan|ubsan|sanitizer)_|disable_sanitizer_instrumentation")

PASSED = "passed"


class MemoryFault(CandidateFault):
    """A finding; `case` is the one that was being called, "at the end" for what shows only then."""

    def __init__(self, case: str, message: str) -> None:
        super().__init__(FailureKind.MEMORY_ERROR, message)
        self.case = case


@dataclass(frozen=True, slots=True)
class _Call:
    question: Question
    stages: bool


def check(gate: Gate, task: Task, source: Path, builds: Path, isolation: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Build `source` with sanitizers and call it: a sentence about what was checked.

    Raises MemoryFault for a finding. Everything that keeps the check from being made is part of the
    sentence, `not checked: ...`: no compiler's library, a source that does not build so, too long a time.
    """
    if task.language is not Language.CPP:
        return f"not checked: there is no such check for {task.language.value}"
    if _OPTS_OUT.search(build.read_source(source).decode("utf-8", errors="replace")):
        return "not checked: the source speaks of sanitizers"
    interface = trial.interface_of(task)
    try:
        program = build.compile_tool(
            "checked",
            HERE / "checked.cpp",
            ["-std=c++17", "-O1", "-g", "-fsanitize=address", "-ldl"],
            builds,
            extra={"protocol.h": (HERE / "protocol.h").read_text(), "call.inc": call_source(interface)},
        )
    except GateError as error:
        log.warning("no_memory_check", reason=str(error))
        return "not checked: g++ cannot link with AddressSanitizer here (libasan is missing?)"
    library = build.build_sanitized(task, source, FLAGS, builds)
    if library is None:
        return "not checked: the source does not build with -fsanitize=address,undefined"
    calls = list(_calls(gate, task))
    with tempfile.TemporaryDirectory(prefix="ferret-") as folder:
        (Path(folder) / "cases").write_bytes(_cases(interface, calls))
        return _judged(interface, calls, _run(interface, program, library, Path(folder), isolation, timeout_s))


def _calls(gate: Gate, task: Task) -> list[_Call]:
    """The gate's edge cases on its first distribution and on one more, then the cheapest config, if it is small."""
    rng = trial.secret_rng()
    configs = [Case(name=config.name, args=config.args) for config in task.configs]
    cheapest = min(configs, key=lambda case: elements(task, case))
    cases = list(gate.edges)
    if elements(task, cheapest) <= CHEAP_ELEMENTS or not cases:
        cases.append(cheapest)
    has_stages = bool(trial.interface_of(task).of(ArgumentKind.STAGE))
    calls = []
    for case in cases:
        other = str(rng.choice(gate.distributions[1:])) if len(gate.distributions) > 1 else gate.distributions[0]
        first = trial.ask(gate, task, case, gate.distributions[0], rng)
        second = trial.ask(gate, task, case, other, rng)
        calls += [_Call(first, has_stages), _Call(second, stages=False)]
    return calls


def _cases(interface: Interface, calls: Sequence[_Call]) -> bytes:
    """What checked.cpp reads."""
    scalar, null, given, scratch = range(4)
    parts = [struct.pack("<Q", len(calls))]
    for call in calls:
        buffers = {buffer.name: buffer for buffer in call.question.buffers}
        raw = slots(interface, call.question.variables, {})
        parts.append(struct.pack("<Q", len(interface.arguments)))
        for argument, value in zip(interface.arguments, raw, strict=True):
            if argument.kind not in POINTERS:
                parts.append(struct.pack("<QQ", scalar, int(value)))
            elif argument.kind is ArgumentKind.STAGE and not call.stages:
                parts.append(struct.pack("<QQ", null, 0))
            else:
                size = buffers[str(argument.name)].nbytes
                is_input = argument.kind is ArgumentKind.INPUT
                parts.append(struct.pack("<QQ", given if is_input else scratch, size))
                if is_input:
                    content = call.question.private[str(argument.name)]
                    parts += [np.ascontiguousarray(content).tobytes(), bytes(-size % 8)]
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Run:
    timed_out: bool
    code: int
    said: str  # by checked.cpp
    report: str  # by the sanitizers
    leaks: bool  # were looked for


def _run(interface: Interface, program: Path, library: Path, folder: Path, isolation: str, timeout_s: float) -> _Run:
    walled = isolation == "bubblewrap"
    # The leak check starts a helper of its own, which only a bubblewrap keeps in.
    options = OPTIONS.format(leaks=int(walled))
    environment = {**sandbox.ENVIRONMENT, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1:color=never"}
    own = ["cases", str(library), interface.entry, str(int(not walled))]
    if walled:
        files = {program: "/ferret/checked", library: "/ferret/kernel.so", folder / "cases": "/ferret/cases"}
        own[:2] = ["/ferret/cases", "/ferret/kernel.so"]
        argv = [*sandbox.enclosed(files, environment), "/ferret/checked", *own]
    else:
        argv = [str(program), *own]
    limits = leash.Limits(cpu_s=int(timeout_s) + 5, memory_bytes=ADDRESS_SPACE, file_bytes=LOG_BYTES)
    said, report = folder / "said", folder / "report"
    finished = leash.run(
        argv, folder=folder, environment=environment, log=said, errors=report, timeout_s=timeout_s, limits=limits
    )
    text, told = (path.read_text(encoding="utf-8", errors="replace") for path in (said, report))
    return _Run(finished.timed_out, finished.returncode, text, told, walled)


# ---------------------------------------------------------------- what the sanitizers say


def _judged(interface: Interface, calls: Sequence[_Call], run: _Run) -> str:
    """A sentence, or MemoryFault with the first line of the report."""
    begun = re.findall(r"^call (\d+)$", run.said, re.MULTILINE)
    finished = re.search(r"^called \d+$", run.said, re.MULTILINE) is not None
    finding = _finding(interface, run)
    if finding is not None:
        if finished or not begun:
            raise MemoryFault("at the end" if finished else "loading", finding)
        question = calls[int(begun[-1])].question
        raise MemoryFault(question.case.name, f"{question.told}: {finding}")
    if run.timed_out:
        return f"not checked beyond {max(0, len(begun) - 1)} of {len(calls)} calls, which took too long with sanitizers"
    if run.code != 0 or not finished:
        words = [line.strip() for line in (run.said + run.report).splitlines() if line.strip()]
        said = next((line for line in words if "gave up" in line or "ERROR" in line or "bwrap" in line), "")
        log.warning("no_memory_check", status=run.code, said=run.report[-500:])
        return f"not checked: the check ended with status {run.code}" + (f" ({said[:200]})" if said else "")
    leaks = ", leaks included" if run.leaks else ", leaks not included"
    return f"{PASSED}: {len(calls)} calls with AddressSanitizer and UBSan{leaks}"


def _finding(interface: Interface, run: _Run) -> str | None:
    """The first finding of the report, in one line with the kernel's own place; None when there is none."""
    report = run.report
    if undefined := re.search(r"^(?:\S*/)?([\w.+-]+:\d+)(?::\d+)?: runtime error: (.+)$", report, re.MULTILINE):
        place, what = undefined.groups()
        return f"undefined behaviour: {_printable(what)} at {place}"
    head = re.search(r"ERROR: (Address|Leak)Sanitizer:? (.+)$", report, re.MULTILINE)
    if head is None or any(word in head[2] for word in _NO_FINDING):
        return None
    at = _place(report[head.end() :])
    if head[1] == "Leak":
        leak = re.search(r"^(?:Direct|Indirect) leak of (\d+) byte\(s\) in (\d+) object\(s\)", report, re.MULTILINE)
        size = f": {leak[1]} bytes in {leak[2]} objects" if leak else ""
        return f"leak{size}, made{at}, are never given back"
    what = head[2].split(" on ")[0].split(":")[0].strip()
    access = re.search(r"^(READ|WRITE) of size (\d+)", report, re.MULTILINE)
    return f"{_printable(what)}{f': {access[1]} of size {access[2]}' if access else ''}{at}{_relative(interface, run)}"


def _place(report: str) -> str:
    """` at kernel.cpp:12`: the first frame that is the kernel's own."""
    frame = re.search(r"^\s+#\d+ 0x\w+ .*?\b(kernel\.\w+:\d+)", report, re.MULTILINE)
    return f" at {frame[1]}" if frame else ""


def _relative(interface: Interface, run: _Run) -> str:
    """`, 0 bytes past the end of x`: where the access was, when that is a block of ours or of the kernel's."""
    found = re.search(
        r"(\d+) bytes (to the right of|to the left of|inside of|after|before|inside) (\d+)-byte region \[(0x[0-9a-f]+)",
        run.report,
    )
    if found is None:
        return ""
    # Of the last call: addresses come round again.
    last = run.said.rpartition("\ncall ")[2]
    blocks = {
        int(address, 16): int(index) for index, address in re.findall(r"^block (\d+) (0x\w+)$", last, re.MULTILINE)
    }
    index = blocks.get(int(found[4], 16))
    what = f"a block of {found[3]} bytes" if index is None else str(interface.arguments[index].name)
    side = {
        "to the right of": "past the end of", "after": "past the end of",
        "to the left of": "before the start of", "before": "before the start of",
    }.get(found[2], "into")  # fmt: skip
    return f", {found[1]} bytes {side} {what}"


def _printable(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:300].strip()
