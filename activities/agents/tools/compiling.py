"""Compile the kernel: constraints first, then the task's own compiler and flags, its words cut to what helps."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import ClassVar

from activities.agents.tools.kernel import NOTHING_YET, source_of
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool, clipped
from activities.build import compile_source
from specs.constraints import flagged_in, told
from specs.dialogue import Workspace
from specs.outcomes import BlobRef, BuildResult, BuildStatus

MOST_LINES = 60  # of a compiler's words
FIRST_LINES = 44  # of them: the first error is mostly the one that matters
KERNELS_TOLD = 6
_FOLDERS = re.compile(r"(?<![\w.<])/(?:[^\s/:'\"]+/)+")
_WARNING = re.compile(r"\bwarning\b(?: #\d+-D)?:")
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<shared>\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The conversation's kernel as an object in the store."""

    source: BlobRef
    library: BlobRef
    result: BuildResult
    workspace: Workspace  # with this source as the last that the compiler took


async def compiled(desk: Desk) -> Compiled | Answer:
    """The kernel of the workspace, built or found built; the answer to give when there is none.

    What the task's constraints forbid is told without a compile.
    """
    kernel = desk.workspace.kernel
    if kernel is None:
        return Answer(NOTHING_YET, error=True)
    task = desk.bundle.task
    if flags := await asyncio.to_thread(flagged_in, await source_of(desk, kernel), task):
        text = f"not compiled: the source holds what the task's constraints forbid\n{told(flags)}"
        return Answer(clipped(text), error=True, said=f"{len(flags)} constraint(s) broken")
    with desk.workshop.harness.folder() as folder:
        source = await desk.workshop.store.fetch(kernel, folder / f"kernel{task.language.suffix}")
        result = await compile_source(desk.workshop, task, source, folder)
    if result.library is None:
        return Answer(refused(result), error=True, said=f"build {result.status.value}")
    workspace = desk.workspace.model_copy(update={"compiled": kernel})
    return Compiled(kernel, result.library, result, workspace)


class Compile(Tool[NoArguments]):
    name: ClassVar[str] = "compile"
    description: ClassVar[str] = (
        "Compile the kernel with the task's compiler and flags: built, or the errors. Proves nothing about its results."
    )
    arguments: ClassVar[type[Arguments]] = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        made = await compiled(desk)
        if isinstance(made, Answer):
            return made
        text = built(made.result)
        return Answer(clipped(text), workspace=made.workspace, said=text.partition("\n")[0])


def built(result: BuildResult) -> str:
    """What an author wants to know of a build that went well."""
    found = len(_WARNING.findall(result.log_tail))
    again = ", as before (the same source was built already)" if result.cached else ""
    lines = [f"built in {result.seconds:.1f} s, {found or 'no'} warning{'' if found == 1 else 's'}{again}"]
    lines += resources(result.log_tail)
    if found:
        lines.append(words(result.log_tail))
    return "\n".join(lines)


def refused(result: BuildResult) -> str:
    """Why there is no object, in the compiler's words or in those of the rules that the source breaks."""
    heads = {
        BuildStatus.FAILED: "the compiler says no:",
        BuildStatus.TIMED_OUT: "the compiler took too long and was stopped; fewer or smaller templates help:",
        BuildStatus.REFUSED: "not accepted, whatever it computes:",
    }
    return clipped(f"{heads[result.status]}\n{words(result.log_tail)}")


def words(log: str) -> str:
    """Head and tail of a log, folders taken off the paths."""
    lines = _FOLDERS.sub("", log).strip().splitlines()
    if len(lines) <= MOST_LINES:
        return "\n".join(lines)
    last = MOST_LINES - FIRST_LINES
    left_out = f"[... {len(lines) - MOST_LINES} lines left out ...]"
    return "\n".join([*lines[:FIRST_LINES], left_out, *lines[-last:]])


def resources(log: str) -> list[str]:
    """What ptxas says of each kernel where the task's flags ask it to (-Xptxas -v)."""
    parts = _ENTRY.split(log)[1:]
    found = []
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        used, spills, shared = _USED.search(said), _SPILLS.search(said), _SHARED.search(said)
        if used is None:
            continue
        spilled = "not told" if spills is None else f"{spills['stores']} B stored, {spills['loads']} B loaded"
        found.append(
            f"{name[:60]}: {used['registers']} registers, spills {spilled}, shared memory "
            f"{shared['shared'] if shared else 0} B"
        )
    return found[:KERNELS_TOLD]
