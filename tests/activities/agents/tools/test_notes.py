"""Notes outlive the conversation, and an answer says what they now hold."""

from __future__ import annotations

from pathlib import Path

from activities.agents.tools.tool import Desk
from specs.notes import MOST_UNTRIED, Notes
from tests.activities.agents.calls import after, said
from tests.desks import desk_at, text_of


async def notes_of(desk: Desk) -> Notes:
    return Notes.model_validate_json(await text_of(desk, desk.workspace.notes))


async def test_a_note_is_kept_and_told(tmp_path: Path) -> None:
    """On one line, in its section."""
    desk = await desk_at(tmp_path)
    text = await said(desk, "note", section="tried", text="  wider\ntiles: slower ")
    assert text == "tried (1 of at most 24):\n- wider tiles: slower\nuntried_hard (0 of at most 12):"
    kept = await after(desk, "note", section="tried", text="wider\ntiles: slower")
    assert await notes_of(kept) == Notes(tried=("wider tiles: slower",))


async def test_what_was_tried_leaves_the_list_of_what_was_not(tmp_path: Path) -> None:
    """By its own words."""
    desk = await after(await desk_at(tmp_path), "note", section="untried_hard", text="split K")
    desk = await after(desk, "note", section="tried", text="split K")
    assert await notes_of(desk) == Notes(tried=("split K",))


async def test_the_list_stays_bounded(tmp_path: Path) -> None:
    """The oldest go, and the answer repeats only the newest."""
    desk = await desk_at(tmp_path)
    for number in range(MOST_UNTRIED + 1):
        desk = await after(desk, "note", section="untried_hard", text=f"idea {number}")
    assert len((await notes_of(desk)).untried) == MOST_UNTRIED
    text = await said(desk, "note", section="tried", text="x")
    assert "12 of at most 12, the last 10 of them" in text
    assert "idea 2\n" not in text


async def test_a_note_is_a_line_that_can_be_seen(tmp_path: Path) -> None:
    """Whatever else it holds: notes stand in every later prompt."""
    desk = await after(await desk_at(tmp_path), "note", section="tried", text="\x1c## a\u2028b\0\x1b[2J\ud7ff\u202e")
    (note,) = (await notes_of(desk)).tried
    assert note.isprintable()
    assert note.startswith("\N{REPLACEMENT CHARACTER}## a")
    assert "nothing" not in note
