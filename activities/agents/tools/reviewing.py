"""The reviewer's one tool: a verdict whose evidence stands, word for word, in what was reviewed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from activities.agents.draft import Draft
from activities.agents.pages import one_line
from activities.agents.tools.tool import Answer, Arguments, Desk, OnOneLine, Tool
from specs.dialogue import Question, Quote, Review, Reviewed
from specs.errors import StoreError

MOST_EVIDENCE = 4
FEWEST = 6  # characters of a quote that are not white space: shorter ones stand in every source and show nothing


class Evidence(Arguments):
    quote: str = Field(min_length=1, max_length=300, description="Words copied exactly from what you reviewed.")
    why: Annotated[str, OnOneLine] = Field(min_length=1, max_length=300, description="What they show, in one sentence.")


class Verdict(Arguments):
    approved: bool = Field(description="true: nothing here is a reason to say no. false: a veto.")
    summary: Annotated[str, OnOneLine] = Field(
        min_length=1, max_length=400, description="The verdict in one or two sentences."
    )
    evidence: list[Evidence] = Field(
        min_length=1, max_length=MOST_EVIDENCE, description="What the verdict rests on, the weightiest first."
    )


class GiveVerdict(Tool[Verdict]):
    name = "give_verdict"
    description = (
        "Give your verdict; this ends the review. Every quote must stand in the reviewed text word for word (white "
        "space aside): a verdict with any other quote is not taken."
    )
    arguments = Verdict

    async def use(self, desk: Desk, given: Verdict) -> Answer:
        subject = desk.session.subject
        if subject is None:
            return Answer("nothing is under review in this conversation", error=True)
        if short := [one.quote for one in given.evidence if not _says_something(one.quote)]:
            return Answer(
                f"not taken: {one_line(short[0], 120)!r} shows nothing, since it stands in any text; accepted: quotes "
                f"of at least {FEWEST} characters, white space aside, with a letter or a digit",
                error=True,
            )
        reviewed = _folded(await _reviewed(desk))
        strangers = [one.quote for one in given.evidence if _folded(one.quote) not in reviewed]
        if strangers:
            return Answer(
                f"not taken: {len(strangers)} of {len(given.evidence)} quotes do not stand in what was reviewed, "
                f"first: {strangers[0][:120]!r}. Copy the words exactly as they stand there, without line numbers.",
                error=True,
            )
        review = Review(
            question=subject.question,
            approved=given.approved,
            summary=given.summary,
            evidence=tuple(Quote(quote=one_line(one.quote, 300), why=one.why) for one in given.evidence),
        )
        word = "approved" if given.approved else "vetoed"
        return Answer(f"taken: {word}", final=Reviewed(review=review), said=f"{word}: {review.summary}"[:200])


async def _reviewed(desk: Desk) -> str:
    """Everything that a quote may come from."""
    subject, store = desk.session.subject, desk.workshop.store
    assert subject is not None
    refs = [ref for ref in (subject.kernel, subject.plan) if ref is not None]
    if subject.gate is not None:
        draft = Draft.model_validate_json(await store.get(subject.gate))
        refs += draft.files.values()
    texts = [(await store.get(ref)).decode(errors="replace") for ref in refs]
    if subject.question is Question.GATE:
        for path in desk.bundle.canonical.values():
            files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
            texts += [one.read_text(errors="replace") for one in files]
    if not texts:
        raise StoreError("nothing of what is under review is in the store")
    return "\n".join(texts)


def _says_something(quote: str) -> bool:
    return len("".join(quote.split())) >= FEWEST and any(map(str.isalnum, quote))


def _folded(text: str) -> str:
    return " ".join(text.split())
