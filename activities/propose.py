"""Propose: the next candidate source, from the seed, a person, a conversation or a parameter search."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity

from activities import tune
from activities.bundle import MAX_SOURCE_BYTES, Bundle
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.workshop import Workshop
from specs.history import Tried
from specs.normal import normal_digest
from specs.outcomes import BlobRef, Charge, Origin, Proposal, Value
from specs.tuning import Assignment, Space, assignment_of, label, space, with_values

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # a source is stored, perhaps after a second of searching
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)

SEED = "seed"
TUNE = "tune "


class ProposeInput(Value):
    bundle: BlobRef
    submitted: BlobRef | None = None  # a source that is there already: a person's, or what a conversation handed in
    label: str = ""  # of the submitted source
    by: Origin = Origin.PERSON
    use_seed: bool = False
    champion: BlobRef | None = None  # of a parameter search: what it starts from
    tried: tuple[Tried, ...] = ()
    ahead: int = 0  # proposals of the same round that come before this one


class ProposeResult(Value):
    proposal: Proposal | None  # None: nothing (more) to propose
    reason: str = ""
    charge: Charge = Charge()


class Proposing:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="propose")
    async def propose(self, given: ProposeInput) -> ProposeResult:
        async with at_work():
            bundle = await self._workshop.bundle(given.bundle)
            if given.submitted is not None:
                return await self._submitted(bundle, given.submitted, given.label, given.by)
            if given.use_seed:
                return await self._stored(bundle, bundle.seed.read_bytes(), Origin.SEED, SEED)
            return await self._tuned(bundle, given)

    async def _submitted(self, bundle: Bundle, source: BlobRef, label: str, by: Origin) -> ProposeResult:
        # A client with another store is the person's mistake: it must not stop the run.
        if not await self._workshop.store.has(source):
            where = self._workshop.store.url
            return ProposeResult(proposal=None, reason=f"'{label}' is not in the worker's store {where}")
        content = await self._workshop.store.get(source)
        return await self._stored(bundle, content, by, label)

    async def _tuned(self, bundle: Bundle, given: ProposeInput) -> ProposeResult:
        """The champion, or the seed where the champion has no marks, with the values that the search tries next."""
        language = bundle.task.language
        source = _text(bundle.seed.read_bytes())
        try:
            tunable = space(source, language)
        except ValueError as error:
            return ProposeResult(proposal=None, reason=f"the seed cannot be tuned: {error}")
        start = tunable.start
        if given.champion is not None:
            champion = _text(await self._workshop.store.get(given.champion))
            # A person's kernel need not have sound marks: the search goes on with the seed's.
            with contextlib.suppress(ValueError):
                tunable, source = space(champion, language), champion
        past = _past(tunable, given.tried, start)
        chosen = await asyncio.to_thread(tune.next_assignment, tunable, past, bundle.digest, given.ahead)
        if chosen is None:
            reason = tune.why_over(tunable, past) or "every combination left is tried beside this one"
            return ProposeResult(proposal=None, reason=reason)
        content = with_values(source, language, chosen).encode(errors="surrogateescape")
        return await self._stored(bundle, content, Origin.OPTIMIZER, f"{TUNE}{label(chosen)}")

    async def _stored(self, bundle: Bundle, content: bytes, origin: Origin, label: str) -> ProposeResult:
        if len(content) > MAX_SOURCE_BYTES:
            return ProposeResult(
                proposal=None, reason=f"'{label}' has {len(content)} bytes; at most {MAX_SOURCE_BYTES} are accepted"
            )
        source = await self._workshop.store.put(content)
        normal = normal_digest(content, bundle.task.language)
        return ProposeResult(proposal=Proposal(source=source, normal=normal, origin=origin, label=label))


def _past(tunable: Space, tried: Sequence[Tried], seed: Assignment) -> list[tune.Trial]:
    """What the history tells of these parameters; what it tells of others, or of people's kernels, is left out."""
    trials: dict[str, tune.Trial] = {}
    for one in tried:
        assignment = seed if one.label == SEED else _searched(one.label)
        if assignment is None or not tunable.fits(assignment):
            continue
        key = label(assignment)
        # A combination that was answered from history has its score further up.
        if key not in trials or trials[key].score is None:
            trials[key] = tune.Trial(assignment, one.score, failed=one.score is None)
    if tunable.fits(tunable.start):
        trials.setdefault(label(tunable.start), tune.Trial(tunable.start, None))
    return list(trials.values())


def _searched(text: str) -> Assignment | None:
    return assignment_of(text.removeprefix(TUNE)) if text.startswith(TUNE) else None


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")
