"""One command's connection to the server: finds runs, asks them, and says in one line what went wrong."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from activities.connect import DEFAULT_ADDRESS, connect, is_guess
from activities.devserver import living_server
from activities.interpreter import command
from activities.settings import Settings
from activities.store import Store
from specs.errors import UserError
from specs.outcomes import Stage
from specs.plan import Plan
from workflows import visibility
from workflows.console.output import note
from workflows.console.pollers import Kind, no_worker, polled
from workflows.console.terminal import RunRow, status_of_result
from workflows.console.waiting import Notice, retrying
from workflows.state import HistoryLine, Phase, RunInput, RunResult, Status

T = TypeVar("T")

WORKFLOW = "OptimizationWorkflow"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# How the server says that nobody answered in time: a client's time limit reads as a cancel.
SILENT = {RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
PATIENCE_S = 10.0  # for an answer from a worker
CANCELLED = Phase.CANCELLED.value
LISTED = 1000  # runs looked at when an id is only begun, or not given


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the server knew it when it was last asked."""

    handle: WorkflowHandle[Any, Any]
    description: WorkflowExecutionDescription

    @property
    def id(self) -> str:
        return self.description.id

    @property
    def queue(self) -> str:
        return self.description.task_queue

    @property
    def state(self) -> str:
        """running, completed, failed, cancelled, terminated or timed out."""
        return state_word(self.description.status)

    @property
    def task(self) -> str:
        return self.description.typed_search_attributes.get(visibility.TASK) or ""

    @property
    def first_execution(self) -> str:
        """What its models' answers are kept under: a run that continued as new is several executions."""
        return self.description.raw_description.workflow_execution_info.first_run_id or self.description.run_id

    @property
    def cancelling(self) -> bool:
        """Somebody has asked for its cancellation, and it has not ended yet."""
        return self.description.raw_description.workflow_extended_info.cancel_requested

    @property
    def elapsed(self) -> timedelta:
        return (self.description.close_time or datetime.now(UTC)) - self.description.start_time


@dataclass(frozen=True, slots=True)
class Session:
    settings: Settings
    client: Client

    def store(self) -> Store:
        return Store.of(self.settings)

    async def describe(self, run_id: str) -> Run:
        """Raises RPCError (NOT_FOUND) without such an id, UserError when it is no run's."""
        handle = self.client.get_workflow_handle(run_id)
        description = await handle.describe()
        if description.workflow_type != WORKFLOW:
            raise UserError(
                f"{run_id!r} is a {description.workflow_type}, not a run; the runs: {command('client.py', 'list')}"
            )
        return Run(handle, description)

    async def find(self, given: str | None, *, steering: bool = False) -> Run:
        """The run that `given` names by id or unique beginning; None: the only one at work, else the newest.

        Steering never guesses: without an id it is the only run at work, or a UserError.
        """
        if given is None:
            return await self.describe(await self._meant(steering=steering))
        if RUN_ID.fullmatch(given):
            try:
                return await self.describe(given)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            if len(found := list(await self._ids(given))) == 1:
                return await self.describe(found[0])
            if found:
                raise UserError(
                    f"{given!r} is the beginning of {len(found)} runs ({shortened(found)}); give more of the id"
                )
        raise UserError(f"no run {given!r}; list the runs: {command('client.py', 'list')}")

    async def _meant(self, *, steering: bool) -> str:
        found = await self._ids()
        if not found:
            raise UserError(f"there is no run yet; start one: {command('client.py', 'start', 'TASK')}")
        running = [run_id for run_id, at_work in found.items() if at_work]
        if steering and not running:
            raise UserError(f"no run is at work; start one: {command('client.py', 'start', 'TASK')}")
        if steering and len(running) > 1:
            raise UserError(f"{len(running)} runs are at work ({shortened(running)}); say which")
        if len(found) == 1:
            chosen, why = next(iter(found)), "the only one"
        elif len(running) == 1:
            chosen, why = running[0], "the only one at work"
        else:
            chosen, why = next(iter(found)), "the most recent one"
        note(f"run {chosen} ({why})")
        return chosen

    async def _ids(self, beginning: str = "") -> dict[str, bool]:
        """Ids of the runs that begin so, newest first; the value says whether the run is at work."""
        query = f"WorkflowType = '{WORKFLOW}'" + (f" AND WorkflowId STARTS_WITH '{beginning}'" if beginning else "")
        found: dict[str, bool] = {}
        async for execution in self.client.list_workflows(query, limit=LISTED):
            at_work = execution.status is WorkflowExecutionStatus.RUNNING
            found[execution.id] = found.get(execution.id, False) or at_work
        return found

    async def rows(self) -> list[RunRow]:
        """Every run the server knows, newest first, ended ones too."""
        rows: dict[str, RunRow] = {}
        async for execution in self.client.list_workflows(f"WorkflowType = '{WORKFLOW}'", limit=LISTED):
            found = execution.typed_search_attributes
            row = RunRow(
                id=execution.id,
                task=found.get(visibility.TASK) or "",
                state=state_word(execution.status),
                phase=found.get(visibility.PHASE) or "",
                stage=found.get(visibility.STAGE) or "",
                champion=found.get(visibility.CHAMPION) or "",
                score=found.get(visibility.SCORE),
                iteration=found.get(visibility.ITERATION),
                tokens=found.get(visibility.TOKENS),
                usd=found.get(visibility.USD),
                started=execution.start_time,
            )
            # A run that continued as new is several executions under one id; the newest speaks for it.
            rows.setdefault(execution.id, row)
        return list(rows.values())

    async def status(self, run: Run) -> Status:
        """What the run says of itself; an ended run is read from its result when no worker can answer.

        Raises UserError when nobody can tell.
        """
        try:
            return await self.query(run, "status", Status)
        except UserError:
            if run.description.status is not WorkflowExecutionStatus.COMPLETED:
                raise
        result = await self.result(run)
        found = run.description.typed_search_attributes.get(visibility.STAGE)
        stage = Stage(found) if found in set(Stage) else Stage.REPRODUCE
        return status_of_result(run.id, (await self._input(run)).plan, result, stage)

    async def history(self, run: Run) -> list[HistoryLine]:
        return await self.query(run, "history", list[HistoryLine])

    async def result(self, run: Run) -> RunResult:
        """Raises WorkflowFailureError when the run ended in any other way than by itself."""
        result: RunResult = await self.client.get_workflow_handle(run.id, result_type=RunResult).result()
        return result

    async def _input(self, run: Run) -> RunInput:
        async for event in run.handle.fetch_history_events(page_size=1):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            given: list[RunInput] = await self.client.data_converter.decode(payloads, [RunInput])
            return given[0]
        raise UserError(f"the server has no history of run {run.id} left")

    async def query(self, run: Run, name: str, kind: type[T], *, patience_s: float = PATIENCE_S) -> T:
        """Answer of one of the workflow's queries; raises UserError when no worker answers."""
        if not await polled(self.client, run.queue, "workflow"):
            raise UserError(no_worker(run.queue))
        try:
            answer: T = await run.handle.query(name, result_type=kind, rpc_timeout=timedelta(seconds=patience_s))
        except WorkflowQueryFailedError as error:
            raise UserError(f"run {run.id} cannot answer {name!r}: {first_line(error)}") from None
        except RPCError as error:
            if error.status in SILENT:
                raise UserError(f"no worker answered; {no_worker(run.queue)}") from None
            raise
        return answer

    async def update(self, run: Run, name: str, *arguments: Any) -> Status:
        """Send a validated update; raises UserError with the validator's own sentence when the run refuses it."""
        verb = name.replace("_", " ")
        self.need_running(run, verb)
        if not await polled(self.client, run.queue, "workflow"):
            raise UserError(no_worker(run.queue))
        try:
            # The SDK asks again and again by itself for as long as nobody has taken the update up.
            async with asyncio.timeout(PATIENCE_S):
                answer: Status = await run.handle.execute_update(name, args=arguments, result_type=Status)
        except WorkflowUpdateFailedError as error:
            raise UserError(first_line(error)) from None
        except (TimeoutError, RPCTimeoutOrCancelledError):
            raise UserError(f"no worker answered; {no_worker(run.queue)}") from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise UserError(f"run {run.id} has just ended; {verb} needs a running one") from None
            if error.status in SILENT:
                raise UserError(f"no worker answered; {no_worker(run.queue)}") from None
            raise
        return answer

    def need_running(self, run: Run, verb: str) -> None:
        if run.state != "running":
            raise UserError(f"run {run.id} has ended ({run.state}); {verb} needs a running one")

    async def unserved(self, run: Run, plan: Plan) -> list[str]:
        """The queues that this run needs and that nobody polls."""
        kinds: tuple[tuple[str, Kind], ...] = ((run.queue, "workflow"), (plan.queue, "activity"))
        return [queue for queue, kind in kinds if not await polled(self.client, queue, kind)]

    async def notice(self, run: Run, status: Status) -> Notice | None:
        """Why a running run does not get on, if it does not: a step that fails again and again, or a missing worker."""
        pending = list(run.description.raw_description.pending_activities)
        for child in run.description.raw_description.pending_children:
            with suppress(RPCError):  # it has just ended
                described = await self.client.get_workflow_handle(child.workflow_id).describe()
                pending += described.raw_description.pending_activities
        if (found := retrying(pending, datetime.now(UTC))) is not None:
            return found
        missing = await self.unserved(run, status.plan) if status.phase is not Phase.PAUSED else []
        return Notice(no_worker(*missing)) if missing else None

    def ui(self, run_id: str | None = None) -> str:
        """Address of a run, or of the list of all, in the Temporal UI."""
        address = self.client.service_client.config.target_host
        host = address.rpartition(":")[0] or address
        embedded = living_server(self.settings)
        if host.endswith((".tmprl.cloud", ".temporal.io")):
            base = "https://cloud.temporal.io"
        elif embedded is not None and embedded.address == address:
            base = embedded.ui
        else:
            base = os.environ.get("FERRET_UI") or f"http://{host}:8233"
        page = f"{base.rstrip('/')}/namespaces/{quote(self.client.namespace, safe='')}/workflows"
        return f"{page}/{quote(run_id, safe='')}" if run_id else page


def state_word(status: WorkflowExecutionStatus | None) -> str:
    if status is WorkflowExecutionStatus.CANCELED:
        return CANCELLED  # as a run's phase spells it
    return status.name.lower().replace("_", " ") if status is not None else "unknown"


def shortened(run_ids: list[str]) -> str:
    return ", ".join(run_ids[:5]) + (", ..." if len(run_ids) > 5 else "")


def first_line(error: BaseException | None) -> str:
    """The innermost sentence of a failure, without the wrappers that Temporal puts round it."""
    while (cause := getattr(error, "cause", None)) is not None:
        error = cause
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@lru_cache(maxsize=1)
def quiet_core() -> None:
    """Keep the SDK's own log off standard output, where it would stand among a command's results."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)


def talk(body: Callable[[Session], Awaitable[T]]) -> T:
    """Connect, run `body`, and turn what the server says into one line."""

    quiet_core()

    async def whole() -> T:
        settings = Settings.from_env()
        session = Session(settings, await connect(settings))
        if is_guess(settings):
            note(f"no embedded server in {settings.home}; using {DEFAULT_ADDRESS}")
        try:
            return await body(session)
        except RPCError as error:
            raise UserError(f"the Temporal server answered {error.status.name.lower()}: {first_line(error)}") from None

    return asyncio.run(whole())
