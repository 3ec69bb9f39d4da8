"""What every activity works with on this machine: settings, store, harness, and files brought in by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from activities.bundle import Bundle, unpack
from activities.devices import LocalDevice
from activities.harness import COMMAND, Harness
from activities.settings import Settings
from activities.store import Store
from kernels.harness import toolchain
from specs.outcomes import BlobRef
from specs.schema import Language


class Workshop:
    """Made once by the worker and handed to every activity."""

    def __init__(
        self, settings: Settings, *, harness: Sequence[str] = COMMAND, devices: Sequence[LocalDevice] = ()
    ) -> None:
        self.settings = settings
        self.store = Store.of(settings)
        self.harness = Harness(settings, harness, devices)

    async def bundle(self, ref: BlobRef) -> Bundle:
        return await unpack(ref, self.store, self.settings.bundles)

    async def library(self, ref: BlobRef, language: Language) -> Path:
        """What a build of this language made, as a file, its content checked on every use.

        The store keeps no names, and the harness tells a Python baseline from a shared object by its suffix.
        """
        suffix = Path(toolchain.toolchain_for(language).product).suffix
        return await self.store.fetch(ref, self.settings.libraries / f"{ref.sha256}{suffix}")

    async def keep(self, path: Path) -> BlobRef:
        return await self.store.put(path.read_bytes())
