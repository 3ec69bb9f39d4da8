"""A worker that gets stuck once a certain answer is written down: `python -m tests.stuck_worker HOME CONTROL`.

To be killed there: the answer is paid for and in the journal, and no activity has told of it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from activities.store import Store
from activities.workshop import Workshop
from tests.crash_worker import serve
from tests.fake_models import LAST_WORDS
from tests.fakes import FakeHarness, settings_at


class Stuck(Store):
    async def remember(self, name: str, content: bytes) -> None:
        await super().remember(name, content)
        if name.startswith("journal/") and LAST_WORDS.encode() in content:
            await asyncio.Event().wait()


async def main(home: Path, control: Path) -> None:
    settings = settings_at(home)
    workshop = Workshop(settings, harness=FakeHarness(control).command)
    workshop.store = Stuck.of(settings)
    await serve(settings, workshop)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
