"""The optimiser's memory from one iteration to the next."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from activities.agents.tools.tool import Answer, Arguments, Desk, OnOneLine, Tool
from specs.notes import MOST_TRIED, MOST_UNTRIED, Note, Notes, Section
from specs.outcomes import BlobRef

SHOWN = 10  # notes of a section that an answer repeats


async def notes_of(desk: Desk, ref: BlobRef | None) -> Notes:
    return Notes() if ref is None else Notes.model_validate_json(await desk.workshop.store.get(ref))


class TakeNoteArguments(Arguments):
    section: Section = Field(description="tried: what was done and what came of it. untried_hard: hard, worth trying.")
    text: Annotated[Note, OnOneLine] = Field(description="One sentence, at most 300 characters.")


class TakeNote(Tool[TakeNoteArguments]):
    name: ClassVar[str] = "note"
    description: ClassVar[str] = (
        "Keep a note for later iterations, which see nothing else of this conversation. A text noted as tried leaves"
        " untried_hard."
    )
    arguments: ClassVar[type[Arguments]] = TakeNoteArguments

    async def use(self, desk: Desk, given: TakeNoteArguments) -> Answer:
        notes = (await notes_of(desk, desk.workspace.notes)).with_note(given.section, given.text)
        kept = await desk.workshop.store.put(notes.model_dump_json().encode())
        tried = _listed("tried", notes.tried, MOST_TRIED)
        untried = _listed("untried_hard", notes.untried, MOST_UNTRIED)
        return Answer(
            f"{tried}\n{untried}",
            workspace=desk.workspace.model_copy(update={"notes": kept}),
            said=f"{given.section.value}: {given.text}",
        )


def _listed(section: str, notes: tuple[str, ...], most: int) -> str:
    left_out = f", the last {SHOWN} of them" if len(notes) > SHOWN else ""
    return "\n".join([f"{section} ({len(notes)} of at most {most}{left_out}):", *(f"- {n}" for n in notes[-SHOWN:])])
