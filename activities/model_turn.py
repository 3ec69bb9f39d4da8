"""One turn of a model: the transcript goes out over HTTP, a finished message comes back and is stored."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from temporalio import activity
from temporalio.common import RetryPolicy

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import OVERSIZED, WAIT, Options
from activities.workshop import Workshop
from specs.dialogue import ModelTurn
from specs.outcomes import BlobRef, Value

TOTAL_S = 1_500.0  # of one call, however alive its stream looks
PATIENCE = timedelta(hours=12)  # for a server that is overloaded, limits us or cannot be reached

OPTIONS = Options(
    start_to_close_timeout=timedelta(seconds=TOTAL_S + 60),
    schedule_to_close_timeout=PATIENCE,
    heartbeat_timeout=HEARTBEAT,
    # How often is decided by kind of failure, in the activity (activities.llm.faults); a server may name the delay.
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=2),
        maximum_interval=timedelta(seconds=60),
        non_retryable_error_types=[OVERSIZED],
    ),
    cancellation_type=WAIT,  # the socket must be closed
)


class Nudge(StrEnum):
    """What is said to the model beside the answers to its calls; the texts are in the prompts."""

    NONE = "none"
    USE_A_TOOL = "use_a_tool"  # it spoke and called nothing
    HAND_IN = "hand_in"  # few steps are left
    TRUNCATED = "truncated"  # its last message was cut: every call of it is answered as not run
    NOT_RUN = "not_run"  # its last message ended for a reason that nobody knows: no call of it was run


class ModelTurnInput(Value):
    session: BlobRef
    head: BlobRef
    answers: tuple[BlobRef, ...] = ()  # to the calls of `head`, in their order
    turn: int  # of this session: the journal's innermost name
    nudge: Nudge = Nudge.NONE
    roomier: int = 0  # how often max_tokens is doubled, after an answer that was cut
    tokens_left: int | None = None  # of the run's budget; None: no limit
    usd_left: float | None = None


class ModelTurning:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="model_turn")
    async def model_turn(self, given: ModelTurnInput) -> ModelTurn:
        async with at_work():
            from activities.llm.turn import take_turn  # the SDK takes more than a second to import

            return await take_turn(self._workshop, given)
