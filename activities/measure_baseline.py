"""Measure the baseline: build it, hold it to the gate like any kernel, and time it alone."""

from __future__ import annotations

from temporalio import activity

from activities.build import build_baseline
from activities.heartbeat import at_work, queue_wait_s
from activities.judge import OPTIONS as JUDGE_OPTIONS
from activities.judge import judge_library
from activities.measure import LOCK_WAIT_S
from activities.options import Options
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import GateError
from specs.outcomes import BaselineTimes, BlobRef, Value

OPTIONS = Options(**JUDGE_OPTIONS)  # judging is the longest part of it


class MeasureBaselineInput(Value):
    bundle: BlobRef
    lock: requests.GateLock
    sandbox: requests.Sandbox


class MeasureBaselineResult(Value):
    library: BlobRef
    times: BaselineTimes
    queue_wait_s: float = 0.0


class BaselineMeasuring:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="measure_baseline")
    async def measure_baseline(self, given: MeasureBaselineInput) -> MeasureBaselineResult:
        async with at_work():
            return await self._measured(given)

    async def _measured(self, given: MeasureBaselineInput) -> MeasureBaselineResult:
        workshop = self._workshop
        bundle = await workshop.bundle(given.bundle)
        with workshop.harness.folder() as folder:
            library = await build_baseline(workshop, bundle, folder)
        verdict = await judge_library(workshop, bundle, given.lock, library, given.sandbox, role="baseline")
        if verdict.failure is not None:
            raise GateError(
                f"the baseline does not pass the gate in case '{verdict.failure.case}': {verdict.failure.message}"
            )
        with workshop.harness.folder() as folder:
            request = requests.Measure(
                task=bundle.task,
                gate=bundle.gate,
                lock=given.lock,
                baseline=await workshop.library(library, bundle.baseline_language),
                builds=workshop.settings.builds,
                samples=folder / "samples.json",
                sandbox=workshop.settings.isolation(given.sandbox),
                max_seconds=self._workshop.settings.sampling_s,
                device_wait_s=LOCK_WAIT_S,
            )
            measured = await workshop.harness.ask(request, requests.BaselineMeasured, folder)
        return MeasureBaselineResult(library=library, times=measured.times, queue_wait_s=queue_wait_s())
