"""What this version can run: asked by a client before it starts a run, and once more by the worker."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from activities import tune
from activities.devices import detect
from activities.settings import Settings
from kernels.harness import toolchain
from specs.errors import UserError
from specs.schema import Harness, Language, Provider, Task

Location = tuple[str | int, ...]
# What a provider needs beside the package anthropic: a module, what is installed for it, and the extra that does it.
PACKAGES = {
    Provider.BEDROCK: ("boto3", "boto3", "bedrock"),
    Provider.VERTEX: ("google.auth", "google-auth", "vertex"),
    Provider.TUNE: ("optuna", "optuna", "tune"),
}


def obstacles(task: Task, folder: Path | None = None) -> Iterator[tuple[Location, str]]:
    """Why this version cannot run the task, on this machine's packages: fields, and what is accepted there.

    `folder` is what the task's paths are relative to; a bundle's are absolute. No key of a model has to be there.
    """
    if not buildable(task):
        accepted = ", ".join(sorted(language.value for language in toolchain.TOOLCHAINS))
        yield ("language",), f"{task.language.value!r} cannot be built by this version; accepted: {accepted}"
        return  # the rest is about a build
    yield from _unreported(task) if task.harness is Harness.SELF_CONTAINED else _ungated(task)
    yield from _unreached(task)
    yield from _unreadable(task, folder)
    if task.model.provider is Provider.TUNE and (untunable := tune.obstacle(task, folder)) is not None:
        yield ("seed",), untunable
    if (unpriced := _unpriced(task)) is not None:
        yield ("budget", "max_usd"), unpriced
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
    provider = task.model.provider
    if task.gate is None and not (provider.is_model or provider is Provider.REPLAY):
        yield (
            ("gate",),
            f"none given; a gate folder is needed: provider {provider.value!r} writes none (a program with its own "
            "main and reference runs with harness: self_contained)",
        )
    elif task.gate is None and not task.canonical:
        yield (
            ("gate",),
            "none given; accepted: a gate folder, or canonical: the files that say what is right, from which a gate is "
            "written (a program with its own main and reference runs with harness: self_contained)",
        )
    elif task.gate is None and task.model.reviewer is None and not task.approve_gate:
        yield (
            ("gate",),
            "none given, and nobody would look at the one that is written; accepted: a model.reviewer, or "
            "approve_gate: true",
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


def _unreached(task: Task) -> Iterator[tuple[Location, str]]:
    """What stands between the task and its provider, keys aside."""
    from activities.llm.profiles import address_problem

    provider = task.model.provider
    if provider in PACKAGES:
        module, package, extra = PACKAGES[provider]
        if not _installed(module):
            yield (
                ("model", "provider"),
                f"{provider.value!r} needs the package {package}: pip install 'ferret[{extra}]'",
            )
    if (problem := address_problem(task.model)) is not None:
        yield ("model", "base_url"), problem


def _unreadable(task: Task, folder: Path | None) -> Iterator[tuple[Location, str]]:
    """A recording that cannot be played; one that is not there is told with the other files."""
    if task.model.provider is not Provider.REPLAY or task.model.recording is None:
        return
    from activities.llm.replay import read_recording

    path = (folder or Path()) / task.model.recording
    if (folder is not None or path.is_absolute()) and path.is_file():
        try:
            read_recording(path.read_bytes())
        except UserError as error:
            yield ("model", "recording"), f"{task.model.recording}: {error}"


def _unpriced(task: Task) -> str | None:
    """Why a limit in USD could not be kept; raises UserError for a price file that cannot be used."""
    model = task.model
    if task.budget.max_usd is None or not model.provider.is_model or model.provider is Provider.LOCAL:
        return None
    from activities.llm.prices import Prices, known

    prices = Prices.of(Settings.from_env())
    asked = (model.optimizer, model.reviewer, model.gate_writer if task.gate is None else None)
    names = dict.fromkeys(name for name in asked if name is not None and not known(name, free=False, prices=prices))
    if not names:
        return None
    return (
        f"{task.budget.max_usd:g} USD cannot be kept: nobody knows the price of {', '.join(names)}; accepted: "
        "max_tokens instead, or its prices in the file that FERRET_PRICES names, here and at the worker"
    )


def refuse_unpriced(task: Task) -> None:
    """Raises UserError when budget.max_usd cannot be kept: for a limit or a model that the command line gives."""
    if (unpriced := _unpriced(task)) is not None:
        raise UserError(f"budget.max_usd: {unpriced}")


def need_model(task: Task, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raises UserError when this environment, the worker's, lacks what its models need: a key, a region, prices."""
    if task.model.provider.is_model:
        from activities.llm.prices import Prices
        from activities.llm.profiles import reached

        reached(task.model, environ)
        Prices.of(settings)


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
