"""Reading failures: was it a cancel, a lost device, or something to tell a person?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TimeoutError,
    TimeoutType,
    is_cancelled_exception,
)

DEVICE_LOST = "DeviceLost"
# After any other of our own failures the best kernel so far is still worth accepting.
FATAL = ("GateTampered", "GateError", "UserError", "SpecError")


def raise_if_cancelled(error: BaseException) -> None:
    """A cancelled activity that does not answer ends as a timeout, and a cancel that is swallowed never comes again.

    So every handler of an activity's or child's failure asks this first. Raises asyncio.CancelledError.
    """
    if is_cancelled_exception(error) or workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError from error


@contextmanager
def on_device(queue: str) -> Iterator[None]:
    """Name the failure of a step that nobody picked up: its device is gone."""
    try:
        yield
    except ActivityError as error:
        raise_if_cancelled(error)
        if isinstance(error.cause, TimeoutError) and error.cause.type is TimeoutType.SCHEDULE_TO_START:
            raise ApplicationError(
                f"no worker serves {queue} any more", type=DEVICE_LOST, non_retryable=True
            ) from error
        raise


def root(error: BaseException) -> BaseException:
    """What an activity or a child really failed with, below Temporal's own wrapping."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    return error


def kind(error: BaseException) -> str:
    """Class name in specs.errors, or of the failure itself."""
    bottom = root(error)
    return (bottom.type if isinstance(bottom, ApplicationError) else None) or type(bottom).__name__


def words(error: BaseException) -> str:
    bottom = root(error)
    text = bottom.message if isinstance(bottom, FailureError) else str(bottom)
    return " ".join(text.split())[:1000]


def for_people(error: BaseException) -> ApplicationError:
    """The failure of the run as one message with the original class name."""
    return ApplicationError(words(error), type=kind(error), non_retryable=True)
