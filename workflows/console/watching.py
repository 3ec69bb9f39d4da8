"""Draw a run while it works, and its result when it has ended."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Protocol

from rich.live import Live
from rich.spinner import Spinner
from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from specs.errors import UserError
from workflows.console.lines import events
from workflows.console.output import draw, note, out, say
from workflows.console.session import CANCELLED, Run, Session, first_line
from workflows.console.terminal import accepted, history_table, result_view, run_view
from workflows.console.waiting import Notice
from workflows.iteration import IterationStep
from workflows.state import HistoryLine, Phase, Status

EXIT_ACCEPTED, EXIT_NO_KERNEL, EXIT_INTERRUPTED = 0, 1, 130
LOOK_S = 0.5  # between two looks at a run
STEP_PATIENCE = timedelta(seconds=2)

# What the server's absence looks like: it may come back, and the run with it.
_AWAY = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}


class Screen(Protocol):
    """Where a watched run is drawn."""

    def show(self, run: Run, status: Status, history: list[HistoryLine], notice: Notice | None) -> None: ...

    def close(self) -> None: ...


class LiveScreen:
    """A terminal: one picture, drawn over and over."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots", style="cyan")  # kept, so that it turns on from one picture to the next
        self._live = Live(console=out, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, run: Run, status: Status, history: list[HistoryLine], notice: Notice | None) -> None:
        room = max(3, out.height - 18 - len(status.plan.configs))
        self._live.update(
            run_view(
                status,
                history,
                elapsed=run.elapsed,
                spinner=self._spinner,
                notice=notice,
                last=room,
                width=out.width,
            )
        )

    def close(self) -> None:
        self._live.stop()


class LineScreen:
    """A pipe or a log: one plain line an event."""

    def __init__(self) -> None:
        self._before: Status | None = None
        self._told = 0
        self._reason: str | None = None

    def show(self, run: Run, status: Status, history: list[HistoryLine], notice: Notice | None) -> None:
        for line in events(self._before, status, history[self._told :]):
            say(line)
        if notice and notice.reason != self._reason:
            say(str(notice))
            self._reason = notice.reason  # kept while a next attempt is at work: it is the same trouble
        self._before, self._told = status, len(history)

    def close(self) -> None:
        pass


class Look:
    """What is known of a run, refreshed as far as server and worker answer."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session = session
        self.run = run
        self.status: Status | None = None
        self.history: list[HistoryLine] = []
        self.notice: Notice | None = None

    async def refresh(self) -> None:
        self.notice = None
        try:
            # Described before it is asked: an end seen here is then in the answers below.
            self.run = await self._session.describe(self.run.id)
            self.status = await self._with_steps(await self._session.query(self.run, "status", Status, patience_s=5))
            if self.status.wins + self.status.attempts != len(self.history):
                self.history = await self._session.history(self.run)
            self.notice = await self._session.notice(self.run, self.status)
        except UserError as error:
            self.notice = Notice(str(error))
        except RPCError as error:
            if error.status not in _AWAY:
                raise
            self.notice = Notice("the Temporal server does not answer; waiting for it")

    async def _with_steps(self, status: Status) -> Status:
        """The run knows which iterations are at work; what each is doing, only the iteration itself knows."""
        if status.phase not in (Phase.ITERATING, Phase.STOPPING):
            return status
        steps, charge = [], status.charge
        for index in range(status.iteration, status.iteration + status.plan.search.width):
            child = self._session.client.get_workflow_handle(f"{status.run_id}/iter-{index:03d}")
            try:
                step: IterationStep = await child.query("step", result_type=IterationStep, rpc_timeout=STEP_PATIENCE)
            except (RPCError, WorkflowQueryFailedError):
                continue  # not started yet, ended just now, or its worker is gone: the next look will tell
            steps.append(f"iteration {index:03d}: {step.step}{f' {step.label}' if step.label else ''}")
            charge += step.charge
        return status.model_copy(update={"activity": "; ".join(steps), "charge": charge}) if steps else status


async def watch_to_end(session: Session, run: Run) -> int:
    """Draw the run until it has ended, then its result; gives the exit code."""
    live = out.is_terminal and not out.is_dumb_terminal
    screen: Screen = LiveScreen() if live else LineScreen()
    look, told = Look(session, run), False
    try:
        while True:
            await look.refresh()
            if look.status is not None:
                screen.show(look.run, look.status, look.history, look.notice)
            elif look.notice and not told:
                note(str(look.notice))
                told = True
            if look.run.state != "running":
                break
            await asyncio.sleep(LOOK_S)
    finally:
        screen.close()
    return await show_end(session, look.run, look.history if live else [])


async def show_end(session: Session, run: Run, history: list[HistoryLine]) -> int:
    """Print how an ended run ended; gives the exit code."""
    outcome, reason = run.state, ""
    try:
        result = await session.result(run)
        outcome, reason = result.outcome, result.reason
    except WorkflowFailureError as error:
        reason = first_line(error.cause)
    if history:
        draw(history_table(history, width=out.width))
        out.print()
    try:
        status = await session.status(run)
    except UserError as error:
        say(f"{outcome}: {reason}")
        note(str(error), warning=True)
        return EXIT_INTERRUPTED if run.state == CANCELLED else EXIT_NO_KERNEL
    draw(result_view(status, outcome, reason, ui=session.ui(run.id), width=out.width))
    if run.state == CANCELLED:
        return EXIT_INTERRUPTED
    return EXIT_ACCEPTED if run.state == "completed" and accepted(status) else EXIT_NO_KERNEL
