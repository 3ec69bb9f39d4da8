"""Accept: the champion once more, from its source, in fresh processes, with what it has never seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError
from temporalio import activity

from activities.build import compile_source
from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work, queue_wait_s
from activities.judge import judge_library
from activities.measure import measure_library
from activities.options import PATIENT, WAIT, Options
from activities.process import run_process
from activities.workshop import Workshop
from kernels.harness import requests
from specs.outcomes import Acceptance, BlobRef, Value

COMMAND_S = 600.0  # the consumer's own build and test
MARK = "ACCEPT_RESULT "

OPTIONS = Options(
    start_to_close_timeout=timedelta(hours=1),  # a build, the longest judgement, a measurement and a foreign command
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the device must be free again
)


class AcceptInput(Value):
    bundle: BlobRef
    lock: requests.GateLock
    baseline: BlobRef
    version: str
    source: BlobRef
    sandbox: requests.Sandbox


class AcceptResult(Value):
    acceptance: Acceptance
    queue_wait_s: float = 0.0


class CommandResult(BaseModel):
    """What `acceptance.command` prints after ACCEPT_RESULT."""

    accepted: bool
    reason: str = ""


class Accepting:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="accept")
    async def accept(self, given: AcceptInput) -> AcceptResult:
        async with at_work():
            return AcceptResult(acceptance=await self._accepted(given), queue_wait_s=queue_wait_s())

    async def _accepted(self, given: AcceptInput) -> Acceptance:
        workshop, version = self._workshop, given.version
        bundle = await workshop.bundle(given.bundle)
        with workshop.harness.folder() as folder:
            source = await workshop.store.fetch(given.source, folder / f"kernel{bundle.task.language.suffix}")
            built = await compile_source(workshop, bundle.task, source, folder, production=True)
            if built.library is None:
                reason = f"does not build with production_flags ({built.status.value}): {built.log_tail[-300:]}"
                return Acceptance(version=version, accepted=False, reason=reason)
            verdict = await judge_library(
                workshop, bundle, given.lock, built.library, given.sandbox, source=given.source, held_out=True
            )
            if verdict.failure is not None:
                reason = f"refused in case '{verdict.failure.case}': {verdict.failure.message}"
                return Acceptance(version=version, accepted=False, reason=reason, verdict=verdict)
            outcome = await measure_library(workshop, bundle, given.lock, given.sandbox, given.baseline, built.library)
            if outcome.measurement is None:
                why = outcome.failure.message if outcome.failure else "no measurement"
                return Acceptance(
                    version=version, accepted=False, reason=f"refused while timed: {why}", verdict=verdict
                )
            command, said = await run_command(bundle, source, workshop.harness.environment())
        return Acceptance(
            version=version,
            accepted=command != "failed",
            reason=said or f"passed {verdict.cases} calls in fresh processes, held-out cases among them",
            verdict=verdict,
            measurement=outcome.measurement,
            command=command,
        )


async def run_command(
    bundle: Bundle, kernel: Path, environment: Mapping[str, str] | None = None, timeout_s: float = COMMAND_S
) -> tuple[Literal["none", "passed", "failed"], str]:
    """Run the task's acceptance command on the kernel's path; a sentence says why when it failed."""
    if bundle.task.acceptance is None:
        return "none", ""
    command = bundle.task.acceptance.command
    done = await run_process([*command, kernel], cwd=kernel.parent, env=environment, timeout_s=timeout_s)
    name = Path(command[0]).name
    if done.timed_out:
        return "failed", f"acceptance command {name} ran longer than {timeout_s:.0f} s"
    if done.code != 0:
        return "failed", f"acceptance command {name} ended with status {done.code}: {_last_line(done.tail)}"
    lines = [line for line in done.tail.splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        return "failed", f"acceptance command {name} printed {len(lines)} ACCEPT_RESULT lines; exactly one is accepted"
    try:
        result = CommandResult.model_validate(json.loads(lines[0].removeprefix(MARK)))
    except (ValueError, ValidationError):
        return (
            "failed",
            f'acceptance command {name} printed {lines[0][:200]!r}; accepted: ACCEPT_RESULT {{"accepted": true}}',
        )
    if not result.accepted:
        return "failed", f"acceptance command {name} refused: {result.reason or 'no reason given'}"[:400]
    return "passed", f"accepted by {name}" + (f": {result.reason}" if result.reason else "")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it wrote nothing"])[-1][:300]
