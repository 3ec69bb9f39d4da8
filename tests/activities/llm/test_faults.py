"""Every way in which a server or a network can fail, through the real SDK: of what kind it is and what is done."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from activities.llm import client
from activities.llm.faults import BAD_RESPONSE_ATTEMPTS, LONGEST_DELAY_S, asked_for, classify, scrubbed
from specs.errors import ModelError, ModelFault
from tests.activities.llm.sessions import KEY, profile_at
from tests.fake_messages import FakeMessages, Fault, fault

BODY: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 1024,
    "messages": [{"role": "user", "content": "Go on."}],
}
BOTH = (True, False)
STREAMED = (True,)
WHOLE = (False,)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[FakeMessages]:
    """One for all: a client of its own for every test would take longer than the tests."""
    async with FakeMessages() as running:
        yield running
        await client.close_all()


async def failed(url: str, body: dict[str, Any] = BODY, total_s: float | None = None, **profile: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await client.ask(profile_at(url, **profile), body, client.Attempt(), total_s)
    return caught.value


async def answered(server: FakeMessages, step: Fault, **profile: Any) -> ModelError:
    server.push(step)
    before = len(server.requests)
    error = await failed(server.url, **profile)
    assert len(server.requests) == before + 1  # the SDK itself tries nothing again
    return error


STATUSES = [
    (400, ModelFault.INVALID_REQUEST, False),
    (401, ModelFault.AUTH, False),
    (402, ModelFault.BILLING, False),
    (403, ModelFault.PERMISSION, False),
    (404, ModelFault.NOT_FOUND, False),
    (408, ModelFault.TIMEOUT, True),
    (409, ModelFault.SERVER_ERROR, True),
    (412, ModelFault.INVALID_REQUEST, False),
    (413, ModelFault.TOO_LARGE, False),
    (418, ModelFault.INVALID_REQUEST, False),
    (422, ModelFault.INVALID_REQUEST, False),
    (429, ModelFault.RATE_LIMITED, True),
    (431, ModelFault.INVALID_REQUEST, False),
    (499, ModelFault.SERVER_ERROR, True),
    (500, ModelFault.SERVER_ERROR, True),
    (501, ModelFault.INVALID_REQUEST, False),
    (502, ModelFault.SERVER_ERROR, True),
    (503, ModelFault.SERVER_ERROR, True),
    (504, ModelFault.TIMEOUT, True),
    (529, ModelFault.OVERLOADED, True),
]


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize(("status", "kind", "retryable"), STATUSES)
async def test_a_status_says_whether_another_attempt_helps(
    server: FakeMessages, status: int, kind: ModelFault, retryable: bool, stream: bool
) -> None:
    """And the message says what the server said."""
    error = await answered(server, fault(status, message="words of the server"), stream=stream)
    assert (error.kind, error.retryable, error.delay, error.attempt_cap) == (kind, retryable, None, None)
    assert f"HTTP {status}" in str(error)
    assert "words of the server" in str(error)


@pytest.mark.parametrize("status", [429, 529, 503, 500])
async def test_a_server_names_the_time_after_which_it_can_be_asked_again(server: FakeMessages, status: int) -> None:
    """With a tenth of jitter on top."""
    error = await answered(server, fault(status, retry_after=30), stream=True)
    assert error.retryable
    assert error.delay is not None
    assert 30 <= error.delay <= 33


@pytest.mark.parametrize("status", [400, 401])
async def test_what_is_not_tried_again_has_no_delay(server: FakeMessages, status: int) -> None:
    """Whatever the server says."""
    assert (await answered(server, fault(status, retry_after=30), stream=True)).delay is None


@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"retry-after-ms": "700", "retry-after": "9"}, 0.7),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "999999"}, LONGEST_DELAY_S),
        ({"retry-after-ms": "soon", "retry-after": "4"}, 4.0),
    ],
)
def test_a_delay_is_read_in_the_sdks_own_order_and_kept_within_bounds(headers: dict[str, str], least: float) -> None:
    """Milliseconds first; nothing below zero or above an hour."""
    delay = asked_for(headers)
    assert delay is not None
    assert least <= delay <= least * 1.1


def test_a_delay_may_be_a_date() -> None:
    """A moment that has passed is now."""
    delay = asked_for({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert delay is not None
    assert 50 < delay < 67
    assert asked_for({"retry-after": formatdate(time.time() - 60, usegmt=True)}) == 0.0


@pytest.mark.parametrize(
    "value", ["", "soon", "nan", "inf", "Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 01 Foo 2026 00:00:00"]
)
def test_a_delay_that_is_none_is_left_to_the_policy(value: str) -> None:
    """As if the header were not there."""
    assert asked_for({"retry-after": value}) is None
    assert asked_for({}) is None


@pytest.mark.parametrize(("told", "retryable"), [("true", True), ("false", False)])
@pytest.mark.parametrize("status", [400, 500])
async def test_the_server_may_say_itself_whether_a_retry_helps(
    server: FakeMessages, status: int, told: str, retryable: bool
) -> None:
    """Its header wins over the status."""
    error = await answered(server, fault(status, headers={"x-should-retry": told}), stream=True)
    assert error.retryable is retryable


@pytest.mark.parametrize(
    "code", ["enforced_spend_limit_reached", "contract_spend_limit_reached", "organization_on_hold"]
)
async def test_a_spend_limit_is_not_waited_for(server: FakeMessages, code: str) -> None:
    """It comes as a rate limit, even with advice to try again."""
    step = fault(429, code=code, retry_after=1, headers={"x-should-retry": "true"})
    error = await answered(server, step, stream=True)
    assert (error.kind, error.retryable, error.delay) == (ModelFault.SPEND_LIMIT, False, None)
    assert code in str(error)


async def test_a_ramp_limit_is_a_rate_limit(server: FakeMessages) -> None:
    """Patience helps."""
    error = await answered(server, fault(429, code="ramp_limit_exceeded", retry_after=1), stream=True)
    assert (error.kind, error.retryable) == (ModelFault.RATE_LIMITED, True)


@pytest.mark.parametrize(
    "words",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "the request exceeds the available context size, try increasing it",
    ],
)
async def test_a_conversation_that_is_too_long_is_known_by_the_servers_words(server: FakeMessages, words: str) -> None:
    """No code says it."""
    assert (await answered(server, fault(400, message=words), stream=True)).kind is ModelFault.TOO_LARGE


async def test_an_error_page_is_judged_by_its_status(server: FakeMessages) -> None:
    """Gateways send HTML."""
    error = await answered(server, fault(502, html=True, message="Bad gateway"), stream=True)
    assert (error.kind, error.retryable) == (ModelFault.SERVER_ERROR, True)


EVENTS = [
    ("overloaded_error", ModelFault.OVERLOADED, True),
    ("rate_limit_error", ModelFault.RATE_LIMITED, True),
    ("api_error", ModelFault.SERVER_ERROR, True),
    ("timeout_error", ModelFault.TIMEOUT, True),
    ("invalid_request_error", ModelFault.INVALID_REQUEST, False),
    ("authentication_error", ModelFault.AUTH, False),
    ("billing_error", ModelFault.BILLING, False),
    ("permission_error", ModelFault.PERMISSION, False),
    ("not_found_error", ModelFault.NOT_FOUND, False),
    ("request_too_large", ModelFault.TOO_LARGE, False),
    ("something_new", ModelFault.SERVER_ERROR, True),
]


@pytest.mark.parametrize(("type_", "kind", "retryable"), EVENTS)
async def test_an_error_in_a_stream_counts_as_the_status_that_it_would_have_had(
    server: FakeMessages, type_: str, kind: ModelFault, retryable: bool
) -> None:
    """The status line said 200."""
    error = await answered(server, fault("error_event", type=type_), stream=True)
    assert (error.kind, error.retryable, error.delay) == (kind, retryable, None)


TRANSPORT = [
    ("reset", BOTH, ModelFault.CONNECTION),
    ("reset_midway", BOTH, ModelFault.CONNECTION),
    ("close_midway", BOTH, ModelFault.CONNECTION),
    ("stall_midway", BOTH, ModelFault.TIMEOUT),
    ("silence", BOTH, ModelFault.TIMEOUT),
]
NONSENSE = [
    ("broken_json", BOTH),
    ("empty", BOTH),
    ("html", BOTH),
    ("other_api", BOTH),
    ("list", BOTH),
    ("other_form", BOTH),
    ("no_stop_reason", BOTH),
    ("no_usage", BOTH),
    ("input_is_text", BOTH),
    ("nameless_events", STREAMED),
    ("broken_event", STREAMED),
    ("broken_call", STREAMED),
    ("cut", STREAMED),
    ("cut_in_call", STREAMED),
]


@pytest.mark.parametrize(
    ("kind", "stream", "expected"),
    [(kind, stream, expected) for kind, forms, expected in TRANSPORT for stream in forms],
)
async def test_a_network_that_breaks_is_tried_again(
    server: FakeMessages, kind: str, stream: bool, expected: ModelFault
) -> None:
    """Before the answer or in the middle of it: the SDK raises different things for the same."""
    error = await answered(server, fault(kind), stream=stream, read_timeout_s=0.2)
    assert (error.kind, error.retryable, error.attempt_cap) == (expected, True, None)


@pytest.mark.parametrize(("kind", "stream"), [(kind, stream) for kind, forms in NONSENSE for stream in forms])
async def test_what_is_no_finished_message_is_tried_a_few_times(server: FakeMessages, kind: str, stream: bool) -> None:
    """However much the SDK takes it for one."""
    error = await answered(server, fault(kind), stream=stream)
    assert (error.kind, error.retryable) == (ModelFault.BAD_RESPONSE, True)
    assert error.attempt_cap == BAD_RESPONSE_ATTEMPTS


async def test_a_stream_that_only_pings_ends_at_its_deadline(server: FakeMessages) -> None:
    """No read timeout ever fires."""
    server.hung_up.clear()
    server.push(fault("pings"))
    error = await failed(server.url, total_s=0.3)
    assert (error.kind, error.retryable) == (ModelFault.TIMEOUT, True)
    await server.hung_up.wait()


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    """It may be starting."""
    async with FakeMessages() as gone:
        pass
    error = await failed(gone.url)
    assert (error.kind, error.retryable) == (ModelFault.CONNECTION, True)


@pytest.mark.parametrize(
    "profile",
    [{"base_url": "gopher://127.0.0.1"}, {"api_key": ""}, {"api_key": f"{KEY}\n"}, {"headers": {"x": "a\nb"}}],
)
async def test_what_makes_every_request_fail_is_no_network_error(server: FakeMessages, profile: dict[str, Any]) -> None:
    """The SDK says connection error, and nobody shall wait for hours."""
    error = await failed(server.url, **profile)
    assert (error.kind, error.retryable) == (ModelFault.CONFIG, False)
    assert KEY not in str(error)


@pytest.mark.parametrize("odd", [{"max_tokens": float("nan")}, {"temperature": 1.0}])
async def test_a_request_that_cannot_be_written_is_our_own_fault(server: FakeMessages, odd: dict[str, Any]) -> None:
    """Nothing is sent, and nothing is tried again."""
    before = len(server.requests)
    error = await failed(server.url, {**BODY, **odd})
    assert (error.kind, error.retryable) == (ModelFault.BUG, False)
    assert len(server.requests) == before


def test_credentials_that_cannot_be_loaded_are_no_network_error() -> None:
    """As the SDK's own class for them says."""
    error = classify(anthropic.CredentialsError("no profile"), "request")
    assert (error.kind, error.retryable) == (ModelFault.CONFIG, False)


@pytest.mark.parametrize("stream", BOTH)
async def test_no_message_holds_the_key(server: FakeMessages, stream: bool) -> None:
    """Not even when the server repeats it, and neither does anything that Temporal would write down with it."""
    error = await answered(server, fault(401, message=f"invalid x-api-key: {KEY} is not known"), stream=stream)
    assert KEY not in str(error)
    assert "[hidden] is not known" in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


async def test_no_message_holds_a_header(server: FakeMessages) -> None:
    """A gateway's token is a secret too."""
    step = fault(403, message="token gateway-secret refused")
    error = await answered(server, step, headers={"x-token": "gateway-secret"})
    assert "gateway-secret" not in str(error)


def test_a_placeholder_for_a_key_leaves_messages_readable() -> None:
    """Local servers take any key, and `local` is a word."""
    assert scrubbed("the local server", ["local", ""]) == "the local server"


async def test_a_message_is_bounded(server: FakeMessages) -> None:
    """An error page can be as long as it likes."""
    assert len(str(await answered(server, fault(500, html=True, message="x" * 100_000), stream=True))) <= 500
