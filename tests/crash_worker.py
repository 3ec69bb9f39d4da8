"""A worker with a scripted harness, to be killed: `python -m tests.crash_worker HOME CONTROL`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from activities.connect import connect
from activities.devices import LocalDevice
from activities.settings import Settings
from activities.workshop import Workshop
from tests.fakes import FakeHarness, settings_at
from worker import workers

DEVICE = LocalDevice(kind="cpu", queue="ferret-crash-cpu", description="crash device")


async def main(home: Path, control: Path) -> None:
    settings = settings_at(home)
    await serve(settings, Workshop(settings, harness=FakeHarness(control).command))


async def serve(settings: Settings, workshop: Workshop) -> None:
    async with AsyncExitStack() as stack:
        for worker in workers(await connect(settings), settings, (DEVICE,), workshop):
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
