"""The kernel is read by pages, written whole, or edited at exactly one place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from activities.agents.session import Subject
from activities.agents.tools.tool import Desk
from activities.bundle import MAX_SOURCE_BYTES
from specs.dialogue import Question, Role
from tests.activities.agents.calls import after, call, refused, said
from tests.desks import desk_at, text_of

KERNEL = "void f() {\n    a = 1;\n    b = 1;\n    c  =  a + b;\n}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return await desk_at(tmp_path_factory.mktemp("kernel"), kernel=KERNEL)


async def kernel_of(desk: Desk) -> str:
    return await text_of(desk, desk.workspace.kernel)


async def test_lines_are_numbered_as_a_compiler_counts_them(desk: Desk) -> None:
    """So that its messages can be looked up."""
    text = await said(desk, "read_kernel")
    assert text.startswith("kernel: lines 1 to 5 of 5\n")
    assert "    2     a = 1;" in text
    assert (await said(desk, "read_kernel", first_line=4, last_line=4)).splitlines()[1:] == ["    4     c  =  a + b;"]


async def test_a_long_kernel_comes_a_page_at_a_time(tmp_path: Path) -> None:
    """Each page says how to get the next one, and together they are all of it."""
    lines = [f"float value_{number} = {number};" for number in range(700)]
    desk = await desk_at(tmp_path, kernel="\n".join(lines))
    first, seen = 1, []
    while first:
        text = await said(desk, "read_kernel", first_line=first)
        seen += [row[6:] for row in text.splitlines() if row[:5].strip().isdigit()]
        _, more, rest = text.rpartition("More: read_kernel with first_line ")
        first = int(rest.rstrip(".")) if more else 0
    assert seen == lines


async def test_a_line_beyond_the_end_is_told_where_the_end_is(desk: Desk) -> None:
    """Not answered with nothing."""
    assert "accepted: 1 to 5" in await refused(desk, "read_kernel", first_line=6)
    assert "before first_line 3" in await refused(desk, "read_kernel", first_line=3, last_line=2)


async def test_a_reviewer_reads_what_it_is_asked_about(tmp_path: Path) -> None:
    """It has no kernel of its own."""
    desk = await desk_at(tmp_path, role=Role.REVIEWER)
    source = await desk.workshop.store.put(b"int reviewed;\n")
    subject = Subject(question=Question.INTEGRITY, kernel=source)
    desk = replace(desk, session=desk.session.model_copy(update={"subject": subject}))
    assert "int reviewed;" in await said(desk, "read_kernel")


async def test_without_a_kernel_only_writing_helps(tmp_path: Path) -> None:
    """A task need not have a seed."""
    desk = await desk_at(tmp_path)
    assert "write_kernel makes one" in await refused(desk, "read_kernel")
    assert "write_kernel makes one" in await refused(desk, "edit_kernel", old="a", new="b")
    written = await after(desk, "write_kernel", source="int x;")
    assert await kernel_of(written) == "int x;"


async def test_writing_tells_the_size_and_which_constraints_are_broken(desk: Desk) -> None:
    """Before a compiler is asked."""
    text = await said(desk, "write_kernel", source="int x;\nstd::thread t;\n")
    assert "2 lines, 22 bytes" in text
    assert "line 2: std::thread: no threads" in text
    assert "No constraint rule objects" in await said(desk, "write_kernel", source="int x;\n")
    assert "unchanged" in await said(desk, "write_kernel", source=KERNEL)


async def test_what_is_no_source_is_not_written(desk: Desk) -> None:
    """Nothing, too much, or no text."""
    assert "nothing given" in await refused(desk, "write_kernel", source=" \n")
    limit = f"{MAX_SOURCE_BYTES + 2} bytes; at most {MAX_SOURCE_BYTES}"
    assert limit in await refused(desk, "write_kernel", source="é" * (MAX_SOURCE_BYTES // 2 + 1))
    assert "zero byte in line 2" in await refused(desk, "write_kernel", source="int x;\n\0")


async def test_an_edit_changes_exactly_one_place(desk: Desk) -> None:
    """Byte by byte; the rest stays as it is."""
    edited = await after(desk, "edit_kernel", old="    b = 1;\n", new="")
    assert await kernel_of(edited) == KERNEL.replace("    b = 1;\n", "")


@pytest.mark.parametrize(
    ("old", "count", "lines"), [("= 1", 2, "2, 3"), ("\n", 5, "1, 2, 3, 4, 5"), ("  ", "more than 8", "2, 2, ")]
)
async def test_an_edit_that_fits_several_places_names_them(desk: Desk, old: str, count: int | str, lines: str) -> None:
    """Overlapping ones, too."""
    assert f"{count} times, at lines {lines}" in await refused(desk, "edit_kernel", old=old, new="x")


@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("c = a + b;", "only white space differs from line 4:\n    c  =  a + b;"),
        ("a=1;\n\tb=1;", "only white space differs from lines 2 to 3:"),
        ("    a = 1;\r\n    b = 1;", "only white space differs from lines 2 to 3:"),
        ("    c  =  a - b;", "the line most like its first one is line 4:"),
        ("__syncthreads();", "no line of the kernel looks like its first one"),
        ("\t\t", "nothing but white space"),
    ],
)
async def test_an_edit_that_fits_nowhere_points_at_the_nearest_place(desk: Desk, old: str, told: str) -> None:
    """So that the next one can fit."""
    assert told in await refused(desk, "edit_kernel", old=old, new="x")


async def test_an_edit_that_would_change_nothing_is_refused(desk: Desk) -> None:
    """It is a slip."""
    assert "are the same" in await refused(desk, "edit_kernel", old="a = 1", new="a = 1")
    assert "at least 1" in await refused(desk, "edit_kernel", old="", new="a = 1")


async def test_bytes_that_are_no_text_survive_an_edit(desk: Desk) -> None:
    """A person's source may hold them in a comment."""
    odd = await desk.workshop.store.put(b"// caf\xe9\nint x;\n")
    desk = replace(desk, workspace=desk.workspace.model_copy(update={"kernel": odd}))
    edited = await after(desk, "edit_kernel", old="int x", new="int y")
    assert edited.workspace.kernel is not None
    assert await desk.workshop.store.get(edited.workspace.kernel) == b"// caf\xe9\nint y;\n"
    assert "caf\N{REPLACEMENT CHARACTER}" in (await call(edited, "read_kernel", {})).text


async def test_an_edit_need_not_know_how_lines_end(tmp_path: Path) -> None:
    """A page does not show it; what is put in ends as the lines around it do."""
    desk = await desk_at(tmp_path, kernel="int a;\r\nint b;\r\nint c;\r\n")
    edited = await after(desk, "edit_kernel", old="int a;\nint b;\n", new="int a;\nint d;\n")
    assert await kernel_of(edited) == "int a;\r\nint d;\r\nint c;\r\n"
    again = await after(edited, "edit_kernel", old="int d;\r\n", new="")
    assert await kernel_of(again) == "int a;\r\nint c;\r\n"


async def test_an_edit_takes_text_as_it_stands(desk: Desk) -> None:
    """It is no pattern, in neither place."""
    edited = await after(desk, "edit_kernel", old="(", new="(\\1 .* \\g<0>")
    assert await kernel_of(edited) == KERNEL.replace("(", "(\\1 .* \\g<0>")


@pytest.mark.parametrize(
    ("kernel", "old"),
    [
        ("a" * 900_000, "a" * 300_000),
        ("a\n" * 450_000, "a\n" * 200_000 + "b"),
        ("ab" * 450_000 + "c", "ba" * 400_000),
    ],
)
async def test_no_edit_keeps_a_worker_from_all_else(tmp_path: Path, kernel: str, old: str) -> None:
    """Its work grows with the length of the texts, not by their product: these would take hours."""
    assert await refused(await desk_at(tmp_path, kernel=kernel), "edit_kernel", old=old, new="x")
