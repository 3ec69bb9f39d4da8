"""The embedded server and a worker in the background: start them, wait for them, stop them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from temporalio.client import Client

from activities.connect import DEFAULT_ADDRESS, connect, connection
from activities.devserver import HOST, DevServer, living_server, start_server, stop_server
from activities.settings import Settings
from activities.store import write_atomically
from specs.errors import UserError
from workflows import visibility
from workflows.console.output import err
from workflows.console.pollers import Kind, polled
from workflows.console.session import quiet_core
from workflows.state import WORKFLOW_QUEUE

WORKER = Path(__file__).parents[2] / "worker.py"
UP_S = 90.0  # a worker on a loaded machine
SERVED_S = 15.0  # a worker that polls one of its queues polls the others at once
SHUTDOWN_S = 45.0  # the worker lets activities end


def bring_up(settings: Settings, queue: str | None = None) -> None:
    """Have an embedded server that answers and a worker that polls `queue`.

    Raises UserError when that cannot be, with the worker's last log lines if it was the worker that failed.
    """
    quiet_core()
    with (
        settings.writing_home(),
        err.status("starting the embedded server and worker"),
        (settings.home / "up.lock").open("a") as lock,
    ):
        # Two commands at once would start two workers; the kernel lets go of the lock of one that is killed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(_bring_up(settings, queue))


async def _bring_up(settings: Settings, queue: str | None) -> None:
    _expect(settings, living_server(settings))
    server = await start_server(settings, search_attributes=visibility.KEYS)
    _expect(settings, server)
    client = await connect(settings)
    worker, since = None, log_size(settings)
    if not await polled(client, WORKFLOW_QUEUE, "workflow") and living_worker(settings) is None:
        worker = start_worker(settings)
    if not await _served(client, WORKFLOW_QUEUE, "workflow", UP_S, worker):
        ended = worker is not None and worker.poll() is not None
        how = f"ended with status {worker.returncode}" if worker and ended else f"did not poll within {UP_S:g} s"
        raise UserError(f"the worker {how}; its last lines:\n{log_tail(settings, since)}")
    if queue is not None and not await _served(client, queue, "activity", SERVED_S, worker):
        raise UserError(f"the task needs a worker for {queue}; this machine's does not serve that: it lacks the device")


def _expect(settings: Settings, server: DevServer | None) -> None:
    """Raises UserError when the configuration leads this process, and so the worker, to another server."""
    configured = connection(settings)["target_host"]
    embedded = server.address if server else DEFAULT_ADDRESS
    if configured.replace("localhost", HOST) != embedded.replace("localhost", HOST):
        raise UserError(
            f"the embedded server's address is {embedded}, but TEMPORAL_ADDRESS or the Temporal profile says "
            f"{configured}; unset that, or leave the embedded server out"
        )


async def _served(
    client: Client, queue: str, kind: Kind, within_s: float, worker: subprocess.Popen[bytes] | None
) -> bool:
    """True once the queue is polled; False when the worker has ended or the time is up."""
    end = time.monotonic() + within_s
    while not await polled(client, queue, kind):
        if time.monotonic() > end or (worker is not None and worker.poll() is not None):
            return False
        await asyncio.sleep(0.1)
    return True


def start_worker(settings: Settings) -> subprocess.Popen[bytes]:
    """`worker.py --dev` in a session of its own, so that a Ctrl-C here does not reach it; its log lies under home."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    with _log_file(settings).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), "--dev"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "FERRET_HOME": str(settings.home)},
        )
    write_atomically(_note(settings), f"{process.pid} {_began(process.pid)}".encode())
    return process


def living_worker(settings: Settings) -> int | None:
    """Process id of the worker in the background; a process that merely got its number does not count."""
    try:
        pid, began = _note(settings).read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if began == _began(int(pid)) else None


def _began(pid: int) -> str:
    """When the process started, in the kernel's own unit; of one that has ended, nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def take_down(settings: Settings) -> list[str]:
    """Stop the background worker and the embedded server; gives what was stopped."""
    # The worker first: it hands its work back to a server that still answers.
    stopped = ["worker"] if _stop_worker(settings) else []
    return [*stopped, "server"] if asyncio.run(stop_server(settings)) else stopped


def _stop_worker(settings: Settings) -> bool:
    """End the worker, by force if it does not end by itself; False when there was none."""
    pid = living_worker(settings)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as handle:
        for number, patience_s in ((signal.SIGTERM, SHUTDOWN_S), (signal.SIGKILL, 5.0)):
            signal.pidfd_send_signal(handle.fileno(), number)
            if select.select([handle], [], [], patience_s)[0]:
                break
    _note(settings).unlink(missing_ok=True)
    return True


def log_size(settings: Settings) -> int:
    return _log_file(settings).stat().st_size if _log_file(settings).exists() else 0


def log_tail(settings: Settings, since: int = 0, *, lines: int = 15, width: int = 400) -> str:
    """The last lines of the worker's log from byte `since` on, indented; long ones are cut."""
    try:
        text = _log_file(settings).read_bytes()[since:].decode(errors="replace")
    except OSError:
        text = ""
    return "\n".join(f"  {line[:width]}" for line in text.splitlines()[-lines:]) or "  (it wrote no log)"


def _log_file(settings: Settings) -> Path:
    return settings.logs / "worker.log"


def _note(settings: Settings) -> Path:
    return settings.home / "worker.pid"
