"""The embedded server: one a home, found again, outliving its starter, gone when told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities import devserver, ports
from activities.connect import connect, connection
from activities.devserver import living_server, start_server, stop_server
from activities.settings import Settings
from specs.errors import UserError
from tests.fakes import is_alive, own_ports, settings_at, until
from workflows import visibility


@pytest_asyncio.fixture(loop_scope="session")
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """A home of its own, with whatever serves it stopped at the end."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    own_ports(monkeypatch)
    made = settings_at(tmp_path / "home")
    yield made
    await stop_server(made)


def busy_port() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


async def test_it_answers_is_reused_and_stops(settings: Settings) -> None:
    """A second start returns the living one; after the stop nothing of it is left."""
    server = await start_server(settings, search_attributes=visibility.KEYS)
    assert (await start_server(settings)).pid == server.pid
    assert living_server(settings) == server
    assert connection(settings)["target_host"] == server.address
    client = await connect(settings)
    assert await client.service_client.check_health()
    assert await visibility.register(client)
    assert await stop_server(settings)
    assert not is_alive(server.pid)
    assert living_server(settings) is None
    assert not await stop_server(settings)


async def test_two_starters_at_once_start_one_server(settings: Settings) -> None:
    """Two terminals, one home."""
    first, second = await asyncio.gather(start_server(settings), start_server(settings))
    assert first == second


async def test_default_ports_that_are_taken_are_replaced(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a port given, any free one will do."""
    with busy_port() as taken, busy_port() as taken_ui:
        monkeypatch.setattr(devserver, "DEFAULT_PORT", taken.getsockname()[1])
        monkeypatch.setattr(devserver, "DEFAULT_UI_PORT", taken_ui.getsockname()[1])
        server = await start_server(settings)
        assert server.port not in (taken.getsockname()[1], taken_ui.getsockname()[1])
    await Client.connect(server.address)


@pytest.mark.parametrize("option", ["port", "ui_port"])
async def test_a_given_port_that_is_taken_is_refused(settings: Settings, option: str) -> None:
    """One line that names the option and the port; nothing is left running."""
    with busy_port() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--{option.replace('_', '-')} {port}: the port is in use"):
            await start_server(settings, **{option: port})
    assert living_server(settings) is None


async def test_another_port_for_a_living_server_is_refused(settings: Settings) -> None:
    """It names where the server is and how to stop it."""
    server = await start_server(settings)
    with pytest.raises(UserError, match=f"already runs at {server.address}"):
        await start_server(settings, port=1)


STARTER = """
import asyncio, sys, time
from pathlib import Path
from activities.devserver import start_server
from tests.fakes import settings_at
asyncio.run(start_server(settings_at(Path(sys.argv[1])), port=int(sys.argv[2])))
Path(sys.argv[1], "up").touch()
time.sleep(1000)
"""


async def test_it_outlives_a_starter_that_is_killed_and_comes_back_at_its_address(settings: Settings) -> None:
    """Killed itself, its next start has the same data and the same port, where its workers look for it."""
    command = [sys.executable, "-c", STARTER, str(settings.home), str(devserver.DEFAULT_PORT)]
    starter = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        await until((settings.home / "up").exists, "the server is up")
    finally:
        starter.kill()
        starter.wait()
    server = living_server(settings)
    assert server is not None
    client = await Client.connect(server.address)
    await client.start_workflow("Kept", id="kept", task_queue="nobody")
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not is_alive(server.pid), "the server is gone")
    assert living_server(settings) is None
    again = await start_server(settings)
    assert (again.address, again.pid != server.pid) == (server.address, True)
    assert (await (await Client.connect(again.address)).get_workflow_handle("kept").describe()).id == "kept"


async def test_a_port_taken_between_look_and_start_is_no_failure(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program was quicker, even another Temporal server: the next free port is taken."""
    with busy_port() as taken:
        lies = iter([taken.getsockname()[1]])
        choose = ports.choose
        monkeypatch.setattr(
            ports,
            "choose",
            lambda given, wanted, option, **rest: next(lies, None) or choose(given, wanted, option, **rest),
        )
        server = await start_server(settings)
        assert server.port != taken.getsockname()[1]
    await Client.connect(server.address)


def test_a_process_that_merely_got_the_number_is_not_the_server(tmp_path: Path) -> None:
    """Process ids are used again after a restart of the machine."""
    settings = settings_at(tmp_path)
    note = devserver.DevServer(address="127.0.0.1:1", ui="", pid=os.getpid(), database=str(tmp_path / "temporal.db"))
    (tmp_path / "dev.json").write_text(note.model_dump_json())
    assert living_server(settings) is None


async def test_a_database_that_cannot_be_opened_is_told_in_one_line(settings: Settings) -> None:
    """With the end of the server's own words."""
    (settings.home / "temporal.db").mkdir(parents=True)
    with pytest.raises(UserError, match="the Temporal server ended with status"):
        await start_server(settings)
    assert living_server(settings) is None
