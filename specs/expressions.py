"""Arithmetic over a config's arguments, as task files write it: `4 * M`, `ceil_div(N, 128)`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

MAX_LENGTH = 500  # characters
MAX_VALUE = 2**63 - 1

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
}
ACCEPTED = "numbers, names of the config's args or problem.shapes, + - * / // %, parentheses, min(), max(), ceil_div()"


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"expression of {len(text)} characters; at most {MAX_LENGTH} are accepted")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(f"{text!r} is not an expression; accepted: {ACCEPTED}") from None


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            pass
        case ast.Name():
            pass
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, text)
            _check(right, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and len(args) >= 2:
            if name == "ceil_div" and len(args) != 2:
                raise ValueError(f"{text!r}: ceil_div takes two arguments, {len(args)} given")
            for argument in args:
                _check(argument, text)
        case _:
            raise ValueError(f"{text!r} is not accepted; accepted: {ACCEPTED}")


def check(text: str) -> str:
    """Return `text` unchanged; raises ValueError when it is not an expression of this little language."""
    try:
        _check(_parse(text), text)
    except RecursionError:
        raise ValueError(f"{text!r} is nested too deeply; accepted: {ACCEPTED}") from None
    return text


Expression = Annotated[str, StringConstraints(min_length=1), AfterValidator(check)]


def names(text: str) -> set[str]:
    """The names an expression reads, functions left out."""
    tree = _parse(text)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - called


def evaluate(text: str, variables: Mapping[str, object]) -> int:
    """Value of an expression as a non-negative whole number.

    Raises ValueError for an unknown name, a value that is not a number, division by zero, or a result that
    is negative, not whole, or beyond 2**63 - 1.
    """

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant():
                return node.value  # type: ignore[return-value]  # _check let only numbers through
            case ast.Name(id=name):
                if name not in variables:
                    known = ", ".join(sorted(variables)) or "none"
                    raise ValueError(f"{text!r} names {name!r}, which no argument or shape bears (known: {known})")
                given = variables[name]
                if isinstance(given, bool) or not isinstance(given, int | float):
                    raise ValueError(f"{text!r} uses {name!r}, whose value {given!r} is not a number")  # noqa: TRY004
                return given
            case ast.BinOp(left=left, op=op, right=right):
                return _BINARY[type(op)](value(left), value(right))
            case ast.UnaryOp(operand=operand):
                return -value(operand)
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*(value(argument) for argument in args))
            case _:
                raise ValueError(f"{text!r} is not accepted; accepted: {ACCEPTED}")

    check(text)
    try:
        result = value(_parse(text))
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero") from None
    except OverflowError:
        raise ValueError(f"{text!r} is beyond {MAX_VALUE}") from None
    except RecursionError:
        raise ValueError(f"{text!r} is nested too deeply; accepted: {ACCEPTED}") from None
    # The range comes first: a whole number of hundreds of digits fits no float, so isfinite would overflow on it.
    # NaN fails every comparison.
    if not 0 <= result <= MAX_VALUE:
        shown = f"{result!r}" if isinstance(result, float) or abs(result) < 10**30 else "a number of over 30 digits"
        raise ValueError(f"{text!r} is {shown}; a whole number from 0 to {MAX_VALUE} is needed")
    if result != math.floor(result):
        raise ValueError(f"{text!r} is {result!r}; a whole number from 0 to {MAX_VALUE} is needed")
    return int(result)
