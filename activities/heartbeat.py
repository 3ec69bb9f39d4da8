"""Tell Temporal that an activity is alive, for as long as a block runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio import activity

from activities.failures import told_to_temporal

HEARTBEAT = timedelta(seconds=10)  # how soon a lost worker is noticed; long enough for a machine at full load
BEAT_S = 1.0  # cancellation reaches an activity with the answer to a heartbeat, so this is also its latency


@contextlib.asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat every second inside the block; the block is cancelled when the server asks for it."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEAT_S)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


@contextlib.asynccontextmanager
async def at_work() -> AsyncIterator[None]:
    """What every activity of some length does its work inside: heartbeats, and errors in Temporal's terms."""
    async with heartbeating():
        with told_to_temporal():
            yield


def queue_wait_s() -> float:
    """Seconds between scheduling and the start of this attempt: a full queue, earlier attempts and their back-off."""
    info = activity.info()
    return max(0.0, (info.started_time - info.scheduled_time).total_seconds())
