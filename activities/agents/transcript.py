"""Transcripts: a hash chain of messages in the store, append-only by construction."""

from __future__ import annotations

import json
from typing import Any

from activities.store import Store
from specs.outcomes import BlobRef

Message = dict[str, Any]  # as the Messages API has it: role and content


async def append(store: Store, parent: BlobRef | None, message: Message) -> BlobRef:
    """One node more; the same parent and message give the same node, so that a retry changes nothing."""
    node = {"parent": None if parent is None else parent.model_dump(), "message": message}
    return await store.put(json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode())


async def last(store: Store, head: BlobRef) -> Message:
    message: Message = json.loads(await store.get(head))["message"]
    return message


async def messages(store: Store, head: BlobRef | None) -> list[Message]:
    """The whole conversation up to `head`, first message first. Raises StoreError for a broken chain."""
    found: list[Message] = []
    while head is not None:
        node = json.loads(await store.get(head))
        found.append(node["message"])
        head = None if node["parent"] is None else BlobRef.model_validate(node["parent"])
    return found[::-1]
