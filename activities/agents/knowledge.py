"""What the optimiser may read of docs/knowledge: an index in memory, made once a process."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specs.near_miss import near_miss

FOLDER = Path(__file__).parents[2] / "docs" / "knowledge"
MOST_FOUND = 6
EXCERPT_WORDS = 30
EXCERPT = 220  # characters
NOT_FOUND = ("README", "Sources")  # a page and a section that name everything and say nothing
SUMMARY = ""  # name of what stands before a page's first section


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    text: str  # with its heading


@dataclass(frozen=True, slots=True)
class Document:
    name: str  # of the file, without its suffix
    title: str
    sections: tuple[Section, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(section.text for section in self.sections)


@dataclass(frozen=True, slots=True)
class Found:
    page: str
    section: str
    excerpt: str


class Knowledge:
    """The pages of one folder."""

    def __init__(self, folder: Path) -> None:
        self.pages = {path.stem: _read(path) for path in sorted(folder.glob("*.md"))}
        # Used by one call at a time, though perhaps on another thread.
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE sections USING"
            " fts5(page UNINDEXED, section, title, text, tokenize='porter unicode61')"
        )
        self._index.executemany(
            "INSERT INTO sections VALUES (?, ?, ?, ?)",
            [
                (page.name, section.name, f"{page.title} {page.name}", section.text)
                for page in self.pages.values()
                for section in page.sections
                if page.name not in NOT_FOUND and section.name not in NOT_FOUND
            ],
        )

    def search(self, query: str) -> list[Found]:
        """The sections that fit best, best first. Words of one term (`cp.async.bulk`) count as a phrase."""
        terms = [" ".join(re.findall(r"\w+", term)) for term in query.split()]
        asked = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms) if term)
        if not asked:
            return []
        rows = self._index.execute(
            "SELECT page, section, snippet(sections, 3, '', '', ' ... ', ?) FROM sections WHERE sections MATCH ?"
            " ORDER BY bm25(sections, 0, 4, 2, 1), page, section LIMIT ?",
            (EXCERPT_WORDS, asked, MOST_FOUND),
        )
        return [Found(page, section, " ".join(excerpt.split())[:EXCERPT]) for page, section, excerpt in rows]

    def page(self, name: str) -> Document | None:
        wanted = name.strip().casefold().removesuffix(".md")
        return next((page for key, page in self.pages.items() if key.casefold() == wanted), None)

    def nearest(self, name: str) -> str | None:
        return near_miss(name.removesuffix(".md"), self.pages)


@cache
def knowledge(folder: Path = FOLDER) -> Knowledge:
    return Knowledge(folder)


def _read(path: Path) -> Document:
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    head, *rest = [part.strip() for part in parts]
    title = head.partition("\n")[0].removeprefix("# ").strip() or path.stem
    sections = [Section(SUMMARY, head)]
    sections += [Section(part.partition("\n")[0].removeprefix("## ").strip(), part) for part in rest]
    return Document(path.stem, title, tuple(sections))
