"""Runs that are under way must survive a new version of the workflows: recorded histories are replayed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from worker import WORKFLOWS
from workflows.state import IterationInput

HISTORIES = sorted((Path(__file__).parents[1] / "histories").glob("*.json"))


def load(path: Path) -> WorkflowHistory:
    # Under the recorded id: the children's ids are made from it.
    recorded = WorkflowHistory.from_json("", path.read_text())
    workflow_id = recorded.events[0].workflow_execution_started_event_attributes.workflow_id
    return WorkflowHistory(workflow_id, recorded.events)


def test_every_kind_of_history_is_recorded() -> None:
    """A whole run, one that was cancelled, one of self-contained programs and one by models, each with its children."""
    kinds = {
        "": ("iteration", "run"),
        "cancelled-": ("iteration", "run"),
        "reported-": ("iteration", "run"),
        "model-": ("gate", "iteration", "research", "run"),
    }
    assert [path.stem for path in HISTORIES] == sorted(f"{kind}{one}" for kind, names in kinds.items() for one in names)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path) -> None:
    """The workflows make the very decisions that were recorded."""
    await Replayer(workflows=WORKFLOWS, data_converter=pydantic_data_converter).replay_workflow(load(path))


@workflow.defn(name="IterationWorkflow", sandboxed=False)
class ChangedIteration:
    """What a careless change would look like: judging before building."""

    @workflow.run
    async def run(self, given: IterationInput) -> None:
        await workflow.execute_activity("judge", given.index, start_to_close_timeout=timedelta(seconds=1))


async def test_a_changed_workflow_is_caught() -> None:
    """The replay is a check that can fail."""
    path = next(path for path in HISTORIES if path.stem == "iteration")
    with pytest.raises(workflow.NondeterminismError):
        await Replayer(workflows=[ChangedIteration], data_converter=pydantic_data_converter).replay_workflow(load(path))
