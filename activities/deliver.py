"""Deliver: the best kernel, its figures and a report, as files for people and as blobs for everyone else."""

from __future__ import annotations

import asyncio
import platform
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel
from temporalio import activity

from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.report import render
from activities.store import write_atomically
from activities.summary import RunSummary
from activities.workshop import Workshop
from specs.outcomes import BlobRef, Value
from specs.schema import Language

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # a few small files
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)


class DeliverInput(Value):
    language: Language
    summary: RunSummary


class DeliverResult(Value):
    folder: str
    files: dict[str, BlobRef]
    record: str


class Versions(BaseModel):
    ferret: str
    python: str
    system: str


class ResultFile(BaseModel):
    """result.json."""

    format: int = 1
    versions: Versions
    summary: RunSummary


class Delivering:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="deliver")
    async def deliver(self, given: DeliverInput) -> DeliverResult:
        async with at_work():
            summary = given.summary
            files = {
                "result.json": _result(summary).model_dump_json(indent=2).encode() + b"\n",
                "report.html": (await asyncio.to_thread(render, summary)).encode(),
            }
            if summary.champion is not None:
                files[f"kernel{given.language.suffix}"] = await self._workshop.store.get(summary.champion.source)
            blobs = {name: await self._workshop.store.put(content) for name, content in sorted(files.items())}
            run = self._workshop.settings.run_folder(summary.run_id)
            await asyncio.to_thread(_write, run / "delivered", files)
            return DeliverResult(folder=str(run / "delivered"), files=blobs, record=str(run / "record"))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        write_atomically(folder / name, content)
    for path in folder.iterdir():
        # A kernel that an earlier run of the same id delivered must not pass for this one's.
        if path.name not in files and path.name.startswith("kernel."):
            path.unlink()


def _result(summary: RunSummary) -> ResultFile:
    versions = Versions(ferret=version("ferret"), python=platform.python_version(), system=platform.platform())
    return ResultFile(versions=versions, summary=summary)
