"""Opens a conversation: reads what the run knows, renders it, and keeps frame and first message in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from activities.agents import logbook, profiles, transcript
from activities.agents.draft import Draft
from activities.agents.pages import one_line
from activities.agents.prompts import blocks, gate_writer, optimizer, reviewer
from activities.agents.prompts.epochs import Before, Call
from activities.agents.prompts.stub import stub
from activities.agents.session import Session, Subject
from activities.agents.toolbox import offered
from activities.agents.transcript import Message
from activities.bundle import Bundle
from activities.llm.scripted import nothing_left
from activities.open_session import OpenSessionInput, OpenSessionResult
from activities.store import Store
from activities.workshop import Workshop
from kernels.harness import gate_yaml
from kernels.harness.gate_yaml import GateYaml
from specs.dialogue import Chapter, Mode, Question, Role, Workspace
from specs.notes import Notes, Section
from specs.outcomes import BlobRef, Iteration, Stage
from specs.schema import Model, Provider


async def open_conversation(workshop: Workshop, given: OpenSessionInput) -> OpenSessionResult:
    """The same input gives the same session and the same message. Raises StoreError, GateError and UserError."""
    bundle = await workshop.bundle(given.bundle)
    store, task = workshop.store, bundle.task
    past = await logbook.read(store, given.logbook)
    workspace = await _workspace(store, bundle, given, past)
    nothing, scripted = "", task.model.provider is Provider.SCRIPTED and given.role is Role.OPTIMIZER
    if scripted:
        nothing = nothing_left(bundle, given.script_position)
        message = blocks.prompt(f"Hand in the script's candidate at position {given.script_position}.")
    else:
        message = await _message(store, bundle, given, workspace, past)
    session = Session(
        run=given.run,
        place=f"{given.place}/{given.epoch}",
        role=given.role,
        mode=given.mode,
        stage=given.stage,
        language=task.language,
        model=_model(bundle, given),
        system=_system(bundle, given),
        tools=offered(given.role, given.mode, given.stage, task.language),
        bundle=given.bundle,
        sandbox=given.sandbox,
        lock=given.lock,
        baseline_library=given.baseline_library,
        champion=given.champion,
        logbook=given.logbook,
        start=given.began or workspace,
        subject=given.subject,
        script_position=given.script_position,
    )
    return OpenSessionResult(
        session=await store.put(session.model_dump_json().encode()),
        head=await transcript.append(store, None, {"role": "user", "content": message}),
        workspace=workspace,
        nothing=nothing,
    )


def _model(bundle: Bundle, given: OpenSessionInput) -> Model:
    """The run's; its files are where the bundle has put them."""
    laid_out = bundle.task.model
    if given.model is None:
        return laid_out
    return given.model.model_copy(update={"script": laid_out.script, "recording": laid_out.recording})


def _system(bundle: Bundle, given: OpenSessionInput) -> str:
    match given.role:
        case Role.OPTIMIZER:
            # The tools of one mode and stage, so that the prompt is the same in all.
            tools = offered(Role.OPTIMIZER, Mode.IMPROVE, Stage.OPTIMIZE, bundle.task.language)
            return optimizer.system(
                bundle.task, _gate(bundle), _calibration(given), references=tuple(bundle.references), tools=tools
            )
        case Role.REVIEWER:
            return reviewer.system()
        case Role.GATE_WRITER:
            return gate_writer.system(bundle.task)


async def _message(
    store: Store, bundle: Bundle, given: OpenSessionInput, workspace: Workspace, past: list[Iteration]
) -> str:
    before = await _before(store, given.earlier, given.because) if given.earlier else None
    match given.role:
        case Role.OPTIMIZER:
            return optimizer.opening(await _view(store, bundle, given, workspace, past, before))
        case Role.REVIEWER:
            if given.subject is None:
                raise ValueError(f"{given.place}: a reviewer needs a subject")
            return await _review(store, bundle, given, given.subject, past, before)
        case Role.GATE_WRITER:
            draft = await _draft(store, workspace.gate)
            return gate_writer.opening(tuple(bundle.canonical), draft, given.feedback, given.hints, before)


# ---------------------------------------------------------------- what a conversation begins with


async def _workspace(store: Store, bundle: Bundle, given: OpenSessionInput, past: list[Iteration]) -> Workspace:
    """As it was given; an optimiser that was given no kernel or notes has the best kernel and the last notes."""
    workspace = given.workspace
    if given.role is not Role.OPTIMIZER:
        return workspace
    kernel = workspace.kernel or await _kernel(store, bundle, given)
    notes = workspace.notes or await _last_notes(store, past, bundle.task.search.width)
    return workspace.model_copy(update={"kernel": kernel, "notes": notes})


async def _kernel(store: Store, bundle: Bundle, given: OpenSessionInput) -> BlobRef:
    if given.champion is not None:
        return given.champion.source
    return await store.put(_beginning(bundle))


def _beginning(bundle: Bundle) -> bytes:
    """The seed, or an entry around nothing."""
    return bundle.seed.read_bytes() if bundle.task.seed is not None else stub(bundle.task).encode()


async def _last_notes(store: Store, past: list[Iteration], width: int) -> BlobRef | None:
    """What the last round's iterations have noted; each of them began with the notes of the round before."""
    refs = [one.notes for one in past if one.notes is not None][-width:]
    found = [await _notes(store, ref) for ref in dict.fromkeys(refs)]
    if len(found) < 2:
        return refs[-1] if refs else None
    together = Notes()
    for section in (Section.UNTRIED, Section.TRIED):  # in this order, so that what one of them has tried stays tried
        for notes in found:
            for note in notes.untried if section is Section.UNTRIED else notes.tried:
                together = together.with_note(section, note)
    return await store.put(together.model_dump_json().encode())


# ---------------------------------------------------------------- what the prompts are made of


async def _view(
    store: Store,
    bundle: Bundle,
    given: OpenSessionInput,
    workspace: Workspace,
    past: list[Iteration],
    before: Before | None,
) -> optimizer.View:
    assert workspace.kernel is not None
    return optimizer.View(
        task=bundle.task,
        stage=given.stage,
        mode=given.mode,
        source=await _text(store, workspace.kernel),
        source_is=await _whose(store, bundle, given, workspace.kernel),
        champion=given.champion,
        baseline_us={} if given.baseline is None else {n: t.median_us for n, t in given.baseline.timings.items()},
        past=past,
        notes=await _notes(store, workspace.notes),
        bottleneck=await _bottleneck(store, workspace),
        hints=given.hints,
        plan="" if given.plan is None else await _text(store, given.plan),
        tools=offered(given.role, given.mode, given.stage, bundle.task.language),
        before=before,
    )


async def _whose(store: Store, bundle: Bundle, given: OpenSessionInput, kernel: BlobRef) -> str:
    if given.champion is not None and kernel == given.champion.source:
        return f"the champion {given.champion.version}"
    if await store.get(kernel) == _beginning(bundle):
        return "the task's seed" if bundle.task.seed is not None else "an empty entry, since there is no kernel yet"
    return "as you left it"


async def _bottleneck(store: Store, workspace: Workspace) -> optimizer.Bottleneck | None:
    if workspace.profile is None or workspace.kernel is None:
        return None
    found = await profiles.read(store, workspace.profile)
    return optimizer.Bottleneck(found.bottleneck, found.config, found.text, found.source == workspace.kernel.sha256)


async def _review(
    store: Store,
    bundle: Bundle,
    given: OpenSessionInput,
    subject: Subject,
    past: list[Iteration],
    before: Before | None,
) -> str:
    task = bundle.task
    source = "" if subject.kernel is None else await _text(store, subject.kernel)
    match subject.question:
        case Question.INTEGRITY:
            return reviewer.integrity(task, source, subject.figures, _gate(bundle), _calibration(given), before)
        case Question.PLAN:
            plan = "" if subject.plan is None else await _text(store, subject.plan)
            return reviewer.plan(task, plan, source, subject.figures, optimizer.tried(task, past), before)
        case Question.GATE:
            return reviewer.gate(task, await _draft(store, subject.gate), _canonical(bundle), before)


async def _draft(store: Store, ref: BlobRef | None) -> dict[str, str]:
    if ref is None:
        return {}
    draft = Draft.model_validate_json(await store.get(ref))
    return {name: await _text(store, file) for name, file in draft.files.items()}


def _canonical(bundle: Bundle) -> dict[str, str]:
    """Every canonical source by its name."""
    found = {}
    for name, path in bundle.canonical.items():
        for file in _files(path):
            inner = "" if file == path else f"/{file.relative_to(path).as_posix()}"
            found[f"{name}{inner}"] = file.read_text(errors="replace")
    return found


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def _gate(bundle: Bundle) -> GateYaml | None:
    """The contract and the limits; the reference stays where it is."""
    return None if bundle.task.gate is None else gate_yaml.parse((bundle.gate / "gate.yaml").read_bytes())


def _calibration(given: OpenSessionInput) -> Mapping[str, Mapping[str, float]]:
    return {} if given.lock is None else given.lock.calibration


async def _text(store: Store, ref: BlobRef) -> str:
    return (await store.get(ref)).decode(errors="replace")


async def _notes(store: Store, ref: BlobRef | None) -> Notes:
    return Notes() if ref is None else Notes.model_validate_json(await store.get(ref))


# ---------------------------------------------------------------- the stretch before


async def _before(store: Store, earlier: Chapter, because: str) -> Before:
    """The calls of the transcript so far, and the answers that it does not hold yet."""
    messages = await transcript.messages(store, earlier.head)
    late = [json.loads(await store.get(ref)) for ref in earlier.answers]
    return Before(_calls([*messages, {"role": "user", "content": late}]), because)


def _calls(messages: list[Message]) -> tuple[Call, ...]:
    found = [block for message in messages for block in _blocks(message)]
    answers = {block["tool_use_id"]: block for block in found if block.get("type") == "tool_result"}
    return tuple(_call(block, answers.get(block["id"])) for block in found if block.get("type") == "tool_use")


def _call(call: dict[str, Any], answer: dict[str, Any] | None) -> Call:
    name = one_line(call["name"], 64)
    if answer is None:
        return Call(name, "was not run", error=True)
    return Call(name, _first_line(answer.get("content", "")), error=bool(answer.get("is_error")))


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return [] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]


def _first_line(content: str | list[dict[str, Any]]) -> str:
    text = content if isinstance(content, str) else "\n".join(str(block.get("text", "")) for block in content)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
