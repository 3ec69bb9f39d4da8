"""A desk for tests of tools: a small task in a home of its own, and a conversation about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.agents.session import Session
from activities.agents.tools.tool import Desk
from activities.bundle import pack
from activities.workshop import Workshop
from specs.dialogue import Mode, Role, Workspace
from specs.outcomes import BlobRef, Stage
from specs.schema import Language, Model
from tests.fakes import settings_at, write_task


async def desk_at(
    folder: Path,
    *,
    role: Role = Role.OPTIMIZER,
    kernel: str | None = None,
    task: Mapping[str, Any] = {},
    files: Mapping[str, str] = {},
    **session: Any,
) -> Desk:
    """`files` lie beside the task file; `session` overrides the conversation's frame."""
    workshop = Workshop(settings_at(folder / "home"))
    loaded = write_task(folder / "task", ["// one"], **task)
    for name, content in files.items():
        path = folder / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    bundle = await pack(loaded, workshop.store)
    source = None if kernel is None else await workshop.store.put(kernel.encode())
    workspace = Workspace(kernel=source)
    frame: dict[str, Any] = {
        "run": "run", "place": "iter-001/optimizer/0", "role": role, "mode": Mode.IMPROVE, "stage": Stage.OPTIMIZE,
        "language": Language.CPP, "model": Model(), "system": "be quick", "tools": (), "bundle": bundle,
        "sandbox": "off", "start": workspace,
    }  # fmt: skip
    return Desk(workshop, Session(**frame | session), await workshop.bundle(bundle), workspace)


async def text_of(desk: Desk, ref: BlobRef | None) -> str:
    assert ref is not None
    return (await desk.workshop.store.get(ref)).decode()
