"""What benchmarks/run_cost.py measures over sixty iterations holds over eight as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from benchmarks import run_cost
from benchmarks.run_cost import CACHED, GROWTH, MOST_BYTES, MOST_EVENTS, cached, growth, play
from specs.outcomes import Ending

EARLY, LAST = 4, 8  # both change the kernel and come out slower


async def test_a_run_costs_in_proportion_to_its_iterations_and_most_of_it_is_read_from_the_cache(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a win, misses, a stall with research and pivot, and a history that continues as new."""
    monkeypatch.setattr(run_cost, "EVENTS_LIMIT", 100)
    played = await play(temporal, tmp_path, LAST, brief=True)
    assert {played.lines[EARLY].ending, played.lines[LAST].ending} == {Ending.SLOWER}
    assert played.executions > 1
    assert growth(played.asked, EARLY) <= GROWTH
    assert cached(played.asked) >= CACHED
    assert max(events for events, _ in played.turns) <= MOST_EVENTS
    assert max(size for _, size in played.turns) <= MOST_BYTES
