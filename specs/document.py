"""Reads one YAML file into plain values, each with the line it stands on; refuses what could hurt or mislead."""

from __future__ import annotations

import hashlib
import math
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specs.errors import Problem, SpecError

Location = tuple[str | int, ...]  # ("configs", 2, "target_ratio")

MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # once aliases are written out; forty times the largest task known
MAX_ALIASES = 200
MAX_DEPTH = 40  # far below what Python's own recursion could bear
MAX_NUMBER = 100  # characters; longer ones only serve to keep the parser busy
KEY_SHOWN = 100  # characters
MAX_INTEGER = 2**63 - 1

_TAG = "tag:yaml.org,2002:"


def dotted(at: Location) -> str:
    """`("configs", 2, "target_ratio")` as people write it: `configs[2].target_ratio`."""
    text = ""
    for part in at:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        # One line is one problem, so a key with a line break in it is quoted.
        shown = (part if part.isprintable() else repr(part))[:KEY_SHOWN]
        text += f".{shown}" if text else shown
    return text


@dataclass(slots=True)
class Document:
    """What a file says, before anyone asks whether it makes sense."""

    file: str
    digest: str  # sha256 of the file's bytes
    root: dict[str, Any]
    lines: dict[Location, int]  # of the key, or of the list item
    problems: list[Problem]
    odd: dict[Location, str] = field(default_factory=dict)  # fine in a note, an error anywhere else

    def line(self, at: Location) -> int:
        """Line of a place, or of the nearest place around it that the file has."""
        while at not in self.lines:
            at = at[:-1]
        return self.lines[at]

    def problem(self, at: Location, message: str) -> Problem:
        return Problem(self.file, self.line(at), dotted(at), message)

    def warning(self, at: Location, message: str) -> Problem:
        return Problem(self.file, self.line(at), dotted(at), message, "warning")


class _LimitError(Exception):
    """Reading stops here: going on would cost memory or time without end."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Composer(yaml.SafeLoader):
    """PyYAML's safe loader up to its node tree, with limits and without the guesses of YAML 1.1 that surprise people.

    `1e-6` is a number; `2:4` is not 124, `016` is not 14 and a date is text as it was written.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own name

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.nodes = self.aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        line: int = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # the stubs lack its types
        self.nodes += 1
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.nodes > MAX_NODES:
            raise _LimitError(line, f"more than {MAX_NODES} values; a task file has a few hundred")
        if self.aliases > MAX_ALIASES:
            raise _LimitError(line, f"more than {MAX_ALIASES} aliases (*name); write the values out")
        if self.depth >= MAX_DEPTH:
            raise _LimitError(line, f"nested more than {MAX_DEPTH} levels deep; a task file needs about six")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _name, _pattern, _first in (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", list("yYnNtTfFoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    _Composer.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read_document(path: Path) -> Document:
    """Read a YAML file whose root is a mapping.

    Raises SpecError when there is nothing to go on with (no such file, not YAML, a bomb); what is wrong with single
    keys and values is left in `problems`.
    """
    content = _read(path)
    document = Document(str(path), hashlib.sha256(content).hexdigest(), {}, {(): 1}, [])
    root = _compose(str(path), content)
    if root is None or root.tag == f"{_TAG}null":
        raise _fatal(path, None, "the file is empty; a task is a YAML mapping (specs/template.yaml shows every key)")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise _fatal(path, root.start_mark.line + 1, f"the file holds {kind}; a task is a mapping (name: ...)")
    document.lines[()] = root.start_mark.line + 1
    try:
        document.root = _Values(document).mapping(root, ())
    except _LimitError as refusal:
        raise _fatal(path, refusal.line, str(refusal)) from None
    return document


def _fatal(path: Path | str, line: int | None, message: str) -> SpecError:
    return SpecError([Problem(str(path), line, "", message)])


def _read(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise _fatal(path, None, "is a folder; a task is one YAML file")
        if not stat.S_ISREG(status.st_mode):
            raise _fatal(path, None, "is not a regular file; a task is one YAML file")
        if status.st_size > MAX_BYTES:
            raise _fatal(path, None, f"has {status.st_size} bytes; at most {MAX_BYTES} are accepted")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _fatal(path, None, "no such file") from None
    except OSError as error:
        raise _fatal(path, None, f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise _fatal(repr(str(path)), None, "is not a file name") from None
    if len(content) > MAX_BYTES:
        raise _fatal(path, None, f"has more than {MAX_BYTES} bytes; no more are accepted")
    return content


def _compose(file: str, content: bytes) -> yaml.Node | None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _fatal(file, line, f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
    loader = None
    try:
        loader = _Composer(text)
        return loader.get_single_node()
    except _LimitError as refusal:
        raise _fatal(file, refusal.line, str(refusal)) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise _fatal(file, line, f"character U+{ord(text[error.position]):04X} is not accepted in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise _fatal(file, mark.line + 1 if mark else None, f"not valid YAML: {' '.join(what.split())}") from None
    except (ValueError, ArithmeticError, LookupError):
        # PyYAML lets these out for an escape beyond Unicode (\UFFFFFFFF) and for a version number of a million digits.
        line = loader.get_mark().line + 1 if loader else 1
        raise _fatal(file, line, "not valid YAML: an escape or a number that stands for nothing") from None


class _Values:
    """Turns nodes into plain values, writing aliases and merge keys out."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0
        self.open: list[yaml.Node] = []  # the nodes around the one being read
        self.reported: set[tuple[int, str]] = set()  # an aliased mistake is one mistake

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._fill(found, node, at)
        return found

    def _value(self, node: yaml.Node, at: Location) -> Any:
        if isinstance(node, yaml.MappingNode):
            self._expect_tag(node, at, "map")
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            self._expect_tag(node, at, "seq")
            self._enter(node)
            items = []
            for index, item in enumerate(node.value):
                self.document.lines[(*at, index)] = item.start_mark.line + 1
                items.append(self._value(item, (*at, index)))
            self.open.pop()
            return items
        assert isinstance(node, yaml.ScalarNode)
        self._count(node)
        return self._scalar(node, at)

    def _fill(self, found: dict[str, Any], node: yaml.MappingNode, at: Location) -> None:
        """Add the entries of a mapping that are not there yet: a merge never overrides what stands beside it."""
        self._enter(node)
        merges: list[yaml.Node] = []
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            self._count(key_node)
            key, line = self._key(key_node, at), key_node.start_mark.line + 1
            if key is None:
                continue
            if key in seen:
                self._report(line, (*at, key), f"the key {key[:KEY_SHOWN]!r} was given before, on line {seen[key]}")
                continue
            seen[key] = line
            if key_node.tag == f"{_TAG}merge":
                merges += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif key not in found:
                self.document.lines[(*at, key)] = line
                found[key] = self._value(value_node, (*at, key))
        for merged in merges:
            if isinstance(merged, yaml.MappingNode):
                self._fill(found, merged, at)
            else:
                self._report(merged.start_mark.line + 1, (*at, "<<"), "<< merges a mapping or a list of mappings only")
        self.open.pop()

    def _key(self, node: yaml.Node, at: Location) -> str | None:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
            self._report(line, at, f"a key is a {kind}; keys are plain text")
            return None
        text: str = node.value
        if not _is_unicode(text):
            self._report(line, at, "a key holds half of a surrogate pair; keys are plain text")
            return None
        if node.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            self.document.odd[(*at, text)] = f"the key {text[:KEY_SHOWN]!r} is not text to YAML; put it in quotes"
        return text

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        if not _is_unicode(text):
            return self._bad(node, at, "holds half of a surrogate pair, which is no character")
        if kind in ("str", "merge"):
            return text
        if kind in ("int", "float") and len(text) > MAX_NUMBER:
            return self._bad(node, at, f"a number of {len(text)} characters; at most {MAX_NUMBER} are accepted")
        try:
            value = _plain(kind, text)
        except (ValueError, OverflowError):
            return self._bad(node, at, f"{text[:40]!r} cannot be read as {node.tag[:60]}")
        if value is _UNKNOWN:
            return self._bad(node, at, f"the tag {node.tag[:60]} is not accepted; plain YAML values are")
        if isinstance(value, float) and not math.isfinite(value):
            self.document.odd[at] = f"{text} is not a finite number; a finite number is accepted"
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            return self._bad(node, at, f"{text} is beyond 64 bits; whole numbers up to {MAX_INTEGER} are accepted")
        return value

    def _bad(self, node: yaml.Node, at: Location, message: str) -> None:
        self._report(node.start_mark.line + 1, at, message)

    def _report(self, line: int, at: Location, message: str) -> None:
        if (line, message) not in self.reported:
            self.reported.add((line, message))
            self.document.problems.append(Problem(self.document.file, line, dotted(at), message))

    def _expect_tag(self, node: yaml.Node, at: Location, kind: str) -> None:
        if node.tag != _TAG + kind:
            self._bad(node, at, f"the tag {node.tag[:60]} is not accepted; plain YAML values are")

    def _enter(self, node: yaml.Node) -> None:
        self._count(node)
        if any(outer is node for outer in self.open):
            raise _LimitError(node.start_mark.line + 1, "an alias refers to the very value it stands in")
        self.open.append(node)

    def _count(self, node: yaml.Node) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            line = node.start_mark.line + 1
            raise _LimitError(line, f"more than {MAX_NODES} values once its aliases are written out")


_UNKNOWN = object()


def _plain(kind: str, text: str) -> Any:
    """Value of a scalar; raises ValueError when the text does not fit the kind."""
    match kind:
        case "null":
            return None
        case "bool":
            lower = text.lower()
            if lower not in ("yes", "true", "on", "no", "false", "off"):
                raise ValueError(text)
            return lower in ("yes", "true", "on")
        case "int":
            return int(text.replace("_", ""), 0)
        case "float":
            lower = text.replace("_", "").lower()
            return float(lower.replace(".inf", "inf").replace(".nan", "nan"))
        case _:
            return _UNKNOWN


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
