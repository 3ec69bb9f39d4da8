"""Judge: prove a shared object right or wrong against the locked gate."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from temporalio import activity

from activities.bundle import Bundle
from activities.heartbeat import HEARTBEAT, at_work, queue_wait_s
from activities.options import PATIENT, WAIT, Options
from activities.workshop import Workshop
from kernels.harness import requests
from specs.errors import RunnerLost
from specs.outcomes import BlobRef, Value, Verdict

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=30),  # many cases of a slow kernel, each call with its own limit
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
    cancellation_type=WAIT,  # the device must be free again
)


class JudgeInput(Value):
    bundle: BlobRef
    lock: requests.GateLock
    library: BlobRef
    source: BlobRef | None = None  # of the library: for the check with sanitizers
    sandbox: requests.Sandbox


class JudgeResult(Value):
    verdict: Verdict
    queue_wait_s: float = 0.0


class Judging:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="judge")
    async def judge(self, given: JudgeInput) -> JudgeResult:
        async with at_work():
            bundle = await self._workshop.bundle(given.bundle)
            verdict = await judge_library(
                self._workshop, bundle, given.lock, given.library, given.sandbox, source=given.source
            )
            return JudgeResult(verdict=verdict, queue_wait_s=queue_wait_s())


async def judge_library(
    workshop: Workshop,
    bundle: Bundle,
    lock: requests.GateLock,
    library: BlobRef,
    sandbox: requests.Sandbox,
    *,
    source: BlobRef | None = None,
    role: Literal["candidate", "baseline"] = "candidate",
    held_out: bool = False,
    scope: Literal["full", "public"] = "full",
) -> Verdict:
    """One gate process, one verdict on exactly this library by exactly this gate.

    With scope "public" it is a quick look at the configs alone: a verdict that says so, and that no iteration takes.
    """
    with workshop.harness.folder() as folder:
        name = f"kernel{bundle.task.language.suffix}"
        language = bundle.baseline_language if role == "baseline" else bundle.task.language
        request = requests.Judge(
            task=bundle.task,
            gate=bundle.gate,
            lock=lock,
            library=await workshop.library(library, language),
            source=await workshop.store.fetch(source, folder / name) if source else None,
            role=role,
            builds=workshop.settings.builds,
            held_out=held_out,
            scope=scope,
            sandbox=workshop.settings.isolation(sandbox),
        )
        verdict = (await workshop.harness.ask(request, requests.Judged, folder)).verdict
    if (verdict.library, verdict.gate) != (library.sha256, lock.digest):
        raise RunnerLost("the verdict is about another library or another gate than was asked for")
    if verdict.scope != scope:
        raise RunnerLost(f"the verdict is on the {verdict.scope} cases; the {scope} ones were asked for")
    return verdict
