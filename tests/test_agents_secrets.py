"""A worker and the model's server know a key, and nobody else: whatever a run leaves behind is searched."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import logging
import os
import re
import shutil
import stat
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities import devices, devserver, logs, model_turn
from activities.devserver import start_server, stop_server
from tests.commands import command
from tests.fake_messages import Asked, FakeMessages, call, called, fault, reply, spoken
from tests.fake_models import CANARY, Models, hands_in, role_of, serving
from tests.fakes import Running, kernel, own_ports, running, settings_at

FAST, FASTER = kernel("ratio 1.2", "fast"), kernel("ratio 1.5", "faster")
SAID = f"You have sent authorization: Bearer {CANARY}, x-api-key: {CANARY}."
COMMANDS = (
    ("status", "{run}", "--json"),
    ("status", "{run}"),
    ("history", "{run}", "--json"),
    ("transcript", "{run}", "0"),
    ("transcript", "{run}", "1"),
    ("recording", "{run}", "-o", "recording.jsonl"),
    ("export", "{run}", "-o", "exported"),
)
# What stands in each place if a run has been there at all: a search that does not find it finds nothing.
WITNESSES = {
    "histories": "an idea",
    "home": "fake: ratio 1.5",
    "log": "Model.connection",
    "children": "PATH",
    "git": "PATH",
    "commands": "an idea",
    "prompts": "fake: ratio 1.2",
    "complaints": "401",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def places(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, list[bytes]]]:
    """Everything that two runs with an evil server have left behind or shown, by where it was."""
    folder = tmp_path_factory.mktemp("secrets")
    quick = dataclasses.replace(
        model_turn.OPTIONS["retry_policy"],
        initial_interval=timedelta(milliseconds=10),
        maximum_interval=timedelta(milliseconds=50),
    )
    with pytest.MonkeyPatch.context() as patch, logged() as log:
        patch.setitem(model_turn.OPTIONS, "retry_policy", quick)
        spied = spy(patch, folder / "bin", "git")
        found: dict[str, list[bytes]] = {}
        async with serving(patch, Models(*scripts(), reviewer=lambda asked: review(asked))) as server:
            server.push(*faults())
            async with running(temporal, folder / "long", ["// none"], overrides=model(iterations=3)) as run:
                result = await run.result()
                assert [ending for _, ending in await run.endings()] == ["win", "unreviewed"], result.reason
                found["histories"] = await histories_of(run)
                found["commands"] = await shown(run, folder)
                found["home"] = [*files_of(run.settings.home), *files_of(folder / "exported")]
                found["children"] = list(files_of(run.harness.control))
            found["prompts"] = [json.dumps(one.body).encode() for one in server.requests]
            check_that_it_was_sent(server)
            # The libraries below us would tell every header of an answer, but not to a worker's log.
            logging.getLogger().setLevel(logging.INFO)
            server.push(fault(401, message=SAID, headers={"request-id": CANARY}))
            async with running(temporal, folder / "short", ["// none"], overrides=model(iterations=1)) as run:
                with pytest.raises(WorkflowFailureError) as caught:
                    await run.result()
                found["complaints"] = [str(caught.value.cause).encode(), *await histories_of(run)]
                found["home"] += files_of(run.settings.home)
        found["git"] = [spied.read_bytes()]
        found["log"] = [log.getvalue().encode()]
        yield found


def model(*, iterations: int) -> dict[str, Any]:
    return {
        "model": {"provider": "anthropic"},
        "budget": {"max_iterations": iterations, "max_wall_minutes": 10},
    }


def faults() -> list[Any]:
    """The first answers: the key in every form in which a server could give it back."""
    return [
        fault("reset"),
        fault(502, html=True, message=SAID),
        fault(200, html=True, message=SAID),  # a proxy's page, as if all were well
        fault("error_event", message=SAID),
        fault(429, message=SAID, retry_after_ms=5),
        fault(403, message=SAID, headers={"x-should-retry": "true"}),
    ]


def scripts() -> Iterator[list[Any]]:
    """Two iterations; the second one's first conversation is ended by the server, which quotes the key."""
    repeated = reply(spoken(SAID), called("note", section="tried", text=SAID), called(CANARY))
    yield [repeated, *hands_in(FAST)]
    yield [call("read_kernel"), fault(400, message=f"messages.1: {SAID}")]
    yield hands_in(FASTER)


def review(asked: Asked) -> Any:
    """Of the first win an approval, of the second one nothing but the key."""
    return fault(401, message=SAID) if "ratio 1.5" in str(asked.messages) else Models().reviewer(asked)


def check_that_it_was_sent(server: FakeMessages) -> None:
    """Else nothing could have leaked."""
    assert all(CANARY in str(one.headers) for one in server.requests)
    assert {role_of(one).value for one in server.requests} == {"optimizer", "reviewer"}


# ---------------------------------------------------------------- what there is to search


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that anybody logs, as the worker writes it down, and more of it than a worker does."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    logs.configure(stream=stream, json=True, level=logging.DEBUG)
    try:
        yield stream
    finally:
        root.handlers[:], root.level = handlers, level
        structlog.reset_defaults()


def spy(patch: pytest.MonkeyPatch, folder: Path, program: str) -> Path:
    """Put a program before the real one that writes down its environment; gives where."""
    real, written = shutil.which(program) or "false", folder / f"{program}.log"
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = folder / program
    wrapper.write_text(f'#!/bin/sh\nenv >> "{written}"\nexec "{real}" "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return written


async def histories_of(run: Running) -> list[bytes]:
    """Each workflow's events and description: as they are on the wire, as JSON, and what JSON wraps in base64."""
    found = []
    async for workflow in run.client.list_workflows(f'WorkflowId STARTS_WITH "{run.handle.id}"'):
        handle: WorkflowHandle[Any, Any] = run.client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        history = await handle.fetch_history()
        found += [event.SerializeToString() for event in history.events]
        written = history.to_json()
        found += [written.encode(), *(base64.b64decode(one) for one in re.findall(r'"data": "([\w+/=]+)"', written))]
        found.append((await handle.describe()).raw_description.SerializeToString())
    return found


def files_of(folder: Path) -> Iterator[bytes]:
    """Names and contents; what git or anything else has packed is unpacked too."""
    for path in sorted(folder.rglob("*")):
        yield str(path.relative_to(folder)).encode()
        if path.is_file():
            content = path.read_bytes()
            yield content
            for wbits in (zlib.MAX_WBITS, zlib.MAX_WBITS | 16):
                try:
                    yield zlib.decompress(content, wbits)
                except zlib.error:
                    continue


async def shown(run: Running, folder: Path) -> list[bytes]:
    """What the commands say and write, with the key in their own environment too."""
    own = ("TEMPORAL_", "FERRET_", "COLUMNS", "LINES")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"FERRET_HOME": str(run.settings.home), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    env |= {"TEMPORAL_ADDRESS": run.client.service_client.config.target_host}
    found = []
    for words in COMMANDS:
        answer = await command(*(word.format(run=run.handle.id) for word in words), env=env, cwd=folder)
        assert answer.code == 0, answer.err
        found += [answer.out.encode(), answer.err.encode()]
    recording = (folder / "recording.jsonl").read_bytes()
    assert b"submit" in recording
    return [*found, recording]


def forms(secret: str) -> list[bytes]:
    """As it is, and as it looks in base64, wherever in a text it begins."""
    plain = secret.encode()
    coded = [base64.b64encode(bytes(shift) + plain)[4:-4] for shift in range(3)]
    return [plain, *coded]


# ---------------------------------------------------------------- promises


@pytest.mark.parametrize("place", WITNESSES)
async def test_the_key_is_nowhere(places: dict[str, list[bytes]], place: str) -> None:
    """Though the server gives it back in every way there is, and though it is searched for where other things are."""
    whole = b"\n".join(places[place])
    assert WITNESSES[place].encode() in whole
    assert [form for form in forms(CANARY) if form in whole] == []


@pytest.mark.parametrize("place", ["histories", "home", "log", "commands"])
async def test_no_header_that_carries_a_key_is_anywhere(places: dict[str, list[bytes]], place: str) -> None:
    """What a server has quoted of it is hidden."""
    whole = b"\n".join(places[place])
    values = re.findall(rb"(?i)(?:authorization|x-api-key)\W{1,5}(?:bearer )?\W{0,3}([\w-]{4,})", whole)
    assert set(values) - {b"Bearer"} == {b"hidden"}  # a summary may end after the first word


async def test_what_the_server_said_is_kept_but_for_the_key(places: dict[str, list[bytes]]) -> None:
    """In the transcript, the notes, the histories and the log: a person has to see what went wrong."""
    for place in ("histories", "home", "log", "commands", "complaints"):
        assert b"You have sent authorization: Bearer [hidden]" in b"\n".join(places[place]), place


async def test_the_temporal_server_does_not_inherit_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It outlives whoever started it, and its environment is open to every process of its user."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    own_ports(monkeypatch)
    settings = settings_at(tmp_path / "home")
    await start_server(settings)
    try:
        server = devserver.living_server(settings)
        assert server is not None
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        await stop_server(settings)
    assert b"PATH=" in environment
    assert CANARY.encode() not in environment


def test_the_drivers_program_does_not_inherit_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nvidia-smi is asked for the GPUs."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setattr(devices, "_by_library", lambda: None)
    written = spy(monkeypatch, tmp_path, "nvidia-smi")
    devices.detect()
    assert b"PATH=" in written.read_bytes()
    assert CANARY.encode() not in written.read_bytes()
