"""What fake models say: a script a conversation, and a reviewer that quotes what it was shown."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from activities.bundle import pack
from activities.store import Store
from specs.outcomes import Role
from specs.plan import Plan
from tests.fake_messages import Asked, FakeMessages, Policy, Reply, Step, call, called, reply, spoken
from tests.fakes import write_task
from workflows.optimization import OptimizationWorkflow
from workflows.state import RunInput, RunResult

Move = Step | Callable[[Asked], Step]
CANARY = "sk-ant-canary-3f9a1c"  # a key that must be found nowhere
LAST_WORDS = "Whoever writes this down comes no further."  # see tests.stuck_worker


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


# ---------------------------------------------------------------- many runs at one server


class Cases:
    """A policy for several runs at a time, each of which has its own; `asked` holds their requests apart."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self.policies = dict(policies)
        self.asked: dict[str, list[Asked]] = {case: [] for case in policies}

    def __call__(self, asked: Asked) -> Step:
        found = re.search(r"y is x, case ([\w-]+)\.", json.dumps(asked.body))
        assert found is not None
        self.asked[found[1]].append(asked)
        return self.policies[found[1]](asked)


async def start_case(
    client: Client, folder: Path, store: Store, case: str, *, task_queue: str, **overrides: Any
) -> WorkflowHandle[OptimizationWorkflow, RunResult]:
    """A run of one iteration whose requests `Cases` knows by the description of its task."""
    task: dict[str, Any] = {
        "problem": {"description": f"y is x, case {case}."},
        "model": {"provider": "anthropic"},
        "budget": {"max_iterations": 1, "max_wall_minutes": 10},
    }
    loaded = write_task(folder / case, ["// none"], **task | overrides)
    given = RunInput(plan=Plan.of(loaded.task, loaded.digest), bundle=await pack(loaded, store), sandbox="off")
    return await client.start_workflow(
        OptimizationWorkflow.run, given, id=f"{case}-{loaded.digest[:8]}", task_queue=task_queue
    )
