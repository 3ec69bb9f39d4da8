"""Before every round: is the gate on this machine still the one that was locked? Hashing only, no process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from temporalio import activity

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.store import digest_of
from activities.workshop import Workshop
from kernels.harness.requests import GateLock
from specs.errors import GateTampered
from specs.outcomes import BlobRef, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=1),  # hashing a few small files, and laying the bundle out the first time
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)


class CheckGateInput(Value):
    bundle: BlobRef
    lock: GateLock


class CheckGateResult(Value):
    files: int


class GateChecking:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="check_gate")
    async def check_gate(self, given: CheckGateInput) -> CheckGateResult:
        async with at_work():
            bundle = await self._workshop.bundle(given.bundle)
            await asyncio.to_thread(_check, bundle.gate, given.lock)
        return CheckGateResult(files=len(given.lock.files))


def _check(gate: Path, lock: GateLock) -> None:
    """The judge checks again, on the bytes that it then uses; this only finds out before a build is paid for."""
    for name, digest in sorted(lock.files.items()):
        try:
            content = (gate / name).read_bytes()
        except OSError as error:
            raise GateTampered(f"gate file {name} can no longer be read: {error.strerror}") from None
        if digest_of(content) != digest:
            raise GateTampered(f"gate file {name} was changed after the lock: it had sha256 {digest}")
    for path in gate.rglob("*"):
        inner = path.relative_to(gate)
        if not path.is_dir() and "__pycache__" not in inner.parts and inner.as_posix() not in lock.files:
            raise GateTampered(f"gate file {inner.as_posix()} was added after the lock")
