"""What is handed in is new and within the constraints; a plan comes after notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.agents import logbook
from activities.agents.tools.tool import Desk
from specs.dialogue import Mode, Planned, Submitted
from specs.history import Champion
from specs.normal import normal_digest
from specs.outcomes import Ending, Iteration, Origin, Proposal
from specs.schema import Language, Model
from tests.activities.agents.calls import after, call, refused, said
from tests.desks import desk_at, text_of

KERNEL = "void copy() { fast(); }\n"


async def with_past(desk: Desk, source: str, ending: Ending) -> Desk:
    """A logbook in which `source` was tried."""
    proposal = Proposal(
        source=await desk.workshop.store.put(source.encode()),
        normal=normal_digest(source.encode(), Language.CPP),
        origin=Origin.OPTIMIZER,
        label="before",
    )
    version = "a007"
    past = Iteration(index=7, version=version, stage=desk.session.stage, ending=ending, reason="x", proposal=proposal)
    book = await logbook.append(desk.workshop.store, None, (past,))
    return replace(desk, session=desk.session.model_copy(update={"logbook": book}))


async def test_a_new_kernel_ends_the_conversation(tmp_path: Path) -> None:
    """Compiled or not: the pipeline judges it anyway."""
    called = await call(await desk_at(tmp_path, kernel=KERNEL), "submit", {"title": " wider loads "})
    assert called.outcome.final == Submitted(title="wider loads", normal=normal_digest(KERNEL.encode(), Language.CPP))


async def test_without_a_kernel_there_is_nothing_to_hand_in(tmp_path: Path) -> None:
    """A task without a seed begins so."""
    assert "no kernel yet" in await refused(await desk_at(tmp_path), "submit", title="x")


async def test_the_seed_is_nothing_new(tmp_path: Path) -> None:
    """Nor is it with another comment."""
    seeded: dict[str, Any] = {"task": {"seed": "seed.cpp"}, "files": {"seed.cpp": KERNEL}}
    desk = await desk_at(tmp_path, kernel=f"// faster\n{KERNEL}", **seeded)
    assert "still the seed" in await refused(desk, "submit", title="x")


async def test_the_champion_is_nothing_new(tmp_path: Path) -> None:
    """It is what the conversation began with."""
    desk = await desk_at(tmp_path, kernel=KERNEL)
    assert desk.workspace.kernel is not None
    kernel = desk.workspace.kernel
    champion = Champion(version="v002", index=2, source=kernel, library=kernel, score=1.0, ratios={})
    desk = replace(desk, session=desk.session.model_copy(update={"champion": champion}))
    assert "still the champion, v002" in await refused(desk, "submit", title="x")


@pytest.mark.parametrize("ending", [Ending.SLOWER, Ending.BUILD_FAILED, Ending.REFUSED])
async def test_what_was_answered_before_is_named(tmp_path: Path, ending: Ending) -> None:
    """The run would call it a duplicate."""
    desk = await with_past(await desk_at(tmp_path, kernel=KERNEL), "void  copy()\n{ fast(); }", ending)
    assert f"a007, which ended as {ending.value}" in await refused(desk, "submit", title="x")


async def test_what_was_stopped_before_an_answer_may_come_again(tmp_path: Path) -> None:
    """Nobody has judged it."""
    desk = await with_past(await desk_at(tmp_path, kernel=KERNEL), KERNEL, Ending.STOPPED)
    assert await said(desk, "submit", title="x") == "Handed in."


async def test_a_broken_constraint_is_told_instead_of_judged(tmp_path: Path) -> None:
    """Line by line."""
    desk = await desk_at(tmp_path, kernel="#include <thread>\n")
    text = await refused(desk, "submit", title="x")
    assert "breaks constraints of the task:\nline 1: #include <thread>" in text


@pytest.mark.parametrize("provider", ["scripted", "tune"])
async def test_what_cannot_think_is_never_refused(tmp_path: Path, provider: str) -> None:
    """A script's candidates go to the judge as they are, cheats among them."""
    model = Model.model_validate({"provider": provider, "script": "script"})
    desk = await desk_at(tmp_path, kernel="#include <thread>\n", model=model)
    desk = await with_past(desk, "#include <thread>\n", Ending.REFUSED)
    final = (await call(desk, "submit", {"title": "03.cpp"})).outcome.final
    assert isinstance(final, Submitted)
    assert final.title == "03.cpp"


PLAN: dict[str, Any] = {
    "lever": "split K over blocks",
    "why": "8 of 132 SMs have work",
    "steps": ["partial sums", "one reduction"],
    "expected_gain": "2x on small",
}


async def test_a_plan_needs_a_new_note_in_each_section(tmp_path: Path) -> None:
    """Notes from before the research do not count."""
    desk = await desk_at(tmp_path, mode=Mode.RESEARCH)
    desk = await after(desk, "note", section="tried", text="old")
    desk = await after(desk, "note", section="untried_hard", text="old and hard")
    desk = replace(desk, session=desk.session.model_copy(update={"start": desk.workspace}))
    assert "no new note in tried and untried_hard" in await refused(desk, "submit_plan", **PLAN)
    desk = await after(desk, "note", section="tried", text="old")
    desk = await after(desk, "note", section="untried_hard", text="new and hard")
    assert "no new note in tried yet" in await refused(desk, "submit_plan", **PLAN)
    desk = await after(desk, "note", section="tried", text="new")
    final = (await call(desk, "submit_plan", PLAN)).outcome.final
    assert isinstance(final, Planned)
    assert final.title == "split K over blocks"
    plan = await text_of(desk, final.plan)
    for part in ("split K over blocks", "8 of 132 SMs", "1. partial sums\n2. one reduction", "2x on small"):
        assert part in plan


@pytest.mark.parametrize("title", ["two\nlines", "\x1c", "a\0b\x1b[31m", "\u202egpj.exe", "\u200b"])
async def test_a_title_is_one_line_that_can_be_seen(tmp_path: Path, title: str) -> None:
    """It is the name of a commit, and stands in tables, terminals and the UI."""
    outcome = (await call(await desk_at(tmp_path, kernel="int changed;"), "submit", {"title": title})).outcome
    assert isinstance(outcome.final, Submitted)
    assert outcome.final.title.isprintable()
