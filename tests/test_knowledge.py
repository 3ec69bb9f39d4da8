"""The pages that the optimiser may read: all there, short enough to answer with, every figure with its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KNOWLEDGE = Path(__file__).parents[1] / "docs" / "knowledge"
INDEX = KNOWLEDGE / "README.md"
PAGES = sorted(page for page in KNOWLEDGE.glob("*.md") if page != INDEX)
SUBJECTS = {
    *("hopper", "blackwell", "ampere", "memory-access", "tensor-cores", "tma-mbarrier", "warp-specialisation"),
    *("split-k-and-decode-attention", "reductions", "occupancy-registers", "roofline", "reading-ncu", "reading-sass"),
    *("cpu-simd-and-cache-blocking", "triton", "common-bugs", "ferret-rules"),
}

LINES = 130
COLUMNS = 120
SECTION = 3600  # characters: at the three of them that a token of tables and code is worth, 1,200 tokens

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
every_file = pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)


def prose(page: Path) -> str:
    """The page without its code, in which brackets and hashes mean something else."""
    return _FENCED.sub("", page.read_text())


def sections(page: Path) -> dict[str, str]:
    """Heading to text. Only headings outside code count."""
    found: dict[str, str] = {}
    heading, code = "", False
    for line in page.read_text().splitlines():
        code ^= line.startswith("```")
        if line.startswith("## ") and not code:
            heading = line[3:]
            assert heading not in found, f"{page.name}: two sections are named {heading}"
            found[heading] = ""
        elif heading:
            found[heading] += line + "\n"
    return found


def tables(page: Path) -> list[list[list[str]]]:
    """Every table as rows of cells, the rule below the heads left out."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", prose(page), re.MULTILINE)
    rows = [[[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()] for block in blocks]
    return [[heads, *body] for heads, _, *body in rows]


def test_every_subject_has_a_page() -> None:
    assert {page.stem for page in PAGES} == SUBJECTS


def test_the_index_names_every_page_once_and_no_other() -> None:
    linked = re.findall(r"^- \[([\w-]+)\]\(([\w-]+)\.md\): \S", INDEX.read_text(), re.MULTILINE)
    assert [name for name, target in linked if name != target] == []
    assert sorted(name for name, _ in linked) == [page.stem for page in PAGES]
    assert len(linked) == INDEX.read_text().count("](")


@every_file
def test_a_page_begins_with_a_title_and_one_line_of_summary(page: Path) -> None:
    title, gap, summary, after, *_ = page.read_text().splitlines()
    assert re.fullmatch(r"# \S.*", title)
    assert summary[0].isalnum()
    assert summary.endswith(".")
    assert gap == after == ""


@every_page
def test_a_page_ends_with_when_to_use_it_what_goes_wrong_and_its_sources(page: Path) -> None:
    named = list(sections(page))
    assert len(named) >= 5
    assert "When to use it" in named or "How to use it" in named
    assert named[-2:] == ["What goes wrong", "Sources"]


@every_page
def test_sources_have_an_address_or_are_in_this_checkout(page: Path) -> None:
    text = sections(page)["Sources"]
    assert len(re.findall(r"https://\S+\.\S+", text)) + len(_LINK.findall(text)) >= 2


@every_page
def test_every_source_that_a_table_names_is_explained(page: Path) -> None:
    """In a column of that name: a short name from the list below, or a link."""
    explained = set(re.findall(r"^- ([A-Z0-9]+): ", sections(page)["Sources"], re.MULTILINE))
    for heads, *body in tables(page):
        if heads[-1] != "source":
            continue
        for row in body:
            named = {name for name in re.split(r"[,;] *", row[-1]) if name and not _LINK.fullmatch(name)}
            assert named <= explained, f"{page.name}: {row}"


@every_file
def test_every_table_is_rectangular(page: Path) -> None:
    for heads, *body in tables(page):
        assert [row for row in body if len(row) != len(heads)] == []


@every_file
def test_every_section_fits_one_answer(page: Path) -> None:
    found = sections(page)
    assert {heading: len(text) for heading, text in found.items() if len(text) > SECTION} == {}
    assert [heading for heading, text in found.items() if len(text.strip()) < 40] == []


@every_file
def test_no_page_is_longer_or_wider_than_a_page(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= LINES
    assert page == INDEX or len(lines) >= 60
    assert [line for line in lines if len(line) > COLUMNS and "https://" not in line] == []


@every_file
def test_code_is_fenced_and_named(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {"cuda", "cpp", "python", ""}
    assert set(fences[1::2]) <= {""}


@every_file
def test_every_relative_link_leads_to_a_file_of_this_checkout(page: Path) -> None:
    root = KNOWLEDGE.parents[1]
    for link in _LINK.findall(_CODE.sub("", prose(page))):
        if not link.startswith("https://"):
            target = (page.parent / link).resolve()
            assert target.is_file(), f"{page.name}: {link}"
            assert target.is_relative_to(root)
