"""The worker as a process: it serves its queues, and goes when told without losing work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.devices import Claims
from activities.devserver import living_server, stop_server
from activities.store import Store
from activities.workshop import Workshop
from tests.fakes import PATIENCE_S, settings_at, until
from worker import _arguments, device_activities, plan_activities
from workflows.console.pollers import polled

WORKER = Path(__file__).parents[1] / "worker.py"


def spawn(home: Path, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    env |= {"FERRET_HOME": str(home), "TEMPORAL_CONFIG_FILE": str(home / "none.toml"), **environ}
    home.mkdir(parents=True, exist_ok=True)
    with (home / "worker.log").open("ab") as log:
        return subprocess.Popen([sys.executable, str(WORKER), *arguments], env=env, stderr=log, start_new_session=True)


def logged(home: Path, event: str) -> dict[str, object] | None:
    for line in (home / "worker.log").read_text().splitlines():
        if line.startswith("{") and (entry := json.loads(line))["event"] == event:
            return dict(entry)
    return None


def with_a_gpu(folder: Path) -> dict[str, str]:
    """The environment of a machine with one H200, of which nvidia-smi tells."""
    folder.mkdir()
    (folder / "pynvml.py").write_text("raise ImportError")
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-8d3f2a10-0011-2233-4455-667788990011, NVIDIA H200, 143771 MiB'\n")
    smi.chmod(0o755)
    paths = {"PYTHONPATH": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
    return paths | {"CUDA_VISIBLE_DEVICES": "0"}


async def test_it_starts_a_server_polls_and_drains_on_sigterm(tmp_path: Path) -> None:
    """JSON logs say when it is ready; SIGTERM ends it with status 0; the server stays for the next one."""
    first = 12_000 + os.getpid() % 4_000 * 4  # as own_ports: no person's server is there
    arguments = ("--dev", "--port", str(first), "--ui-port", str(first + 2))
    worker = spawn(tmp_path, *arguments, **with_a_gpu(tmp_path / "gpu"))
    try:
        ready = await until(
            lambda: worker.poll() is not None or logged(tmp_path, "worker ready"), "the worker is ready"
        )
        assert isinstance(ready, dict), (tmp_path / "worker.log").read_text()
        server = living_server(settings_at(tmp_path))
        assert server is not None
        assert ready["address"] == server.address
        assert isinstance(ready["devices"], list)
        cpu, gpu = ready["devices"]
        assert gpu == cpu.removesuffix("-cpu") + "-gpu-8d3f2a10"
        client = await Client.connect(server.address)
        for queue in ("ferret-cpu", "ferret-h200", cpu, gpu):
            async with asyncio.timeout(PATIENCE_S):
                while not await polled(client, queue, "activity"):
                    await asyncio.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 60) == 0
        assert logged(tmp_path, "worker stopped")
        await Client.connect(server.address)
    finally:
        worker.kill()
        worker.wait()
        await stop_server(settings_at(tmp_path))


def test_without_a_server_it_says_so_in_one_line(tmp_path: Path) -> None:
    """And ends with status 2."""
    worker = spawn(tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert worker.wait(60) == 2
    (line,) = (tmp_path / "worker.log").read_text().splitlines()
    assert line.startswith("worker.py: no Temporal server answers at 127.0.0.1:1 (connection refused).")


def test_ports_without_dev_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """They belong to the embedded server."""
    with pytest.raises(SystemExit):
        _arguments(["--port", "7000"])
    assert "give --dev too" in capsys.readouterr().err


def test_every_activity_is_served_once(tmp_path: Path) -> None:
    """The two lists are the table of contents: nothing is left out, nothing is on two queues."""
    settings = settings_at(tmp_path)
    Store.open(settings.store)
    claims = Claims(settings, ())
    workshop = Workshop(settings)
    names = [one.__name__ for one in (*plan_activities(workshop, claims), *device_activities(workshop, claims))]
    sources = [path.read_text() for path in (WORKER.parent / "activities").glob("*.py")]
    defined = [name for source in sources for name in re.findall(r'@activity\.defn\(name="(\w+)"\)', source)]
    assert sorted(names) == sorted(defined)


def test_a_home_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    """With the variable that names it, and no traceback."""
    (tmp_path / "file").touch()
    worker = spawn(tmp_path, "--dev", FERRET_HOME=str(tmp_path / "file" / "home"))
    assert worker.wait(60) == 2
    (line,) = (tmp_path / "worker.log").read_text().splitlines()
    assert line.startswith(f"worker.py: FERRET_HOME is {tmp_path / 'file' / 'home'}, but ")
