"""Accept a self-contained program: built once more from its source, run once more. It stays self-reported."""

from __future__ import annotations

from temporalio import activity

from activities.accept import OPTIONS as ACCEPT_OPTIONS
from activities.accept import AcceptResult, run_command
from activities.build import compile_source
from activities.heartbeat import at_work, queue_wait_s
from activities.options import Options
from activities.run_program import hear_program
from activities.workshop import Workshop
from kernels.harness import requests
from specs.outcomes import SELF_REPORTED, Acceptance, BlobRef, Value

OPTIONS = Options(**ACCEPT_OPTIONS)


class AcceptProgramInput(Value):
    bundle: BlobRef
    version: str
    source: BlobRef
    sandbox: requests.Sandbox


class ProgramAccepting:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="accept_program")
    async def accept_program(self, given: AcceptProgramInput) -> AcceptResult:
        async with at_work():
            return AcceptResult(acceptance=await self._accepted(given), queue_wait_s=queue_wait_s())

    async def _accepted(self, given: AcceptProgramInput) -> Acceptance:
        workshop, version = self._workshop, given.version
        bundle = await workshop.bundle(given.bundle)
        with workshop.harness.folder() as folder:
            source = await workshop.store.fetch(given.source, folder / f"kernel{bundle.task.language.suffix}")
            built = await compile_source(workshop, bundle.task, source, folder, production=True)
            if built.library is None:
                reason = f"does not build with production_flags ({built.status.value}): {built.log_tail[-300:]}"
                return Acceptance(version=version, accepted=False, reason=reason)
            report = await hear_program(workshop, bundle, built.library, given.sandbox)
            if report.score == 0:
                why = report.refused or next((f"{c.config}: {c.reason}" for c in report.configs if c.reason), "")
                reason = f"run once more, its {SELF_REPORTED} score is 0: {why}"
                return Acceptance(version=version, accepted=False, reason=reason, self_reported=report)
            command, said = await run_command(bundle, source, workshop.harness.environment())
        again = f"run once more, nothing verified: {SELF_REPORTED} score {report.score:.3f}"
        return Acceptance(
            version=version,
            accepted=command != "failed",
            reason=f"{again}; {said}" if said else again,
            self_reported=report,
            command=command,
        )
