"""What this version can run: asked by a client before it starts a run, and once more by the worker."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from activities.devices import detect
from kernels.harness import toolchain
from specs.errors import UserError
from specs.schema import Harness, Language, Provider, Task

Location = tuple[str | int, ...]
PROVIDERS = (Provider.SCRIPTED,)


def obstacles(task: Task) -> Iterator[tuple[Location, str]]:
    """Why this version cannot run the task, on this machine's packages: fields, and what is accepted there."""
    if not buildable(task):
        accepted = ", ".join(sorted(language.value for language in toolchain.TOOLCHAINS))
        yield ("language",), f"{task.language.value!r} cannot be built by this version; accepted: {accepted}"
        return  # the rest is about a build
    yield from _unreported(task) if task.harness is Harness.SELF_CONTAINED else _ungated(task)
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


def _ungated(task: Task) -> Iterator[tuple[Location, str]]:
    """What a task lacks to be judged and timed."""
    if task.gate is None:
        yield (
            ("gate",),
            "none given; a gate folder is needed: this version does not write gates (a program with its own main and "
            "reference runs with harness: self_contained)",
        )
    if task.interface is None:
        yield ("interface",), "none given; the function that every candidate exports is needed"
    if task.baseline.program is None:
        yield ("baseline", "program"), "none given; a source file to time against is needed"


def _unreported(task: Task) -> Iterator[tuple[Location, str]]:
    """Why a program could not report on itself. It has a reference and a baseline of its own and needs none of ours."""
    if task.language is Language.TRITON:
        yield ("language",), "'triton' given; a self_contained program is one with a main: cpp or cuda"
    names = {config.name for config in task.configs}
    if strangers := [key for key in task.output.result_keys if key not in names]:
        accepted = ", ".join(sorted(names)[:12])
        yield ("output", "result_keys"), f"{strangers[0]!r} is the name of no config; accepted: {accepted}"


def buildable(task: Task) -> bool:
    return task.language in toolchain.TOOLCHAINS


def refuse_unrunnable(task: Task) -> None:
    """Raises UserError for a task that this version, or this machine, cannot run."""
    for at, message in obstacles(task):
        raise UserError(f"{'.'.join(map(str, at))}: {message}")


def need_device(task: Task) -> None:
    """Raises UserError when the task needs a GPU that this machine has not, or not what makes use of it.

    A C++ task is told by the queue that nobody polls.
    """
    if task.language is Language.CPP:
        return
    kinds = sorted({device.kind for device in detect()})
    if task.gpu.strip().lower() not in kinds:
        raise UserError(
            f"gpu: {task.gpu!r} is not in this machine, and {_why(task)}; this machine has: {', '.join(kinds)}"
        )
    if task.harness is Harness.SELF_CONTAINED:
        return
    if not _installed("cuda.bindings"):
        raise UserError(
            f"gpu: {task.gpu!r} is here, but not the package cuda-bindings, which judging on it needs: "
            "pip install 'ferret[cuda]'"
        )
    toolchain.toolchain_for(Language.CUDA).find()  # the gate has kernels of its own


def _why(task: Task) -> str:
    """Why a GPU is needed."""
    if task.harness is Harness.SELF_CONTAINED:
        return f"a {task.language.value} program must run to report"
    if task.language is Language.TRITON:
        return "a triton kernel can be judged without it (python -m kernels.harness verify) but not timed"
    return f"a {task.language.value} kernel must run to be judged and timed"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def need_compiler(task: Task) -> None:
    """Raises UserError when this machine lacks what builds the task's language, or its baseline's."""
    toolchain.toolchain_for(task.language).find()
    if task.harness is Harness.GATE:
        suffix = Path(task.baseline.program or "").suffix
        for language in Language:
            if language.suffix == suffix:
                toolchain.toolchain_for(language).find()
