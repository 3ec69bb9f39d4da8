"""Release a device: the run is over, whichever way it ended."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.devices import Claims
from activities.failures import told_to_temporal
from activities.options import BRIEF, Options
from specs.outcomes import Value

OPTIONS = Options(
    # Asked of the device's own worker; when that is gone or busy, a stale claim only costs balance between devices.
    schedule_to_close_timeout=timedelta(seconds=10),
    retry_policy=BRIEF,
)


class ReleaseDeviceInput(Value):
    run_id: str
    queue: str


class ReleaseDeviceResult(Value):
    queue: str


class DeviceReleasing:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    @activity.defn(name="release_device")
    async def release_device(self, given: ReleaseDeviceInput) -> ReleaseDeviceResult:
        with told_to_temporal():
            self._claims.release(given.run_id, given.queue)
        activity.logger.info("device released: %s", given.queue)
        return ReleaseDeviceResult(queue=given.queue)
