"""A model's turn as Temporal runs it: a server that asks for patience gets it, and no other failure is tried again."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker

from activities import model_turn
from activities.llm import client
from activities.model_turn import ModelTurning, ModelTurnInput
from specs.dialogue import ModelTurn, Stop
from tests.activities.llm.sessions import KEY, opened, workshop_at
from tests.fake_messages import FakeMessages, call, fault


@workflow.defn(sandboxed=False)
class OneTurn:
    @workflow.run
    async def run(self, given: ModelTurnInput) -> ModelTurn:
        return await workflow.execute_activity_method(ModelTurning.model_turn, given, **model_turn.OPTIONS)


async def turned(temporal: Client, home: Path, server: FakeMessages, monkeypatch: pytest.MonkeyPatch) -> ModelTurn:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    workshop = workshop_at(home)
    queue = f"model-{uuid.uuid4().hex}"
    try:
        async with Worker(
            temporal, task_queue=queue, workflows=[OneTurn], activities=[ModelTurning(workshop).model_turn]
        ):
            return await temporal.execute_workflow(OneTurn.run, await opened(workshop), id=queue, task_queue=queue)
    finally:
        await client.close_all()


async def test_a_rate_limit_is_waited_out(temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the wait is told, so that the run's clock does not count it."""
    async with FakeMessages(lambda asked: call("compile")) as server:
        server.push(fault(429, retry_after_ms=50))
        turn = await turned(temporal, tmp_path, server, monkeypatch)
    assert len(server.requests) == 2
    assert turn.stop is Stop.TOOLS
    assert turn.waited_s > 0.05


async def test_a_refused_key_ends_the_turn_at_once(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the name of its kind, without the key."""
    async with FakeMessages(
        lambda asked: fault(401, message=f"no such key: {asked.headers['authorization']}")
    ) as server:
        with pytest.raises(WorkflowFailureError) as caught:
            await turned(temporal, tmp_path, server, monkeypatch)
    assert len(server.requests) == 1
    assert isinstance(caught.value.cause, ActivityError)
    assert isinstance(caught.value.cause.cause, ApplicationError)
    assert caught.value.cause.cause.type == "Model.auth"
    assert "canary" not in str(caught.value.cause.cause.failure)
