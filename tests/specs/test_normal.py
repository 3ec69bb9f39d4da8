"""The normal form: what folds together, and what never may."""

from __future__ import annotations

import pytest

from specs.normal import normal_digest
from specs.schema import Language


def same(one: str, other: str, language: Language = Language.CPP) -> bool:
    return normal_digest(one.encode(), language) == normal_digest(other.encode(), language)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int x = 1;", "int  x=1 ;"),
        ("int x;\nint y;", "int x; int y;\n\n"),
        ("int x; // note", "int x; /* other\nnote */"),
        ("a /* gone */ b", "a b"),
        ("int x; // goes on \\\n still a comment\nint y;", "int x; int y;"),
        ("int x;", "\r\nint x;\r\n"),
        ("#define A 1\nint x;", "#define  A\t1 // note\n\n\nint x;"),
        ("#define A \\\n 1\nint x;", "#define A 1\nint x;"),
        ("/* lead */ #define A 1\n", "#define A 1\n"),
        ("f(a,b)", "f( a , b )"),
        ("int x; /* never closed", "int x;"),
    ],
)
def test_comments_and_white_space_do_not_count(one: str, other: str) -> None:
    """A source with another layout is the same idea."""
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int x", "intx"),
        ("a + +b", "a++b"),
        ("a - -b", "a--b"),
        ("a > > b", "a >> b"),
        ("a = &b", "a =& b"),
        ('"a b"', '"a  b"'),
        ('"// no comment"', '"'),
        ('"/* no comment */ x"', '" x"'),
        (r'"\" // still text"', r'"\""'),
        ("'\"' // c\nint x;", "'\"' int y;"),
        ('R"(a  b)"', 'R"(a b)"'),
        ('R"x(  )" // )x"', 'R"x( )" // )x"'),
        ("1'000 // '", "1'000 + 1"),
        ("#define F(x) x", "#define F (x) x"),
        ("#define A 1\nint x;", "#define A 1 int x;"),
        ("#define A\nint x;", "#define A int\nx;"),
        ("int x;\n#undef A\n", "int x; #undef A\n"),
        ("a b", "a/**/b c"),
        ("u8 'x'", "u8'x'"),
        ("0x1e +1", "0x1e+1"),
    ],
)
def test_what_a_compiler_could_tell_apart_differs(one: str, other: str) -> None:
    """A new idea must never be answered with an old one's verdict."""
    assert not same(one, other)


def test_an_apostrophe_in_an_error_line_swallows_nothing() -> None:
    """Text after it still counts."""
    assert not same("#error don't\nint x;", "#error don't\nint y;")


def test_bytes_that_are_no_text_are_kept() -> None:
    """Sources are bytes; two that differ in one of them differ."""
    assert normal_digest(b'"\xff"', Language.CPP) != normal_digest(b'"\xfe"', Language.CPP)


def test_python_folds_comments_and_keeps_its_blocks() -> None:
    """Indentation is meaning there."""
    assert same("if a:\n    b()\nc()\n", "if a:  # why\n\n  b()\n\n\nc()\n", Language.TRITON)
    assert not same("if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n", Language.TRITON)
    assert not same("x = '#1'\n", "x = '#2'\n", Language.TRITON)


@pytest.mark.parametrize(
    "source",
    [
        ('"' + "/*" * 10 + "\\" * 3 + "\n") * 10_000,
        'R"(' * 150_000,
        'R"a(' * 200_000,
        "/**/#" * 200_000,
        "#" * 200_000,
        '"\\' * 200_000,
    ],
    ids=["quotes", "raw", "fences", "directives", "marks", "escapes"],
)
@pytest.mark.parametrize("language", [Language.CPP, Language.TRITON])
def test_a_large_source_takes_no_time_to_speak_of(source: str, language: Language) -> None:
    """Linear: a megabyte of quotes and slashes must not stall a worker."""
    assert len(normal_digest(source.encode(), language)) == 64


def test_a_raw_text_without_an_end_goes_on_to_the_end() -> None:
    """No compiler takes it, but each place where one begins must not be looked at anew."""
    assert not same('R"(a  b', 'R"(a b')


def test_a_mark_after_a_comment_may_begin_a_directive() -> None:
    """What is a directive keeps its spaces."""
    assert not same("/* a */ #define F (x)", "/* a */ #define F(x)")
    assert same("/* a */ /**/#define F(x)\n  f", "#define F(x)\nf")
