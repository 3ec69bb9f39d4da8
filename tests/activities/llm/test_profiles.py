"""Where a model is reached, and that no task file can send this worker's key anywhere else."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from activities.llm.profiles import LOCAL_DROP, OFFICIAL, Profile, address_problem, only_ours, reached
from specs.errors import UserError
from specs.schema import Model

CANARY = "sk-canary-0123456789"
KEY = {"ANTHROPIC_API_KEY": CANARY}


def model(provider: str = "anthropic", **more: Any) -> Model:
    return Model.model_validate({"provider": provider, **more})


def refused(given: Model, environ: dict[str, str]) -> str:
    with pytest.raises(UserError) as error:
        reached(given, environ)
    assert "\n" not in str(error.value)
    assert CANARY not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_claude_is_asked_at_its_own_address_with_the_workers_key(name: str) -> None:
    """An empty base URL in the environment is none."""
    profile = reached(model(), {name: f" {CANARY}\n", "ANTHROPIC_BASE_URL": ""})
    assert (profile.base_url, profile.api_key, profile.stream, profile.free) == (OFFICIAL, CANARY, True, False)
    assert profile.drop == frozenset()


def test_a_key_stands_in_no_description_of_a_profile() -> None:
    """Nor does a header."""
    profile = Profile("anthropic", OFFICIAL, CANARY, headers={"x-api-key": CANARY})
    assert CANARY not in repr(profile)
    assert CANARY not in str(profile)


@pytest.mark.parametrize("environ", [{}, {"ANTHROPIC_API_KEY": ""}, {"ANTHROPIC_AUTH_TOKEN": "  "}])
def test_a_worker_without_a_key_says_which_ones_it_takes(environ: dict[str, str]) -> None:
    """An empty key would look like a network that fails."""
    assert "accepted: ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN" in refused(model(), environ)


def test_a_key_that_no_header_can_hold_is_refused_unseen() -> None:
    """Two keys in one variable, say."""
    assert refused(model(), {"ANTHROPIC_API_KEY": f"{CANARY} {CANARY}"}).startswith("ANTHROPIC_API_KEY holds blanks")


STRANGERS = [
    "https://evil.example",
    "https://api.anthropic.com.evil.example",
    "https://api.anthropic.com@evil.example",
    "https://api.anthropic.com:8443",
    "https://api.anthropic.com/elsewhere",
    "http://api.anthropic.com",
    "http://127.0.0.1:8080",
    "https://evil.example/#https://api.anthropic.com",
    "https://evil.example?https://api.anthropic.com",
]


@pytest.mark.parametrize("address", STRANGERS)
def test_a_task_cannot_send_the_key_to_an_address_of_its_own(address: str) -> None:
    """Whoever wrote it; and the client says so before a worker is asked, without a key."""
    told = refused(model(base_url=address), KEY)
    assert told.startswith("model.base_url: ")
    assert address_problem(model(base_url=address), {}) is not None


def test_the_refusal_says_how_to_allow_an_address() -> None:
    """In the worker's own environment."""
    assert refused(model(base_url="https://proxy.example"), KEY) == (
        "model.base_url: 'https://proxy.example' may not get this worker's key; accepted: https://api.anthropic.com, "
        "or the address in ANTHROPIC_BASE_URL of the worker's environment (set it to this one to allow it), or "
        "provider: local"
    )


@pytest.mark.parametrize("address", ["https://api.anthropic.com", "https://API.anthropic.com:443/"])
def test_a_task_may_name_the_official_address(address: str) -> None:
    """However it is written."""
    assert reached(model(base_url=address), KEY).base_url == address


@pytest.mark.parametrize("address", ["https://proxy.example/anthropic", "http://127.0.0.1:9", "http://localhost:9"])
def test_the_workers_environment_may_name_another_address(address: str) -> None:
    """With a task that names none, or the same."""
    environ = KEY | {"ANTHROPIC_BASE_URL": address}
    assert reached(model(), environ).base_url == address
    assert reached(model(base_url=f"{address}/"), environ).api_key == CANARY
    # A proxy would read what goes to this machine without encryption.
    assert reached(model(), environ).trust_env == address.startswith("https:")


@pytest.mark.parametrize("address", ["http://proxy.example", "http://10.0.0.1:9"])
def test_a_key_never_travels_unencrypted(address: str) -> None:
    """Not even where the environment says so."""
    environ = KEY | {"ANTHROPIC_BASE_URL": address}
    assert "would travel unencrypted" in refused(model(), environ)
    assert "would travel unencrypted" in refused(model(base_url=address), environ)


@pytest.mark.parametrize("address", ["https://proxy.example/v1", "proxy.example", "ftp://proxy.example", "https://"])
def test_an_environment_with_a_wrong_address_is_refused(address: str) -> None:
    """The SDK adds /v1 by itself."""
    assert refused(model(), KEY | {"ANTHROPIC_BASE_URL": address}).startswith(f"ANTHROPIC_BASE_URL is {address!r}; ")


def test_a_password_in_an_address_is_not_repeated() -> None:
    """Messages end up in histories and logs."""
    told = refused(model(), KEY | {"ANTHROPIC_BASE_URL": f"https://me:{CANARY}@proxy.example"})
    assert "https://...@proxy.example" in told


def test_a_local_server_gets_a_key_of_its_own_and_what_it_understands() -> None:
    """Never Anthropic's, in one piece and with patience."""
    profile = reached(model("local", base_url="http://gpu-box:8000"), KEY)
    assert (profile.api_key, profile.stream, profile.read_timeout_s, profile.trust_env) == ("local", False, 1800, False)
    assert (profile.anthropic_version, profile.free, profile.runs_calls_on_end_turn) == ("2023-06-01", True, True)
    assert profile.drop == LOCAL_DROP == {"cache_control", "output_config", "thinking", "tool_choice", "metadata"}


def test_a_local_key_goes_to_this_machine_or_where_the_environment_says() -> None:
    """A stranger's task must not collect that one either."""
    here, there = model("local", base_url="http://[::1]:8000"), model("local", base_url="http://gpu-box:8000")
    environ = {"FERRET_LOCAL_KEY": CANARY}
    assert reached(here, environ).api_key == CANARY
    assert "may not get the key in FERRET_LOCAL_KEY; accepted: this machine" in refused(there, environ)
    assert reached(there, environ | {"FERRET_LOCAL_URL": "http://gpu-box:8000/"}).api_key == CANARY


@pytest.mark.parametrize("provider", ["bedrock", "vertex", "foundry", "tune"])
def test_other_providers_take_no_address_from_a_task(provider: str) -> None:
    """Their credentials are worth stealing too."""
    assert "leave base_url out" in refused(model(provider, base_url="https://evil.example"), KEY)


CLOUDS: list[tuple[str, dict[str, str], str, str]] = [
    (
        "bedrock",
        {"AWS_REGION": "eu-west-1"},
        "AsyncAnthropicBedrock",
        "https://bedrock-runtime.eu-west-1.amazonaws.com",
    ),
    (
        "vertex",
        {"CLOUD_ML_REGION": "global", "ANTHROPIC_VERTEX_PROJECT_ID": "mine"},
        "AsyncAnthropicVertex",
        "https://aiplatform.googleapis.com/v1",
    ),
    (
        "foundry",
        {"ANTHROPIC_FOUNDRY_API_KEY": CANARY, "ANTHROPIC_FOUNDRY_RESOURCE": "mine"},
        "AsyncAnthropicFoundry",
        "https://mine.services.ai.azure.com/anthropic/",
    ),
]


@pytest.mark.parametrize(("provider", "environ", "client", "address"), CLOUDS)
def test_a_cloud_is_reached_by_the_sdks_own_client(
    provider: str, environ: dict[str, str], client: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the address that the environment's region gives, and none of this worker's other keys."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-another")
    profile = reached(model(provider), environ)
    assert profile.client is not None
    made = profile.client(max_retries=0)
    assert type(made).__name__ == client
    assert (str(made.base_url).rstrip("/"), made.max_retries) == (address.rstrip("/"), 0)
    assert not profile.free
    assert "sk-another" not in str(made.default_headers)
    assert CANARY not in repr(profile)


@pytest.mark.parametrize(("provider", "environ", "client", "address"), CLOUDS)
def test_a_cloud_without_its_configuration_says_what_it_takes(
    provider: str, environ: dict[str, str], client: str, address: str
) -> None:
    """Each variable that is missing, by name."""
    for name in environ:
        told = refused(model(provider), {key: value for key, value in environ.items() if key != name})
        assert told.startswith(f"model.provider: '{provider}' needs ")
        assert name in told


def test_headers_of_the_environment_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would add them wherever it goes, to a stranger's server too."""
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", f"x-api-key: {CANARY}\nAuthorization: Bearer {CANARY}")
    client = anthropic.AsyncAnthropic(api_key="local", base_url="http://127.0.0.1:9", default_headers={"x-mine": "1"})
    assert CANARY in str(client.default_headers)  # what is guarded against
    headers = only_ours(client, {"x-mine": "1"}).default_headers
    assert CANARY not in str(headers)
    assert (headers["Authorization"], headers["x-mine"]) == ("Bearer local", "1")
