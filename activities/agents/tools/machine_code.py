"""Look at what the compiler made of the kernel: counts and short conclusions, never a listing."""

from __future__ import annotations

from typing import ClassVar

from activities.agents.tools.compiling import compiled
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool
from kernels.harness import requests


class _MachineCode(Tool[NoArguments]):
    arguments: ClassVar[type[Arguments]] = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        made = await compiled(desk)
        if isinstance(made, Answer):
            return made
        task = desk.bundle.task
        with desk.workshop.harness.folder() as folder:
            request = requests.Inspect(
                task=task,
                library=await desk.workshop.library(made.library, task.language),
                sandbox=desk.workshop.settings.isolation(desk.session.sandbox),
            )
            seen = await desk.workshop.harness.ask(request, requests.Inspected, folder)
        if seen.reason:
            return Answer(f"nothing to tell: {seen.reason}", error=True, workspace=made.workspace)
        return Answer(seen.digest, workspace=made.workspace, said=seen.digest.partition("\n")[0][:300])


class Sass(_MachineCode):
    """For CUDA and Triton."""

    name: ClassVar[str] = "sass"
    description: ClassVar[str] = (
        "Counts of the compiled device code: registers, spills, shared memory, instructions by family, the hottest "
        "loop, and what stands out. Static: it says nothing about time."
    )


class Assembly(_MachineCode):
    """For C++."""

    name: ClassVar[str] = "assembly"
    description: ClassVar[str] = (
        "Counts of the compiled machine code: vector width, FMA, loads, stores, spills, calls, the hottest loop, and "
        "what stands out. Static: it says nothing about time."
    )
