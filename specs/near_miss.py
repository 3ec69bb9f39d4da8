"""Which known key did a person mean? Lifts the unknown keys of a task out as notes, and refuses the misspelt ones."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from specs.document import Document, Location, dotted
from specs.errors import Problem
from specs.schema import Block, Task

# "scorring" for "scoring" is 0.93; the nearest pair of words that both mean something, "target_tflops" and
# "target_ratio", is 0.72.
CUTOFF = 0.8
ABBREVIATION = 4  # letters; shorter ones abbreviate anything
LONGEST = 60  # characters; nobody misspells a known key at such length
LISTED = 10  # known keys that a message lists; the top level has more


def near_miss(key: str, known: Iterable[str]) -> str | None:
    """The known key that `key` probably stands for, or None."""
    if len(key) > LONGEST:
        return None
    plain = {re.sub(r"[^a-z0-9_]", "_", name.lower()): name for name in known}
    given = re.sub(r"[^a-z0-9_]", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip()).lower())
    if close := difflib.get_close_matches(given, plain, n=1, cutoff=CUTOFF):
        return plain[close[0]]
    for candidate, name in plain.items():
        if sorted(given) == sorted(candidate) or _abbreviates(given, candidate):
            return name
    return None


def _abbreviates(short: str, long: str) -> bool:
    """`max_iters` for `max_iterations`: word by word the same, or the beginning of it."""
    pairs = list(zip(short.split("_"), long.split("_"), strict=False))
    if short.count("_") != long.count("_"):
        return False
    return all(a == b or (len(a.rstrip("s")) >= ABBREVIATION and b.startswith(a.rstrip("s"))) for a, b in pairs)


@dataclass(slots=True)
class Lifted:
    """A document parted into what the schema knows and what is kept for the optimiser."""

    data: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # keyed by dotted path
    note_places: set[Location] = field(default_factory=set)
    meant: set[Location] = field(default_factory=set)  # known keys that a misspelt one stands for
    problems: list[Problem] = field(default_factory=list)


def lift(document: Document) -> Lifted:
    """Part a document; unknown keys become notes with a warning, near misses of an absent known key become errors."""
    lifted = Lifted()
    lifted.data = _block(Task, document.root, (), document, lifted)
    for at, message in document.odd.items():
        if not any(at[: len(place)] == place for place in lifted.note_places):
            lifted.problems.append(document.problem(at, message))
    return lifted


def _may_be_nothing(block: type[Block], key: str) -> bool:
    field = block.model_fields[key]
    return type(None) in get_args(field.annotation) and field.default is not None


def _block(
    block: type[Block], given: Mapping[str, Any], at: Location, document: Document, lifted: Lifted
) -> dict[str, Any]:
    known = known_keys(block)
    data: dict[str, Any] = {}
    for key, value in given.items():
        place, shown = (*at, key), repr(key[:LONGEST])
        if key in known:
            # A key with nothing behind it (every hint commented out, say) is a key left out; but for one that may be
            # nothing and is something otherwise, nothing is what was said.
            if value is not None or _may_be_nothing(block, key):
                data[key] = _known(block_of(block.model_fields[key].annotation), value, place, document, lifted)
        elif meant := near_miss(key, [name for name in known if name not in given]):
            lifted.meant.add((*at, meant))
            lifted.note_places.add(place)
            lifted.problems.append(
                document.problem(place, f"unknown key {shown}; did you mean {meant!r}? Known here: {_listed(known)}")
            )
        else:
            lifted.note_places.add(place)
            lifted.notes[dotted(place)] = _as_note(value)
            message = f"unknown key {shown}, kept as a note for the optimiser. Known here: {_listed(known)}"
            lifted.problems.append(document.warning(place, message))
    return data


def _known(inner: type[Block] | None, value: Any, at: Location, document: Document, lifted: Lifted) -> Any:
    if inner is None:
        return value
    if isinstance(value, dict):
        return _block(inner, value, at, document, lifted)
    if isinstance(value, list):
        return [_known(inner, item, (*at, index), document, lifted) for index, item in enumerate(value)]
    return value


def _listed(known: list[str]) -> str:
    return ", ".join(known) if len(known) <= LISTED else "every key of specs/template.yaml"


def _as_note(value: Any) -> Any:
    """A note's value as JSON can carry it."""
    if isinstance(value, dict):
        return {key: _as_note(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_note(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def known_keys(block: type[Block]) -> list[str]:
    """The keys a person may write in a block."""
    return [name for name in block.model_fields if not (block is Task and name == "notes")]


def block_of(annotation: Any) -> type[Block] | None:
    """The Block behind `Block`, `Block | None` or `tuple[Block, ...]`; None for a field without one."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation
    return next((found for inner in get_args(annotation) if (found := block_of(inner))), None)
