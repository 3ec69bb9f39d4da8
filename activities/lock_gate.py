"""Lock the gate: hash it, check that it fits the task, and refuse at once what this version cannot run."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, WAIT, Options
from activities.runnable import refuse_unrunnable
from activities.workshop import Workshop
from kernels.harness import requests
from specs.outcomes import BlobRef, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=5),  # the gate's own reference is imported and tried once
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # its process must be gone
)


class LockGateInput(Value):
    bundle: BlobRef


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
                request = requests.LockGate(task=bundle.task, gate=bundle.gate)
                locked = await self._workshop.harness.ask(request, requests.Locked, folder)
                return LockGateResult(lock=locked.lock)
