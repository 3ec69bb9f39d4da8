"""Which failures are worth another attempt: decided here, at the edge, once for every activity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from activities.harness import Refused
from specs.errors import FerretError, MachineError


@contextmanager
def told_to_temporal() -> Iterator[None]:
    """Turn our errors into ApplicationErrors that carry the class name and whether a retry can help."""
    try:
        yield
    except Refused as error:
        refusal = error.refusal
        raise ApplicationError(refusal.message, type=refusal.error, non_retryable=not refusal.retryable) from error
    except FerretError as error:
        raise ApplicationError(
            str(error), type=type(error).__name__, non_retryable=not isinstance(error, MachineError)
        ) from error
    except OSError as error:
        # A full disk or a lost mount on this machine; the next attempt may find it mended.
        raise ApplicationError(f"{error.strerror or error}: {error.filename or ''}", type="MachineError") from error
