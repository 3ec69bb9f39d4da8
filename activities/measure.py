"""Measure: time a judged object against the baseline and the champion, in the same rounds, on the claimed device."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work, queue_wait_s
from activities.options import PATIENT, WAIT, Options
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import RunnerLost
from specs.outcomes import BlobRef, MeasureOutcome, Value

# Short, so that waiting for the lock shows as failed attempts, which are not charged to the run's budget.
LOCK_WAIT_S = 20.0

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=15),  # sampling stops by itself long before
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the device must be free again
)


class MeasureInput(Value):
    bundle: BlobRef
    lock: requests.GateLock
    baseline: BlobRef
    candidate: BlobRef
    champion: BlobRef | None
    sandbox: requests.Sandbox


class MeasureResult(Value):
    outcome: MeasureOutcome
    queue_wait_s: float = 0.0


class Measuring:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="measure")
    async def measure(self, given: MeasureInput) -> MeasureResult:
        async with at_work():
            bundle = await self._workshop.bundle(given.bundle)
            outcome = await measure_library(
                self._workshop, bundle, given.lock, given.sandbox, given.baseline, given.candidate, given.champion
            )
            return MeasureResult(outcome=outcome, queue_wait_s=queue_wait_s())


async def measure_library(
    workshop: Workshop,
    bundle: Bundle,
    lock: requests.GateLock,
    sandbox: requests.Sandbox,
    baseline: BlobRef,
    candidate: BlobRef,
    champion: BlobRef | None = None,
    *,
    max_seconds: float | None = None,
) -> MeasureOutcome:
    """One gate process; the raw samples are kept in the store. Without `max_seconds` the worker's settings say it."""
    language = bundle.task.language
    with workshop.harness.folder() as folder:
        request = requests.Measure(
            task=bundle.task,
            gate=bundle.gate,
            lock=lock,
            baseline=await workshop.library(baseline, bundle.baseline_language),
            candidate=await workshop.library(candidate, language),
            champion=None if champion is None else await workshop.library(champion, language),
            builds=workshop.settings.builds,
            samples=folder / "samples.json",
            sandbox=workshop.settings.isolation(sandbox),
            max_seconds=max_seconds or workshop.settings.sampling_s,
            device_wait_s=LOCK_WAIT_S,
        )
        measured = await workshop.harness.ask(request, requests.Measured, folder)
        measurement = measured.outcome.measurement
        if measurement is None:
            return measured.outcome
        if measurement.library != candidate.sha256:
            raise RunnerLost("the measurement is about another library than was asked for")
        if measured.samples is not None:
            samples = await workshop.keep(measured.samples)
            measurement = measurement.model_copy(update={"samples": samples})
        return MeasureOutcome(measurement=measurement)
