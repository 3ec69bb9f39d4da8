"""Reading a file: what is not a task file at all, what would hurt, and what YAML may be used for."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from specs.document import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_NODES, dotted
from specs.loader import load_task
from tests.specs.conftest import SMALL, Write, refused, the_error


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is one message with its path and no line."""
    problem = the_error(tmp_path / "nowhere.yaml")
    assert (problem.file, problem.line, problem.message) == (str(tmp_path / "nowhere.yaml"), None, "no such file")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder given for a file is called a folder."""
    assert "is a folder" in the_error(tmp_path).message


def test_a_path_through_a_file_is_refused(write: Write) -> None:
    """A path that goes through a file says what the system says, without a traceback."""
    assert "cannot be read" in the_error(write(SMALL) / "task.yaml").message


def test_a_file_that_may_not_be_read_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without read permission says so."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(SMALL)
    monkeypatch.setattr(Path, "open", denied)
    assert the_error(path).message == "cannot be read: Permission denied"


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    """A named pipe nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in the_error(tmp_path / "pipe").message


def test_a_name_that_no_file_can_bear_is_refused() -> None:
    """A path with a zero byte in it is a message, not a ValueError."""
    assert the_error(Path("a\0b")).message == "is not a file name"


def test_text_that_is_not_utf8_is_refused_with_its_line(write: Write) -> None:
    """Latin-1 in the third line is reported on line 3, with the byte."""
    problem = the_error(write(b"name: a\ngpu: CPU\narch: \xe9\n"))
    assert problem.line == 3
    assert "0xe9 is not UTF-8" in problem.message


def test_a_byte_order_mark_is_fine(write: Write) -> None:
    """An editor's byte order mark changes nothing."""
    assert load_task(write(b"\xef\xbb\xbf" + SMALL.encode())).task.name == "add-one"


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_refused(write: Write, content: str) -> None:
    """Nothing, in whichever form, is called empty."""
    assert "the file is empty" in the_error(write(content)).message


@pytest.mark.parametrize(
    ("content", "kind"), [("- a\n- b\n", "a list"), ("just text\n", "a single value"), ("7", "a single")]
)
def test_a_file_that_is_no_mapping_is_refused(write: Write, content: str, kind: str) -> None:
    """A list or a scalar at the top is called what it is."""
    assert f"the file holds {kind}" in the_error(write(content)).message


def test_a_syntax_error_has_its_line(write: Write) -> None:
    """An unclosed bracket in line 4 is reported on line 4 or where YAML gave up on it."""
    problem = the_error(write("name: a\ngpu: CPU\narch: b\nconfigs: [1, 2\nprecision: c\n"))
    assert problem.line in (4, 5)
    assert problem.message.startswith("not valid YAML: ")


def test_a_tab_is_a_syntax_error_with_its_line(write: Write) -> None:
    """The classic mistake, a tab as indentation, points at its line."""
    assert the_error(write("problem:\n\tdescription: a\n")).line == 2


def test_a_control_character_is_refused_with_its_line(write: Write) -> None:
    """A character that YAML does not know has its line and its code point."""
    problem = the_error(write("name: a\nname2: \x07\n"))
    assert problem.line == 2
    assert "U+0007" in problem.message


def test_two_documents_in_a_file_are_refused(write: Write) -> None:
    """One file is one task."""
    assert "single document" in the_error(write(f"{SMALL}---\n{SMALL}")).message


@pytest.mark.parametrize("escape", [r"\UFFFFFFFF", r"\U00110000"])
def test_an_escape_beyond_unicode_is_refused(write: Write, escape: str) -> None:
    """PyYAML lets a ValueError out here; a person gets a message."""
    assert "not valid YAML" in the_error(write(f'name: "{escape}"\n')).message


def test_half_a_surrogate_pair_is_refused(write: Write) -> None:
    """Text that no file could be written with never gets into a task."""
    assert "surrogate" in the_error(write(SMALL.replace("y = x + 1", r'"\ud800"'))).message


def test_a_file_over_the_limit_is_refused_with_both_sizes(write: Write) -> None:
    """One byte too many is refused; the message gives size and limit."""
    problem = the_error(write(SMALL + "#" * (MAX_BYTES + 1 - len(SMALL))))
    assert problem.message == f"has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are accepted"


def test_a_file_of_50_mb_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is enough: the file is never opened."""
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("the file was opened"))
    assert "has 50000000 bytes" in the_error(path).message


def test_a_file_at_the_limit_loads(write: Write) -> None:
    """The limit itself is still accepted."""
    assert load_task(write(SMALL + "#" * (MAX_BYTES - len(SMALL)))).task.name == "add-one"


def _doubling(levels: int, inside: str) -> str:
    lines = [f"l0: &l0 {inside}"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def test_an_alias_bomb_is_refused(write: Write) -> None:
    """Nine aliases of nine aliases ... would be 9^15 values; it is refused after the first thousands."""
    problem = the_error(write(SMALL + _doubling(15, "[x, x]")))
    assert f"more than {MAX_NODES} values once its aliases are written out" in problem.message


def test_a_merge_bomb_is_refused(write: Write) -> None:
    """Merge keys multiply like aliases, even when every mapping is empty."""
    lines = ["m0: &m0 {}"] + [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 15)]
    assert "once its aliases are written out" in the_error(write(SMALL + "\n".join(lines))).message


def test_too_many_aliases_are_refused(write: Write) -> None:
    """Even harmless aliases have a limit."""
    problem = the_error(write(f"{SMALL}a: &a 1\nb: [{', '.join(['*a'] * (MAX_ALIASES + 1))}]\n"))
    assert f"more than {MAX_ALIASES} aliases" in problem.message


@pytest.mark.parametrize("loop", ["a: &a [*a]\n", "a: &a\n  b: *a\n", "a: &a\n  <<: *a\n"])
def test_an_alias_of_itself_is_refused(write: Write, loop: str) -> None:
    """A value that holds itself has no end."""
    assert "refers to the very value it stands in" in the_error(write(SMALL + loop)).message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(write: Write, opening: str) -> None:
    """A hundred thousand levels end in a message, not in a RecursionError."""
    assert f"nested more than {MAX_DEPTH} levels" in the_error(write(opening * 100_000)).message


def test_too_many_values_are_refused(write: Write) -> None:
    """A list of more values than any task needs is refused on the way, not after it was built."""
    assert f"more than {MAX_NODES} values" in the_error(write(SMALL + "n:\n" + "- 1\n" * (MAX_NODES + 1))).message


def test_a_number_of_a_million_digits_is_refused(write: Write) -> None:
    """The parser is not kept busy with it."""
    assert "a number of 1000000 characters" in the_error(write(SMALL + "n: " + "9" * 1_000_000)).message


@pytest.mark.parametrize("levels", [12, 22])
def test_an_alias_bomb_costs_no_memory(write: Write, levels: int) -> None:
    """9^22 values cost no more than 9^12, which is what is kept until the limit is met."""
    path = write(SMALL + _doubling(levels, "[x, x]"))
    tracemalloc.start()
    refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20


def test_anchors_used_sanely_work(write: Write) -> None:
    """An alias is its anchor's value."""
    task = load_task(write(SMALL.replace("args: {N: 64}", "args: &a {N: 64}").replace("{N: 4096}", "*a"))).task
    assert task.configs[0].args == task.configs[1].args == {"N": 64}


def test_a_merge_key_fills_in_what_is_not_given(write: Write) -> None:
    """`<<` brings the anchor's keys; those beside it win."""
    merged = """\
  - &base
    name: small
    args: {N: 64}
    target_ratio: 1.2
    weight: 3
  - <<: *base
    name: large
    weight: 5
"""
    task = load_task(write(SMALL[: SMALL.index("  - name: small")] + merged)).task
    large = task.config("large")
    assert (large.args, large.target_ratio, large.weight) == ({"N": 64}, 1.2, 5)


def test_merging_a_list_of_mappings_works(write: Write) -> None:
    """Of several merged mappings the first that has a key gives it."""
    text = SMALL.replace("args: {N: 64}", "args: {<<: [{N: 1, M: 2}, {M: 3, K: 4}]}")
    assert load_task(write(text)).task.configs[0].args == {"N": 1, "M": 2, "K": 4}


@pytest.mark.parametrize("merged", ["7", "text", "[1, 2]"])
def test_merging_what_is_no_mapping_is_refused(write: Write, merged: str) -> None:
    """`<<` says what it merges."""
    problem = refused(write(SMALL.replace("args: {N: 64}", f"args: {{N: 64, <<: {merged}}}")))[0]
    assert "<< merges a mapping" in problem.message
    assert problem.line == 11


def test_a_duplicate_key_names_both_lines(write: Write) -> None:
    """YAML would silently take the last one."""
    problem = the_error(write(f"{SMALL}gpu: H200\n"))
    assert (problem.line, problem.field) == (14, "gpu")
    assert problem.message == "the key 'gpu' was given before, on line 2"


def test_a_duplicate_key_deep_inside_is_found(write: Write) -> None:
    """Also within a flow mapping, where both stand on one line."""
    problem = the_error(write(SMALL.replace("{N: 64}", "{N: 64, N: 65}")))
    assert (problem.line, problem.field) == (11, "configs[0].args.N")


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5", "no", "~"])
def test_a_key_that_is_not_text_is_refused(write: Write, key: str) -> None:
    """`1:` and `no:` are not the text a person sees; quotes make them so."""
    problem = the_error(write(SMALL.replace("{N: 64}", f"{{N: 64, {key}: 2}}")))
    assert "is not text to YAML; put it in quotes" in problem.message


def test_a_quoted_key_is_text(write: Write) -> None:
    """The advice that the message gives works."""
    assert load_task(write(SMALL.replace("{N: 64}", '{N: 64, "1": 2}'))).task.configs[0].args["1"] == 2


def test_a_list_as_a_key_is_refused(write: Write) -> None:
    """Keys are plain text."""
    assert "a key is a list" in the_error(write(SMALL + "? [a, b]\n: 1\n")).message


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system [ls]", "!!python/name:os.system x", "!!binary aGk=", "!mine x", "!!set {a}"],
)
def test_a_tag_is_refused_and_runs_nothing(write: Write, tag: str) -> None:
    """No tag builds anything."""
    assert "is not accepted; plain YAML values are" in refused(write(f"{SMALL}extra: {tag}\n"))[0].message


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("2.5", 2.5),
        ("0x10", 16),
        ("1_000", 1000),
        ("2:4", "2:4"),
        ("016", "016"),
        ("2026-04-12", "2026-04-12"),
        ("off", False),
        ("'7'", "7"),
        ("!!str 7", "7"),
    ],
)
def test_values_mean_what_an_engineer_reads(write: Write, written: str, meaning: object) -> None:
    """`1e-6` is a number; `2:4` is not 124, `016` not 14, and a date stays as written."""
    value = load_task(write(SMALL.replace("{N: 64}", f"{{N: 64, v: {written}}}"))).task.configs[0].args["v"]
    assert value == meaning
    assert type(value) is type(meaning)


def test_a_number_beyond_64_bits_is_refused(write: Write) -> None:
    """No kernel argument could carry it."""
    assert "beyond 64 bits" in refused(write(SMALL.replace("N: 64", f"N: {2**63}")))[0].message


def test_a_dotted_path_stays_on_one_line() -> None:
    """A key with a line break in it cannot break a message in two."""
    assert dotted(("configs", 2, "args", "a\nb")) == r"configs[2].args.'a\nb'"
