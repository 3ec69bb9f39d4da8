"""Reads what a self-contained program prints about itself: KERNEL_RESULT lines to one ratio a config.

Nothing in here is evidence. A program may print what it likes, so the reader is liberal in how a number is called and
strict in what a number is: whatever it cannot read for certain becomes ratio 0 with a reason, or refuses the report.

Forms, each at the beginning of a line of standard output (docs/authoring-a-task.md shows them):

    KERNEL_RESULT {"Q1": 31.1, "Q2": 54.7}                      TFLOPS by config: the public form
    KERNEL_RESULT_REFERENCE {"Q1": 34.3, "Q2": 62.0}            the same of its baseline; ratio = result / reference
    KERNEL_RESULT {"Q1": {"latency_us": 18.4, "tflops": 31.1}}  the same with named quantities
    KERNEL_RESULT {"config": "Q1", "ours_us": 10, "ref_us": 12, "ratio": 1.2}
    KERNEL_RESULT config=Q1 ours=10us ref=12us ratio=1.2
    Q_LEN=1: 31.1 TFLOPS                                        without any KERNEL_RESULT line; stands for Q1
    TFLOPS: Q1=31.1 Q2=54.7                                     the same
    Q1: INVALID                                                 that config is wrong; a line INVALID: all of them are
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from specs.outcomes import SelfReportedConfig
from specs.scoring import MAX_RATIO

MAX_LINE = 256 * 1024  # characters: 500 configs with long names and every quantity fit
MAX_SHORT = 2_000  # characters of a line that is no JSON: patterns are tried on it, and a hostile one must stay cheap
MAX_INVALID = 1_000  # lines that say INVALID
MAX_DEPTH = 8  # of braces and brackets in one line
TOLERANCE = 0.05  # how far a printed ratio may be from its own times: both are rounded when printed
SHOWN = 60  # characters of a line or value that a reason repeats

CONFIG_KEYS = ("config", "cfg", "name", "case")
RATIO_KEYS = ("ratio", "speedup")
# Key -> quantity. A plain `us` or `tflops` is the result's own in a KERNEL_RESULT, the baseline's in a _REFERENCE.
_OWN = ("", "ours_", "our_", "kernel_", "candidate_", "latency_", "time_", "median_")
_REFERENCE = ("ref_", "reference_", "baseline_")
# Unit -> (quantity, factor): times in microseconds, throughput in TFLOPS.
UNITS = {
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "ns": ("us", 1e-3),
    "tflops": ("tflops", 1.0),
    "gflops": ("tflops", 1e-3),
}
QUANTITIES = {
    f"{prefix}{unit}": (whose, *UNITS[unit])
    for whose, prefixes in (("ours", _OWN), ("reference", _REFERENCE))
    for prefix in prefixes
    for unit in UNITS
}
BARE = {"ours": "ours", "ref": "reference", "reference": "reference", "baseline": "reference"}  # unit in the value
VERDICT_KEYS = ("valid", "correct", "passed", "pass", "ok")
BAD_WORDS = ("INVALID", "FAIL", "FAILED", "ERROR")

_MARK, _REFERENCE_MARK = "KERNEL_RESULT", "KERNEL_RESULT_REFERENCE"
_PAIR = re.compile(r"""([A-Za-z_][A-Za-z0-9_.-]*)=("[^"]*"|'[^']*'|[^\s,]+)""")
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)")
# What printf makes of a number that is none, and the marker, bare where JSON wants a value.
_BARE_VALUE = re.compile(
    r"([:\[,]\s*)([-+]?nan(?:\([^)]{0,40}\))?|[-+]?inf(?:inity)?|INVALID)(?=\s*[,}\]])", re.IGNORECASE
)
_Q_LEN = re.compile(r"Q_LEN=(\d+)\s*:\s*(\S+)\s*TFLOPS\b")
_NAMED = re.compile(r"\s*(\S.*?)\s*:\s*(\S+)\s*TFLOPS\b")
_SUMMARY = re.compile(r"\s*TFLOPS\s*:(.*)")
_INVALID = re.compile(r"(?<![A-Za-z0-9_])INVALID(?![A-Za-z0-9_])")


class _Unreadable(ValueError):
    """The report as a whole cannot be believed; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Every config of the task in its order; `refused` says why nothing counts, and then all ratios are 0."""

    configs: tuple[SelfReportedConfig, ...]
    refused: str = ""


@dataclass(slots=True)
class _Claim:
    """What one config is said to be: quantities by (whose, unit), a ratio, or why it is no good."""

    quantities: dict[tuple[str, str], float] = field(default_factory=dict)
    ratio: float | None = None
    bad: str = ""


def read(output: str, configs: Sequence[str]) -> Reading:
    """One SelfReportedConfig for every name in `configs`; never raises, whatever `output` holds."""
    names = frozenset(configs)
    results: dict[str, _Claim] = {}
    references: dict[str, _Claim] = {}
    lines = output.splitlines()
    try:
        formal = False
        for number, line in enumerate(lines, 1):
            mark, text = _marked(line)
            if mark is None:
                continue
            is_reference = mark == _REFERENCE_MARK
            formal = formal or not is_reference
            if not is_reference and text.startswith(BAD_WORDS):
                continue  # looked at below, with every other line that says so
            what = f"line {number}, {mark}"
            for name, claim in _claims(text, names, what, is_reference=is_reference):
                _book(references if is_reference else results, name, claim, what)
        if not formal:
            for number, line in enumerate(lines, 1):
                for name, claim in _printed(line, names):
                    _book(results, name, claim, f"line {number}")
        if not results and not references and not formal:
            _refuse("no KERNEL_RESULT line was printed")
        invalid = _called_invalid(lines, configs)
        return Reading(tuple(_resolved(name, results, references, invalid) for name in configs))
    except _Unreadable as error:
        return refused(str(error), configs)


def refused(why: str, configs: Iterable[str]) -> Reading:
    """A report of which nothing counts."""
    why = _cut(" ".join(why.split()), 400)
    return Reading(tuple(_nothing(name, why) for name in configs), why)


# ---------------------------------------------------------------- one line


def _marked(line: str) -> tuple[str | None, str]:
    """The mark that a line begins with, and what follows it."""
    stripped = line.strip()
    for mark in (_REFERENCE_MARK, _MARK):
        if stripped.startswith(mark) and not stripped[len(mark) : len(mark) + 1].isidentifier():
            return mark, stripped[len(mark) :].lstrip(" \t:")
    return None, stripped


def _claims(text: str, names: frozenset[str], what: str, *, is_reference: bool) -> Iterable[tuple[str, _Claim]]:
    if text.startswith("{"):
        content = _object(text, what)
        named = [key for key in content if key in names]
        key = next((key for wanted in CONFIG_KEYS for key in content if key.casefold() == wanted), None)
        if not named and key is not None:
            config = content[key]
            if not isinstance(config, str):
                _refuse(f"{what}: {key} is {_shown(config)}; the name of a config is accepted")
            return [(config, _record(content, what, is_reference=is_reference))] if config in names else []
        if not named and content:
            _refuse(f"{what}: names no config of the task: {_shown(text)}")
        return [(name, _value(content[name], what, is_reference=is_reference)) for name in named]
    pairs = [(match[1], _Text(match[2].strip("\"'"))) for match in _PAIR.finditer(text[:MAX_SHORT])]
    keys = {key.casefold() for key, _ in pairs}
    if len(keys) < len(pairs):
        _refuse(f"{what}: a key is given twice: {_shown(text)}")
    config = next((value for key, value in pairs if key.casefold() in CONFIG_KEYS), None)
    if config is None or len(text) > MAX_SHORT:
        _refuse(f"{what} is neither a JSON object nor config=NAME ...: {_shown(text)}")
    record: dict[str, Any] = dict(pairs)
    if _INVALID.search(text):
        record["status"] = "INVALID"
    return [(config, _record(record, what, is_reference=is_reference))] if config in names else []


def _object(text: str, what: str) -> dict[str, Any]:
    """A JSON object without a key given twice; nan, inf and INVALID may stand where JSON wants a value."""
    if len(text) > MAX_LINE:
        _refuse(f"{what} has {len(text)} characters; at most {MAX_LINE} are accepted")
    if _depth(text) > MAX_DEPTH:
        _refuse(f"{what} is nested deeper than {MAX_DEPTH}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found and found[key] != value:
                _refuse(f"{what}: {_shown(key)} is given twice, as {_shown(found[key])} and {_shown(value)}")
            found[key] = value
        return found

    try:
        content = json.loads(_BARE_VALUE.sub(r'\1"\2"', text), object_pairs_hook=once, parse_constant=str)
    except (ValueError, RecursionError) as error:
        if isinstance(error, _Unreadable):
            raise
        _refuse(f"{what} is no JSON object: {_shown(text)}")
    if not isinstance(content, dict):
        _refuse(f"{what} is no JSON object: {_shown(text)}")
    return content


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        deepest = max(deepest, depth)
    return deepest


def _value(value: Any, what: str, *, is_reference: bool) -> _Claim:
    """What stands behind a config's name: TFLOPS, a record, or a marker."""
    if isinstance(value, dict):
        return _record(value, what, is_reference=is_reference)
    if _is_bad_word(value):
        return _Claim(bad=f"the program says {_shown(value.strip())}")
    claim = _Claim()
    _quantity(claim, "reference" if is_reference else "ours", "tflops", value, 1.0, "TFLOPS")
    return claim


def _is_bad_word(value: Any) -> bool:
    return isinstance(value, str) and value.strip().upper() in BAD_WORDS


def _record(content: Mapping[str, Any], what: str, *, is_reference: bool) -> _Claim:
    claim = _Claim()
    for key, value in content.items():
        folded = key.casefold()
        if _is_bad_word(value):
            claim.bad = claim.bad or f"the program says {_shown(value.strip())}"
        elif folded in VERDICT_KEYS:
            if value is False or (isinstance(value, str) and value.casefold() in ("false", "no", "0")):
                claim.bad = claim.bad or f"the program says {key}: {_shown(value)}"
        elif folded in RATIO_KEYS and not is_reference:
            ratio = _number(value, key)
            if isinstance(ratio, str):
                claim.bad = claim.bad or ratio
            elif claim.ratio is not None and claim.ratio != ratio:
                _refuse(f"{what}: two ratios, {claim.ratio:g} and {ratio:g}")
            else:
                claim.ratio = ratio
        elif folded in QUANTITIES:
            whose, quantity, factor = QUANTITIES[folded]
            _quantity(claim, "reference" if is_reference else whose, quantity, value, factor, key, what)
        elif folded in BARE and isinstance(value, str):
            _with_unit(claim, BARE[folded], value, key, what)
    return claim


def _with_unit(claim: _Claim, whose: str, text: str, key: str, what: str) -> None:
    """`ours=10us`: a number with its unit. One without is left alone, since it may be a time or a throughput."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        claim.bad = claim.bad or f"{key} is {_shown(text)}, which is no number"
    elif match[2].casefold() in UNITS:
        quantity, factor = UNITS[match[2].casefold()]
        _quantity(claim, whose, quantity, _Text(match[1]), factor, key, what)


def _quantity(
    claim: _Claim, whose: str, quantity: str, value: Any, factor: float, key: str, what: str = "a line"
) -> None:
    number = _number(value, key)
    if isinstance(number, str):
        claim.bad = claim.bad or number
        return
    if number == 0:
        who = "reference" if whose == "reference" else "program"
        claim.bad = claim.bad or f"the {who} reports {key} 0, which stands for no result"
        return
    scaled = number * factor
    if not (math.isfinite(scaled) and scaled > 0):
        claim.bad = claim.bad or f"{key} is {number:g}, which is no {quantity} that a clock could give"
        return
    before = claim.quantities.setdefault((whose, quantity), scaled)
    if not math.isclose(before, scaled, rel_tol=1e-3):
        _refuse(f"{what}: two values of {quantity}, {before:g} and {scaled:g}")


def _number(value: Any, key: str) -> float | str:
    """A finite number from 0, or a sentence that says what stands there instead."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        # Only `key=value` lines carry numbers as text; in JSON a text is no number, whatever it spells.
        value = float(match[1]) if match and not match[2] and isinstance(value, _Text) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{key} is {_shown(value)}, which is no number"
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        return f"{key} is {number:g}; a finite number from 0 is accepted"
    return number


class _Text(str):
    """The value of a `key=value` pair."""


# ---------------------------------------------------------------- the older forms


def _printed(line: str, names: frozenset[str]) -> Iterable[tuple[str, _Claim]]:
    if "TFLOPS" not in line or len(line) > MAX_SHORT:
        return []
    if (match := _Q_LEN.match(line.lstrip())) is not None:
        found = [(f"Q{match[1]}", match[2])]
    elif (match := _SUMMARY.match(line)) is not None:
        found = [(pair[1], pair[2]) for pair in _PAIR.finditer(match[1])]
    elif (match := _NAMED.match(line)) is not None:
        found = [(match[1], match[2])]
    else:
        return []
    claims = []
    for name, text in found:
        claim = _Claim()
        _quantity(claim, "ours", "tflops", _Text(text), 1.0, "TFLOPS")
        claims.append((name, claim))
    return [(name, claim) for name, claim in claims if name in names]


def _called_invalid(lines: Sequence[str], configs: Sequence[str]) -> dict[str, str]:
    """Config -> the line that calls it INVALID. A line that begins with the word and names no config means them all."""
    found: dict[str, str] = {}
    said = 0
    for line in lines:
        mark, text = _marked(line)
        if not _INVALID.search(text) or (mark is not None and text.startswith("{")):  # JSON is read above
            continue
        if (said := said + 1) > MAX_INVALID:
            _refuse(f"more than {MAX_INVALID} lines say INVALID")
        named = [name for name in configs if _mentions(text, name)]
        if not named and not text.startswith("INVALID"):
            continue
        for name in named or configs:
            found.setdefault(name, f"the program says {_shown(line.strip())}")
    return found


def _mentions(line: str, name: str) -> bool:
    return name in line and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) is not None


# ---------------------------------------------------------------- one config


def _book(into: dict[str, _Claim], name: str, claim: _Claim, what: str) -> None:
    """The same claim may be printed twice; two different ones about one config refuse the report."""
    if into.setdefault(name, claim) != claim:
        _refuse(f"{what}: {_shown(name)} was reported before, with other values")


def _resolved(
    name: str, results: Mapping[str, _Claim], references: Mapping[str, _Claim], invalid: Mapping[str, str]
) -> SelfReportedConfig:
    claim, reference = results.get(name), references.get(name, _Claim())
    if name in invalid:
        return _nothing(name, invalid[name])
    if claim is None:
        return _nothing(name, "the program reports nothing for it")
    if bad := claim.bad or reference.bad:
        return _nothing(name, bad)
    known = dict(claim.quantities)
    for key, value in reference.quantities.items():
        if not math.isclose(known.setdefault(key, value), value, rel_tol=1e-3):
            _refuse(f"{_shown(name)} has two references, {known[key]:g} and {value:g} {key[1]}")
    quotients: list[tuple[str, Callable[[float, float], float]]] = [
        ("us", lambda ours, theirs: theirs / ours),
        ("tflops", lambda ours, theirs: ours / theirs),
    ]
    derived = [
        divide(known["ours", unit], known["reference", unit])
        for unit, divide in quotients
        if ("ours", unit) in known and ("reference", unit) in known
    ]
    ratios = [*([claim.ratio] if claim.ratio is not None else []), *derived]
    if not ratios:
        return _nothing(name, "no ratio, and no reference in the same unit to make one from")
    ratio = ratios[0]
    if any(not math.isclose(ratio, other, rel_tol=TOLERANCE) for other in derived):
        return _nothing(name, f"its numbers do not agree: ratios {', '.join(f'{one:.4g}' for one in ratios)}")
    if not 0 < ratio <= MAX_RATIO:
        return _nothing(name, f"ratio {ratio:g}; a number above 0, up to {MAX_RATIO:g}, is accepted")
    return SelfReportedConfig(
        config=name,
        ratio=ratio,
        ours_us=known.get(("ours", "us")),
        reference_us=known.get(("reference", "us")),
        ours_tflops=known.get(("ours", "tflops")),
        reference_tflops=known.get(("reference", "tflops")),
    )


def _nothing(name: str, why: str) -> SelfReportedConfig:
    return SelfReportedConfig(config=name, ratio=0.0, reason=_cut(why, 200))


def _refuse(message: str) -> NoReturn:
    raise _Unreadable(message)


def _shown(value: Any) -> str:
    return _cut(repr(value), SHOWN)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
