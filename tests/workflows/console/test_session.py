"""Which server a command talks to is never a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from workflows.console import session


@pytest.mark.parametrize("named", [False, True])
def test_a_server_that_nobody_named_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """Whoever listens at the default address may be somebody else's; one who was configured needs no note."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    monkeypatch.setenv("FERRET_HOME", str(tmp_path / "home"))
    if named:
        monkeypatch.setenv("TEMPORAL_ADDRESS", "localhost:7233")

    async def connected(settings: Any) -> None:
        return None

    async def body(talked: session.Session) -> str:
        return "done"

    monkeypatch.setattr(session, "connect", connected)

    assert session.talk(body) == "done"
    note = "" if named else f"no embedded server in {tmp_path / 'home'}; using localhost:7233\n"
    assert capsys.readouterr().err == note
