"""A worker that is killed in the middle of a conversation: no answer is paid for twice, and the run ends the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHandle

from activities.agents import transcript
from activities.store import Store
from specs.history import HistoryLine
from specs.outcomes import Role
from tests.fake_messages import Asked, Policy, called, reply, spoken
from tests.fake_models import LAST_WORDS, Cases, Models, role_of, serving, start_case
from tests.fakes import PATIENCE_S, FakeHarness, kernel, settings_at, until
from workflows.optimization import OptimizationWorkflow as Run
from workflows.state import WORKFLOW_QUEUE, RunResult

UNDISTURBED, ANSWERED, ASKED, COMPILING = "undisturbed", "answered", "asked", "compiling"
COMPILE = 1  # the turn that calls for it: the one in which everything happens
FOREVER_S = 3_600.0


@dataclass
class Told:
    """What came of one run."""

    result: RunResult
    lines: list[HistoryLine]
    said: list[dict[str, Any]]
    asked: list[Asked]

    @property
    def requests(self) -> list[int]:
        """By turn of the optimiser."""
        turns = [one.turns for one in self.asked if role_of(one) is Role.OPTIMIZER]
        return [turns.count(turn) for turn in range(max(turns) + 1)]

    @property
    def story(self) -> Any:
        """All that must not depend on what was killed."""
        lines = [(one.version, one.label, one.ending, one.charge and one.charge.calls) for one in self.lines]
        words = [[(block["type"], block.get("name")) for block in one["content"]] for one in self.said[1:]]
        return lines, words, self.result.outcome, self.result.charge.calls


def working(case: str, *, last_words: str = "Compile it.", held: bool = False) -> Policy:
    """A model that writes, compiles and hands in; `held` keeps the first answer to the second turn back for ever."""
    left = [FOREVER_S] if held else []

    def compiles(asked: Asked) -> Any:
        return reply(spoken(last_words), called("compile"), delay_s=left.pop() if left else 0.0)

    source = kernel("ratio 1.2", case)
    writes = reply(spoken("Here."), called("write_kernel", source=source))
    return Models([writes, compiles, reply(called("submit", title="an idea"))])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Told]]:
    """Four runs, and one death of their worker that finds three of them at different points of the same turn.

    One for all of them, since a lost worker is only missed after its heartbeat's timeout.
    """
    folder = tmp_path_factory.mktemp("crash")
    settings, harness = settings_at(folder / "home"), FakeHarness(folder / "control")
    store = Store.open(settings.store)
    cases = Cases(
        {
            UNDISTURBED: working(UNDISTURBED),
            ANSWERED: working(ANSWERED, last_words=LAST_WORDS),
            ASKED: working(ASKED, held=True),
            COMPILING: working(COMPILING),
        }
    )
    workers: list[subprocess.Popen[bytes]] = []

    def start_worker(module: str) -> None:
        command = [sys.executable, "-m", module, str(settings.home), str(harness.control)]
        with (folder / f"{module}.log").open("wb") as log:
            workers.append(subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=log, stderr=log))

    def journalled() -> bool:
        entries = (settings.home / "store" / "named" / "journal").rglob("*-0")
        return any(LAST_WORDS.encode() in entry.read_bytes() for entry in entries)

    async def start(case: str) -> WorkflowHandle[Run, RunResult]:
        return await start_case(temporal, folder, store, case, task_queue=WORKFLOW_QUEUE)

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
            patch.delenv(name)
        patch.setenv("TEMPORAL_CONFIG_FILE", str(folder / "none.toml"))
        patch.setenv("TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
        try:
            async with serving(patch, cases):
                start_worker("tests.stuck_worker")
                runs = {UNDISTURBED: await start(UNDISTURBED)}
                await finished(runs[UNDISTURBED])
                harness.hold("build", COMPILING)
                runs |= {case: await start(case) for case in (ANSWERED, ASKED, COMPILING)}
                await until(journalled, "an answer is in the journal, and its activity has not ended")
                await until(lambda: len(cases.asked[ASKED]) == COMPILE + 1, "a request is in flight")
                await until(lambda: harness.held("build"), "a compile is at work")
                workers[-1].kill()
                workers[-1].wait()
                harness.release("build")
                start_worker("tests.crash_worker")
                yield {case: await told_of(run, store, cases.asked[case]) for case, run in runs.items()}
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


async def finished(run: WorkflowHandle[Run, RunResult]) -> RunResult:
    async with asyncio.timeout(2 * PATIENCE_S):  # a heartbeat has to time out first
        return await run.result()


async def told_of(run: WorkflowHandle[Run, RunResult], store: Store, asked: list[Asked]) -> Told:
    result, lines = await finished(run), await run.query(Run.history)
    return Told(result, lines, await transcript.messages(store, lines[0].chapters[0].head), asked)


@pytest.mark.parametrize("case", [UNDISTURBED, ANSWERED, ASKED, COMPILING])
async def test_a_run_ends_as_if_no_worker_had_been_killed(told: dict[str, Told], case: str) -> None:
    """The same win, the same conversation, the same number of answers charged."""
    assert [(one.version, one.ending.value) for one in told[case].lines] == [("v001", "win")]
    assert told[case].result.outcome == "accepted"
    assert told[case].story == told[UNDISTURBED].story


async def test_an_answer_that_was_written_down_is_not_asked_for_again(told: dict[str, Told]) -> None:
    """Killed between the model's answer and the activity's end: one request for that turn, in total."""
    assert told[ANSWERED].requests == [1, 1, 1]
    assert LAST_WORDS in str(told[ANSWERED].said[3])


async def test_a_request_whose_answer_was_lost_is_made_once_more(told: dict[str, Told]) -> None:
    """Killed while the model was thinking: the same request again, and no other."""
    assert told[ASKED].requests == [1, 2, 1]
    first, second = (one.body for one in told[ASKED].asked if one.turns == COMPILE and role_of(one) is Role.OPTIMIZER)
    assert first == second


async def test_a_tool_that_was_at_work_is_run_again_and_no_model_is_asked(told: dict[str, Told]) -> None:
    """Killed in the middle of a compile."""
    assert told[COMPILING].requests == [1, 1, 1]
    answers = [block for block in told[COMPILING].said[4]["content"] if block["type"] == "tool_result"]
    assert [answer["is_error"] for answer in answers] == [False]
