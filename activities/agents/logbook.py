"""The run's past in the store, for prompts and the history tool: a chain, one node a round."""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from activities.store import Store
from specs.outcomes import BlobRef, Iteration

_ITERATIONS = TypeAdapter(tuple[Iteration, ...])


async def append(store: Store, parent: BlobRef | None, iterations: tuple[Iteration, ...]) -> BlobRef:
    """One node more; the same parent and iterations give the same node, so that a retry changes nothing."""
    node = {
        "parent": None if parent is None else parent.model_dump(),
        "iterations": _ITERATIONS.dump_python(iterations, mode="json", exclude_defaults=True),
    }
    return await store.put(json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode())


async def read(store: Store, head: BlobRef | None) -> list[Iteration]:
    """All iterations up to `head`, first one first."""
    found: list[Iteration] = []
    while head is not None:
        node = json.loads(await store.get(head))
        found += reversed(_ITERATIONS.validate_python(node["iterations"]))
        head = None if node["parent"] is None else BlobRef.model_validate(node["parent"])
    return found[::-1]
