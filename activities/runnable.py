"""What this version can run: asked by a client before it starts a run, and once more by the worker."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.harness import toolchain
from specs.errors import UserError
from specs.schema import Harness, Provider, Task

Location = tuple[str | int, ...]
PROVIDERS = (Provider.SCRIPTED,)


def obstacles(task: Task) -> Iterator[tuple[Location, str]]:
    """Why this version cannot run the task, on this machine's packages: fields, and what is accepted there."""
    if not buildable(task):
        accepted = ", ".join(sorted(language.value for language in toolchain.TOOLCHAINS))
        yield ("language",), f"{task.language.value!r} cannot be built by this version; accepted: {accepted}"
        return  # the rest is about a build
    if task.harness is not Harness.GATE:
        yield ("harness",), f"{task.harness.value!r} is not available in this version; accepted: {Harness.GATE.value}"
        return  # the rest is about a gate
    if task.gate is None:
        yield ("gate",), "none given; a gate folder is needed: this version does not write gates"
    if task.interface is None:
        yield ("interface",), "none given; the function that every candidate exports is needed"
    if task.baseline.program is None:
        yield ("baseline", "program"), "none given; a source file to time against is needed"
    if task.model.provider not in PROVIDERS:
        accepted = ", ".join(provider.value for provider in PROVIDERS)
        given = task.model.provider.value
        yield ("model", "provider"), f"{given!r} is not available in this version; accepted: {accepted}"
    for at, flags in (
        (("build", "flags"), task.build.flags),
        (("build", "production_flags"), task.build.production_flags),
        (("baseline", "flags"), task.baseline.flags),
    ):
        try:
            toolchain.expand(flags)
        except UserError as error:
            yield at, str(error)


def buildable(task: Task) -> bool:
    return task.language in toolchain.TOOLCHAINS


def refuse_unrunnable(task: Task) -> None:
    """Raises UserError for a task that this version, or this machine, cannot run."""
    for at, message in obstacles(task):
        raise UserError(f"{'.'.join(map(str, at))}: {message}")


def need_compiler(task: Task) -> None:
    """Raises UserError when this machine lacks what builds the task's language."""
    toolchain.toolchain_for(task.language).find()
