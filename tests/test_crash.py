"""Kill any process at any moment: the run ends the same, with nothing lost, repeated or left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from git import Repo
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.bundle import pack
from activities.devserver import living_server, start_server, stop_server
from activities.settings import Settings
from activities.store import Store
from specs.plan import Plan
from tests.fakes import FakeHarness, is_alive, kernel, own_ports, settings_at, until, write_task
from workflows import visibility
from workflows.optimization import OptimizationWorkflow
from workflows.state import WORKFLOW_QUEUE, RunInput, RunResult

SCRIPT = [kernel("ratio 0.5", "first"), kernel("wrong", "second"), kernel("ratio 1.2", "third")]


@dataclass
class Scene:
    settings: Settings
    harness: FakeHarness
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(self) -> None:
        command = [sys.executable, "-m", "tests.crash_worker", str(self.settings.home), str(self.harness.control)]
        self.workers.append(subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL))

    def kill_worker(self) -> None:
        self.workers[-1].kill()
        self.workers[-1].wait()

    async def start_server(self) -> Client:
        server = await start_server(self.settings, search_attributes=visibility.KEYS)
        return await Client.connect(server.address, data_converter=pydantic_data_converter)

    async def kill_server(self) -> None:
        server = living_server(self.settings)
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not is_alive(server.pid), "the server is gone")

    async def start_run(self, client: Client, folder: Path) -> WorkflowHandle[OptimizationWorkflow, RunResult]:
        loaded = write_task(folder, SCRIPT)
        bundle = await pack(loaded, Store.open(self.settings.store))
        plan = Plan.of(loaded.task, loaded.digest)
        given = RunInput(plan=plan, bundle=bundle, sandbox="off")
        return await client.start_workflow(OptimizationWorkflow.run, given, id="crash", task_queue=WORKFLOW_QUEUE)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """A home of its own; whatever runs in it is ended with the test."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    own_ports(monkeypatch)
    made = Scene(settings_at(tmp_path / "home"), FakeHarness(tmp_path / "control"))
    yield made
    for worker in made.workers:
        worker.kill()
        worker.wait()
    await stop_server(made.settings)


def check_the_story(result: RunResult, scene: Scene) -> None:
    """What an undisturbed run would have told."""
    assert result.champion is not None
    assert (result.champion.version, result.outcome, result.wins, result.attempts) == ("v002", "accepted", 2, 1)
    assert result.delivery is not None
    commits = [str(commit.summary).split(":")[0] for commit in Repo(result.delivery.record).iter_commits(reverse=True)]
    assert commits == ["v001", "a001", "v002"]


@pytest.mark.parametrize("step", ["build", "measure"])
async def test_a_killed_worker_is_replaced(scene: Scene, tmp_path: Path, step: str) -> None:
    """In the middle of a step: its processes are gone at once, and a new worker does the step again."""
    client = await scene.start_server()
    scene.harness.hold(step, "third")
    scene.start_worker()
    run = await scene.start_run(client, tmp_path / "task")
    await until(lambda: scene.harness.held(step), f"a process waits in {step}")
    processes = scene.harness.held_processes(step)
    scene.kill_worker()
    await until(lambda: not any(is_alive(pid) for pid in processes), "no orphan is left")
    scene.harness.release(step)
    scene.start_worker()
    check_the_story(await run.result(), scene)


async def test_a_killed_server_and_worker_are_replaced(scene: Scene, tmp_path: Path) -> None:
    """Both at once; the server comes back at its address with its data."""
    client = await scene.start_server()
    scene.harness.hold("measure", "third")
    scene.start_worker()
    await scene.start_run(client, tmp_path / "task")
    await until(lambda: scene.harness.held("measure"), "a measurement waits")
    await scene.kill_server()
    scene.kill_worker()
    scene.harness.release("measure")
    client = await scene.start_server()
    scene.start_worker()
    run = client.get_workflow_handle_for(OptimizationWorkflow.run, "crash")
    check_the_story(await run.result(), scene)


async def test_a_worker_outlives_its_server(scene: Scene, tmp_path: Path) -> None:
    """Only the server is killed: the worker waits and goes on with the next one."""
    client = await scene.start_server()
    scene.harness.hold("build", "third")
    scene.start_worker()
    await scene.start_run(client, tmp_path / "task")
    await until(lambda: scene.harness.held("build"), "a build waits")
    await scene.kill_server()
    client = await scene.start_server()
    scene.harness.release("build")
    run = client.get_workflow_handle_for(OptimizationWorkflow.run, "crash")
    check_the_story(await run.result(), scene)
