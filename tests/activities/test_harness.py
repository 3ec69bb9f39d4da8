"""Folders of requests in progress, and what becomes of those whose worker was killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from activities.harness import Harness, sweep_work_folders
from activities.settings import Settings


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
