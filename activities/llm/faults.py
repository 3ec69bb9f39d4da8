"""What the SDK raises, told as one ModelError: of what kind, whether a retry helps, and after how long.

The class of an exception is not enough. A stream that breaks raises httpx2's own errors, an error event in a stream
has status 200, and broken JSON is a plain ValueError.
"""

from __future__ import annotations

import email.utils
import json
import math
import random
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import anthropic
import httpx2

from specs.errors import ModelError, ModelFault

# Before the status line has come, or while a body or stream is being read: a ValueError means different things there.
Phase = Literal["request", "body"]

LONGEST_DELAY_S = 3_600.0
JITTER = 0.1  # share of the delay: not everyone who was told to wait comes back at the same moment
BAD_RESPONSE_ATTEMPTS = 5  # a server that answers nonsense is seldom cured by patience
LONGEST_MESSAGE = 500
SHORTEST_SECRET = 8  # what is shorter is a local server's placeholder

_KIND_OF_STATUS = {
    400: ModelFault.INVALID_REQUEST,
    401: ModelFault.AUTH,
    402: ModelFault.BILLING,
    403: ModelFault.PERMISSION,
    404: ModelFault.NOT_FOUND,
    408: ModelFault.TIMEOUT,
    409: ModelFault.SERVER_ERROR,
    413: ModelFault.TOO_LARGE,
    429: ModelFault.RATE_LIMITED,
    499: ModelFault.SERVER_ERROR,
    501: ModelFault.INVALID_REQUEST,  # the server will not learn it while we wait
    504: ModelFault.TIMEOUT,
    529: ModelFault.OVERLOADED,
}
_RETRYABLE_BELOW_500 = frozenset({408, 409, 429, 499})
# An error event carries a type only: this is the status that it would have had.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_SPEND_LIMITS = frozenset(
    {
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
    }
)
# No error code says it, and every server has words of its own.
_TOO_LONG = re.compile(
    r"prompt is too long|exceeds? (the )?(available |maximum )?context|maximum context length|exceed_context_size",
    re.IGNORECASE,
)
_MEANING = {
    ModelFault.RATE_LIMITED: "the model's server limits the rate of requests",
    ModelFault.OVERLOADED: "the model's server is overloaded",
    ModelFault.SERVER_ERROR: "the model's server failed",
    ModelFault.TIMEOUT: "the model's server took too long",
    ModelFault.CONNECTION: "the connection to the model's server broke or could not be made",
    ModelFault.BAD_RESPONSE: "what the model's server sent is no finished message",
    ModelFault.SPEND_LIMIT: "the account's spend limit is reached",
    ModelFault.INVALID_REQUEST: "the model's server does not accept the request",
    ModelFault.TOO_LARGE: "the conversation is too long for the model",
    ModelFault.AUTH: "the model's server does not accept the API key",
    ModelFault.BILLING: "the model's server asks for payment",
    ModelFault.PERMISSION: "the API key may not do this",
    ModelFault.NOT_FOUND: "the model's server knows no such model or address",
    ModelFault.CONFIG: "no request can be made with this address, key or header",
    ModelFault.BUG: "the request could not be made",
}


class UnfinishedMessage(Exception):
    """The server said that all is well, but what came is not a finished message."""


def classify(error: BaseException, phase: Phase, secrets: Iterable[str] = ()) -> ModelError:
    """Raise the result `from None`: Temporal would write down the SDK's own error too, and that can hold a header."""
    kind, retryable, delay, detail = _judged(error, phase)
    text = scrubbed(f"{_MEANING[kind]} ({' '.join(detail.split())})", secrets)
    return ModelError(
        kind,
        text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 4]}...)",
        retryable=retryable,
        delay=delay,
        attempt_cap=BAD_RESPONSE_ATTEMPTS if kind is ModelFault.BAD_RESPONSE else None,
    )


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "[hidden]")
    return text


def without(value: Any, secrets: Collection[str]) -> Any:
    """JSON with no secret in any of its texts: a server may repeat what it was sent, and answers are kept."""
    match value:
        case str():
            return scrubbed(value, secrets)
        case dict():
            return {scrubbed(key, secrets): without(inner, secrets) for key, inner in value.items()}
        case list():
            return [without(inner, secrets) for inner in value]
    return value


def _judged(error: BaseException, phase: Phase) -> tuple[ModelFault, bool, float | None, str]:
    if isinstance(error, anthropic.APIStatusError):
        return _judged_by_status(error)
    said = f"{type(error).__name__}: {error}"
    # The second is what a stream raises. Both derive from the connection's errors, so they are asked for first.
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
        return ModelFault.TIMEOUT, True, None, _with_cause(error)
    if isinstance(error, anthropic.APIConnectionError | httpx2.HTTPError | httpx2.InvalidURL):
        if isinstance(error.__cause__, UnfinishedMessage):
            return ModelFault.BAD_RESPONSE, True, None, str(error.__cause__)
        if (unusable := _unusable(error)) is not None:
            # Without its text: that quotes the header.
            return ModelFault.CONFIG, False, None, type(unusable).__name__
        return ModelFault.CONNECTION, True, None, _with_cause(error)
    if isinstance(error, TimeoutError):
        return ModelFault.TIMEOUT, True, None, "its total deadline has passed"
    if isinstance(error, UnfinishedMessage):
        return ModelFault.BAD_RESPONSE, True, None, str(error)
    if isinstance(error, anthropic.APIResponseValidationError | json.JSONDecodeError):
        return ModelFault.BAD_RESPONSE, True, None, said
    # Broken events and broken tool input fail in the SDK in every way that Python knows.
    if phase == "body":
        return ModelFault.BAD_RESPONSE, True, None, said
    if isinstance(error, anthropic.AnthropicError):
        return ModelFault.CONFIG, False, None, said
    return ModelFault.BUG, False, None, said


def _judged_by_status(error: anthropic.APIStatusError) -> tuple[ModelFault, bool, float | None, str]:
    if 300 <= error.status_code < 400:
        told = f"HTTP {error.status_code}: it redirects to another address, and a key is not taken there"
        return ModelFault.CONFIG, False, None, told
    in_stream = error.status_code < 400
    status = _STATUS_OF_TYPE.get(error.type or "", 500) if in_stream else error.status_code
    kind = _KIND_OF_STATUS.get(status, ModelFault.SERVER_ERROR if status >= 500 else ModelFault.INVALID_REQUEST)
    if status == 400 and _TOO_LONG.search(error.message):
        kind = ModelFault.TOO_LARGE
    retryable = status in _RETRYABLE_BELOW_500 or (status >= 500 and status != 501)
    delay = None
    if not in_stream:  # the headers of a stream were sent before the error
        retryable = {"true": True, "false": False}.get(error.response.headers.get("x-should-retry", ""), retryable)
        delay = asked_for(error.response.headers)
    if error.error_code in _SPEND_LIMITS:
        kind, retryable = ModelFault.SPEND_LIMIT, False
    where = "in the stream" if in_stream else f"HTTP {error.status_code}"
    what = f" {error.error_code or error.type}" if error.error_code or error.type else ""
    request = f", request {error.request_id}" if error.request_id else ""
    detail = f"{where}{what}{request}: {error.api_message or error.message}"
    return kind, retryable, delay if retryable else None, detail


def asked_for(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server wants to be left alone, with jitter; milliseconds, seconds or a date, in this order."""
    seconds = _number(headers.get("retry-after-ms"), 1_000)
    if seconds is None:
        seconds = _number(headers.get("retry-after"), 1)
    if seconds is None:
        seconds = _until(headers.get("retry-after"))
    if seconds is None:
        return None
    return min(max(seconds, 0.0), LONGEST_DELAY_S) * (1 + JITTER * random.random())  # noqa: S311 (no secret)


def _number(text: str | None, per_second: int) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number / per_second if math.isfinite(number) else None


def _until(text: str | None) -> float | None:
    parsed = email.utils.parsedate_tz(text or "")
    try:
        return None if parsed is None else email.utils.mktime_tz(parsed) - time.time()
    except (ValueError, OverflowError):  # a day that no calendar has
        return None


def _unusable(error: BaseException) -> BaseException | None:
    """The address or header that makes every request fail, where one is the cause: no network is to blame."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError | httpx2.InvalidURL):
            return cause
        cause = cause.__cause__
    return None


def _with_cause(error: BaseException) -> str:
    cause = error.__cause__
    return type(error).__name__ if cause is None else f"{type(cause).__name__}: {cause}"
