"""Record the histories that the replay tests guard: `python -m tests.record_histories`.

Run it only when workflow code was changed on purpose in a way that old runs need not survive; a change that they must
survive goes behind `workflow.patched`, and the histories stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.fake_messages import Asked, Step, call
from tests.fake_models import Models, hands_in, serving, verdict
from tests.fakes import GATE, REFERENCE, SELF_CONTAINED, Running, kernel, running
from workflows import visibility

FOLDER = Path(__file__).with_name("histories")
SCRIPT = [kernel("ratio 0.5", "a"), kernel("fails", "b"), kernel("wrong", "c"), kernel("ratio 1.2", "d")]


# A gate is written, two kernels are wrong, a plan is made and reviewed, and the pivot wins.
CANON = "y[i] = x[i]  # the canonical copy\n"
BY_MODELS: dict[str, Any] = {
    "gate": None,
    "canonical": ["script/00.cpp"],
    "model": {"provider": "anthropic"},
    "search": {"stall_after": 2},
    "budget": {"max_iterations": 4, "max_wall_minutes": 10},
}
PLAN = {"lever": "split K", "why": "idle cores", "steps": ["split"], "expected_gain": "1.3x"}
DRAFTING = [
    call("read_canonical", name="script/00.cpp"),
    call("write_gate_file", name="gate.yaml", content=GATE),
    call("write_gate_file", name="reference.py", content=REFERENCE),
    call("admit_gate"),
    call("submit_gate", summary="copies, as the source does"),
]
RESEARCH = [
    call("note", section="tried", text="tiles: no gain"),
    call("note", section="untried_hard", text="split K with a second pass"),
    call("submit_plan", **PLAN),
]


def _reviewer(asked: Asked) -> Step:
    shown = str(asked.messages[0])
    quote = "idle cores" if "idle cores" in shown else "canonical copy" if "canonical copy" in shown else "void copy()"
    return verdict(approved=True, quote=quote)


MODELS = Models(
    *(hands_in(kernel("wrong", name)) for name in ("one", "two")), RESEARCH, hands_in(kernel("ratio 1.2", "three")),
    reviewer=_reviewer, writer=lambda asked: DRAFTING[asked.turns],
)  # fmt: skip


async def record() -> None:
    FOLDER.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        search_attributes=visibility.KEYS,
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
    ) as environment:
        with tempfile.TemporaryDirectory() as folder:
            async with running(environment.client, Path(folder), SCRIPT, run_id="recorded") as run:
                await run.result()
                await _save(run, "recorded", "run")
                await _save(run, "recorded/iter-003", "iteration")
        with tempfile.TemporaryDirectory() as folder:
            cancelled = running(
                environment.client,
                Path(folder),
                SCRIPT,
                run_id="recorded-cancelled",
                before=lambda h: h.hold("judge", "*d ="),
            )
            async with cancelled as run:
                await run.held("judge")
                await run.handle.cancel(reason="recorded on purpose")
                with contextlib.suppress(WorkflowFailureError):
                    await run.result()
                await _save(run, "recorded-cancelled", "cancelled-run")
                await _save(run, "recorded-cancelled/iter-003", "cancelled-iteration")
        with tempfile.TemporaryDirectory() as folder:
            reported = running(
                environment.client, Path(folder), SCRIPT, run_id="recorded-reported", overrides=SELF_CONTAINED
            )
            async with reported as run:
                await run.result()
                await _save(run, "recorded-reported", "reported-run")
                await _save(run, "recorded-reported/iter-003", "reported-iteration")
        with pytest.MonkeyPatch.context() as environ, tempfile.TemporaryDirectory() as folder:
            async with (
                serving(environ, MODELS),
                running(environment.client, Path(folder), [CANON], run_id="recorded-model", overrides=BY_MODELS) as run,
            ):
                await run.result()
                await _save(run, "recorded-model", "model-run")
                await _save(run, "recorded-model/gate-1", "model-gate")
                await _save(run, "recorded-model/iter-002", "model-research")
                await _save(run, "recorded-model/iter-003", "model-iteration")


async def _save(run: Running, workflow_id: str, name: str) -> None:
    history = await run.client.get_workflow_handle(workflow_id).fetch_history()
    events = json.loads(history.to_json())
    _anonymise(events, str(run.settings.home).encode())
    (FOLDER / f"{name}.json").write_text(json.dumps(events, indent=1) + "\n")


def _anonymise(value: object, home: bytes) -> None:
    """The name and folders of the machine that recorded it are nobody's business, and no part of what is replayed."""
    if isinstance(value, dict):
        if "identity" in value:
            value["identity"] = "recorder"
        if isinstance(value.get("data"), str) and "metadata" in value:
            value["data"] = b64encode(b64decode(value["data"]).replace(home, b"/home-of-ferret")).decode()
        for inner in value.values():
            _anonymise(inner, home)
    elif isinstance(value, list):
        for inner in value:
            _anonymise(inner, home)


if __name__ == "__main__":
    asyncio.run(record())
