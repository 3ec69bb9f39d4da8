"""Expressions: arithmetic as Python has it, and nothing else."""

from __future__ import annotations

import inspect
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specs.expressions import MAX_LENGTH, MAX_VALUE, check, evaluate, names

VARIABLES = {"M": 16, "N": 4096, "K": 7}


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda text: f"-{text}"),
    )


atoms = st.one_of(st.sampled_from(sorted(VARIABLES)), st.integers(0, 100).map(str))
safe_expressions = st.recursive(atoms, _joined, max_leaves=8)


@given(safe_expressions)
def test_evaluate_agrees_with_python(text: str) -> None:
    """On every whole number in range; ceil_div rounds up."""
    assume(len(text) <= MAX_LENGTH)
    known = {**VARIABLES, "min": min, "max": max, "ceil_div": lambda a, b: -(-a // b), "__builtins__": {}}
    try:
        expected = eval(text, known)  # the strategy above makes arithmetic only
    except ZeroDivisionError:
        expected = None
    if expected is not None and expected == int(expected) and 0 <= expected <= MAX_VALUE:
        assert evaluate(text, VARIABLES) == expected
    else:
        with pytest.raises(ValueError, match=r"divides by zero|is needed"):
            evaluate(text, VARIABLES)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('false')",
        "().__class__",
        "M.real",
        "lambda: 1",
        "(lambda: 1)()",
        "2 ** 9",
        "9 ** 9 ** 9",
        "1 << 40",
        "M if N else K",
        "M and N",
        "not M",
        "M < N",
        "[1, 2][0]",
        "[M for M in (1, 2)]",
        "'4' * 9",
        "f'{M}'",
        "(M := 3)",
        "max(*[1, 2])",
        "max(1, 2, key=len)",
        "max(M)",
        "ceil_div(1, 2, 3)",
        "print(1, 2)",
        "exec('1', {})",
        "True",
        "None",
        "...",
        "1j",
        "~M",
        "M; N",
        "M = 1",
        "import os",
        "",
        "   ",
        "4 *",
        "(" * 300 + "M",
        "M\0",
        "M" * (MAX_LENGTH + 1),
    ],
)
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    """By check, before any value is there, and by evaluate."""
    with pytest.raises(ValueError, match=r"accepted|takes two arguments"):
        check(text)
    with pytest.raises(ValueError, match=r"accepted|takes two arguments"):
        evaluate(text, VARIABLES)


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    """Never another exception, and never anything but a whole number from 0."""
    try:
        value = evaluate(text, VARIABLES)
    except ValueError:
        return
    assert type(value) is int
    assert 0 <= value <= MAX_VALUE


def test_an_expression_never_runs_code() -> None:
    """A variable whose value could do something is only ever looked at."""

    class Trap:
        def __mul__(self, _: object) -> int:
            pytest.fail("the value was used")

        __rmul__ = __add__ = __radd__ = __mul__

    with pytest.raises(ValueError, match="is not a number"):
        evaluate("4 * M", {"M": Trap()})


@pytest.mark.parametrize("value", [True, "16", None, [16]])
def test_a_variable_that_is_no_number_is_refused(value: object) -> None:
    """True is not 1 here."""
    with pytest.raises(ValueError, match="is not a number"):
        evaluate("M", {"M": value})


def test_an_unknown_name_is_told_with_those_known() -> None:
    """A person sees what there is."""
    with pytest.raises(ValueError, match=r"names 'Q', which no argument or shape bears \(known: K, M, N\)"):
        evaluate("Q + 1", VARIABLES)


@pytest.mark.parametrize(
    "text", ["9" * 400, "*".join(["N"] * 200), "1e300", "1e999", "1e999 * 0", "-1", "1 / 3", "M / 0.0"]
)
def test_a_result_that_is_no_size_is_refused(text: str) -> None:
    """Too large, infinite, NaN, negative or a fraction; also whole numbers that fit no float."""
    with pytest.raises(ValueError, match=r"is needed|divides by zero"):
        evaluate(text, VARIABLES)


LONG_CHAIN = "-" * (MAX_LENGTH - 2) + "1"


def test_a_long_chain_of_signs_is_a_number() -> None:
    """The deepest expression that its length allows."""
    assert evaluate(LONG_CHAIN, {}) == 1


def test_a_stack_that_is_nearly_full_ends_in_a_value_error() -> None:
    """However deep the caller is already, a RecursionError never gets out."""

    def deeper(levels: int) -> int:
        return evaluate(LONG_CHAIN, {}) if levels == 0 else deeper(levels - 1)

    with pytest.raises(ValueError, match="accepted"):
        deeper(sys.getrecursionlimit() - len(inspect.stack()) - 200)


def test_names_leaves_functions_out() -> None:
    """Only what a config must give."""
    assert names("ceil_div(N, 128) * max(M, 4)") == {"M", "N"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 * M", 64),
        ("ceil_div(N, 100)", 41),
        ("M / 2", 8),
        ("min(M, K)", 7),
        (" N % 1000 ", 96),
        ("max(M, K, 20)", 20),
    ],
)
def test_expressions_by_hand(text: str, value: int) -> None:
    """As a kernel author would write them."""
    assert evaluate(text, VARIABLES) == value
