"""All tools by name: who is offered which, what they look like to a model, and how a call of one is answered."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError

from activities.agents import transcript
from activities.agents.pages import one_line
from activities.agents.session import Session
from activities.agents.tools.checking import Check
from activities.agents.tools.compiling import Compile
from activities.agents.tools.docs import ReadDoc, SearchDocs
from activities.agents.tools.gate_drafting import AdmitGate, ReadGateFile, SubmitGate, WriteGateFile
from activities.agents.tools.history import ReadHistory
from activities.agents.tools.kernel import EditKernel, ReadKernel, WriteKernel
from activities.agents.tools.machine_code import Assembly, Sass
from activities.agents.tools.measuring import Measure
from activities.agents.tools.notes import TakeNote
from activities.agents.tools.profiling import Profile
from activities.agents.tools.references import ReadCanonical, ReadReference
from activities.agents.tools.reviewing import GiveVerdict
from activities.agents.tools.submit import Submit, SubmitPlan
from activities.agents.tools.tool import Answer, Desk, Tool, clipped
from activities.heartbeat import queue_wait_s
from activities.use_tool import ToolOutcome, UseToolInput
from activities.workshop import Workshop
from specs.dialogue import Mode, Role
from specs.errors import FerretError
from specs.near_miss import near_miss
from specs.outcomes import Stage
from specs.schema import Language
from specs.wording import given as shown

MOST = 20_000  # characters of any answer; tools keep to less by themselves
SAID = 160  # characters; they stand in the history, where a turn with its call has 4 kB
MOST_FAULTS = 6  # of one input that an answer names
NOT_RUN = Answer("Not run: too many calls in one message. Call it again if it is still wanted.", error=True)

_READING = ("history", "read_doc", "read_kernel", "read_reference", "search_docs")
_WORKING = ("check", "compile", "edit_kernel", "measure", "submit", "write_kernel")
_REVIEWING = ("give_verdict", "read_doc", "read_kernel", "read_reference")
_DRAFTING = ("admit_gate", "read_canonical", "read_gate_file", "read_reference", "submit_gate", "write_gate_file")
_MACHINE = {Language.CPP: "assembly", Language.CUDA: "sass", Language.TRITON: "sass"}

TOOLS: dict[str, Tool[Any]] = {
    tool.name: tool
    for tool in (
        AdmitGate(), Assembly(), Check(), Compile(), EditKernel(), GiveVerdict(), Measure(), Profile(), ReadCanonical(),
        ReadDoc(), ReadGateFile(), ReadHistory(), ReadKernel(), ReadReference(), Sass(), SearchDocs(), Submit(),
        SubmitGate(), SubmitPlan(), TakeNote(), WriteGateFile(), WriteKernel(),
    )
}  # fmt: skip


def offered(role: Role, mode: Mode, stage: Stage, language: Language) -> tuple[str, ...]:
    """Names of a conversation's tools, sorted. Both stages have the same, so that a server can keep the prefix.

    What a stage does not allow is answered by the tool itself.
    """
    if role is Role.REVIEWER:
        return _REVIEWING
    if role is Role.GATE_WRITER:
        return _DRAFTING
    work = ("submit_plan",) if mode is Mode.RESEARCH else _WORKING
    return tuple(sorted((*_READING, "note", "profile", _MACHINE[language], *work)))


def schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """As the Messages API takes tools, in this order; the same bytes every time."""
    return [{"name": name, "description": TOOLS[name].description, "input_schema": _schema(name)} for name in names]


async def use(workshop: Workshop, given: UseToolInput) -> ToolOutcome:
    """Answer one call. Whatever the model got wrong is an answer that says so."""
    session = Session.model_validate_json(await workshop.store.get(given.session))
    block = _block(await transcript.last(workshop.store, given.head), given)
    answer = await _answer(workshop, session, given, block) if given.run else NOT_RUN
    result = {
        "type": "tool_result",
        "tool_use_id": block["id"],
        "content": _sound(clipped(answer.text, MOST)),
        "is_error": answer.error,
    }
    return ToolOutcome(
        answer=await workshop.store.put(json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()),
        error=answer.error,
        workspace=answer.workspace,
        final=answer.final,
        said=one_line(answer.said or answer.text, SAID),
        queue_wait_s=queue_wait_s(),
    )


def _block(message: transcript.Message, given: UseToolInput) -> dict[str, Any]:
    """The call in the message. Raises FerretError when there is none: then the workflow and the transcript differ."""
    content = message.get("content")
    block = content[given.call.at] if isinstance(content, list) and given.call.at < len(content) else None
    if not isinstance(block, dict) or block.get("type") != "tool_use" or "id" not in block:
        raise FerretError(f"message {given.head.sha256[:12]} holds no tool call at block {given.call.at}")
    return block


async def _answer(workshop: Workshop, session: Session, given: UseToolInput, block: dict[str, Any]) -> Answer:
    name = block.get("name")
    if name not in session.tools or name not in TOOLS:
        meant = near_miss(str(name), session.tools)
        hint = f"; did you mean {meant!r}?" if meant else ""
        return Answer(f"no tool {one_line(repr(name), 80)} here{hint}; offered: {', '.join(session.tools)}", error=True)
    tool = TOOLS[name]
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        return Answer(f"input: {shown(arguments)} given; accepted: {_accepted(_schema(name))}", error=True)
    if re.search("[\ud800-\udfff]", json.dumps(arguments, ensure_ascii=False)):
        return Answer("input: half of a character (a lone surrogate) given; accepted: text in Unicode", error=True)
    try:
        validated = tool.arguments.model_validate(arguments)
    except ValidationError as error:
        return Answer(_faults(error, name), error=True)
    desk = Desk(workshop, session, await workshop.bundle(session.bundle), given.workspace)
    return await tool.use(desk, validated)


def _sound(text: str) -> str:
    """Without halves of characters and zero bytes, which no JSON parser has to take."""
    return re.sub("[\0\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


# ---------------------------------------------------------------- what a wrong input is told


def _faults(error: ValidationError, name: str) -> str:
    """A line a fault: the field, what was given, what is accepted."""
    faults = error.errors(include_url=False)
    told = [_fault(fault["type"], fault["loc"], fault["input"], _schema(name)) for fault in faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        told.append(f"and {len(faults) - MOST_FAULTS} more")
    return f"{name} was not run:\n" + "\n".join(told)


def _fault(kind: str, place: tuple[int | str, ...], given: Any, schema: dict[str, Any]) -> str:
    field = one_line(".".join(map(str, place)), 80)
    if kind == "extra_forbidden":
        known = list(_at(schema, place[:-1]).get("properties", {}))
        meant = near_miss(str(place[-1]), known)
        hint = f"; did you mean {meant!r}?" if meant else ""
        return f"{field}: no such field{hint}; accepted: {', '.join(known) or 'no field at all'}"
    accepted = _accepted(_at(schema, place))
    return (
        f"{field}: missing; accepted: {accepted}"
        if kind == "missing"
        else (f"{field}: {shown(given)} given; accepted: {accepted}")
    )


def _at(schema: dict[str, Any], place: tuple[int | str, ...]) -> dict[str, Any]:
    for part in place:
        schema = schema.get("items", {}) if isinstance(part, int) else schema.get("properties", {}).get(part, {})
    return schema


def _accepted(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(_accepted(one) for one in schema["anyOf"])
    match schema.get("type"):
        case "null":
            return "nothing"
        case "string":
            return f"text{_range(schema, 'minLength', 'maxLength', ' characters')}"
        case "integer":
            return f"a whole number{_range(schema, 'minimum', 'maximum', '')}"
        case "number":
            return f"a number{_range(schema, 'minimum', 'maximum', '')}"
        case "boolean":
            return "true or false"
        case "array":
            return f"a list{_range(schema, 'minItems', 'maxItems', ' items')}, each {_accepted(schema['items'])}"
        case _:
            fields = ", ".join(schema.get("properties", {}))
            return f"an object with the fields {fields}" if fields else "an empty object"


def _range(schema: dict[str, Any], least: str, most: str, unit: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if low is None and high is None:
        return ""
    if high is None:
        return f" of at least {low}{unit}"
    return f" of at most {high}{unit}" if low is None else f" of {low} to {high}{unit}"


# ---------------------------------------------------------------- the tools


@cache
def _schema(name: str) -> dict[str, Any]:
    schema = TOOLS[name].arguments.model_json_schema()
    plain = _plain(schema, schema.get("$defs", {}))
    plain.pop("description", None)  # of the class, for readers of the code
    return plain


def _plain(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Without titles and with every definition in its place."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]] | {k: v for k, v in schema.items() if k != "$ref"}
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            plain[key] = {name: _plain(inner, definitions) for name, inner in value.items()}
        elif key == "items":
            plain[key] = _plain(value, definitions)
        elif key == "anyOf":
            plain[key] = [_plain(inner, definitions) for inner in value]
        elif key not in ("title", "$defs"):
            plain[key] = value
    return plain
