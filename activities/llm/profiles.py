"""How a session's model is reached: address, key and habits of its server, from the task and this worker's environment.

A task file may come from a stranger. A key therefore goes only to an address that the provider or this worker's own
environment names, never to one that just the task does.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from activities.agents.session import Session
from activities.llm import local_server
from activities.settings import Settings
from specs.errors import UserError
from specs.schema import Model, Provider

OFFICIAL = "https://api.anthropic.com"
READ_TIMEOUT_S = 120.0  # between two bytes of a stream: a living server sends a ping now and then
LOCAL_READ_TIMEOUT_S = 1_800.0  # an answer comes in one piece, and a small machine thinks for long
LOCAL_VERSION = "2023-06-01"
# What compatible servers do not know: some refuse a request for it.
LOCAL_DROP = frozenset({"cache_control", "output_config", "thinking", "tool_choice", "metadata"})
_OPEN = "where the key would travel unencrypted; accepted: https://, or http:// to this machine"


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a client needs to know of a server."""

    name: str
    base_url: str  # without /v1
    api_key: str = field(repr=False)
    stream: bool = True
    read_timeout_s: float = READ_TIMEOUT_S
    anthropic_version: str | None = None  # None: the SDK's own
    drop: frozenset[str] = frozenset()  # keys of a request that are not sent
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    trust_env: bool = True  # whether HTTP_PROXY and its like count
    runs_calls_on_end_turn: bool = False  # a server that says end_turn beside calls means them to be run
    free: bool = False
    # Whether each request says its turn: extra_headers={local_server.TURN: "<turn>-<roomier>"}.
    numbers_turns: bool = False
    # Makes the SDK's own client of a cloud; it takes the keyword arguments that all the SDK's clients share.
    client: Callable[..., Any] | None = field(default=None, repr=False, compare=False)


def profile_of(session: Session, settings: Settings, environ: Mapping[str, str] = os.environ) -> Profile:
    """Raises UserError for what is missing or not allowed. Needs a running event loop: a script has a server here."""
    match session.model.provider:
        case Provider.SCRIPTED:
            return _played(session, settings, str(session.script_position))
        case Provider.REPLAY:
            return _played(session, settings, session.place)
        case _:
            return reached(session.model, environ)


def reached(model: Model, environ: Mapping[str, str] = os.environ) -> Profile:
    """The profile of a server that is none of ours; raises UserError."""
    if (problem := address_problem(model, environ)) is not None:
        raise UserError(f"model.base_url: {problem}")
    match model.provider:
        case Provider.ANTHROPIC:
            base_url = model.base_url or _anthropic_address(environ)
            # A proxy would be sent what goes to this machine, and unencrypted.
            trust_env = not _is_loopback(urlsplit(base_url))
            return Profile("anthropic", base_url, _anthropic_key(environ), trust_env=trust_env)
        case Provider.LOCAL:
            assert model.base_url is not None
            return _local(model.base_url, environ)
        case Provider.BEDROCK:
            return _bedrock(environ)
        case Provider.VERTEX:
            return _vertex(environ)
        case Provider.FOUNDRY:
            return _foundry(environ)
        case _:
            raise UserError(f"model.provider: {model.provider.value!r} asks no model")


def address_problem(model: Model, environ: Mapping[str, str] = os.environ) -> str | None:
    """Why the task's base_url may not be used, in one line; None when it may. No key has to be there for it."""
    if model.base_url is None:
        return None
    if model.provider not in (Provider.ANTHROPIC, Provider.LOCAL):
        return f"provider {model.provider.value!r} finds its address by itself; leave base_url out"
    url = _parsed(model.base_url)
    if url is None:
        return f"{_shown(model.base_url)} cannot be used; accepted: http:// or https://, a host, and a path without /v1"
    if model.provider is Provider.ANTHROPIC:
        return _untrusted(url, environ)
    allowed = _is_loopback(url) or _named(url, environ, "FERRET_LOCAL_URL")
    if environ.get("FERRET_LOCAL_KEY", "").strip() and not allowed:
        return (
            f"{_shown(model.base_url)} may not get the key in FERRET_LOCAL_KEY; accepted: this machine, or the address "
            "in FERRET_LOCAL_URL of the worker's environment (set it to this one to allow it)"
        )
    return None


def only_ours(client: Any, headers: Mapping[str, str]) -> Any:
    """The client without the headers that the SDK takes from ANTHROPIC_CUSTOM_HEADERS, whatever server it talks to.

    The SDK has no switch for that. What it adds of its own accord (authorization, version) is not among them.
    """
    client._custom_headers = dict(headers)
    return client


# ---------------------------------------------------------------- providers


def _played(session: Session, settings: Settings, place: str) -> Profile:
    """A server inside this process; nothing is thought and nothing is paid."""
    provider = session.model.provider
    return Profile(
        name=provider.value,
        base_url=local_server.address(settings, provider, session.bundle, place),
        api_key="none",
        trust_env=False,
        free=True,
        numbers_turns=provider is Provider.REPLAY,
    )


def _local(address: str, environ: Mapping[str, str]) -> Profile:
    return Profile(
        name="local",
        base_url=address,
        api_key=_key("FERRET_LOCAL_KEY", environ) or "local",  # most servers take any, and the SDK needs one
        stream=False,  # the streams of several servers lose parts of calls
        read_timeout_s=LOCAL_READ_TIMEOUT_S,
        anthropic_version=LOCAL_VERSION,
        drop=LOCAL_DROP,
        trust_env=False,  # a proxy would swallow what goes to this machine
        runs_calls_on_end_turn=True,
        free=True,
    )


def _anthropic_key(environ: Mapping[str, str]) -> str:
    key = _key("ANTHROPIC_API_KEY", environ) or _key("ANTHROPIC_AUTH_TOKEN", environ)
    if key is None:
        raise UserError(
            "model.provider: 'anthropic' needs a key, and the worker's environment has none; accepted: "
            "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"
        )
    return key


def _anthropic_address(environ: Mapping[str, str]) -> str:
    """The worker's own, else Anthropic's; an empty ANTHROPIC_BASE_URL is none."""
    own = environ.get("ANTHROPIC_BASE_URL", "").strip()
    if not own:
        return OFFICIAL
    url = _parsed(own)
    if url is None:
        raise UserError(
            f"ANTHROPIC_BASE_URL is {_shown(own)}; accepted: https://, a host, and a path without /v1, which is added"
        )
    if not _is_private(url):
        raise UserError(f"ANTHROPIC_BASE_URL is {_shown(own)}, {_OPEN}")
    return own


def _bedrock(environ: Mapping[str, str]) -> Profile:
    region = _needed(Provider.BEDROCK, "a region", environ, "AWS_REGION", "AWS_DEFAULT_REGION")
    url = _cloud_address("ANTHROPIC_BEDROCK_BASE_URL", environ, f"https://bedrock-runtime.{region}.amazonaws.com")

    def client(**common: Any) -> Any:
        from anthropic import AsyncAnthropicBedrock

        bearer = _key("AWS_BEARER_TOKEN_BEDROCK", environ)  # without it the usual AWS credentials are looked for
        return AsyncAnthropicBedrock(aws_region=region, api_key=bearer, base_url=url, **common)

    return Profile("bedrock", url, "", client=client)


def _vertex(environ: Mapping[str, str]) -> Profile:
    region = _needed(Provider.VERTEX, "a region", environ, "CLOUD_ML_REGION")
    project = _needed(Provider.VERTEX, "a project", environ, "ANTHROPIC_VERTEX_PROJECT_ID")
    host = {"global": "aiplatform", "us": "aiplatform.us.rep", "eu": "aiplatform.eu.rep"}.get(
        region, f"{region}-aiplatform"
    )
    url = _cloud_address("ANTHROPIC_VERTEX_BASE_URL", environ, f"https://{host}.googleapis.com/v1")

    def client(**common: Any) -> Any:
        from anthropic import AsyncAnthropicVertex

        return AsyncAnthropicVertex(region=region, project_id=project, base_url=url, **common)

    return Profile("vertex", url, "", client=client)


def _foundry(environ: Mapping[str, str]) -> Profile:
    key = _needed(Provider.FOUNDRY, "a key", environ, "ANTHROPIC_FOUNDRY_API_KEY")
    own = environ.get("ANTHROPIC_FOUNDRY_BASE_URL", "").strip()
    if not own:
        resource = _needed(Provider.FOUNDRY, "a resource", environ, "ANTHROPIC_FOUNDRY_RESOURCE")
        own = f"https://{resource}.services.ai.azure.com/anthropic/"
    url = _cloud_address("ANTHROPIC_FOUNDRY_BASE_URL", environ, own)

    def client(**common: Any) -> Any:
        from anthropic import AsyncAnthropicFoundry

        return AsyncAnthropicFoundry(api_key=key, base_url=url, **common)

    return Profile("foundry", url, "", client=client)


def _needed(provider: Provider, what: str, environ: Mapping[str, str], *names: str) -> str:
    value = next((value for name in names if (value := _key(name, environ))), None)
    if value is None:
        raise UserError(
            f"model.provider: {provider.value!r} needs {what}, and the worker's environment has none; accepted: "
            f"{' or '.join(names)}"
        )
    return value


def _cloud_address(name: str, environ: Mapping[str, str], otherwise: str) -> str:
    own = environ.get(name, "").strip() or otherwise
    url = urlsplit(own)
    if not url.hostname or url.username is not None or not _is_private(url):
        raise UserError(f"{name} is {_shown(own)}; accepted: https:// and a host")
    return own


# ---------------------------------------------------------------- keys and addresses


def _key(name: str, environ: Mapping[str, str]) -> str | None:
    """A value that can stand in a header; an empty one would look like a network that fails."""
    value = environ.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch(r"[!-~]+", value):
        raise UserError(f"{name} holds blanks or characters that are not ASCII; accepted: the key alone")
    return value


def _untrusted(url: SplitResult, environ: Mapping[str, str]) -> str | None:
    """Why a real key may not go there."""
    if not (_same(url, urlsplit(OFFICIAL)) or _named(url, environ, "ANTHROPIC_BASE_URL")):
        return (
            f"{_shown(url.geturl())} may not get this worker's key; accepted: {OFFICIAL}, or the address in "
            "ANTHROPIC_BASE_URL of the worker's environment (set it to this one to allow it), or provider: local"
        )
    return None if _is_private(url) else f"{_shown(url.geturl())} is {_OPEN}"


def _named(url: SplitResult, environ: Mapping[str, str], name: str) -> bool:
    own = _parsed(environ.get(name, "").strip())
    return own is not None and _same(url, own)


def _same(one: SplitResult, other: SplitResult) -> bool:
    return _parts(one) == _parts(other)


def _parts(url: SplitResult) -> tuple[str, str | None, int, str]:
    return url.scheme, url.hostname, url.port or {"http": 80}.get(url.scheme, 443), url.path.rstrip("/")


def _parsed(address: str) -> SplitResult | None:
    """None for what is no base address: a name or a password in it would end up in messages."""
    try:
        url = urlsplit(address)
        port_is_fine = url.port is None or url.port > 0
    except ValueError:
        return None
    whole = url.scheme in ("http", "https") and bool(url.hostname) and port_is_fine
    bare = url.username is None and not url.query and not url.fragment
    return url if whole and bare and not url.path.rstrip("/").endswith("/v1") else None


def _is_private(url: SplitResult) -> bool:
    """Whether nobody on the way can read what is sent."""
    return url.scheme == "https" or _is_loopback(url)


def _is_loopback(url: SplitResult) -> bool:
    host = url.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(address: str) -> str:
    """Without the name and password that it may hold."""
    return repr(re.sub(r"//[^/@]*@", "//...@", address))
