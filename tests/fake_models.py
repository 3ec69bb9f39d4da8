"""What fake models say: a script a conversation, and a reviewer that quotes what it was shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from specs.outcomes import Role
from tests.fake_messages import Asked, FakeMessages, Policy, Reply, Step, call, called, reply, spoken

Move = Step | Callable[[Asked], Step]
CANARY = "sk-ant-canary-3f9a1c"  # a key that must be found nowhere


def role_of(asked: Asked) -> Role:
    names = {tool["name"] for tool in asked.body.get("tools", ())}
    if "give_verdict" in names:
        return Role.REVIEWER
    return Role.GATE_WRITER if "write_gate_file" in names else Role.OPTIMIZER


def hands_in(source: str, title: str = "an idea") -> list[Move]:
    """The shortest way to a proposal: one message with two calls."""
    return [reply(spoken("Here."), called("write_kernel", source=source), called("submit", title=title))]


def verdict(*, approved: bool, quote: str, summary: str = "It does what the contract says.") -> Reply:
    evidence = [{"quote": quote, "why": "this is the work"}]
    return call("give_verdict", approved=approved, summary=summary, evidence=evidence)


def approves(quote: str) -> Policy:
    return lambda asked: verdict(approved=True, quote=quote)


class Models:
    """A policy for the fake server. Each optimiser's conversation, told by its first message, plays the next script.

    A script's move that is a function sees the request. When a script is over the model only talks. The same request
    gets the same answer, whoever repeats it.
    """

    def __init__(self, *scripts: Sequence[Move], reviewer: Policy | None = None, writer: Policy | None = None) -> None:
        self.scripts = list(scripts)
        self.reviewer = reviewer or approves("void copy()")
        self.writer = writer
        self.conversations: list[str] = []

    def __call__(self, asked: Asked) -> Step:
        role = role_of(asked)
        if role is Role.REVIEWER:
            return self.reviewer(asked)
        if role is Role.GATE_WRITER:
            assert self.writer is not None
            return self.writer(asked)
        first = hashlib.sha256(json.dumps(asked.messages[0]).encode()).hexdigest()
        if first not in self.conversations:
            self.conversations.append(first)
        number = self.conversations.index(first)
        script = self.scripts[number] if number < len(self.scripts) else []
        move = script[asked.turns] if asked.turns < len(script) else reply(spoken("I have nothing more to say."))
        return move if not callable(move) else move(asked)


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> AsyncIterator[FakeMessages]:
    """A server with this policy, and an environment that names it."""
    async with FakeMessages(policy) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        yield server
