"""Remember: a round's iterations in the run's logbook, from which prompts and the history tool are made."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.agents import logbook
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.workshop import Workshop
from specs.outcomes import BlobRef, Iteration, Value

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # one small blob
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,  # a prompt without it would try the same again
)


class RememberInput(Value):
    logbook: BlobRef | None  # up to the round before
    iterations: tuple[Iteration, ...]


class RememberResult(Value):
    logbook: BlobRef


class Remembering:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="remember")
    async def remember(self, given: RememberInput) -> RememberResult:
        async with at_work():
            book = await logbook.append(self._workshop.store, given.logbook, given.iterations)
            return RememberResult(logbook=book)
