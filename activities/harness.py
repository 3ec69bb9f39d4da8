"""Talk to the trusted harness: one request, one process, one reply. Nothing of it is imported but the types."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from temporalio import activity

from activities.devices import LocalDevice, visible_to
from activities.process import Completed, clean_environment, has_ended, run_process
from activities.settings import Settings
from kernels.harness.requests import Build, Inspect, Refusal, Reply, Request
from specs import errors

COMMAND = (sys.executable, "-m", "kernels.harness", "serve")
PROJECT = Path(__file__).parents[1]

ResultT = TypeVar("ResultT")


class Refused(errors.FerretError):
    """The harness gave no outcome; carries what it said about why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Unanswered(errors.FerretError):
    """The gate process ended by itself and left no reply: whoever did that will most likely do it again.

    `name` is what such an end comes to when it stays so: a class name in specs.errors, or InternalError.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class Harness:
    """The gate process as a function from a request to a result."""

    def __init__(
        self, settings: Settings, command: Sequence[str] = COMMAND, devices: Sequence[LocalDevice] = ()
    ) -> None:
        """`devices` are those whose queues this worker polls."""
        self._settings = settings
        self._command = tuple(command)
        self._devices = tuple(devices)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A private folder for one request, its reply and what it leaves behind."""
        folder = new_work_folder(self._settings)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def ask(self, request: Request, expected: type[ResultT], folder: Path) -> ResultT:
        """Raises Refused when the harness refuses, RunnerLost when it is killed, Unanswered when it ends by itself.

        Inside an activity, the process sees no GPU but that of the activity's queue; a build or a listing needs none.
        """
        request_path, reply_path = folder / "request.json", folder / "reply.json"
        request_path.write_text(request.model_dump_json())
        environment = clean_environment() if isinstance(request, Build | Inspect) else self.environment()
        done = await run_process([*self._command, request_path, reply_path], cwd=PROJECT, env=environment)
        try:
            reply = Reply.model_validate_json(reply_path.read_bytes())
        except (OSError, ValidationError):
            raise _no_reply(request.kind, done) from None
        if reply.refusal is not None:
            raise Refused(reply.refusal)
        if not isinstance(reply.result, expected):
            raise errors.RunnerLost(f"the gate process answered '{request.kind}' with {type(reply.result).__name__}")
        return reply.result

    def environment(self) -> dict[str, str]:
        """Ours without secrets, and of this machine's GPUs just that of the activity's queue: the first one seen."""
        queue = activity.info().task_queue if activity.in_activity() else ""
        seen = visible_to(queue, self._devices)
        return clean_environment() | ({} if seen is None else {"CUDA_VISIBLE_DEVICES": seen})


def _no_reply(kind: str, done: Completed) -> errors.FerretError:
    last = (done.tail.strip().splitlines()[-1:] or ["it wrote nothing"])[0][:500]
    what = f"the gate process ended with status {done.code} and without a reply to '{kind}'"
    # 128 + n is signal n; a reply that did not fit on the disk is the machine's trouble too.
    if done.code >= 128 or last.startswith(("OSError", "MemoryError")):
        return errors.RunnerLost(f"{what}: {last}")
    if kind in ("build", "run_program", "inspect"):  # nothing of the gate is loaded for these
        return Unanswered(f"{what}; the harness ended it: {last}", "InternalError")
    return Unanswered(f"{what}; reference.py or the harness ended it: {last}", errors.GateError.__name__)


def new_work_folder(settings: Settings) -> Path:
    """Named after this process, so that a later worker knows whose leftovers are whose."""
    settings.work.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=settings.work, prefix=f"{os.getpid()}-"))


def sweep_work_folders(settings: Settings) -> None:
    """Remove what workers that were killed left behind; to be called before this process makes a folder of its own."""
    for folder in settings.work.glob("*-*"):
        owner = folder.name.partition("-")[0]
        # In a container that starts again, the next worker often has the number of the one before.
        if owner.isdigit() and (int(owner) == os.getpid() or has_ended(int(owner))):
            shutil.rmtree(folder, ignore_errors=True)
