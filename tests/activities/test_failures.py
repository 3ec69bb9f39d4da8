"""Which failures Temporal tries again, and which end the run."""

from __future__ import annotations

import dataclasses
import errno
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.failures import told_to_temporal
from activities.harness import Refused, Unanswered
from kernels.harness.requests import Refusal
from specs.errors import (
    DeviceBusy,
    GateError,
    GateTampered,
    ModelError,
    ModelFault,
    RunnerLost,
    SpecError,
    StoreError,
    UserError,
)


def told(error: Exception) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught, told_to_temporal():
        raise error
    return caught.value


@pytest.mark.parametrize("error", [DeviceBusy("x"), RunnerLost("x"), StoreError("x")])
def test_a_machines_failure_is_tried_again(error: Exception) -> None:
    """Under its own name."""
    failure = told(error)
    assert (failure.type, failure.message, failure.non_retryable) == (type(error).__name__, "x", False)


@pytest.mark.parametrize("error", [UserError("x"), GateError("x"), GateTampered("x"), SpecError([])])
def test_a_mistake_or_a_broken_gate_is_not(error: Exception) -> None:
    """A second attempt would find the same."""
    assert told(error).non_retryable


@pytest.mark.parametrize("retryable", [True, False])
def test_the_harness_says_itself_whether_a_retry_helps(retryable: bool) -> None:
    """Its error keeps its name and its words."""
    failure = told(Refused(Refusal(error="DeviceBusy", message="held by 17", retryable=retryable)))
    assert (failure.type, failure.message, failure.non_retryable) == ("DeviceBusy", "held by 17", not retryable)


def test_a_busy_device_is_asked_for_again_soon() -> None:
    """With growing pauses, whoever measures back to back would always win it."""
    busy = Refusal(error="DeviceBusy", message="held by 17", retryable=True)
    for error in (DeviceBusy("x"), Refused(busy)):
        assert told(error).next_retry_delay == timedelta(seconds=1)
    assert told(StoreError("x")).next_retry_delay is None


def test_a_full_disk_is_tried_again() -> None:
    """With the system's own words and the file."""
    failure = told(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    assert (failure.type, failure.non_retryable) == ("MachineError", False)
    assert "No space left on device: /data/x" in failure.message


def test_a_bug_is_left_as_it_is() -> None:
    """Nothing hides a programming error."""
    with pytest.raises(ZeroDivisionError), told_to_temporal():
        raise ZeroDivisionError


def test_an_end_without_a_reply_goes_by_the_name_it_comes_to() -> None:
    """What does not mend itself is not tried for long."""
    failure = told(Unanswered("ended with status 0", "GateError"))
    assert (failure.type, failure.message, failure.non_retryable) == ("GateError", "ended with status 0", True)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_models_server_decides_whether_and_when_it_is_asked_again(retryable: bool) -> None:
    """Its failure goes by the name of its kind."""
    failure = told(ModelError(ModelFault.RATE_LIMITED, "slowly", retryable=retryable, delay=2.5))
    assert (failure.type, failure.message, failure.non_retryable) == ("Model.rate_limited", "slowly", not retryable)
    assert failure.next_retry_delay == timedelta(seconds=2.5)
    assert told(ModelError(ModelFault.TIMEOUT, "x", retryable=True)).next_retry_delay is None


@pytest.mark.parametrize(("attempt", "again"), [(1, True), (4, True), (5, False), (6, False)])
def test_a_models_server_that_answers_nonsense_is_asked_so_many_times(attempt: int, again: bool) -> None:
    """The attempt that reaches the cap is the last one."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    error = ModelError(ModelFault.BAD_RESPONSE, "x", retryable=True, attempt_cap=5)
    assert environment.run(told, error).non_retryable is not again
