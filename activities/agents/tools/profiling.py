"""Profile the kernel on the config that is farthest from its target: what bounds it there."""

from __future__ import annotations

from typing import ClassVar

from activities.agents import profiles
from activities.agents.tools.checking import NO_GATE, failed
from activities.agents.tools.compiling import compiled
from activities.agents.tools.measuring import NO_BASELINE, worst_config
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool, clipped
from activities.judge import judge_library
from activities.measure import LOCK_WAIT_S, measure_library
from kernels.harness import requests
from specs.outcomes import Stage
from specs.plan import Plan

SAMPLING_S = 8.0  # a profile needs the time to a few per cent
TOO_EARLY = (
    "profiling begins in OPTIMIZE; this run is in REPRODUCE, where the kernel has to come near the baseline first: use "
    "check and measure, and read what is known about the operation"
)


class Profile(Tool[NoArguments]):
    name: ClassVar[str] = "profile"
    description: ClassVar[str] = (
        "Compile the kernel, check it and say what bounds it on the config farthest from its target: memory, compute "
        "or latency. On a GPU from Nsight Compute's counters, else from time and work. Only in OPTIMIZE."
    )
    arguments: ClassVar[type[Arguments]] = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        session, workshop, task = desk.session, desk.workshop, desk.bundle.task
        if session.stage is Stage.REPRODUCE:
            return Answer(TOO_EARLY, error=True)
        if session.lock is None:
            return Answer(NO_GATE, error=True)
        if session.baseline_library is None:
            return Answer(NO_BASELINE, error=True)
        made = await compiled(desk)
        if isinstance(made, Answer):
            return made
        verdict = await judge_library(
            workshop, desk.bundle, session.lock, made.library, session.sandbox, scope="public"
        )
        if verdict.failure is not None:  # what bounds a wrong kernel is of no use
            return failed(verdict.failure, made.workspace)
        outcome = await measure_library(
            workshop, desk.bundle, session.lock, session.sandbox, session.baseline_library, made.library,
            max_seconds=SAMPLING_S,
        )  # fmt: skip
        if outcome.measurement is None:
            assert outcome.failure is not None
            return failed(outcome.failure, made.workspace)
        times = {one.config: one.candidate.median_us for one in outcome.measurement.configs}
        config = worst_config(Plan.of(task, desk.bundle.digest), outcome.measurement.ratios())
        with workshop.harness.folder() as folder:
            request = requests.Profile(
                task=task,
                gate=desk.bundle.gate,
                lock=session.lock,
                library=await workshop.library(made.library, task.language),
                config=config,
                time_us=times[config],
                builds=workshop.settings.builds,
                sandbox=workshop.settings.isolation(session.sandbox),
                device_wait_s=LOCK_WAIT_S,
            )
            found = await workshop.harness.ask(request, requests.Profiled, folder)
        profile = profiles.Profile(
            source=made.source.sha256, config=config, bottleneck=found.bottleneck, text=found.digest
        )
        workspace = made.workspace.model_copy(update={"profile": await profiles.keep(workshop.store, profile)})
        return Answer(clipped(found.digest), workspace=workspace, said=f"{config}: {found.bottleneck}"[:300])
