"""Histories stay small however large the kernels are: only digests cross Temporal."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from tests.fakes import Running, kernel, running

CHILD_EVENTS, CHILD_BYTES, PARENT_EVENTS_PER_ITERATION = 60, 40_000, 20
PADDING = "// padding\n" * (300_000 // 11)


async def size_of(run: Running, workflow_id: str) -> tuple[int, int]:
    described = await run.client.get_workflow_handle(workflow_id).describe()
    return described.history_length, described.raw_description.workflow_execution_info.history_size_bytes


async def test_an_iteration_stays_within_its_budget(temporal: Client, tmp_path: Path) -> None:
    """Every kind of iteration, with a 300 kB source, a long compiler log and twenty earlier ones to remember."""
    fates = ["ratio 0.5", "fails", "wrong", "ratio 0.8", "wrong when timed", "ratio 0.9"]
    script = [kernel(fate, f"k{position}") + PADDING for position, fate in enumerate(fates)]
    assert len(script[0]) > 299_000
    async with running(temporal, tmp_path, script) as run:
        result = await run.result()
        sizes = [await size_of(run, f"{run.handle.id}/iter-{index:03d}") for index in range(result.iterations)]
    assert result.iterations == len(fates)
    assert max(events for events, _ in sizes) <= CHILD_EVENTS
    assert max(size for _, size in sizes) <= CHILD_BYTES


async def test_the_run_grows_by_few_events_an_iteration(temporal: Client, tmp_path: Path) -> None:
    """The difference between a long run and a short one, so that its beginning and end do not count."""

    async def events(count: int) -> int:
        script = [kernel(f"ratio 0.{position + 1}", f"k{position}") for position in range(count)]
        async with running(temporal, tmp_path / str(count), script) as run:
            assert (await run.result()).iterations == count
            return (await size_of(run, run.handle.id))[0]

    assert (await events(4) - await events(1)) / 3 <= PARENT_EVENTS_PER_ITERATION
