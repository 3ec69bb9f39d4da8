"""Which failures are worth another attempt: decided here, at the edge, once for every activity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.harness import Refused, Unanswered
from specs.errors import DeviceBusy, FerretError, MachineError, ModelError

# A harness that ends in silence does so for a reason of its own; a second look tells that from an accident.
UNANSWERED_ATTEMPTS = 2


@contextmanager
def told_to_temporal() -> Iterator[None]:
    """Turn our errors into ApplicationErrors that carry the class name and whether a retry can help."""
    try:
        yield
    except Refused as error:
        refusal = error.refusal
        raise _failure(refusal.message, refusal.error, retryable=refusal.retryable) from error
    except Unanswered as error:
        again = _attempts_left(UNANSWERED_ATTEMPTS)
        raise _failure(str(error), error.name, retryable=again) from error
    except ModelError as error:
        raise _failure_of_model(error) from error
    except FerretError as error:
        raise _failure(str(error), type(error).__name__, retryable=isinstance(error, MachineError)) from error
    except OSError as error:
        # A full disk or a lost mount on this machine; the next attempt may find it mended.
        raise ApplicationError(f"{error.strerror or error}: {error.filename or ''}", type="MachineError") from error


def _attempts_left(most: int) -> bool:
    return activity.in_activity() and activity.info().attempt < most


def _failure_of_model(error: ModelError) -> ApplicationError:
    again = error.retryable and (error.attempt_cap is None or _attempts_left(error.attempt_cap))
    return ApplicationError(
        str(error),
        type=error.name,
        non_retryable=not again,
        next_retry_delay=None if error.delay is None else timedelta(seconds=error.delay),
    )


def _failure(message: str, name: str, *, retryable: bool) -> ApplicationError:
    # A busy device is asked for again at once: with growing pauses, whoever measures back to back would always win it.
    again = timedelta(seconds=1) if name == DeviceBusy.__name__ else None
    return ApplicationError(message, type=name, non_retryable=not retryable, next_retry_delay=again)
