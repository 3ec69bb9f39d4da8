"""Adopt a written gate: the same task, with the draft's files as its gate folder, as a bundle of its own."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.workshop import Workshop
from specs.outcomes import BlobRef, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # two small blobs are read and one is written
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)


class AdoptGateInput(Value):
    bundle: BlobRef
    gate: BlobRef  # the draft


class AdoptGateResult(Value):
    bundle: BlobRef


class GateAdopting:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="adopt_gate")
    async def adopt_gate(self, given: AdoptGateInput) -> AdoptGateResult:
        async with at_work():
            from activities.agents.draft import Draft
            from activities.bundle import with_gate

            draft = Draft.model_validate_json(await self._workshop.store.get(given.gate))
            return AdoptGateResult(bundle=await with_gate(given.bundle, dict(draft.files), self._workshop.store))
