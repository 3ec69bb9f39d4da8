"""Which server is used, and what a person is told when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activities.connect import DEFAULT_ADDRESS, connect, connection
from activities.settings import Settings
from specs.errors import UserError
from tests.fakes import settings_at

NOBODY = "127.0.0.1:1"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    return settings_at(tmp_path / "home")


def profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "temporal.toml").write_text(text)


def test_with_nothing_configured_it_is_the_default_address(settings: Settings) -> None:
    """As for every Temporal tool."""
    assert connection(settings)["target_host"] == DEFAULT_ADDRESS


def test_the_environment_names_the_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and namespace."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "kernels")
    config = connection(settings)
    assert (config["target_host"], config["namespace"]) == ("temporal.example:7233", "kernels")


def test_a_profile_brings_tls_and_key(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own configuration file, so a Temporal Cloud profile just works."""
    profile(tmp_path, '[profile.cloud]\naddress = "ns.tmprl.cloud:7233"\nnamespace = "ns.acct"\napi_key = "k"\n')
    monkeypatch.setenv("TEMPORAL_PROFILE", "cloud")
    config = connection(settings)
    assert (config["target_host"], config["api_key"], bool(config["tls"])) == ("ns.tmprl.cloud:7233", "k", True)


def test_a_misspelt_key_in_the_file_is_refused(settings: Settings, tmp_path: Path) -> None:
    """Otherwise it would be ignored in silence."""
    profile(tmp_path, '[profile.default]\nadress = "x:1"\n')
    with pytest.raises(UserError, match="adress"):
        connection(settings)


async def test_without_a_server_both_ways_to_get_one_are_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with the address that was tried."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOBODY)
    with pytest.raises(UserError) as caught:
        await connect(settings)
    message = str(caught.value)
    assert "\n" not in message
    for part in (NOBODY, "connection refused", "python worker.py --dev", "client.py start --local", "TEMPORAL_ADDRESS"):
        assert part in message


async def test_an_address_that_is_none_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was given and the form that is accepted."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "not an address")
    with pytest.raises(UserError, match=r"'not an address' is not usable .*accepted: host:port"):
        await connect(settings)


async def test_an_address_that_cannot_be_is_one_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The SDK's own warnings about it stay out of sight."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "http://x y")
    with pytest.raises(UserError, match=r"'http://x y' is not usable .*accepted: host:port") as caught:
        await connect(settings)
    assert len(str(caught.value).splitlines()) == 1
    assert not recwarn.list
