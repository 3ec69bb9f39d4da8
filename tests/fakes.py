"""Doubles and helpers for tests of activities and workflows: a scripted harness, small tasks, a run under test."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities import devserver
from activities.bundle import pack
from activities.devices import Claims, LocalDevice
from activities.settings import Settings
from activities.store import Store
from activities.workshop import Workshop
from specs.loader import LoadedTask, load_task
from specs.plan import Plan
from worker import WORKFLOWS, device_activities, plan_activities
from workflows.optimization import OptimizationWorkflow
from workflows.state import Phase, RunInput, RunResult, Status

PATIENCE_S = 60.0  # how long a condition may take to come true before a test gives up


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something that another process or task brings about; returns the condition's value."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := condition()):
            await asyncio.sleep(0.02)
    assert value, what
    return value


def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let embedded servers start from ports that no person and no other test run uses by default."""
    first = 12_000 + os.getpid() % 4_000 * 4
    monkeypatch.setattr(devserver, "DEFAULT_PORT", first)
    monkeypatch.setattr(devserver, "DEFAULT_UI_PORT", first + 2)


def settings_at(home: Path) -> Settings:
    return Settings(home=home, store=(home / "store").as_uri(), sandbox="off")


class FakeHarness:
    """The control side of fake_harness.py."""

    def __init__(self, control: Path) -> None:
        self.control = control
        control.mkdir(parents=True, exist_ok=True)

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_harness.py")), str(self.control))

    def refuse(self, kind: str, error: str, message: str, *, retryable: bool, times: int = 1) -> None:
        refusal = json.dumps({"error": error, "message": message, "retryable": retryable})
        for _ in range(times):
            (self.control / f"refuse-{kind}-{uuid.uuid4().hex}").write_text(refusal)

    def die(self, kind: str) -> None:
        """The next process asked this ends without a reply."""
        (self.control / f"die-{kind}").touch()

    def leave(self, kind: str, times: int = 100) -> None:
        """The next processes asked this end by themselves, as if all were well, without a reply."""
        (self.control / f"leave-{kind}").write_text(str(times))

    def hold(self, kind: str, about: str = "", *, production: bool = False) -> None:
        """Processes asked this (about a source that holds `about`) wait, with a child of another session."""
        (self.control / f"hold-{kind}").write_text(json.dumps({"about": about, "production": production}))

    def release(self, kind: str) -> None:
        (self.control / f"hold-{kind}").unlink(missing_ok=True)

    def held(self, kind: str) -> bool:
        return (self.control / f"held-{kind}").exists()

    def held_processes(self, kind: str) -> list[int]:
        """The process that waits, and its child."""
        child = int((self.control / f"held-{kind}").read_text())
        return [[entry["pid"] for entry in self.log() if entry["kind"] == kind][-1], child]

    def log(self) -> list[dict[str, Any]]:
        file = self.control / "log.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def asked(self, kind: str) -> int:
        return sum(entry["kind"] == kind for entry in self.log())


def is_alive(pid: int) -> bool:
    """A zombie has ended: only its entry is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


GATE = """\
contract: y is x
deterministic: true
distributions: [normal]
tensors:
  y: {elementwise: 1.0e-6}
"""
REFERENCE = """\
import numpy as np


def make_inputs(rng, args, distribution):
    return {"x": rng.standard_normal(args["N"]).astype(np.float32)}


def reference(inputs, args):
    return {"y": inputs["x"].astype(np.float64)}
"""


def write_task(folder: Path, script: Sequence[str], **overrides: Any) -> LoadedTask:
    """A complete little task beside its files; `script` holds the candidates' sources in playing order."""
    for name in ("gate", "script"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "gate" / "gate.yaml").write_text(GATE)
    (folder / "gate" / "reference.py").write_text(REFERENCE)
    (folder / "baseline.cpp").write_text("// baseline\n")
    for position, source in enumerate(script):
        (folder / "script" / f"{position:02d}.cpp").write_text(source)
    task: dict[str, Any] = {
        "name": "copy-f32",
        "gpu": "CPU",
        "arch": "any",
        "precision": "f32",
        "language": "cpp",
        "problem": {"description": "y is x"},
        "baseline": {"source": "memcpy", "program": "baseline.cpp"},
        "configs": [
            {"name": "small", "args": {"N": 8}, "target_ratio": 0.9},
            {"name": "large", "args": {"N": 64}, "target_ratio": 0.9},
        ],
        "interface": {
            "entry": "copy",
            "arguments": [
                {"name": "x", "kind": "input", "dtype": "f32", "shape": ["N"]},
                {"name": "y", "kind": "output", "dtype": "f32", "shape": ["N"]},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        },
        "gate": "gate",
        "search": {"stall_after": 50},
        "model": {"provider": "scripted", "script": "script"},
        "budget": {"max_iterations": 20, "max_wall_minutes": 10},
    }
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump(task | overrides, sort_keys=False))
    return load_task(path)


def kernel(text: str, name: str = "k") -> str:
    """A candidate whose fate is `text`, e.g. `ratio 1.2`; the fate stands in code that folding keeps."""
    return f'static const char *{name} = "fake: {text};"; void copy() {{}}\n'


# What makes `write_task` write a task whose programs report on themselves.
SELF_CONTAINED: dict[str, Any] = {"harness": "self_contained", "gate": None, "interface": None}


@dataclass
class Running:
    """A run under test."""

    client: Client
    handle: WorkflowHandle[OptimizationWorkflow, RunResult]
    harness: FakeHarness
    settings: Settings
    store: Store
    loaded: LoadedTask
    device: LocalDevice
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def result(self) -> RunResult:
        async with asyncio.timeout(PATIENCE_S):
            return await self.handle.result()

    async def status(self) -> Status:
        return await self.handle.query(OptimizationWorkflow.status)

    async def reaches(self, phase: Phase) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.status()).phase is not phase:
                await asyncio.sleep(0.02)

    async def held(self, kind: str) -> None:
        await until(lambda: self.harness.held(kind), f"a process waits in {kind}")

    async def endings(self) -> list[tuple[str, str]]:
        return [(line.version, line.ending.value) for line in await self.handle.query(OptimizationWorkflow.history)]


@asynccontextmanager
async def running(
    client: Client,
    folder: Path,
    script: Sequence[str],
    *,
    overrides: Mapping[str, Any] = {},
    extra_devices: int = 0,
    serve_first_device: bool = True,
    before: Callable[[FakeHarness], object] = lambda harness: None,
    run_id: str | None = None,
    **run_input: Any,
) -> AsyncIterator[Running]:
    """Workers on queues of their own, and a started run; both are gone at the end of the block."""
    unique = uuid.uuid4().hex[:8]
    settings = settings_at(folder / "home")
    loaded = write_task(folder / "task", script, **({"gpu": f"cpu{unique}"} | dict(overrides)))
    store = Store.open(settings.store)
    harness = FakeHarness(folder / "control")
    before(harness)
    plan = Plan.of(loaded.task, loaded.digest)
    devices = tuple(
        LocalDevice(kind=f"cpu{unique}", queue=f"device-{unique}-{number}", description=f"fake device {number}")
        for number in range(1 + extra_devices)
    )
    workshop = Workshop(settings, harness=harness.command)
    claims = Claims(settings, devices)
    common: dict[str, Any] = {"max_heartbeat_throttle_interval": timedelta(milliseconds=300)}
    workers = [
        # A bug in workflow code fails the run at once, rather than hang the test.
        Worker(client, task_queue=unique, workflows=WORKFLOWS, workflow_failure_exception_types=[Exception], **common),
        Worker(client, task_queue=plan.queue, activities=plan_activities(workshop, claims), **common),
        *(
            Worker(
                client,
                task_queue=device.queue,
                activities=device_activities(workshop, claims),
                max_concurrent_activities=1,
                **common,
            )
            for device in devices[0 if serve_first_device else 1 :]
        ),
    ]
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        bundle = await pack(loaded, store)
        handle = await client.start_workflow(
            OptimizationWorkflow.run,
            RunInput(plan=plan, bundle=bundle, sandbox="off", **run_input),
            id=run_id or f"run-{unique}",
            task_queue=unique,
        )
        yield Running(client, handle, harness, settings, store, loaded, devices[0], stack)
        if (await handle.describe()).status == 1:
            await handle.terminate("test is over")
