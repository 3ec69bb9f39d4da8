"""A conversation made by hand, and the profile of a fake server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.agents import transcript
from activities.agents.session import Session
from activities.llm.profiles import Profile
from activities.model_turn import ModelTurnInput
from activities.workshop import Workshop
from specs.dialogue import Mode, Role
from specs.outcomes import BlobRef, Stage
from specs.schema import Language, Model
from tests.fakes import settings_at

KEY = "sk-ant-canary-0123456789"
FIRST = {"role": "user", "content": [{"type": "text", "text": "Make it faster."}]}


def workshop_at(home: Path) -> Workshop:
    return Workshop(settings_at(home))


def profile_at(url: str, **changes: Any) -> Profile:
    given: dict[str, Any] = {"name": "fake", "base_url": url, "api_key": KEY, "read_timeout_s": 5.0, "trust_env": False}
    return Profile(**{**given, **changes})


def make_session(**changes: Any) -> Session:
    given: dict[str, Any] = {
        "run": "run-1",
        "place": "iter-001/optimizer/0",
        "role": Role.OPTIMIZER,
        "mode": Mode.IMPROVE,
        "stage": Stage.OPTIMIZE,
        "language": Language.CPP,
        "model": Model(),
        "system": "You make kernels fast.",
        "tools": (),
        "bundle": BlobRef(sha256="b" * 64, size=1),
        "sandbox": "off",
    }
    return Session(**{**given, **changes})


async def opened(workshop: Workshop, session: Session | None = None, **changes: Any) -> ModelTurnInput:
    """The first turn of a conversation."""
    stored = await workshop.store.put((session or make_session()).model_dump_json().encode())
    head = await transcript.append(workshop.store, None, FIRST)
    return ModelTurnInput(**{"session": stored, "head": head, "turn": 0, **changes})
