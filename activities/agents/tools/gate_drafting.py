"""The gate writer's tools: read what is canonical, write the gate's two files, have them admitted, hand them in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field

from activities.agents import reference_rules
from activities.agents.draft import Draft
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool, clipped
from activities.build import build_baseline
from activities.bundle import Bundle, with_gate
from activities.harness import Refused, Unanswered
from activities.judge import judge_library
from activities.lock_gate import locked_gate
from activities.process import run_process
from specs.dialogue import GateHandedIn
from specs.errors import GateError, UserError
from specs.outcomes import BlobRef

MOST_BYTES = 64 * 1024  # of one file of a gate
RULES_S = 30.0
FileName = Literal["gate.yaml", "reference.py"]


class ReadGateFileArguments(Arguments):
    name: FileName = Field(description="The file of your draft.")


class WriteGateFileArguments(Arguments):
    name: FileName = Field(description="The file of your draft.")
    content: str = Field(min_length=1, description="The whole file.")


class SubmitGateArguments(Arguments):
    summary: str = Field(min_length=1, max_length=400, description="What the gate checks, and where each part is from.")


class ReadGateFile(Tool[ReadGateFileArguments]):
    name = "read_gate_file"
    description = "Read a file of the draft as it stands."
    arguments = ReadGateFileArguments

    async def use(self, desk: Desk, given: ReadGateFileArguments) -> Answer:
        draft = await draft_of(desk)
        if given.name not in draft.files:
            written = ", ".join(sorted(draft.files)) or "nothing yet"
            return Answer(f"{given.name} is not written; the draft has: {written}", error=True)
        return Answer(clipped((await desk.workshop.store.get(draft.files[given.name])).decode(), 20_000))


class WriteGateFile(Tool[WriteGateFileArguments]):
    name = "write_gate_file"
    description = (
        "Write a file of the gate, whole. reference.py may import numpy, ml_dtypes and math and has "
        "make_inputs(rng, args, distribution) and reference(inputs, args), which answers in float64."
    )
    arguments = WriteGateFileArguments

    async def use(self, desk: Desk, given: WriteGateFileArguments) -> Answer:
        content = given.content.encode(errors="replace")
        if len(content) > MOST_BYTES:
            return Answer(f"{given.name} has {len(content)} bytes; at most {MOST_BYTES} are accepted", error=True)
        if given.name == "reference.py" and (found := await _objections(desk, content)):
            return Answer("not written:\n" + clipped("\n".join(found), 2_000), error=True)
        draft = await draft_of(desk)
        ref = await desk.workshop.store.put(content)
        files = dict(sorted({**draft.files, given.name: ref}.items()))
        kept = await desk.workshop.store.put(Draft(files=files).model_dump_json().encode())
        lines = given.content.count("\n") + 1
        return Answer(
            f"{given.name} written, {lines} lines; the draft has {', '.join(files)}",
            workspace=desk.workspace.model_copy(update={"gate": kept}),
            said=f"{given.name}, {lines} lines",
        )


class AdmitGate(Tool[NoArguments]):
    name = "admit_gate"
    description = (
        "Try the draft: it is loaded and hashed, wrong answers made from its own golden must all fail against it, and "
        "the vendor's baseline must pass it on every case."
    )
    arguments = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        draft = desk.workspace.gate
        if draft is None or set((await draft_of(desk)).files) != {"gate.yaml", "reference.py"}:
            return Answer("the draft is not whole: gate.yaml and reference.py are both needed", error=True)
        try:
            told = await _admitted(desk, draft)
        except (GateError, UserError) as error:
            return _refused(str(error))
        except Refused as refused:
            if refused.refusal.retryable:
                raise
            return _refused(refused.refusal.message)
        except Unanswered as error:
            return _refused(str(error))
        if told:
            return _refused(told)
        return Answer(
            "admitted: no wrong answer got through, and the baseline passes every case. Hand it in with submit_gate.",
            workspace=desk.workspace.model_copy(update={"admitted": draft}),
            said="admitted",
        )


class SubmitGate(Tool[SubmitGateArguments]):
    name = "submit_gate"
    description = "Hand the draft in; accepted only as it was when admit_gate last admitted it. Ends the conversation."
    arguments = SubmitGateArguments

    async def use(self, desk: Desk, given: SubmitGateArguments) -> Answer:
        draft = desk.workspace.gate
        if draft is None or draft != desk.workspace.admitted:
            return Answer("not taken: the draft as it stands was not admitted; call admit_gate first", error=True)
        return Answer("handed in", final=GateHandedIn(gate=draft), said=" ".join(given.summary.split())[:200])


async def draft_of(desk: Desk) -> Draft:
    if desk.workspace.gate is None:
        return Draft()
    return Draft.model_validate_json(await desk.workshop.store.get(desk.workspace.gate))


async def _objections(desk: Desk, content: bytes) -> list[str]:
    with desk.workshop.harness.folder() as folder:
        source, out = folder / "reference.py", folder / "findings.json"
        source.write_bytes(content)
        rules = Path(reference_rules.__file__)
        done = await run_process([sys.executable, "-I", "-S", rules, source, out], cwd=folder, timeout_s=RULES_S)
        if done.code != 0 or not out.exists():
            return ["line 1: this text ends the parser; write it plainly"]
        found: list[str] = json.loads(out.read_text())
        return found


async def _admitted(desk: Desk, draft: BlobRef) -> str:
    """Why not; empty when it is admitted."""
    workshop, session = desk.workshop, desk.session
    files = Draft.model_validate_json(await workshop.store.get(draft)).files
    bundle: Bundle = await workshop.bundle(await with_gate(session.bundle, files, workshop.store))
    with workshop.harness.folder() as folder:
        locked = await locked_gate(workshop, bundle, session.sandbox, folder)
        baseline = await build_baseline(workshop, bundle, folder)
    verdict = await judge_library(workshop, bundle, locked, baseline, session.sandbox, role="baseline", held_out=True)
    if verdict.failure is None:
        return ""
    return f"the vendor's baseline fails it: {verdict.failure.told}"


def _refused(message: str) -> Answer:
    return Answer(f"not admitted: {clipped(message, 3_000)}", error=True, said=f"not admitted: {message}"[:200])
