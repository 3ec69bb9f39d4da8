"""A tool called as the workflow calls it: through its activity, from a message in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.agents.toolbox import offered
from activities.agents.tools.tool import Desk
from activities.use_tool import ToolOutcome, ToolUsing, UseToolInput
from specs.dialogue import ToolCall
from specs.outcomes import Stage
from specs.schema import Language


@dataclass(frozen=True)
class Called:
    block: dict[str, Any]
    outcome: ToolOutcome

    @property
    def text(self) -> str:
        content = self.block["content"]
        assert isinstance(content, str)
        return content


async def call(desk: Desk, name: str, given: Any, *, run: bool = True) -> Called:
    """Ask for `name` in the second block of a message, and read the stored answer."""
    session = desk.session
    if not session.tools:
        tools = offered(session.role, session.mode, Stage.OPTIMIZE, Language.CPP)
        session = session.model_copy(update={"tools": tools})
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I will look."},
            {"type": "tool_use", "id": "toolu_1", "name": name, "input": given},
        ],
    }
    store = desk.workshop.store
    # Escaped, so that halves of characters arrive as JSON can carry them.
    node = json.dumps({"parent": None, "message": message})
    asked = UseToolInput(
        session=await store.put(session.model_dump_json().encode()),
        head=await store.put(node.encode()),
        call=ToolCall(at=1, name=name),
        workspace=desk.workspace,
        run=run,
    )
    outcome = await ActivityEnvironment().run(ToolUsing(desk.workshop).use_tool, asked)
    assert isinstance(outcome, ToolOutcome)
    block = json.loads(await store.get(outcome.answer))
    assert block["type"] == "tool_result"
    assert block["tool_use_id"] == "toolu_1"
    assert block["is_error"] is outcome.error
    return Called(block, outcome)


async def said(desk: Desk, name: str, /, **given: Any) -> str:
    """The text of a call that is right."""
    called = await call(desk, name, given)
    assert not called.outcome.error, called.text
    return called.text


async def refused(desk: Desk, name: str, /, **given: Any) -> str:
    """The text of a call that the model has to make differently; nothing has changed."""
    called = await call(desk, name, given)
    assert called.outcome.error, called.text
    assert called.outcome.workspace is None
    assert called.outcome.final is None
    return called.text


async def after(desk: Desk, name: str, /, **given: Any) -> Desk:
    """The desk with what the call has changed."""
    called = await call(desk, name, given)
    assert called.outcome.workspace is not None, called.text
    return replace(desk, workspace=called.outcome.workspace)
