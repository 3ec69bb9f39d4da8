"""The options of an activity: each declared once, beside the activity it belongs to."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

# An oversized result is a bug of ours, and Temporal would retry it for ever without this.
OVERSIZED = "PayloadsTooLarge"

# Lost workers and shutdowns use up attempts too, so a handful of deploys must not fail a run. With these intervals a
# machine has half an hour to recover (disk freed), and others twenty minutes to give the device back, before the run
# ends with what it has.
PATIENT = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=60,
    non_retryable_error_types=[OVERSIZED],
)
# For steps that the run can do without.
BRIEF = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_attempts=3, non_retryable_error_types=[OVERSIZED]
)

# For every activity with a process of its own: "cancelled" must mean that the process is gone.
WAIT = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class Options(TypedDict, total=False):
    """What belongs to the activity; queue, summary and patience belong to the call."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType
