"""Words from elsewhere in a message of ours: one line, short, and nothing in them for the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.harness.wording import described, given, one_line, printable


def test_what_steers_a_terminal_is_written_as_its_escape() -> None:
    """Lines and tabs stay; letters of any script do too."""
    assert printable("ä\n\tb\x1b[2J\x07\r\udc80") == "ä\n\tb\\x1b[2J\\x07\\r\\udc80"


def test_one_line_has_no_break_and_no_more_than_was_asked_for() -> None:
    """The last character tells that something was left out."""
    assert one_line("a\nb") == "a\\nb"
    assert one_line("x" * 10, 10) == "x" * 10
    assert one_line("x" * 11, 10) == "x" * 9 + "\N{HORIZONTAL ELLIPSIS}"
    assert len(one_line("\n" * 10**6)) == 500


class _Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class _Blank:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (_Mute(), "_Mute: it cannot be printed"),
        (ValueError("a\x1b\n"), "ValueError: a\\x1b\\n"),
    ],
)
def test_any_exception_can_be_described(error: BaseException, told: str) -> None:
    """Also one that raises when it is asked for its words."""
    assert described(error) == told


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] * 10  # one list ten times: written out it would be 10^depth values
    return value


@pytest.mark.parametrize(
    "value",
    [nested(30), 1 << 10**6, "x" * 10**6, b"\x1b" * 10**6, dict.fromkeys(range(10**5))],
    ids=["nested", "integer", "text", "bytes", "mapping"],
)
def test_any_value_is_given_in_a_line(value: object) -> None:
    """However large it would be when written out."""
    assert len(given(value)) <= 500
    assert given(value).isprintable()


def test_a_value_is_given_as_python_writes_it() -> None:
    """A small one whole; one that cannot be written says so."""
    assert (given([1, "a"]), given(1.5)) == ("[1, 'a']", "1.5")
    assert "_Blank" in given(_Blank())
