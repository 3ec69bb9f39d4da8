"""The optimiser's notes: what it has tried, and the hard things that it has not."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import StringConstraints

from specs.outcomes import Value

MOST_TRIED = 24  # older ones fall off: the history tool has all iterations
MOST_UNTRIED = 12

Note = Annotated[str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True)]


class Section(StrEnum):
    TRIED = "tried"
    UNTRIED = "untried_hard"


class Notes(Value):
    """Carried from iteration to iteration by digest; bounded, so that prompts stay so."""

    tried: tuple[Note, ...] = ()
    untried: tuple[Note, ...] = ()

    def with_note(self, section: Section, text: str) -> Self:
        """A note said before moves to the end; what was tried leaves the list of what was not."""
        text = " ".join(text.split())
        tried = tuple(note for note in self.tried if note != text)
        untried = tuple(note for note in self.untried if note != text)
        if section is Section.TRIED:
            tried = (*tried, text)[-MOST_TRIED:]
        else:
            untried = (*untried, text)[-MOST_UNTRIED:]
        return self.__class__(tried=tried, untried=untried)
