"""What a run of many iterations costs in tokens, USD and history, with a fake model that does the same work in each.

    python -m benchmarks.run_cost [--iterations 60] [--out FILE]

Temporal, workflows, activities, prompts, tools and the Anthropic SDK are real. The Messages server and the harness are
those of the tests; the server counts four bytes a token and matches prefixes by itself. Exit code 1 when the last
iteration takes more than 1.3 times the tokens of the tenth, less than 70% of the input was read from the cache, or a
turn with its tool call has more than 14 events or 4,000 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.bundle import pack
from activities.devices import Claims, LocalDevice
from activities.harness import Harness, ResultT
from activities.settings import Settings
from activities.store import Store
from activities.workshop import Workshop
from benchmarks import cost_story
from kernels.harness.requests import Reply, Request
from specs.history import HistoryLine
from specs.loader import LoadedTask, load_task
from specs.outcomes import Charge, Role
from specs.plan import Plan
from tests import fake_messages
from tests.fake_messages import Asked, tokens_of
from tests.fake_models import role_of, serving
from tests.fakes import settings_at
from worker import WORKFLOWS, device_activities, plan_activities
from workflows import visibility
from workflows.optimization import OptimizationWorkflow
from workflows.state import RunInput, RunResult

SMALL, LARGE = 6_000, 300_000  # bytes of a kernel
LARGE_ITERATIONS = 8  # all kinds of them: research and the pivot, which writes the whole kernel, too
EVENTS_LIMIT = 400  # of the run's own history, so that it continues as new several times
PIECE = 4_000  # characters of a delta: small ones would only take the client's time
GROWTH, CACHED = 1.3, 0.7
MOST_EVENTS, MOST_BYTES = 14, 4_000


@dataclass(frozen=True, slots=True)
class Played:
    """A run that is over."""

    lines: Sequence[HistoryLine]  # the first one is the seed's, without a conversation
    result: RunResult
    requests: Sequence[Asked]
    turns: Sequence[tuple[int, int]]  # events and bytes of each turn with its one tool call
    executions: int  # of the run itself: one more than it continued as new
    own_events: int  # in all of them

    @property
    def asked(self) -> list[Charge]:
        """What each iteration's models cost."""
        return [line.charge for line in self.lines if line.charge is not None]


# ---------------------------------------------------------------- the run


class InThisProcess(Harness):
    """The fake harness without a process for every question: starting one takes longer than all the rest."""

    async def ask(self, request: Request, expected: type[ResultT], folder: Path) -> ResultT:
        answered = cost_story.answer(request.model_dump(mode="json"))
        result = Reply.model_validate({"result": answered}).result
        assert isinstance(result, expected)
        return result


async def play(client: Client, folder: Path, iterations: int, *, size: int = SMALL, brief: bool = False) -> Played:
    """The seed and so many iterations after it, with a kernel of so many bytes."""
    talks = cost_story.model(iterations, size, brief=brief)
    unique = f"cost{uuid.uuid4().hex[:8]}"
    loaded = _task(folder, unique, iterations, size)
    plan = Plan.of(loaded.task, loaded.digest)
    settings = settings_at(folder / "home")
    with pytest.MonkeyPatch.context() as environment:
        environment.setattr(fake_messages, "PIECE", PIECE)
        async with serving(environment, talks) as server, _workers(client, settings, plan):
            handle = await client.start_workflow(
                OptimizationWorkflow.run,
                RunInput(
                    plan=plan,
                    bundle=await pack(loaded, Store.of(settings)),
                    sandbox="off",
                    history_events_limit=EVENTS_LIMIT,
                ),
                id=f"run-{unique}",
                task_queue=unique,
            )
            result = await handle.result()
            lines = await handle.query(OptimizationWorkflow.history)
    if [line.ending for line in lines] != cost_story.endings(iterations):
        # Whatever it cost, it was for other work.
        raise RuntimeError("\n".join([result.reason, *(f"{line.index} {line.ending} {line.reason}" for line in lines)]))
    own = [events async for events in _own(client, handle.id)]
    children = [await _events(client, f"{handle.id}/iter-{line.index:03d}") for line in lines]
    turns = [turn for events in children for turn in _turns(events)]
    return Played(lines, result, server.requests, turns, len(own), sum(map(len, own)))


@asynccontextmanager
async def _workers(client: Client, settings: Settings, plan: Plan) -> AsyncIterator[None]:
    device = LocalDevice(kind=plan.gpu, queue=f"device-{plan.gpu}", description="no device")
    workshop = Workshop(settings)
    workshop.harness = InThisProcess(settings)
    claims = Claims(settings, (device,))
    async with AsyncExitStack() as stack:
        for worker in (
            Worker(
                client,
                task_queue=plan.gpu,
                workflows=WORKFLOWS,
                workflow_runner=UnsandboxedWorkflowRunner(),  # a sandbox for each iteration takes longer than the rest
                workflow_failure_exception_types=[Exception],
            ),
            Worker(client, task_queue=plan.queue, activities=plan_activities(workshop, claims)),
            Worker(client, task_queue=device.queue, activities=device_activities(workshop, claims)),
        ):
            await stack.enter_async_context(worker)
        yield


def _task(folder: Path, gpu: str, iterations: int, size: int) -> LoadedTask:
    """A shipped task with another seed and another model; what it names stands where it stood."""
    place = folder / "specs" / "tasks"
    place.mkdir(parents=True)
    for shared in ("kernels", "docs"):
        (folder / shared).symlink_to(cost_story.ROOT / shared)
    (place / "seed.cpp").write_text(cost_story.source(-1, cost_story.fate(-1), size))
    shipped = yaml.safe_load(cost_story.TASK.read_text())
    del shipped["baseline"]["flags"]  # nothing is compiled, and to find the package takes seconds
    fields = shipped | {
        "gpu": gpu,
        "seed": "seed.cpp",
        # A large kernel is longer than a conversation is meant to be; it shall not begin anew.
        "model": {"provider": "anthropic", "context_tokens": 1_000_000},
        "search": {"min_gain": 0.01, "stall_after": cost_story.STALL_AFTER},
        "budget": {"max_iterations": iterations + 1, "max_wall_minutes": 600},
    }
    (place / "task.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    return load_task(place / "task.yaml")


# ---------------------------------------------------------------- histories


async def _events(client: Client, workflow: str, run_id: str | None = None) -> list[HistoryEvent]:
    return list((await client.get_workflow_handle(workflow, run_id=run_id).fetch_history()).events)


async def _own(client: Client, workflow: str) -> AsyncIterator[list[HistoryEvent]]:
    """The history of every execution of the run, the newest one first."""
    run_id: str | None = None
    while run_id != "":
        events = await _events(client, workflow, run_id)
        yield events
        run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id


def _turns(events: Sequence[HistoryEvent]) -> Iterator[tuple[int, int]]:
    """From the moment that a turn is scheduled to the moment that the next one is, where one tool was called."""
    names = {event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name for event in events}
    scheduled = [(at, names[event.event_id]) for at, event in enumerate(events) if names[event.event_id]]
    for (first, turn), (_, tool), (after, next_turn) in zip(scheduled, scheduled[1:], scheduled[2:], strict=False):
        if turn == next_turn == "model_turn" and tool != "model_turn":
            piece = events[first:after]
            yield len(piece), sum(event.ByteSize() for event in piece)


# ---------------------------------------------------------------- figures


def cached(charges: Sequence[Charge]) -> float:
    """The share of what the models read that the server had kept."""
    read = sum(one.cache_read_tokens for one in charges)
    return read / sum(one.input_tokens + one.cache_read_tokens + one.cache_write_tokens for one in charges)


def growth(charges: Sequence[Charge], early: int) -> float:
    """Tokens of the last iteration over those of number `early`, from 1; both have to have done the same work."""
    return charges[-1].tokens / charges[early - 1].tokens


def tables(played: Played, large: Played, every: int = cost_story.PERIOD) -> str:
    return "\n".join([*_costs(played, every), "", *_histories(played, large), "", *_typical(played.requests)])


def _costs(played: Played, every: int) -> Iterator[str]:
    charges = played.asked
    yield "| iterations | uncached | cached | written | out | all tokens | cached share | USD |"
    yield "|---|---|---|---|---|---|---|---|"
    for number in range(every, len(charges) + 1, every):
        yield _cost(str(number), [charges[number - 1]])
    for number in range(every, len(charges) + 1, every):
        yield _cost(f"mean of {number - every + 1} to {number}", charges[number - every : number])
    yield _cost(f"mean of all {len(charges)}", charges)


def _cost(name: str, charges: Sequence[Charge]) -> str:
    def mean(field: str) -> str:
        return f"{fmean(getattr(one, field) for one in charges):,.0f}"

    fields = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "tokens")
    usd = [one.usd for one in charges if one.usd is not None]
    price = f"{fmean(usd):.3f}" if len(usd) == len(charges) else "unknown"
    return f"| {name} | {' | '.join(map(mean, fields))} | {cached(charges):.1%} | {price} |"


def _histories(played: Played, large: Played) -> Iterator[str]:
    yield "| a turn with its one tool call | turns | events, mean | events, most | bytes, mean | bytes, most |"
    yield "|---|---|---|---|---|---|"
    for size, one in ((SMALL, played), (LARGE, large)):
        events, bytes_ = zip(*one.turns, strict=True)
        yield (
            f"| kernel of {size // 1_000} kB | {len(events)} | {fmean(events):.1f} | {max(events)} | "
            f"{fmean(bytes_):,.0f} | {max(bytes_):,} |"
        )


def _typical(requests: Sequence[Asked]) -> Iterator[str]:
    yield "| conversations of | how many | turns | tools and system | first message | said a turn | answered a turn |"
    yield "|---|---|---|---|---|---|---|"
    for role in (Role.OPTIMIZER, Role.REVIEWER):
        asked = [one for one in requests if role_of(one) is role]
        opened = [one for one in asked if one.turns == 0]
        later = [one for one in asked if one.turns]
        shared = fmean(sum(map(tokens_of, [*one.body["tools"], *one.body["system"]])) for one in opened)
        yield (
            f"| {role.value} | {len(opened)} | {len(asked) / len(opened):.1f} | {shared:,.0f} | "
            f"{fmean(tokens_of(one.messages[0]) for one in opened):,.0f} | "
            f"{fmean(tokens_of(one.messages[-2]) for one in later):,.0f} | "
            f"{fmean(tokens_of(one.messages[-1]) for one in later):,.0f} |"
        )


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60, help="after the seed (default 60)")
    parser.add_argument("--out", type=Path, help="also write the tables here")
    given = parser.parse_args()
    if given.iterations < 1 or given.iterations % cost_story.PERIOD:
        parser.error(f"--iterations: {given.iterations} given; accepted: a multiple of {cost_story.PERIOD}")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        async with await WorkflowEnvironment.start_local(
            data_converter=pydantic_data_converter,
            search_attributes=visibility.KEYS,
            dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
            dev_server_startup_timeout=timedelta(seconds=60),
        ) as environment:
            played = await play(environment.client, Path(folder) / "small", given.iterations)
            large = await play(environment.client, Path(folder) / "large", LARGE_ITERATIONS, size=LARGE)
    told = tables(played, large)
    grown, share = growth(played.asked, cost_story.PERIOD), cached(played.asked)
    ends = ", ".join(f"{count} {end}" for end, count in Counter(line.ending.value for line in played.lines).items())
    told += (
        f"\n\nIteration {len(played.asked)} over iteration {cost_story.PERIOD}: {grown:.3f}; cached {share:.1%}; "
        f"{played.result.charge.calls} calls, {played.result.charge.usd:.2f} USD. Endings: {ends}. The run's own "
        f"history: {played.own_events} events in {played.executions} executions.\n"
    )
    print(told)
    if given.out:
        given.out.write_text(told)
    turns = [*played.turns, *large.turns]
    fits = all(events <= MOST_EVENTS and size <= MOST_BYTES for events, size in turns)
    return 0 if fits and grown <= GROWTH and share >= CACHED else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
