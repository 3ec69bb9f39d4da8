"""A task without a gate: one is written from its canonical source, admitted, reviewed, approved, and then locked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from activities.agents import transcript
from specs.outcomes import Role
from tests.fake_messages import Asked, call, fault, text
from tests.fake_models import Models, hands_in, role_of, serving, verdict
from tests.fakes import GATE, REFERENCE, kernel, running, until
from workflows.gate import MOST_ROUNDS
from workflows.optimization import OptimizationWorkflow as Run
from workflows.state import GateApproval, Phase

FAST = kernel("ratio 1.2", "fast")
CANON = "y[i] = x[i]  # the canonical copy\n"
UNGATED: dict[str, Any] = {
    "gate": None,
    "canonical": ["script/00.cpp"],  # of the task's files the one whose text a test can choose
    "model": {"provider": "anthropic"},
    "budget": {"max_iterations": 1, "max_wall_minutes": 10},
}
WRITES = [
    call("read_canonical", name="script/00.cpp"),
    call("write_gate_file", name="gate.yaml", content=GATE),
    call("write_gate_file", name="reference.py", content=REFERENCE),
    call("admit_gate"),
    call("submit_gate", summary="copies, as the source does"),
]


def writer(asked: Asked) -> Any:
    """Writes the same draft each time; of a draft that is there already it only has to change something."""
    return WRITES[min(asked.turns, len(WRITES) - 1)]


def asking(temporal: Client, folder: Path, **overrides: Any) -> Any:
    return running(temporal, folder, [CANON], overrides=UNGATED | overrides)


async def test_a_gate_is_written_reviewed_and_locked(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on it is a gate as any other; who wrote what can be read back."""

    def reviewer(asked: Asked) -> Any:
        gate = CANON.strip() in str(asked.messages[0]).replace("\\n", "\n")
        return verdict(approved=True, quote="the canonical copy" if gate else "void copy()")

    policy = Models(hands_in(FAST), writer=writer, reviewer=reviewer)
    async with serving(monkeypatch, policy) as server, asking(temporal, tmp_path) as run:
        result = await run.result()
        status = await run.status()
        said = await transcript.messages(run.store, status.gate_chapters[0].head)
    assert result.champion is not None
    assert status.written_gate is not None
    assert status.written_gate.review is not None
    assert (status.written_gate.review.approved, status.written_gate.rounds) == (True, 1)
    assert [chapter.role for chapter in status.gate_chapters] == [Role.GATE_WRITER, Role.REVIEWER]
    locks = [entry["request"] for entry in run.harness.log() if entry["kind"] == "lock_gate"]
    assert Path(locks[-1]["gate"], "reference.py").read_text() == REFERENCE
    assert CANON.strip() in str(said)
    assert status.charge.calls == len(server.requests)


async def test_an_objection_goes_back_to_the_writer_and_three_of_them_end_the_run(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reviewer's words and quotes, and the draft as it was."""

    def reviewer(asked: Asked) -> Any:
        return verdict(approved=False, quote="the canonical copy", summary="The scale is missing.")

    async with (
        serving(monkeypatch, Models(writer=writer, reviewer=reviewer)) as server,
        asking(temporal, tmp_path) as run,
    ):
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
        openings = [one for one in server.requests if one.turns == 0 and role_of(one) is Role.GATE_WRITER]
    assert len(openings) == MOST_ROUNDS
    assert "The scale is missing." not in str(openings[0].messages)
    for words in ("The scale is missing.", "the canonical copy", "make_inputs"):
        assert words in str(openings[1].messages)
    assert "the reviewer objected 3 times" in str(caught.value.cause)


@pytest.mark.parametrize(
    ("reviewer", "why"),
    [
        (lambda asked: fault(401), "the reviewer cannot be asked"),
        (lambda asked: text("Approved!"), "gave no verdict"),
    ],
)
async def test_a_gate_that_nobody_reviewed_is_not_locked(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reviewer: Any, why: str
) -> None:
    """No verdict is no approval here either."""
    async with serving(monkeypatch, Models(writer=writer, reviewer=reviewer)), asking(temporal, tmp_path) as run:
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
        assert (await run.status()).gate_digest is None
    assert why in str(caught.value.cause)


async def test_a_person_has_the_last_word_where_the_task_asks_for_it(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal goes back to the writer with its reason; nothing is locked before the approval."""
    gate_reviewer = Models(hands_in(FAST), writer=writer, reviewer=_approves_both)
    async with serving(monkeypatch, gate_reviewer) as server, asking(temporal, tmp_path, approve_gate=True) as run:
        await run.reaches(Phase.AWAITING_APPROVAL)
        assert (await run.status()).gate_digest is None
        with pytest.raises(WorkflowUpdateFailedError):
            await run.handle.execute_update(Run.approve_gate, GateApproval(approved=False))
        await run.handle.execute_update(Run.approve_gate, GateApproval(approved=False, reason="eps is missing"))
        await run.reaches(Phase.AWAITING_APPROVAL)
        openings = [one for one in server.requests if one.turns == 0 and role_of(one) is Role.GATE_WRITER]
        assert "eps is missing" in str(openings[-1].messages)
        await run.handle.execute_update(Run.approve_gate, GateApproval(approved=True))
        assert (await run.result()).champion is not None


async def test_a_run_can_be_stopped_before_there_is_a_gate(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends without a kernel, and not as a failure."""
    models = Models(writer=writer, reviewer=_approves_both)
    async with serving(monkeypatch, models), asking(temporal, tmp_path, approve_gate=True) as run:
        await run.reaches(Phase.AWAITING_APPROVAL)
        await run.handle.signal(Run.request_stop)
        result = await run.result()
    assert (result.outcome, result.champion, result.gate_digest) == ("no kernel", None, None)


def _approves_both(asked: Asked) -> Any:
    gate = "canonical copy" in str(asked.messages[0])
    return verdict(approved=True, quote="the canonical copy" if gate else "void copy()")


@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_a_gate_whose_writing_is_ended_by_hand_ends_the_run(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """In one sentence; there is nothing to go on with."""
    async with serving(monkeypatch, lambda asked: fault("pings")) as server, asking(temporal, tmp_path) as run:
        await until(lambda: server.requests, "the model was asked")
        await getattr(run.client.get_workflow_handle(f"{run.handle.id}/gate-1"), end)()
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(run.result(), 30)
    assert "the writing of the gate was ended by hand" in str(caught.value.cause)


async def test_an_iteration_ended_by_hand_says_that_its_cost_is_unknown(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked until then was paid for, and stands in no book."""
    gated = {"gate": "gate", "canonical": []}
    async with (
        serving(monkeypatch, Models([lambda asked: fault("pings")])) as server,
        asking(temporal, tmp_path, **gated) as run,
    ):
        await until(lambda: server.requests, "the model was asked")
        await run.client.get_workflow_handle(f"{run.handle.id}/iter-000").terminate()
        await run.result()
        (line,) = await run.handle.query(Run.history)
    assert line.reason == "this iteration was cancelled by hand; what its conversations have cost is not counted"
