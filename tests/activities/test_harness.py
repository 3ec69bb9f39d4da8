"""Folders of requests in progress, and what becomes of those whose worker was killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from activities.harness import Harness, Unanswered, sweep_work_folders
from activities.settings import Settings
from kernels.harness import requests
from specs.errors import RunnerLost
from tests.fakes import write_task


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
