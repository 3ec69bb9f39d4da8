"""Claim a device: whichever worker answers gives the run one of its own, kept for the whole run."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.devices import Claims
from activities.failures import told_to_temporal
from activities.options import PATIENT, Options
from specs.errors import DeviceBusy
from specs.outcomes import Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(seconds=10),  # one small file is written; also how soon a lost worker shows
    retry_policy=PATIENT,
)


class ClaimDeviceInput(Value):
    run_id: str
    kind: str  # cpu, h200, ...
    silent: str | None = None  # queue of a device that no longer answers


class ClaimDeviceResult(Value):
    queue: str
    description: str


class DeviceClaiming:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    @activity.defn(name="claim_device")
    async def claim_device(self, given: ClaimDeviceInput) -> ClaimDeviceResult:
        with told_to_temporal():
            try:
                device = self._claims.claim(given.run_id, given.kind, given.silent)
            except LookupError:
                raise DeviceBusy(f"this worker has no device of kind '{given.kind}'") from None
        return ClaimDeviceResult(queue=device.queue, description=device.description)
