"""Provider `scripted`: candidates that lie ready are handed in, one a conversation, as a model would hand them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.bundle import MAX_SOURCE_BYTES, Bundle, unpack
from activities.llm.replay import Unplayable
from activities.settings import Settings
from activities.store import Store
from specs.outcomes import BlobRef

MAX_TITLE = 120  # characters
NO_TOKENS = {"input_tokens": 0, "output_tokens": 0}


def nothing_left(bundle: Bundle, position: int) -> str:
    """Why the script has no candidate to hand in at `position`, in one line; empty when it has one."""
    script = bundle.script()
    if position >= len(script):
        return f"the script's {len(script)} candidates were all played"
    return _unusable(script[position])


def _unusable(step: Path) -> str:
    content = step.read_bytes()
    if len(content) > MAX_SOURCE_BYTES:
        return f"'{step.name}' has {len(content)} bytes; at most {MAX_SOURCE_BYTES} are accepted"
    if not content.strip():
        return f"'{step.name}' is empty; a source is needed"
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"'{step.name}' is not UTF-8 text: byte 0x{content[error.start]:02x} at {error.start}"
    return ""


async def answer(settings: Settings, ref: BlobRef, place: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One candidate written and submitted at once; after that there is nothing to add. Raises Unplayable."""
    if not place.isdecimal():
        raise Unplayable(f"{place!r} is no position of a script")
    name = f"scripted_{ref.sha256[:16]}_{place}"
    if any(message.get("role") == "assistant" for message in messages):
        said = "The script hands in one candidate a conversation and has nothing to add."
        return _message(name, [{"type": "text", "text": said}], "end_turn")
    bundle = await unpack(ref, Store.of(settings), settings.bundles)
    if nothing := nothing_left(bundle, int(place)):
        raise Unplayable(nothing)
    step = bundle.script()[int(place)]
    calls = [("write_kernel", {"source": step.read_bytes().decode()}), ("submit", {"title": step.name[:MAX_TITLE]})]
    return _message(
        name,
        [{"type": "tool_use", "id": f"toolu_{name}_{tool}", "name": tool, "input": given} for tool, given in calls],
        "tool_use",
    )


def _message(name: str, content: list[dict[str, Any]], stop_reason: str) -> dict[str, Any]:
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": NO_TOKENS,
    }
