"""How much of a run's wall time was neither building, judging nor measuring, read from the run's own histories.

    python benchmarks/run_overhead.py RUN_ID [--limit 0.15] [--json FILE]

Start-up (locking the gate, claiming the device) is left out: the clock starts when the first build, judgement or
measurement is scheduled and stops when the workflow closes. Exit code 1 when the share is above the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from activities.connect import connect
from activities.settings import Settings

WORK = {"build", "judge", "measure", "measure_baseline", "accept"}


@dataclass(frozen=True)
class Span:
    activity: str
    start: float  # seconds since the epoch
    end: float


def spans(history: WorkflowHistory) -> list[Span]:
    """Every activity of a history from the start of its last attempt to its end."""
    scheduled: dict[int, str] = {}
    started: dict[int, float] = {}
    found = []
    for event in history.events:
        at = event.event_time.ToMicroseconds() / 1e6
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
            case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started[event.activity_task_started_event_attributes.scheduled_event_id] = at
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                key = event.activity_task_completed_event_attributes.scheduled_event_id
                found.append(Span(scheduled[key], started[key], at))
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                key = event.activity_task_failed_event_attributes.scheduled_event_id
                found.append(Span(scheduled[key], started[key], at))
            case _:
                pass
    return found


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


async def histories(client: Client, run: str) -> list[WorkflowHistory]:
    query = f"WorkflowId = '{run}' OR WorkflowId STARTS_WITH '{run}/'"
    found = [
        await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
        async for execution in client.list_workflows(query)
    ]
    if not found:
        sys.exit(f"run_overhead: no workflow {run!r} on this server")
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="workflow id of the run")
    parser.add_argument("--limit", type=float, default=0.15, help="largest share outside the work (default 0.15)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()

    client = await connect(Settings.from_env())
    all_spans: list[Span] = []
    closed = 0.0
    for history in await histories(client, given.run):
        all_spans += spans(history)
        closed = max(closed, history.events[-1].event_time.ToMicroseconds() / 1e6)
    work = [span for span in all_spans if span.activity in WORK]
    if not work:
        sys.exit(f"run_overhead: run {given.run!r} has built, judged and measured nothing yet")
    begin = min(span.start for span in work)
    wall = closed - begin
    busy = covered([(span.start, span.end) for span in work])
    outside = 1 - busy / wall

    per: dict[str, list[float]] = defaultdict(list)
    for span in all_spans:
        per[span.activity].append(span.end - span.start)
    print(f"run {given.run}: {wall:.1f} s after start-up, {busy:.1f} s of it building, judging and measuring")
    print(f"outside: {outside:.1%}")
    for name, times in sorted(per.items(), key=lambda item: -sum(item[1])):
        print(f"  {name:<18} {len(times):>3} x  {sum(times):7.2f} s{'' if name in WORK else '   (outside)'}")
    figures = {
        "run": given.run,
        "wall_s": wall,
        "work_s": busy,
        "outside_share": outside,
        "cpus": os.cpu_count(),
        "activities": {name: {"count": len(times), "seconds": sum(times)} for name, times in per.items()},
    }
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if outside > given.limit:
        print(f"above the limit of {given.limit:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
