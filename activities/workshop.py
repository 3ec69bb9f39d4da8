"""What every activity works with on this machine: settings, store, harness, and files brought in by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from activities.bundle import Bundle, unpack
from activities.harness import COMMAND, Harness
from activities.settings import Settings
from activities.store import Store
from specs.outcomes import BlobRef


class Workshop:
    """Made once by the worker and handed to every activity."""

    def __init__(self, settings: Settings, *, harness: Sequence[str] = COMMAND) -> None:
        self.settings = settings
        self.store = Store.of(settings)
        self.harness = Harness(settings, harness)

    async def bundle(self, ref: BlobRef) -> Bundle:
        return await unpack(ref, self.store, self.settings.bundles)

    async def library(self, ref: BlobRef) -> Path:
        """A shared object as a file, its content checked on every use."""
        return await self.store.fetch(ref, self.settings.libraries / f"{ref.sha256}.so")

    async def keep(self, path: Path) -> BlobRef:
        return await self.store.put(path.read_bytes())
