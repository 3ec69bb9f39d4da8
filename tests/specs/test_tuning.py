"""Marks in a source: what they declare, what replaces it, and how a wrong one is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.schema import Language
from specs.tuning import Parameter, assignment_of, label, parameters, space, with_values

KERNEL = """\
#define MR 4  // ferret:tune MR 2 4 8
// ferret:tune kColumns 16 32
constexpr int kColumns = 32;
static const float SLACK = 0.5f;  // ferret:tune SLACK 0.25f 0.5f
// ferret:tune-when MR * kColumns <= 128
int MR2 = 4; int used = MR * kColumns;
"""
TRITON = """\
@triton.jit
def kernel(x, BLOCK: tl.constexpr = 64):  # ferret:tune BLOCK 64 128
    pass
EVICT = first  # ferret:tune EVICT first last
def launcher(x):
    kernel[(1,)](x, num_warps=4)  # ferret:tune num_warps 4 8
"""


def test_marked_definitions_are_parameters() -> None:
    """In a define, in constants of any type, with the mark behind it or on the line before."""
    assert parameters(KERNEL, Language.CPP) == (
        Parameter("MR", ("2", "4", "8"), "4", 1),
        Parameter("kColumns", ("16", "32"), "32", 3),
        Parameter("SLACK", ("0.25f", "0.5f"), "0.5f", 4),
    )


def test_a_python_source_is_marked_with_its_own_comments() -> None:
    """An annotated parameter, a plain name and a keyword of a launch."""
    assert parameters(TRITON, Language.TRITON) == (
        Parameter("BLOCK", ("64", "128"), "64", 2),
        Parameter("EVICT", ("first", "last"), "first", 4),
        Parameter("num_warps", ("4", "8"), "4", 6),
    )
    assert parameters(TRITON, Language.CUDA) == ()


@pytest.mark.parametrize(
    "line",
    [
        "#define N 4",
        "  #  define N 4 /* rows */",
        "static constexpr unsigned N = 4u;",
        "N = 4",
        "void f(int N = 4) {",
        "enum { N = 0x10 };",
        "float N=-1.5e-3;",
    ],
)
def test_a_definition_by_one_token_is_found(line: str) -> None:
    """However it is written."""
    (found,) = parameters(f"// ferret:tune N 1 2\n{line}", Language.CPP)
    assert found.current in ("4", "4u", "0x10", "-1.5e-3")


def test_only_the_values_are_replaced() -> None:
    """Marks and everything else stay, so the result can be tuned again, and back."""
    changed = with_values(KERNEL, Language.CPP, {"MR": "8", "kColumns": "16", "SLACK": "0.25f"})
    assert changed.splitlines()[:4] == [
        "#define MR 8  // ferret:tune MR 2 4 8",
        "// ferret:tune kColumns 16 32",
        "constexpr int kColumns = 16;",
        "static const float SLACK = 0.25f;  // ferret:tune SLACK 0.25f 0.5f",
    ]
    assert changed.splitlines()[4:] == KERNEL.splitlines()[4:]
    assert with_values(changed, Language.CPP, space(KERNEL, Language.CPP).start) == KERNEL


def test_two_on_one_line_do_not_disturb_each_other() -> None:
    """The second stands elsewhere once the first has grown."""
    source = "# ferret:tune A 1 1000\nf(A=1, B=2)  # ferret:tune B 2 2000"
    assert with_values(source, Language.TRITON, {"A": "1000", "B": "2000"}) == source.replace("=1,", "=1000,").replace(
        "=2)", "=2000)"
    )


def test_a_condition_leaves_out_what_it_does_not_allow() -> None:
    """Every other combination is there once."""
    tunable = space(KERNEL, Language.CPP)
    assert [label(one) for one in tunable.combinations] == [
        f"MR={rows} kColumns={columns} SLACK={slack}"
        for rows in (2, 4, 8)
        for columns in (16, 32)
        for slack in ("0.25f", "0.5f")
        if rows * columns <= 128
    ]
    assert tunable.start == {"MR": "4", "kColumns": "32", "SLACK": "0.5f"}


def test_a_start_that_is_not_listed_is_no_choice() -> None:
    """The search begins there and never comes back."""
    tunable = space("int N = 3;  // ferret:tune N 2 4", Language.CPP)
    assert (tunable.start, tunable.combinations) == ({"N": "3"}, ({"N": "2"}, {"N": "4"}))
    assert not tunable.fits(tunable.start)


def test_numbers_are_neighbours_by_size_and_names_by_place() -> None:
    """A search may take 8 and 16 to be more alike than 8 and 64."""
    numbers, names = parameters(
        "int A = 8;  // ferret:tune A 64 8 0x10\nint B = x;  // ferret:tune B y x 8", Language.CPP
    )
    assert (numbers.ordered, numbers.ranked()) == (True, ("8", "0x10", "64"))
    assert (names.ordered, names.ranked()) == (False, ("y", "x", "8"))


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
VALUES = st.one_of(st.integers().map(str), st.floats(allow_nan=False, allow_infinity=False).map(repr), NAMES)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5))
def test_a_label_can_be_read_back(assignment: dict[str, str]) -> None:
    """In order, whatever the names and values."""
    read = assignment_of(label(assignment))
    assert read is not None
    assert list(read.items()) == list(assignment.items())


@pytest.mark.parametrize("text", ["", "seed", "mine.cpp (submitted by me)", "MR=6 NR=", "MR=6, NR=16", "4=MR"])
def test_what_is_no_label_is_read_as_none(text: str) -> None:
    """A person's label, for example."""
    assert assignment_of(text) is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "int M = 4;\n// ferret:tune N 2 4\nint M2 = 4;",
            "line 2: 'N' is marked, but line 3 does not define it by one number or name; "
            "accepted: #define N 4, N = 4 with any type before or behind the name",
        ),
        ("// ferret:tune N 2 4", "line 1: 'N' is marked, but line 2 does not define it"),
        ("int N = 2 * 4;  // ferret:tune N 8 16", "line 1: 'N' is marked, but line 1 does not define it"),
        ("if (N == 4) {}  // ferret:tune N 4 8", "line 1: 'N' is marked, but line 1 does not define it"),
        ("#define N 4  // ferret:tune N 4 8\n// ferret:tune N 2 4\n#define N 4", "line 2: 'N' is marked already"),
        ("int N = 4;  // ferret:tune N 4", "line 1: 'N' has 1 values; at least 2 are needed"),
        ("int N = 4;  // ferret:tune N", "line 1: 'N' has 0 values; at least 2 are needed"),
        ("int N = 4;  // ferret:tune N 4, 8", "line 1: 'N' has the value '4,'; accepted: whole numbers, floats, names"),
        ("int N = 4;  // ferret:tune N 4 4", "line 1: 'N' has the value '4' twice"),
        ("int N = 4;  // ferret:tune", "line 1: ferret:tune names ''; accepted: ferret:tune NAME v1 v2 ..."),
        ("int N = 4;  // ferret:tune 4 8", "line 1: ferret:tune names '4'"),
        (
            "int N = 4;  // ferret:tune-whne N < 8",
            "line 1: 'ferret:tune-whne' is no mark; accepted: ferret:tune, ferret:tune-when",
        ),
        ("int N = 4;", "no parameter is marked; accepted: // ferret:tune NAME v1 v2 ..."),
    ],
)
def test_a_wrong_mark_is_told_in_one_line(source: str, said: str) -> None:
    """With its line, what was given and what is accepted."""
    with pytest.raises(ValueError, match=r"line|marked") as refused:
        space(source, Language.CPP)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("N", "line 2: tune-when 'N' is no condition; accepted: two expressions with one of <= >= == != < > between"),
        ("1 < N < 8", "line 2: tune-when '1 < N < 8' is no condition"),
        ("M < 8", "line 2: tune-when 'M < 8' names 'M'; accepted: parameters whose values are all numbers (N)"),
        ("HOW == 1", "line 2: tune-when 'HOW == 1' names 'HOW'"),
        ("N ** 2 < 8", "line 2: tune-when 'N ** 2 < 8': 'N ** 2' is not accepted"),
        ("N / 3 < 8", "line 2: tune-when 'N / 3 < 8': 'N / 3' is 1.33"),
        ("N > 8", "none of 4 combinations is left by tune-when N > 8"),
    ],
)
def test_a_wrong_condition_is_told_in_one_line(condition: str, said: str) -> None:
    """It names parameters with numbers only, and leaves something to try."""
    source = f"int N = 4;  // ferret:tune N 4 8\n// ferret:tune-when {condition}\nint HOW = a;  // ferret:tune HOW a b"
    with pytest.raises(ValueError, match="tune-when") as refused:
        space(source, Language.CPP)
    assert str(refused.value).startswith(said)


def test_more_combinations_than_can_be_listed_are_refused() -> None:
    """With how many there are."""
    ten = " ".join(map(str, range(10)))
    source = "\n".join(f"int N{k} = 0;  // ferret:tune N{k} {ten}" for k in range(5))
    with pytest.raises(ValueError, match="the marks make 100000 combinations; at most 20000 are accepted"):
        space(source, Language.CPP)


@pytest.mark.parametrize(
    "source",
    [
        "// ferret:tune N " + " " * 400_000 + "x;\nint N = 1;",
        "// ferret:tune N 1 2\n" + "N:" * 200_000 + ";",
        "int N = 1; // ferret:tune N " + " ".join(map(str, range(120_000))),
        "// ferret:tune N " + "1 " * 200_000,
        "int N = 1; // ferret:tune N 1 " + "9" * 5_000,
        "//" * 300_000,
    ],
    ids=["blanks", "colons", "values", "twice", "digits", "slashes"],
)
def test_no_seed_keeps_a_client_from_its_answer(source: str) -> None:
    """It may be a stranger's; each of these would take hours if its parts were looked at one against the other."""
    with pytest.raises(ValueError, match=r"line 1: |marks make|no parameter|limit"):
        space(source, Language.CPP)
