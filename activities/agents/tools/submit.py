"""How an optimiser's conversation ends: a kernel handed in, or a plan."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from activities.agents import logbook
from activities.agents.tools.kernel import NOTHING_YET, source_of
from activities.agents.tools.notes import notes_of
from activities.agents.tools.tool import Answer, Arguments, Desk, OnOneLine, Tool
from specs.constraints import flagged_in, told
from specs.dialogue import Planned, Submitted
from specs.normal import normal_digest
from specs.outcomes import Ending
from specs.schema import Provider

# What plays or searches without a model cannot do anything about a refusal; the pipeline judges its kernels anyway.
_UNTHINKING = (Provider.SCRIPTED, Provider.TUNE)

Title = Annotated[str, StringConstraints(min_length=1, max_length=120, strip_whitespace=True), OnOneLine]


class SubmitArguments(Arguments):
    title: Title = Field(description="What this kernel does differently, in at most 120 characters.")


class Submit(Tool[SubmitArguments]):
    name: ClassVar[str] = "submit"
    description: ClassVar[str] = (
        "Hand the kernel in: it is built, judged on all cases and measured against the champion. Ends the iteration."
    )
    arguments: ClassVar[type[Arguments]] = SubmitArguments

    async def use(self, desk: Desk, given: SubmitArguments) -> Answer:
        if desk.workspace.kernel is None:
            return Answer(NOTHING_YET, error=True)
        source = await source_of(desk, desk.workspace.kernel)
        normal = await asyncio.to_thread(_normal, source, desk)
        objection = None if desk.session.model.provider in _UNTHINKING else await _objection(desk, source, normal)
        if objection:
            return Answer(f"Not handed in: {objection}", error=True)
        return Answer("Handed in.", final=Submitted(title=given.title, normal=normal), said=given.title)


def _normal(source: str, desk: Desk) -> str:
    return normal_digest(source.encode(errors="surrogateescape"), desk.bundle.task.language)


async def _objection(desk: Desk, source: str, normal: str) -> str | None:
    """Why the pipeline would refuse the kernel for sure, so that the iteration is not wasted on it."""
    if earlier := await _earlier(desk, normal):
        return f"comments and white space aside it is {earlier}. Change what it does."
    if flags := await asyncio.to_thread(flagged_in, source, desk.bundle.task):
        return f"it breaks constraints of the task:\n{told(flags)}"
    return None


async def _earlier(desk: Desk, this: str) -> str | None:
    """Where this same source has been before."""
    language = desk.bundle.task.language
    if desk.session.champion is not None:
        champion = await desk.workshop.store.get(desk.session.champion.source)
        if await asyncio.to_thread(normal_digest, champion, language) == this:
            return f"still the champion, {desk.session.champion.version}"
    if desk.bundle.task.seed is not None and normal_digest(desk.bundle.seed.read_bytes(), language) == this:
        return "still the seed"
    for iteration in await logbook.read(desk.workshop.store, desk.session.logbook):
        answered = iteration.ending not in (Ending.DUPLICATE, Ending.STOPPED, Ending.UNREVIEWED)
        if answered and iteration.proposal is not None and iteration.proposal.normal == this:
            return f"{iteration.version}, which ended as {iteration.ending.value}"
    return None


Words = Annotated[str, StringConstraints(min_length=1, max_length=1_500, strip_whitespace=True)]
Step = Annotated[str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True)]


class SubmitPlanArguments(Arguments):
    lever: Title = Field(description="The one change to make next, in at most 120 characters.")
    why: Words = Field(description="Which evidence says that it pays: profile, history, arithmetic.")
    steps: list[Step] = Field(min_length=1, max_length=10, description="In order, each of them small.")
    expected_gain: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)] = Field(
        description="On which configs, and how much."
    )


class SubmitPlan(Tool[SubmitPlanArguments]):
    name: ClassVar[str] = "submit_plan"
    description: ClassVar[str] = (
        "Hand in the plan for the next iteration. First keep at least one new note in each section. Ends the research."
    )
    arguments: ClassVar[type[Arguments]] = SubmitPlanArguments

    async def use(self, desk: Desk, given: SubmitPlanArguments) -> Answer:
        before = await notes_of(desk, desk.session.start.notes)
        now = await notes_of(desk, desk.workspace.notes)
        lacking = [
            section
            for section, new in (
                ("tried", set(now.tried) - set(before.tried)),
                ("untried_hard", set(now.untried) - set(before.untried)),
            )
            if not new
        ]
        if lacking:
            sections = " and ".join(lacking)
            return Answer(f"Not handed in: no new note in {sections} yet; keep at least one in each first", error=True)
        plan = await desk.workshop.store.put(_written(given).encode())
        return Answer("Handed in.", final=Planned(plan=plan, title=given.lever), said=given.lever)


def _written(given: SubmitPlanArguments) -> str:
    """As the next iteration and its reviewer read it."""
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(given.steps, 1))
    return f"Lever: {given.lever}\nWhy: {given.why}\nSteps:\n{steps}\nExpected gain: {given.expected_gain}\n"
