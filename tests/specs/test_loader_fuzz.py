"""Whatever bytes a task file holds, load_task answers with a task or a SpecError."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specs.errors import SpecError
from specs.loader import LoadedTask, load_task

TEMPLATE = (Path(__file__).parents[2] / "specs" / "template.yaml").read_bytes()
LINES = TEMPLATE.splitlines(keepends=True)
# Pieces that YAML, numbers and the schema stumble over.
TROUBLE = [
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"[",
        b"]",
        b"{",
        b"}",
        b": ",
        b"- ",
        b"? ",
        b"|\n",
        b">-\n",
        b"!!int ",
        b"!!binary ",
        b"!x ",
    ),
    *(
        b"\t",
        b"\r",
        b"\0",
        b"\xff",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b'"\\ud800"',
        b'"\\UFFFFFFFF"',
        b"%YAML 9.9\n",
        b"---\n",
    ),
    *(
        b".nan",
        b"1e999",
        b"0x_",
        b"9" * 5000,
        b"-",
        b"~",
        b"null",
        b"true",
        b"''",
        b"N" * 600,
        b"(" * 300,
        b"2**9",
        b"'",
    ),
]
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

edits = st.lists(
    st.tuples(
        st.integers(0, len(TEMPLATE)),
        st.integers(0, 40),
        st.one_of(
            st.sampled_from(TROUBLE),
            st.binary(max_size=6),
            st.text(max_size=6).map(lambda t: t.encode("utf-8", "replace")),
        ),
    ),
    min_size=1,
    max_size=5,
)


def _answers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "task.yaml"
    path.write_bytes(content)
    loaded: LoadedTask | SpecError
    try:
        loaded = load_task(path)
    except SpecError as error:
        loaded = error
    if isinstance(loaded, SpecError):
        assert any(problem.severity == "error" for problem in loaded.problems)
        assert all(problem.message and "\n" not in problem.message for problem in loaded.problems)
        return
    assert all(problem.severity == "error" for problem in loaded.check_files())
    # What loads can travel: a task is a Temporal argument.
    assert type(loaded.task).model_validate_json(loaded.task.model_dump_json()) == loaded.task


@SETTINGS
@given(edits=edits)
def test_a_damaged_template_never_escapes(tmp_path: Path, edits: list[tuple[int, int, bytes]]) -> None:
    """Bytes cut out and put in anywhere."""
    content = TEMPLATE
    for at, length, piece in edits:
        content = content[:at] + piece + content[at + length :]
    _answers(tmp_path, content)


@SETTINGS
@given(order=st.lists(st.integers(0, len(LINES) - 1), max_size=60), keep=st.booleans())
def test_shuffled_lines_never_escape(tmp_path: Path, order: list[int], keep: bool) -> None:
    """Lines repeated, moved and left out."""
    _answers(tmp_path, (TEMPLATE if keep else b"") + b"".join(LINES[i] for i in order))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@SETTINGS
@given(data=st.data())
def test_any_value_in_any_place_never_escapes(tmp_path: Path, data: st.DataObject) -> None:
    """Well-formed YAML of the wrong shape: a random value behind a random key of the template."""
    place = data.draw(st.sampled_from([i for i, line in enumerate(LINES) if b": " in line.split(b"#")[0]]))
    value = json.dumps(data.draw(values)).replace("NaN", ".nan").replace("Infinity", ".inf").encode()
    line = LINES[place].split(b": ")[0] + b": " + value + b"\n"
    _answers(tmp_path, b"".join([*LINES[:place], line, *LINES[place + 1 :]]))


@SETTINGS
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace"))))
def test_arbitrary_content_never_escapes(tmp_path: Path, content: bytes) -> None:
    """Not even near a task."""
    _answers(tmp_path, content)
