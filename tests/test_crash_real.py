"""SIGKILL in the middle of a real compilation and a real measurement: the run ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.bundle import pack
from activities.devserver import living_server
from activities.guard import descendants
from activities.store import Store, digest_of
from specs.loader import load_task
from specs.plan import Plan
from tests.fakes import is_alive
from tests.real_run import (
    FASTEST,
    GONE_S,
    PATIENCE_S,
    SLOW,
    SLOW_MARK,
    TYPO,
    Place,
    compiles,
    history_of,
    is_runner,
    make_task,
    own_ports,
    place,
    recorded,
    shipped,
    until,
)
from workflows.console.local import living_worker
from workflows.iteration import IterationWorkflow
from workflows.optimization import OptimizationWorkflow
from workflows.state import WORKFLOW_QUEUE, RunInput, RunResult

# Compilers and clocks take several times as long on a machine that somebody else uses too.
pytestmark = pytest.mark.timeout(900)

RUN = "crash"
LAST = shipped(FASTEST) + SLOW
SCRIPT = {"01-typo.cpp": shipped(TYPO), "02-slow-to-compile.cpp": LAST}
STORY = [("v001", "win"), ("a001", "build_failed"), ("v002", "win")]
CHILD = f"{RUN}/iter-002"  # the one that plays the last candidate


@dataclass
class Scene:
    place: Place
    ports: tuple[int, int]
    run: WorkflowHandle[OptimizationWorkflow, RunResult]
    client: Client

    def below_the_worker(self) -> list[int]:
        return descendants(self.place.workers[-1].pid)

    async def step(self) -> str:
        """What the last candidate's iteration says it is doing; nothing before it is there."""
        try:
            return (await self.client.get_workflow_handle(CHILD).query(IterationWorkflow.step)).step
        except (RPCError, WorkflowQueryFailedError):
            return ""

    async def is_in(self, step: str, at_work: Callable[[int], bool]) -> None:
        """Wait until the iteration says so and a process that does it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.step() != step or not any(at_work(pid) for pid in self.below_the_worker()):
                await asyncio.sleep(0.02)

    async def kill(self, *, server: bool = False) -> None:
        """SIGKILL the worker, and the server before it; everything the worker had started goes too."""
        worker, below = self.place.workers[-1], self.below_the_worker()
        if server:
            found = living_server(self.place.settings)
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
            await until(lambda: not is_alive(found.pid), "the server is gone", GONE_S)
        worker.kill()
        worker.wait()
        kept = [] if server else [found.pid for found in [living_server(self.place.settings)] if found]
        families = [pid for pid in below if pid not in kept]
        assert families, "the worker had nothing to leave behind"
        await until(lambda: not any(is_alive(pid) for pid in families), "its processes are gone", GONE_S)
        await until(lambda: set(self.place.processes()) <= set(kept), f"no orphan: {self.place.shown()}", GONE_S)

    async def go_on(self) -> RunResult:
        """A new worker, and a new server where the old one was killed; then the run's end."""
        await self.place.start_worker(*self.ports)
        self.client = await self.place.client()
        self.run = self.client.get_workflow_handle_for(OptimizationWorkflow.run, RUN)
        async with asyncio.timeout(PATIENCE_S):
            return await self.run.result()

    async def attempts(self) -> Counter[str]:
        """Activity -> starts of it that the last candidate's iteration took, from the server's own history."""
        history = await self.client.get_workflow_handle(CHILD).fetch_history()
        names, starts = {}, Counter[str]()
        for event in history.events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started = event.activity_task_started_event_attributes
                starts[names[started.scheduled_event_id]] += started.attempt
        return starts


@pytest_asyncio.fixture(loop_scope="session")
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A run at work on a server and a worker of its own."""
    async with place(tmp_path) as made:
        own = own_ports()
        await made.start_worker(*own)
        client = await made.client()
        # Without production flags acceptance finds the slow build done.
        build = {"flags": ["-std=c++17", "-O3", "-march=native"]}
        loaded = load_task(make_task(tmp_path / "task", SCRIPT, configs=1, build=build))
        bundle = await pack(loaded, Store.open(made.settings.store))
        given = RunInput(plan=Plan.of(loaded.task, loaded.digest), bundle=bundle, sandbox=made.settings.sandbox)
        run = await client.start_workflow(OptimizationWorkflow.run, given, id=RUN, task_queue=WORKFLOW_QUEUE)
        yield Scene(made, own, run, client)


async def check_the_end(scene: Scene, result: RunResult, *interrupted: str) -> None:
    """What an undisturbed run would have left, and only the interrupted steps were done twice."""
    lines = await history_of(scene.run)
    assert [(line.version, line.ending.value) for line in lines] == STORY
    assert [line.index for line in lines] == [0, 1, 2]
    assert (result.iterations, result.wins, result.attempts) == (3, 2, 1)
    assert result.champion is not None
    assert result.champion.version == "v002"
    assert result.champion.source.sha256 == digest_of(LAST.encode())
    assert result.acceptance is not None
    assert result.acceptance.accepted
    assert result.delivery is not None
    versions, tags = recorded(Path(result.delivery.record))
    assert versions == ["v001", "a001", "v002"]
    assert tags == {"v001": "v001", "v002": "v002"}
    steps = ("open_session", "model_turn", "use_tool", "use_tool", "check_gate", "build", "judge", "measure")
    expected = Counter(steps)
    assert await scene.attempts() == expected + Counter(interrupted)
    server, worker = living_server(scene.place.settings), scene.place.workers[-1]
    assert server is not None
    assert sorted(scene.place.processes()) == sorted([server.pid, worker.pid]), scene.place.shown()
    assert scene.place.leftovers() == []


async def test_a_worker_killed_while_gxx_compiles_and_again_while_it_measures_is_replaced(scene: Scene) -> None:
    """Compiler, runners and clock die with their worker, nothing half-made is left, and the next one does it again."""
    await scene.is_in("building", lambda pid: compiles(pid, SLOW_MARK))
    await scene.kill()
    await scene.place.start_worker(*scene.ports)
    await scene.is_in("measuring", is_runner)
    await scene.kill()
    await check_the_end(scene, await scene.go_on(), "build", "measure")


async def test_a_killed_worker_and_server_are_replaced(scene: Scene) -> None:
    """Both at once in the middle of a measurement: the new server goes on from the old one's data."""
    await scene.is_in("measuring", is_runner)
    await scene.kill(server=True)
    await check_the_end(scene, await scene.go_on(), "measure")


async def test_up_replaces_a_worker_that_was_killed(tmp_path: Path) -> None:
    """The next command starts another one, also where nobody has collected the dead one's exit status."""
    async with place(tmp_path) as made:
        first = await made.command("up")
        killed = living_worker(made.settings)
        assert killed is not None, first.err
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not is_alive(killed), "the worker is gone", GONE_S)
        again = await made.command("up")

        assert (again.code, again.out) == (0, first.out), again.err
        assert living_worker(made.settings) not in (None, killed)
        assert (await made.command("down")).out == "stopped: worker and server\n"
        assert made.processes() == [], made.shown()
