"""Run a self-contained program on the claimed device: what it says of itself, and no verdict on it."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work, queue_wait_s
from activities.measure import LOCK_WAIT_S
from activities.options import PATIENT, WAIT, Options
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import RunnerLost
from specs.outcomes import BlobRef, SelfReported, Value

PROGRAM_S = 600.0  # its own reference, baseline, warm-up and every config; one that needs longer is refused

OPTIONS = Options(
    start_to_close_timeout=timedelta(seconds=PROGRAM_S + 300),  # the harness stops the program first
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the device must be free again
)


class RunProgramInput(Value):
    bundle: BlobRef
    program: BlobRef
    sandbox: requests.Sandbox


class RunProgramResult(Value):
    report: SelfReported
    queue_wait_s: float = 0.0


class ProgramRunning:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="run_program")
    async def run_program(self, given: RunProgramInput) -> RunProgramResult:
        async with at_work():
            bundle = await self._workshop.bundle(given.bundle)
            report = await hear_program(self._workshop, bundle, given.program, given.sandbox)
            return RunProgramResult(report=report, queue_wait_s=queue_wait_s())


async def hear_program(workshop: Workshop, bundle: Bundle, program: BlobRef, sandbox: requests.Sandbox) -> SelfReported:
    """One process of the harness, one run of exactly this program."""
    with workshop.harness.folder() as folder:
        request = requests.RunProgram(
            task=bundle.task,
            program=await workshop.library(program, bundle.task.language),
            sandbox=workshop.settings.isolation(sandbox),
            timeout_s=PROGRAM_S,
            device_wait_s=LOCK_WAIT_S,
        )
        report = (await workshop.harness.ask(request, requests.ProgramRan, folder)).report
    if report.program != program.sha256:
        raise RunnerLost("the report is about another program than was asked for")
    return report
