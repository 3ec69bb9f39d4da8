"""Propose: the next candidate source, from the seed, the optimiser or a person."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.bundle import MAX_SOURCE_BYTES, Bundle
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.workshop import Workshop
from specs.normal import normal_digest
from specs.outcomes import BlobRef, Charge, Origin, Proposal, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # a script is read from disk and stored
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)


class ProposeInput(Value):
    bundle: BlobRef
    submitted: BlobRef | None  # a person's source: taken instead of asking the optimiser
    label: str = ""  # of the submitted source
    use_seed: bool
    script_position: int


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
                return await self._submitted(bundle, given.submitted, given.label)
            if given.use_seed:
                return await self._stored(bundle, bundle.seed.read_bytes(), Origin.SEED, "seed")
            script = bundle.script()
            if given.script_position >= len(script):
                return ProposeResult(proposal=None, reason=f"the script's {len(script)} candidates were all played")
            step = script[given.script_position]
            return await self._stored(bundle, step.read_bytes(), Origin.OPTIMIZER, step.name)

    async def _submitted(self, bundle: Bundle, source: BlobRef, label: str) -> ProposeResult:
        # A client with another store is the person's mistake: it must not stop the run.
        if not await self._workshop.store.has(source):
            where = self._workshop.store.url
            return ProposeResult(proposal=None, reason=f"'{label}' is not in the worker's store {where}")
        content = await self._workshop.store.get(source)
        return await self._stored(bundle, content, Origin.PERSON, label)

    async def _stored(self, bundle: Bundle, content: bytes, origin: Origin, label: str) -> ProposeResult:
        if len(content) > MAX_SOURCE_BYTES:
            return ProposeResult(
                proposal=None, reason=f"'{label}' has {len(content)} bytes; at most {MAX_SOURCE_BYTES} are accepted"
            )
        source = await self._workshop.store.put(content)
        normal = normal_digest(content, bundle.task.language)
        return ProposeResult(proposal=Proposal(source=source, normal=normal, origin=origin, label=label))
