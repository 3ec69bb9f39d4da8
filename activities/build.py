"""Build: one source through the compiler, in a process of the harness."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Literal

from temporalio import activity

from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work, queue_wait_s
from activities.options import PATIENT, WAIT, Options
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import RunnerLost, UserError
from specs.outcomes import BlobRef, BuildResult, Value
from specs.schema import Task

COMPILER_S = 300.0  # templates take minutes; a compiler that needs longer is the candidate's outcome, not a failure

OPTIONS = Options(
    start_to_close_timeout=timedelta(seconds=COMPILER_S + 120),  # the harness stops the compiler first
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the compiler must be gone
)


class BuildInput(Value):
    bundle: BlobRef
    source: BlobRef


class BuildOutput(Value):
    result: BuildResult
    queue_wait_s: float = 0.0


class Building:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="build")
    async def build(self, given: BuildInput) -> BuildOutput:
        async with at_work():
            with self._workshop.harness.folder() as folder:
                task = (await self._workshop.bundle(given.bundle)).task
                source = await self._workshop.store.fetch(given.source, folder / f"kernel{task.language.suffix}")
                result = await compile_source(self._workshop, task, source, folder)
                return BuildOutput(result=result, queue_wait_s=queue_wait_s())


async def compile_source(
    workshop: Workshop,
    task: Task,
    source: Path,
    folder: Path,
    *,
    role: Literal["candidate", "baseline"] = "candidate",
    production: bool = False,
) -> BuildResult:
    """Build and keep the shared object in the store, so that every machine can judge and time this very one."""
    request = requests.Build(
        task=task,
        source=source,
        role=role,
        production=production,
        builds=workshop.settings.builds,
        timeout_s=COMPILER_S,
    )
    built = await workshop.harness.ask(request, requests.Built, folder)
    if built.result.library is None:
        return built.result
    if built.library is None:
        raise RunnerLost("the harness built a library but did not say where it is")
    kept = await workshop.store.put(await asyncio.to_thread(built.library.read_bytes))
    if kept != built.result.library:
        raise RunnerLost(f"{built.library} is not the library that was built: its content changed since")
    return built.result


async def build_baseline(workshop: Workshop, bundle: Bundle, folder: Path) -> BlobRef:
    """The vendor's object, in the store. Raises UserError when the task's own program does not build."""
    source = bundle.baseline
    built = await compile_source(workshop, bundle.task, source, folder, role="baseline")
    if built.library is None:
        raise UserError(
            f"baseline.program {source.name} does not build ({built.status.value}): {built.log_tail[-800:]}"
        )
    return built.library
