"""Why a run stands still: what its activity failed with, when it is tried again, and who is not there to do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo

from workflows.console.lines import clean, duration

WORDS = 300  # of a failure's message


@dataclass(frozen=True, slots=True)
class Notice:
    """One line about a run that does not get on; `detail` is the part that changes from one look to the next."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def retrying(pending: Sequence[PendingActivityInfo], now: datetime) -> Notice | None:
    """What an activity that has failed before says about it; the one that has failed most often speaks for all."""
    failed = [activity for activity in pending if activity.attempt > 1 and activity.HasField("last_failure")]
    if not failed:
        return None
    worst = max(failed, key=lambda activity: activity.attempt)
    said = clean(_root(worst.last_failure).message)[:WORDS] or "it gave no reason"
    return Notice(f"waiting: {worst.activity_type.name.replace('_', ' ')}: {said}", _when(worst, now))


def _root(failure: Failure) -> Failure:
    # An ApplicationError of ours says it itself; what it was made from is for the logs.
    while not failure.message and failure.HasField("cause"):
        failure = failure.cause
    return failure


def _when(activity: PendingActivityInfo, now: datetime) -> str:
    if activity.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return f"attempt {activity.attempt}, at work now"
    due = activity.scheduled_time.ToDatetime(tzinfo=UTC) if activity.HasField("scheduled_time") else now
    seconds = (due - now).total_seconds()
    return f"attempt {activity.attempt}, {f'next try in {duration(seconds)}' if seconds >= 1 else 'about to be tried'}"
