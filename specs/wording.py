"""Says in plain words what a task file gave and what the schema accepts: never pydantic's own phrasing."""

from __future__ import annotations

from enum import Enum
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specs import expressions
from specs.document import Document, Location
from specs.errors import Problem
from specs.near_miss import Lifted, known_keys
from specs.schema import Block, Task

SHOWN = 60  # characters of a value that an error repeats


def given(value: Any) -> str:
    """What stands in the file: `'fast' (text)`, `true (a truth value)`, `[1, 2] (a list)`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (a truth value)"
        case int() | float():
            return f"{value!r} (a number)"
        case str():
            return f"{_cut(repr(value))} (text)"
        case list():
            return f"{_cut(repr(value))} (a list)"
        case _:
            return f"{_cut(repr(value))} (a mapping)"


def accepted(annotation: Any, constraints: list[Any]) -> str:
    """What a field takes, from its type and limits: `a number greater than 0`."""
    annotation, constraints = _unwrap(annotation, constraints)
    limits = _limits(constraints)
    origin, inner = get_origin(annotation), get_args(annotation)
    if any(getattr(c, "func", None) is expressions.check for c in constraints):
        return f"an expression over {expressions.ACCEPTED}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        least = "at least one" if "min_length" in limits else ""
        most = f"at most {limits['max_length']}" if "max_length" in limits else ""
        count = " and ".join(part for part in (least, most) if part)
        return f"a list of {count}{', each ' if count else ''}{accepted(inner[0], [])}"
    if origin is dict:
        return "a mapping" if inner[1] is Any else f"a mapping of names to {accepted(inner[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(str(member.value) for member in annotation)}"
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return f"a mapping with the keys {', '.join(known_keys(annotation))}"
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"a whole number{_range(limits)}"
    if annotation is float:
        return f"a number{_range(limits)}"
    if annotation is str:
        if "pattern" in limits:
            return "a C identifier (letters, digits and _, no digit first)"
        return f"text of 1 to {limits['max_length']} characters" if "max_length" in limits else "text"
    if len(inner) > 1:  # Scalar is the one union left
        return "a number, text, true or false"
    return "another value"


def problems_of(error: ValidationError, document: Document, lifted: Lifted) -> list[Problem]:
    """One Problem a place, with its line; a list is not called wrong when one of its items is."""
    entries = [(_walk(entry["loc"]), entry) for entry in error.errors()]
    around = {at[:end] for (at, _, _), _ in entries for end in range(len(at))}
    problems: dict[Location, Problem] = {}
    for (at, annotation, constraints), entry in entries:
        if at in problems or at in lifted.meant or at in around:
            continue
        takes = accepted(annotation, constraints)
        cause = entry.get("ctx", {}).get("error")
        if entry["type"] == "value_error" and isinstance(cause, ValueError):
            message = str(cause)
        elif entry["type"] == "missing":
            message = f"is missing; accepted: {takes}"
        else:
            message = f"{given(_at(lifted.data, at))} given; accepted: {takes}{_advice(takes, _at(lifted.data, at))}"
        problems[at] = document.problem(at, message)
    return list(problems.values())


def _advice(takes: str, value: Any) -> str:
    if takes.startswith("text") and isinstance(value, bool | int | float):
        return " (put it in quotes)"
    if "number" in takes and "text" not in takes and isinstance(value, str):
        return " (without quotes)" if _is_number(value) else ""
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _walk(loc: tuple[int | str, ...]) -> tuple[Location, Any, list[Any]]:
    """Follow pydantic's location through the schema, leaving out the parts it adds for the members of a union."""
    at: Location = ()
    annotation: Any = Task
    constraints: list[Any] = []
    for part in loc:
        inner = get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Block) and part in annotation.model_fields:
            info: FieldInfo = annotation.model_fields[str(part)]
            annotation, constraints = _unwrap(info.annotation, list(info.metadata))
        elif get_origin(annotation) is tuple:
            annotation, constraints = _unwrap(inner[0], [])
        elif get_origin(annotation) is dict:
            annotation, constraints = _unwrap(inner[1], [])
        else:
            break
        at = (*at, part)
    return at, annotation, constraints


def _unwrap(annotation: Any, constraints: list[Any]) -> tuple[Any, list[Any]]:
    """`Annotated[float, Field(gt=0)] | None` is a float with a limit."""
    members = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _unwrap(members[0], constraints + list(members[1:]))
    if NoneType in members and len(members) == 2:
        return _unwrap(next(member for member in members if member is not NoneType), constraints)
    return annotation, constraints


def _limits(constraints: list[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for constraint in constraints:
        parts = constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
        for part in parts:
            for name in ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern"):
                if getattr(part, name, None) is not None:
                    limits[name] = getattr(part, name)
    return limits


def _range(limits: dict[str, Any]) -> str:
    words = {"gt": "greater than", "ge": "from", "lt": "below", "le": "to"}
    return "".join(f" {word} {limits[name]}" for name, word in words.items() if name in limits)


def _at(data: Any, at: Location) -> Any:
    for part in at:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
