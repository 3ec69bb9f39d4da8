"""Find the Temporal server: the SDK's own environment configuration first, then this home's embedded server."""

from __future__ import annotations

import warnings

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from activities.devserver import living_server
from activities.interpreter import command
from activities.settings import Settings
from specs.errors import UserError

DEFAULT_ADDRESS = "localhost:7233"


async def connect(settings: Settings, *, profile: str | None = None) -> Client:
    """Connect as TEMPORAL_* variables and the TOML profile say; raises UserError when that cannot work."""
    config = connection(settings, profile=profile)
    try:
        with warnings.catch_warnings():
            # The SDK warns of an address that it then refuses; the refusal is the one line a person needs.
            warnings.simplefilter("ignore", UserWarning)
            return await Client.connect(**config, data_converter=pydantic_data_converter)
    except RuntimeError as error:
        raise UserError(no_server(config["target_host"], _reason(error))) from None
    except ValueError as error:
        raise UserError(
            f"Temporal address {config['target_host']!r} is not usable ({error}); "
            f"accepted: host:port in TEMPORAL_ADDRESS"
        ) from None


def is_guess(settings: Settings, *, profile: str | None = None) -> bool:
    """True when nothing names a server, so that whoever listens at the default address is taken for it."""
    return "target_host" not in _configured(profile) and living_server(settings) is None


def _configured(profile: str | None) -> ClientConnectConfig:
    try:
        # Strict, for otherwise a misspelt key in the file is ignored in silence.
        return ClientConfig.load_client_connect_config(profile=profile, config_file_strict=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"the Temporal client configuration cannot be read: {_reason(error)}") from None


def connection(settings: Settings, *, profile: str | None = None) -> ClientConnectConfig:
    """What to connect to; `target_host` is always set."""
    config = _configured(profile)
    if "target_host" not in config:
        server = living_server(settings)
        config["target_host"] = server.address if server else DEFAULT_ADDRESS
    return config


def no_server(address: str, reason: str) -> str:
    return (
        f"no Temporal server answers at {address} ({reason}). Two ways to get one: start the embedded server with "
        f"`{command('client.py', 'up')}` (`{command('client.py', 'start', '--local', '...')}` and "
        f"`{command('worker.py', '--dev')}` start it too), or name an existing server with "
        f"TEMPORAL_ADDRESS or a profile of the Temporal configuration file"
    )


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    for known in ("Connection refused", "dns error", "timed out", "certificate", "PermissionDenied", "Unauthenticated"):
        if known.lower() in text.lower():
            return known.lower()
    return text.removeprefix("Failed client connect: ")[:200]
