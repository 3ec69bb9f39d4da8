"""One request, one process: its folder, the GPU that it sees, and what it means when it leaves no reply."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.accept import Accepting, AcceptInput
from activities.bundle import pack
from activities.devices import LocalDevice
from activities.harness import Harness, Unanswered, sweep_work_folders
from activities.lock_gate import GateLocking, LockGateInput
from activities.measure_baseline import BaselineMeasuring, MeasureBaselineInput
from activities.settings import Settings
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import RunnerLost
from tests.fakes import FakeHarness, kernel, write_task


def settings_at(home: Path) -> Settings:
    return Settings(home=home, store=(home / "store").as_uri())


def left_behind(settings: Settings, pid: int) -> Path:
    folder = settings.work / f"{pid}-abcdef"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text("{}")
    return folder


def test_a_request_leaves_no_folder(tmp_path: Path) -> None:
    """Private while the block runs, gone after it."""
    settings = settings_at(tmp_path)
    with Harness(settings).folder() as folder:
        (folder / "reply.json").write_text("{}")
        assert folder.parent == settings.work
    assert list(settings.work.iterdir()) == []


def test_folders_of_a_killed_worker_are_removed(tmp_path: Path) -> None:
    """Also while nobody has collected the dead worker's exit status."""
    settings = settings_at(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    folder = left_behind(settings, process.pid)
    with os.fdopen(os.pidfd_open(process.pid)) as handle:
        assert select.select([handle], [], [], 60)[0]
    sweep_work_folders(settings)
    process.wait()
    assert not folder.exists()


def test_folders_of_an_earlier_worker_with_our_number_are_removed(tmp_path: Path) -> None:
    """A container that starts again hands out the same numbers."""
    settings = settings_at(tmp_path)
    folder = left_behind(settings, os.getpid())
    sweep_work_folders(settings)
    assert not folder.exists()


def test_folders_of_a_living_worker_stay(tmp_path: Path) -> None:
    """Several workers may share a home."""
    settings = settings_at(tmp_path)
    folder = left_behind(settings, os.getppid())
    sweep_work_folders(settings)
    assert folder.exists()


async def answer(tmp_path: Path, program: str, request: requests.LockGate | requests.Build) -> object:
    harness = Harness(settings_at(tmp_path / "home"), (sys.executable, "-c", program))
    with harness.folder() as folder:
        return await harness.ask(request, requests.Locked, folder)


def lock_request(tmp_path: Path) -> requests.LockGate:
    return requests.LockGate(task=write_task(tmp_path / "task", ["// one"]).task, gate=tmp_path)


@pytest.mark.parametrize(
    ("program", "status"), [("import os; os._exit(0)", 0), ("raise SystemExit(7)", 7), ("1 / 0", 1)]
)
async def test_a_process_that_ends_by_itself_without_a_reply_is_the_gates_fault(
    tmp_path: Path, program: str, status: int
) -> None:
    """Whatever its status says; the message names who can have done it."""
    with pytest.raises(
        Unanswered, match=f"status {status} and without a reply.* reference.py or the harness"
    ) as caught:
        await answer(tmp_path, program, lock_request(tmp_path))
    assert caught.value.name == "GateError"


async def test_a_build_that_ends_without_a_reply_is_not(tmp_path: Path) -> None:
    """No gate is loaded for it."""
    task = write_task(tmp_path / "task", ["// one"]).task
    request = requests.Build(task=task, source=tmp_path / "x.cpp", builds=tmp_path)
    with pytest.raises(Unanswered, match="the harness ended it") as caught:
        await answer(tmp_path, "", request)
    assert caught.value.name == "InternalError"


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.abort()",
        "raise OSError(28, 'No space left on device')",
    ],
)
async def test_a_process_that_is_killed_or_lacks_room_is_the_machines_fault(tmp_path: Path, program: str) -> None:
    """The same request may well succeed later."""
    with pytest.raises(RunnerLost, match="without a reply to 'lock_gate'"):
        await answer(tmp_path, program, lock_request(tmp_path))


FIRST, SECOND = (
    LocalDevice(kind="h200", queue=f"ferret-host-gpu-{n}", description="", uuid=f"GPU-{n}") for n in (1, 2)
)


async def on(queue: str, method: Any, given: Any) -> Any:
    """An activity as a worker of this queue runs it."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, task_queue=queue)
    return await environment.run(method, given)


async def test_a_gate_process_sees_just_the_gpu_of_its_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the worker may see itself; a lock, which claims none, sees those of its kind, and a build needs none."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    task = tmp_path / "task"
    task.mkdir()
    (task / "accept.sh").write_text(f"""#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES" > {tmp_path}/seen
echo 'ACCEPT_RESULT {{"accepted": true}}'
""")
    (task / "accept.sh").chmod(0o755)
    fake = FakeHarness(tmp_path / "control")
    workshop = Workshop(settings_at(tmp_path / "home"), harness=fake.command, devices=(FIRST, SECOND))
    bundle = await pack(write_task(task, ["// one"], acceptance={"command": ["./accept.sh"]}), workshop.store)
    lock = (await on("ferret-h200", GateLocking(workshop).lock_gate, LockGateInput(bundle=bundle))).lock
    measuring = MeasureBaselineInput(bundle=bundle, lock=lock, sandbox="off")
    baseline = (await on(SECOND.queue, BaselineMeasuring(workshop).measure_baseline, measuring)).library
    source = await workshop.store.put(kernel("ratio 1.2").encode())
    accepting = AcceptInput(
        bundle=bundle, lock=lock, baseline=baseline, version="v1", source=source, sandbox="off"
    )  # fmt: skip
    accepted = await on(SECOND.queue, Accepting(workshop).accept, accepting)
    assert accepted.acceptance.command == "passed"
    assert [(entry["kind"], entry["gpu"]) for entry in fake.log()] == [
        ("lock_gate", "GPU-1,GPU-2"),
        ("build", None), ("judge", "GPU-2"), ("measure", "GPU-2"),
        ("build", None), ("judge", "GPU-2"), ("measure", "GPU-2"),
    ]  # fmt: skip
    assert (tmp_path / "seen").read_text() == "GPU-2\n"


@pytest.mark.parametrize("queue", ["ferret-cpu", "ferret-host-cpu", ""])
async def test_elsewhere_the_environment_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """On a processor's queues, and in a client, which is no activity."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    harness = Harness(settings_at(tmp_path), devices=(FIRST,))

    async def seen(_: None) -> dict[str, str]:
        return harness.environment()

    environment = await on(queue, seen, None) if queue else harness.environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "7"
    assert "SOME_API_KEY" not in environment
