"""Lock the gate: hash it, see that it fits the task and lets no mutant through; refuse what cannot be run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from temporalio import activity

from activities.build import build_baseline
from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, WAIT, Options
from activities.runnable import need_model, refuse_unrunnable
from activities.workshop import Workshop
from kernels.harness import requests
from specs.outcomes import BlobRef, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=15),  # the reference answers for every mutant, and a baseline may be run
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # its process must be gone
)


class LockGateInput(Value):
    bundle: BlobRef
    sandbox: requests.Sandbox = "preferred"


class LockGateResult(Value):
    lock: requests.GateLock


class GateLocking:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="lock_gate")
    async def lock_gate(self, given: LockGateInput) -> LockGateResult:
        async with at_work():
            with self._workshop.harness.folder() as folder:
                bundle = await self._workshop.bundle(given.bundle)
                refuse_unrunnable(bundle.task)
                need_model(bundle.task, self._workshop.settings)
                return LockGateResult(lock=await locked_gate(self._workshop, bundle, given.sandbox, folder))


async def locked_gate(workshop: Workshop, bundle: Bundle, sandbox: requests.Sandbox, folder: Path) -> requests.GateLock:
    """Hashed and admitted; where the gate asks for it, with the limits that the baseline's own error gives."""
    request = requests.LockGate(task=bundle.task, gate=bundle.gate)
    locked = await workshop.harness.ask(request, requests.Locked, folder)
    if not locked.uncalibrated:
        return locked.lock
    built = await build_baseline(workshop, bundle, folder)
    with_baseline = request.model_copy(
        update={
            "baseline": await workshop.library(built, bundle.baseline_language),
            "builds": workshop.settings.builds,
            "sandbox": workshop.settings.isolation(sandbox),
        }
    )
    return (await workshop.harness.ask(with_baseline, requests.Locked, folder)).lock
