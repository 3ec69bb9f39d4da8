"""Why a run stands still, as its pending activities tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo

from workflows.console.waiting import Notice, retrying

NOW = datetime(2026, 11, 30, 3, 12, tzinfo=UTC)
SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


def pending(
    attempt: int, message: str | None, due_s: float = 8, state: PendingActivityState.ValueType = SCHEDULED
) -> PendingActivityInfo:
    made = PendingActivityInfo(attempt=attempt, state=state)
    made.activity_type.name = "measure_baseline"
    made.scheduled_time.FromDatetime(NOW + timedelta(seconds=due_s))
    if message is not None:
        made.last_failure.CopyFrom(Failure(message=message))
    return made


def test_a_step_that_failed_says_why_and_when_it_is_tried_again() -> None:
    """In one line, with the number of the attempt to come."""
    assert str(retrying([pending(4, "disk full: /x")], NOW)) == (
        "waiting: measure baseline: disk full: /x (attempt 4, next try in 8 s)"
    )


def test_a_step_at_work_again_says_so() -> None:
    """What the last attempt failed with is still worth knowing."""
    notice = retrying([pending(2, "disk full", state=STARTED)], NOW)
    assert notice == Notice("waiting: measure baseline: disk full", "attempt 2, at work now")


def test_a_step_that_never_failed_is_no_news() -> None:
    """Nor is one that was only handed out twice."""
    assert retrying([], NOW) is None
    assert retrying([pending(1, None), pending(3, None)], NOW) is None


def test_of_several_the_one_that_failed_most_often_speaks() -> None:
    """Iterations side by side usually wait for the same thing."""
    notice = retrying([pending(2, "one"), pending(5, "two")], NOW)
    assert notice is not None
    assert notice.reason.endswith("two")


def test_a_failures_words_stay_on_one_line() -> None:
    """They may come from a compiler or a candidate."""
    notice = retrying([pending(2, "a\nb\x1b[31m")], NOW)
    assert notice is not None
    assert notice.reason == "waiting: measure baseline: a b [31m"
