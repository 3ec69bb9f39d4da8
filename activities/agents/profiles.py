"""The last profile of a conversation, kept in the store: what bounds which source, in words for a prompt."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from activities.store import Store
from kernels.harness.requests import Bottleneck
from specs.outcomes import BlobRef, Digest, Value


class Profile(Value):
    source: Digest  # sha256 of the kernel's source
    config: str
    bottleneck: Bottleneck
    text: Annotated[str, StringConstraints(min_length=1, max_length=2_500)]


async def keep(store: Store, profile: Profile) -> BlobRef:
    return await store.put(profile.model_dump_json().encode())


async def read(store: Store, ref: BlobRef) -> Profile:
    return Profile.model_validate_json(await store.get(ref))
