"""The pages of docs/knowledge, for the optimiser and the reviewer."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from activities.agents.knowledge import SUMMARY, Document, knowledge
from activities.agents.pages import MOST
from activities.agents.tools.tool import Answer, Arguments, Desk, Tool, clipped

MOST_PAGES = 40  # names that an error lists


class SearchDocsArguments(Arguments):
    query: str = Field(min_length=1, max_length=200, description="A few words: instructions, symptoms, limits.")


class SearchDocs(Tool[SearchDocsArguments]):
    name: ClassVar[str] = "search_docs"
    description: ClassVar[str] = "Search our own pages on hardware limits, instructions, patterns, profiles and bugs."
    arguments: ClassVar[type[Arguments]] = SearchDocsArguments

    async def use(self, desk: Desk, given: SearchDocsArguments) -> Answer:
        found = knowledge().search(given.query)
        if not found:
            return Answer(f"Nothing found. Pages: {_pages()}", said="nothing found")
        places = [
            f"{one.page}{f', section {one.section}' if one.section != SUMMARY else ''}\n    {one.excerpt}"
            for one in found
        ]
        return Answer("\n".join([*places, "Read on with read_doc."]), said=f"{given.query}: {len(found)} found")


class ReadDocArguments(Arguments):
    page: str = Field(min_length=1, max_length=100, description="As search_docs names it.")
    section: str = Field(default="", max_length=200, description="One section of it; empty: the page.")


class ReadDoc(Tool[ReadDocArguments]):
    name: ClassVar[str] = "read_doc"
    description: ClassVar[str] = "Read a page that search_docs found, or one section of it."
    arguments: ClassVar[type[Arguments]] = ReadDocArguments

    async def use(self, desk: Desk, given: ReadDocArguments) -> Answer:
        page = knowledge().page(given.page)
        if page is None:
            meant = knowledge().nearest(given.page)
            hint = f"; did you mean {meant!r}?" if meant else ""
            return Answer(f"page: {given.page!r} given{hint}; accepted: {_pages()}", error=True)
        if not given.section.strip():
            return Answer(_whole(page), said=page.name)
        wanted = given.section.strip().lstrip("# ").casefold()
        for section in page.sections[1:]:
            if section.name.casefold() == wanted:
                return Answer(clipped(section.text), said=f"{page.name}, {section.name}")
        names = ", ".join(repr(section.name) for section in page.sections[1:])
        return Answer(f"section: {given.section!r} given; accepted on page {page.name}: {names}", error=True)


def _whole(page: Document) -> str:
    """As many sections as fit, and the names of the others."""
    shown: list[str] = []
    room = MOST
    for position, section in enumerate(page.sections):
        room -= len(section.text)
        if room < 0 and shown:
            left = ", ".join(repr(one.name) for one in page.sections[position:])
            return "\n\n".join([*shown, f"Left out; read_doc with section: {left}"])
        shown.append(clipped(section.text))
    return "\n\n".join(shown)


def _pages() -> str:
    names = list(knowledge().pages)
    return ", ".join(names[:MOST_PAGES]) or "none; there are no pages"
