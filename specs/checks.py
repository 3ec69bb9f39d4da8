"""What must hold between the keys of a task: the checks that no single field can make.

They read the plain mapping, not a Task, so that they still speak when some other field is wrong; a value of the wrong
type is left to the schema.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from specs import expressions
from specs.document import Document, Location
from specs.errors import Problem
from specs.schema import MAX_ARGUMENTS, MAX_AXES, MAX_CONFIGS, ArgumentKind, DType, Scoring

MAX_EVALUATED = 500_000  # characters of expressions times configs: about a second of arithmetic
NAMES_SHOWN = 12
NAME_SHOWN = 60  # characters

Found = Iterator[tuple[Location, str]]


def cross_check(data: dict[str, Any], document: Document) -> list[Problem]:
    """Every contradiction between keys, with its line."""
    found = itertools.chain(
        _names(data, document), _focus(data), _weights(data), _device(data), _expressions(data), _scalars(data)
    )
    problems = [document.problem(at, message) for at, message in found]
    unfocused = data.get("scoring", Scoring.MIN_RATIO) in (Scoring.MIN_RATIO, Scoring.WEIGHTED_AVG)
    if data.get("focus_config") is not None and unfocused:
        problems.append(document.warning(("focus_config",), "has no effect unless scoring is focus"))
    return problems


def _configs(data: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    configs = data.get("configs")
    return [(i, c) for i, c in enumerate(configs) if isinstance(c, dict)] if isinstance(configs, list) else []


def _config_names(data: dict[str, Any]) -> list[str]:
    return [config["name"] for _, config in _configs(data) if isinstance(config.get("name"), str)]


def _names(data: dict[str, Any], document: Document) -> Found:
    first: dict[str, int] = {}
    for index, config in _configs(data):
        name = config.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            line = document.line(("configs", first[name], "name"))
            yield ("configs", index, "name"), f"{_cut(name)!r} is the name of configs[{first[name]}] too (line {line})"
        first.setdefault(name, index)


def _focus(data: dict[str, Any]) -> Found:
    focus, names = data.get("focus_config"), _config_names(data)
    if focus is None and data.get("scoring") == Scoring.FOCUS:
        yield ("scoring",), f"focus needs focus_config, the name of a config; accepted: {_some(names)}"
    if isinstance(focus, str) and focus not in names:
        yield ("focus_config",), f"{_cut(focus)!r} is the name of no config; accepted: {_some(names)}"


def _some(names: list[str]) -> str:
    different = list(dict.fromkeys(names))
    shown = ", ".join(_cut(name) for name in different[:NAMES_SHOWN])
    more = f" and {len(different) - NAMES_SHOWN} more" if len(different) > NAMES_SHOWN else ""
    return f"{shown}{more}" if different else "none, no config has a name"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"


def _weights(data: dict[str, Any]) -> Found:
    weights = [config.get("weight", 1.0) for _, config in _configs(data)]
    if data.get("scoring") == Scoring.WEIGHTED_AVG and weights and all(w == 0 for w in weights):
        yield ("scoring",), "weighted_avg with every weight 0 weighs nothing; give a config a weight greater than 0"


def _device(data: dict[str, Any]) -> Found:
    gpu, language = data.get("gpu"), data.get("language")
    cpu = isinstance(gpu, str) and gpu.strip().upper() == "CPU"
    if cpu and language in ("cuda", "triton"):
        yield ("language",), f"{language!r} given for gpu CPU; accepted: cpp"
    if cpu or language == "cpp":
        for index, argument in _arguments(data):
            if argument.get("kind") == ArgumentKind.STREAM:
                yield ("interface", "arguments", index), "an argument of kind 'stream' needs a GPU; leave it out"


def _arguments(data: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    interface = data.get("interface")
    arguments = interface.get("arguments") if isinstance(interface, dict) else None
    arguments = arguments[:MAX_ARGUMENTS] if isinstance(arguments, list) else []
    return [(i, a) for i, a in enumerate(arguments) if isinstance(a, dict)]


def _variables(data: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What each config's expressions may name: problem.shapes under its own args, as Task.variables has it.

    A config with an unusable argument is left out: the argument is the mistake, not what uses it. So are the configs
    beyond what the schema takes, so that a hostile file cannot buy an hour of arithmetic.
    """
    problem = data.get("problem")
    shapes = problem.get("shapes") if isinstance(problem, dict) else None
    shapes = shapes if isinstance(shapes, dict) else {}
    plain = {key: value for key, value in shapes.items() if _usable(value)}
    return [
        (str(config.get("name", f"configs[{index}]")), {**plain, **config["args"]})
        for index, config in _configs(data)[:MAX_CONFIGS]
        if isinstance(config.get("args"), dict) and all(map(_usable, config["args"].values()))
    ]


def _usable(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _expressions(data: dict[str, Any]) -> Found:
    variables, written = _variables(data), list(_written(data))
    length = sum(len(text) for _, text in written) * len(variables)
    if length > MAX_EVALUATED:
        yield ("interface",), f"its expressions come to {length} characters over all configs; at most {MAX_EVALUATED}"
        return
    for at, text in written:
        try:
            expressions.check(text)
        except ValueError:
            continue  # the schema says so
        failures: list[tuple[str, str]] = []
        for name, values in variables:
            try:
                expressions.evaluate(text, values)
            except ValueError as error:
                failures.append((name, str(error)))
        if failures:
            more = f" (and in {len(failures) - 1} more)" if len(failures) > 1 else ""
            yield at, f"in config {failures[0][0]!r}{more}: {failures[0][1]}"


def _written(data: dict[str, Any]) -> Iterator[tuple[Location, str]]:
    for index, argument in _arguments(data):
        at: Location = ("interface", "arguments", index)
        shape = argument.get("shape")
        for axis, dimension in enumerate(shape[:MAX_AXES] if isinstance(shape, list) else []):
            if isinstance(dimension, str):
                yield (*at, "shape", axis), dimension
        if isinstance(argument.get("bytes"), str):
            yield (*at, "bytes"), argument["bytes"]
    work = data.get("work")
    for key in ("flops", "bytes"):
        if isinstance(work, dict) and isinstance(work.get(key), str):
            yield ("work", key), work[key]


def _scalars(data: dict[str, Any]) -> Found:
    for index, argument in _arguments(data):
        name, dtype = argument.get("name"), argument.get("dtype")
        if argument.get("kind") != ArgumentKind.SCALAR or not isinstance(name, str) or dtype not in list(DType):
            continue
        at: Location = ("interface", "arguments", index)
        if argument.get("value") is not None:
            if trouble := _unfit(argument["value"], DType(dtype)):
                yield (*at, "value"), trouble
            continue
        for config, values in _variables(data):
            if name not in values:
                known = ", ".join(sorted(values)) or "none"
                yield (
                    at,
                    f"scalar {name!r} has no value, and config {config!r} has no argument {name!r} (it has: {known})",
                )
                break
            if trouble := _unfit(values[name], DType(dtype)):
                yield at, f"scalar {name!r} in config {config!r}: {trouble}"
                break


def _unfit(value: Any, dtype: DType) -> str | None:
    """Why a value cannot be passed as a dtype; None when it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return None  # reported where it stands
    if dtype.value.startswith(("f", "b")):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number else f"{value!r} given; accepted for {dtype.value}: a number"
    bits = 8 * dtype.bytes
    low, high = (0, 2**bits - 1) if dtype.value.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    # A truth value passes as 0 or 1: public tasks write flags that way.
    if isinstance(value, int) and low <= value <= high:
        return None
    return f"{value!r} given; accepted for {dtype.value}: a whole number from {low} to {high}"
