"""What a kernel leaves open for tuning: parameters marked in its source, their values and what binds them.

`// ferret:tune NAME v1 v2 ...` (`#` in Python) ends the line that defines NAME, or stands alone on the line before it.
`// ferret:tune-when MR * NR <= 64` on any line: combinations for which this does not hold are never tried.
A definition's own value need not be among the listed ones: it is where the search starts, and no choice of it.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from specs import expressions
from specs.schema import Language

Assignment = Mapping[str, str]  # a value for each parameter, as it stands in the source

LONGEST_LINE = 4_000  # characters of a definition's line
MAX_COMBINATIONS = 20_000  # all of them are listed, so that none is tried twice

_VALUE = r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFuUlL]*|[A-Za-z_]\w*"
_NAME = r"[A-Za-z_]\w*"
_MARK = r"\s*ferret:(?P<word>tune[\w-]*)[ \t]*(?P<rest>.*)$"
_DEFINITIONS = (
    r"^\s*#\s*define\s+{name}\s+(?P<value>{value})\s*(?=$|//|/\*)",
    r"(?<![\w.]){name}\s*(?::[^=]*)?=\s*(?P<value>{value})\s*(?=$|[;,)}}#]|//|/\*)",
)
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One definition that may take other values."""

    name: str
    values: tuple[str, ...]
    current: str
    line: int  # of the definition, 1-based

    @property
    def ordered(self) -> bool:
        """Whether a neighbouring value is likely to do about as well: numbers, not names."""
        return all(_number(value) is not None for value in self.values)

    def ranked(self) -> tuple[str, ...]:
        """Its values as neighbours: numbers by size, names as they were listed."""
        return tuple(sorted(self.values, key=lambda value: _number(value) or 0)) if self.ordered else self.values


@dataclass(frozen=True, slots=True)
class Space:
    """All that a source leaves open."""

    parameters: tuple[Parameter, ...]
    combinations: tuple[Assignment, ...]  # those that its conditions allow

    @property
    def start(self) -> Assignment:
        """The values that the source has now."""
        return {parameter.name: parameter.current for parameter in self.parameters}

    def fits(self, assignment: Assignment) -> bool:
        """Whether it gives each parameter, in this order, one of its values."""
        return list(assignment) == [parameter.name for parameter in self.parameters] and all(
            assignment[parameter.name] in parameter.values for parameter in self.parameters
        )


@dataclass(frozen=True, slots=True)
class _Found:
    parameter: Parameter
    start: int  # of the value within its line
    end: int


@dataclass(frozen=True, slots=True)
class _Condition:
    text: str
    left: str
    holds: Callable[[int, int], bool]
    right: str
    line: int

    def allows(self, numbers: Mapping[str, int | float | None]) -> bool:
        try:
            return self.holds(expressions.evaluate(self.left, numbers), expressions.evaluate(self.right, numbers))
        except ValueError as error:
            raise ValueError(f"line {self.line}: tune-when {self.text!r}: {error}") from None


def parameters(source: str, language: Language) -> tuple[Parameter, ...]:
    """The marked definitions in order, none where there is no mark. Raises ValueError of one line for a wrong mark."""
    return tuple(found.parameter for found in _found(source, language))


def space(source: str, language: Language) -> Space:
    """Raises ValueError of one line: a wrong mark, none at all, or none or too many of the combinations left."""
    declared = parameters(source, language)
    if not declared:
        raise ValueError(f"no parameter is marked; accepted: {_comment(language)} ferret:tune NAME v1 v2 ...")
    count = math.prod(len(parameter.values) for parameter in declared)
    if count > MAX_COMBINATIONS:
        raise ValueError(f"the marks make {count} combinations; at most {MAX_COMBINATIONS} are accepted")
    conditions = [_condition(text, line, declared) for line, text in _conditions(source, language)]
    numbers = {value: _number(value) for parameter in declared for value in parameter.values}
    names = [parameter.name for parameter in declared]
    allowed = []
    for values in itertools.product(*(parameter.values for parameter in declared)):
        known = {name: numbers[value] for name, value in zip(names, values, strict=True)}
        if all(condition.allows(known) for condition in conditions):
            allowed.append(dict(zip(names, values, strict=True)))
    if not allowed:
        shown = "; ".join(condition.text for condition in conditions)
        raise ValueError(f"none of {count} combinations is left by tune-when {shown}")
    return Space(declared, tuple(allowed))


def with_values(source: str, language: Language, assignment: Assignment) -> str:
    """The source with these values in place of its own; the marks stay, so that it can be tuned again."""
    lines = source.split("\n")
    # From the end, so that the places before a replacement stay right where two stand on one line.
    for found in sorted(_found(source, language), key=lambda one: (one.parameter.line, one.start), reverse=True):
        at = found.parameter.line - 1
        lines[at] = lines[at][: found.start] + assignment[found.parameter.name] + lines[at][found.end :]
    return "\n".join(lines)


def label(assignment: Assignment) -> str:
    """`MR=6 NR=16`."""
    return " ".join(f"{name}={value}" for name, value in assignment.items())


def assignment_of(text: str) -> Assignment | None:
    """What `label` was made from; None for a text that is no such label."""
    pairs = [re.fullmatch(rf"({_NAME})=({_VALUE})", word) for word in text.split()]
    if not pairs or None in pairs:
        return None
    return {pair[1]: pair[2] for pair in pairs if pair is not None}


def _comment(language: Language) -> str:
    return "#" if language is Language.TRITON else "//"


def _marks(source: str, language: Language) -> Iterator[tuple[int, str, str, str]]:
    """Line number, what stands before the mark, its word and the rest of it."""
    for number, line in enumerate(source.split("\n"), 1):
        if mark := re.search(_comment(language) + _MARK, line):
            if mark["word"] not in ("tune", "tune-when"):
                raise ValueError(
                    f"line {number}: 'ferret:{mark['word']}' is no mark; accepted: ferret:tune, ferret:tune-when"
                )
            yield number, line[: mark.start()], mark["word"], mark["rest"].strip()


def _conditions(source: str, language: Language) -> list[tuple[int, str]]:
    return [(number, rest) for number, _, word, rest in _marks(source, language) if word == "tune-when"]


def _found(source: str, language: Language) -> list[_Found]:
    lines = source.split("\n")
    found: dict[str, _Found] = {}
    for number, before, word, rest in _marks(source, language):
        if word != "tune":
            continue
        name, values = _named(number, rest)
        if earlier := found.get(name):
            raise ValueError(f"line {number}: {name!r} is marked already, for line {earlier.parameter.line}")
        if before.strip():
            code, line = before, number
        else:
            code, line = (lines[number] if number < len(lines) else ""), number + 1
        place = _defined(name, code)
        if place is None:
            raise ValueError(
                f"line {number}: {name!r} is marked, but line {line} does not define it by one number or name; "
                f"accepted: #define {name} 4, {name} = 4 with any type before or behind the name"
            )
        parameter = Parameter(name, values, place["value"], line)
        found[name] = _Found(parameter, place.start("value"), place.end("value"))
    return list(found.values())


def _named(number: int, rest: str) -> tuple[str, tuple[str, ...]]:
    name, *values = rest.split() or [""]
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"line {number}: ferret:tune names {name!r}; accepted: ferret:tune NAME v1 v2 ...")
    for value in values:
        if not re.fullmatch(_VALUE, value):
            raise ValueError(f"line {number}: {name!r} has the value {value!r}; accepted: whole numbers, floats, names")
    if len(set(values)) < len(values):
        twice = next(value for value, times in Counter(values).items() if times > 1)
        raise ValueError(f"line {number}: {name!r} has the value {twice!r} twice")
    if len(values) < 2:
        raise ValueError(f"line {number}: {name!r} has {len(values)} values; at least 2 are needed")
    return name, tuple(values)


def _defined(name: str, code: str) -> re.Match[str] | None:
    if len(code) > LONGEST_LINE:
        return None
    patterns = (pattern.format(name=name, value=_VALUE) for pattern in _DEFINITIONS)
    return next((match for pattern in patterns if (match := re.search(pattern, code))), None)


def _condition(text: str, line: int, declared: tuple[Parameter, ...]) -> _Condition:
    parts = [part.strip() for part in re.split(r"(<=|>=|==|!=|<|>)", text)]
    if len(parts) != 3:
        raise ValueError(
            f"line {line}: tune-when {text!r} is no condition; accepted: two expressions with one of "
            f"{' '.join(_RELATIONS)} between them"
        )
    left, relation, right = parts
    numeric = {parameter.name for parameter in declared if parameter.ordered}
    for side in (left, right):
        try:
            expressions.check(side)
        except ValueError as error:
            raise ValueError(f"line {line}: tune-when {text!r}: {error}") from None
        if strangers := sorted(expressions.names(side) - numeric):
            accepted = ", ".join(sorted(numeric)) or "none here"
            raise ValueError(
                f"line {line}: tune-when {text!r} names {strangers[0]!r}; accepted: parameters whose values are all "
                f"numbers ({accepted})"
            )
    return _Condition(text, left, _RELATIONS[relation], right, line)


def _number(value: str) -> int | float | None:
    """None for a name."""
    if re.fullmatch(_NAME, value):
        return None
    if "x" in value.lower():
        return int(value.rstrip("uUlL"), 16)
    plain = value.rstrip("fFuUlL")
    return int(plain) if re.fullmatch(r"[+-]?\d+", plain) else float(plain)
