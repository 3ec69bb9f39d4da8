"""The index finds the section that an author would look up."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.agents.knowledge import MOST_FOUND, Knowledge, knowledge

BARRIERS = """\
# Barriers

How threads wait for data.

## Phases

An mbarrier has a phase bit; cp.async.bulk completes its transaction count.

## Deadlocks

A thread that leaves early starves the others.
"""
MEMORY = (
    "# Memory\n\nCoalesced loads. The word bulk stands here, async does not.\n\n## Banks\n\nPadding by one column.\n"
)


@pytest.fixture
def pages(tmp_path: Path) -> Knowledge:
    (tmp_path / "barriers.md").write_text(BARRIERS)
    (tmp_path / "memory.md").write_text(MEMORY)
    return Knowledge(tmp_path)


def test_the_section_that_fits_comes_first(pages: Knowledge) -> None:
    """With its page and a few words of it, in whatever form the words were asked for."""
    found = pages.search("why does an early thread starve others? deadlock")[0]
    assert (found.page, found.section) == ("barriers", "Deadlocks")
    assert "leaves early" in found.excerpt
    assert "\n" not in found.excerpt


def test_an_instruction_is_one_term(pages: Knowledge) -> None:
    """Its parts by themselves are no hit."""
    assert [found.section for found in pages.search("cp.async.bulk")] == ["Phases"]


def test_a_word_of_the_heading_weighs_more_than_one_of_the_text(tmp_path: Path) -> None:
    """A page about something comes before pages that mention it."""
    (tmp_path / "a.md").write_text("# A\n\nx\n\n## Other\n\noccupancy occupancy\n")
    (tmp_path / "b.md").write_text("# B\n\nx\n\n## Occupancy\n\nsome words about it\n")
    assert Knowledge(tmp_path).search("occupancy")[0].page == "b"


def test_few_are_found_and_nothing_is_an_answer(pages: Knowledge, tmp_path: Path) -> None:
    """Whatever is asked: no word is an operator of the index."""
    for number in range(20):
        (tmp_path / f"{number}.md").write_text(f"# Page {number}\n\nThe same words.\n")
    assert len(Knowledge(tmp_path).search("same words")) == MOST_FOUND
    for query in ('"', "", "NOT", "a*", "NEAR(", "text:x", "^", "\0"):
        assert isinstance(pages.search(query), list)


def test_the_shipped_pages_answer_what_they_are_for() -> None:
    """Each has a title and a summary, and is found by its own title."""
    shipped = knowledge()
    assert len(shipped.pages) >= 3
    for page in shipped.pages.values():
        assert page.title
        assert len(page.sections) > 1, page.name
        if page.name != "README":  # the list of them all
            assert page.name in {found.page for found in shipped.search(page.title)}, page.name
