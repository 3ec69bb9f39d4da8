"""Stage 5 on a GPU: the four tools of compute-sanitizer watch the candidate's device code at work."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kernels.harness import cubin
from kernels.harness.arena import CandidateFault
from kernels.harness.gpu.process import Executor
from kernels.harness.gpu.runner import MODULE, STREAM, Parts, Recorder
from kernels.harness.interface import slots
from kernels.harness.tape import Facts
from kernels.harness.trial import Question
from specs.errors import RunnerLost
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Instructions whose effects these two tools do not follow, as SASS spells them: arriving at a barrier without waiting
# there, transaction barriers, copies by the copy engines. Seen on an H200: racecheck reports races between warps that
# hand over by bar.arrive and bar.sync, initcheck reads of a descriptor that was written through the engine's own path.
UNFOLLOWED = {
    "racecheck": re.compile(r"\b(BAR\.ARV|SYNCS|UBLKCP|UTMALDG|UTMASTG|UTMAREDG|LDGSTS)\b"),
    "initcheck": re.compile(r"\b(UBLKCP|UTMALDG|UTMASTG|UTMAREDG|UTMACCTL)\b"),
}
FOUND = 77  # exit status that the tools are told to end with when they found something
CALL_TIMEOUT_S = 120.0  # code that is watched runs many times slower
START = re.compile(
    r"^=+ (?P<what>(?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY)\S.*)$", re.MULTILINE
)
PLACE = re.compile(r"^=+ +at .*?(?P<place>[\w.]+\.(?:cu|cuh|py):\d+)", re.MULTILINE)

MakeRecorder = Callable[[Facts], Recorder]


def available() -> bool:
    return shutil.which("compute-sanitizer") is not None


def check(
    parts: Parts, code: cubin.DeviceCode | None, make_recorder: MakeRecorder, questions: Sequence[Question]
) -> str:
    """What was watched, as a sentence: the tools that found nothing, and the findings that are none.

    Every buffer is an allocation of just its size here, so that an access past its end is seen. Raises CandidateFault
    with what the first tool found.
    """
    if not available():
        return "not checked: compute-sanitizer is not installed"
    watched: list[str] = []
    doubtful: list[str] = []
    processes: dict[str, Executor] = {}
    try:
        for tool in TOOLS:  # they start side by side, which is most of what they take
            under = (
                "compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "2",
                "--report-api-errors", "no",
            )  # fmt: skip
            processes[tool] = Executor(parts.isolation, parts.ordinal, parts.kernels, under=under)
        for tool, executor in processes.items():
            executor.await_ready()
            images: list[bytes] = [code.image] if code is not None and code.image else []
            try:
                _watch(tool, executor, parts, code, make_recorder, questions, images)
                watched.append(tool)
            except CandidateFault as fault:
                reason = unfollowed(tool, images) if fault.kind is FailureKind.MEMORY_ERROR else None
                if reason is None:
                    raise
                doubtful.append(f"{tool} does not follow {reason}, and what it said is no finding ({fault.message})")
    finally:
        for executor in processes.values():
            executor.close()
    on = ", ".join(question.case.name for question in questions)
    return "; ".join([f"passed: compute-sanitizer {', '.join(watched)} on {on}", *doubtful])


def unfollowed(tool: str, images: Sequence[bytes]) -> str | None:
    """The instructions in this device code that a tool cannot follow; None when it can follow all of them.

    Without a disassembler nothing is known of the code, and the tools with such limits are not believed.
    """
    pattern = UNFOLLOWED.get(tool)
    if pattern is None:
        return None
    program = disassembler()
    if program is None:
        return "code that cannot be disassembled here (there is no cuobjdump)"
    found: set[str] = set()
    for image in images:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(image)
            file.flush()
            try:
                listing = subprocess.run(
                    [program, "-sass", file.name], capture_output=True, timeout=120, check=False
                ).stdout.decode(errors="replace")
            except subprocess.TimeoutExpired:
                return "code that takes too long to disassemble"
        found.update(match.group(1) for match in pattern.finditer(listing))
    return ", ".join(sorted(found)) or None


def disassembler() -> str | None:
    """cuobjdump: the toolkit's, or the one that comes with Triton."""
    if (found := shutil.which("cuobjdump")) is not None:
        return found
    spec = importlib.util.find_spec("triton")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        bundled = Path(place) / "backends" / "nvidia" / "bin" / "cuobjdump"
        if bundled.is_file():
            return str(bundled)
    return None


def _watch(
    tool: str,
    executor: Executor,
    parts: Parts,
    code: cubin.DeviceCode | None,
    make_recorder: MakeRecorder,
    questions: Sequence[Question],
    images: list[bytes],
) -> None:
    """Raises CandidateFault for what one tool found; `images` gets the device code that is made as it is called."""
    head, properties = executor.ask({"do": "facts"}, timeout_s=CALL_TIMEOUT_S)
    variables = {}
    if code is not None and code.image:
        asked = {"do": "load", "module": MODULE, "variables": list(code.variables)}
        loaded, _ = executor.ask(asked, code.image, timeout_s=CALL_TIMEOUT_S)
        variables = {name: (int(at), int(size)) for name, (at, size) in loaded["variables"].items()}
    facts = Facts(
        module=MODULE, kernels=code.kernels if code is not None else {}, stream=STREAM, arena=0,
        heap=(int(head["heap"][0]), int(head["heap"][1])), variables=variables,
        attributes={int(n): v for n, v in head["attributes"].items()}, properties=properties,
    )  # fmt: skip
    recorder = make_recorder(facts)
    sent = {MODULE}
    fault: Exception | None = None
    try:
        for question in questions:
            _call(executor, parts, recorder, question, sent, images)
    except (CandidateFault, RunnerLost) as error:
        fault = error  # what the tool has to say about it is worth more
    finally:
        recorder.close()
    status = executor.finish()
    told = executor.said(20_000).replace("; ", "\n")
    if status == FOUND or (fault is not None and START.search(told)):
        raise CandidateFault(FailureKind.MEMORY_ERROR, f"compute-sanitizer {tool}: {first_finding(told)}")
    if fault is not None:
        raise fault


def _call(
    executor: Executor, parts: Parts, recorder: Recorder, question: Question, sent: set[str], images: list[bytes]
) -> None:
    used = [b for b in question.buffers if b.kind is not ArgumentKind.STAGE]
    addresses, _ = executor.ask({"do": "allocate", "sizes": {b.name: b.nbytes for b in used}}, timeout_s=CALL_TIMEOUT_S)
    for buffer in used:
        if buffer.kind is ArgumentKind.INPUT:
            content = np.ascontiguousarray(question.private[buffer.name]).tobytes()
            executor.ask({"do": "write", "name": buffer.name}, content, timeout_s=CALL_TIMEOUT_S)
    places = {name: int(address) for name, address in addresses["addresses"].items()}
    arguments = slots(parts.interface, question.variables, places)
    tape = recorder.record_call(question.buffers, arguments, 0, CALL_TIMEOUT_S)
    for name, content in recorder.modules.items():
        if name not in sent:
            executor.ask({"do": "load", "module": name, "variables": []}, content, timeout_s=CALL_TIMEOUT_S)
            sent.add(name)
            images.append(content)
    executor.ask({"do": "run", "flush": False, "hidden": False}, tape.to_bytes(), timeout_s=CALL_TIMEOUT_S)


def first_finding(told: str) -> str:
    what = START.search(told)
    place = PLACE.search(told)
    where = f" at {place['place']}" if place else ""
    return (" ".join(what["what"].split()) if what else "an error") + where
