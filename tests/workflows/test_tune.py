"""A parameter search goes the way of every other candidate, and needs no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.fakes import running
from workflows.optimization import OptimizationWorkflow as Run

SEED = """\
#define RATIO 0.5  // ferret:tune RATIO 0.5 0.7 0.9 1.1 1.3 1.5
void copy() {}
"""


def searching(temporal: Client, folder: Path, **overrides: Any) -> Any:
    seeded = {"seed": "script/00.cpp", "model": {"provider": "tune"}}
    return running(temporal, folder, [SEED], overrides=seeded | overrides)


async def test_a_search_finds_the_best_setting_and_ends_when_all_were_tried(temporal: Client, tmp_path: Path) -> None:
    """The seed comes first with its own setting, none is tried twice, and nobody is asked or paid."""
    async with searching(temporal, tmp_path) as run:
        result = await run.result()
        lines = await run.handle.query(Run.history)
    labels = [line.label for line in lines]
    assert labels[0] == "seed"
    assert sorted(labels[1:]) == [f"tune RATIO={value}" for value in ("0.7", "0.9", "1.1", "1.3", "1.5")]
    assert result.champion is not None
    assert (result.champion.score, result.outcome, result.charge.calls) == (1.5, "accepted", 0)
    assert not any(line.chapters for line in lines)


async def test_settings_side_by_side_differ(temporal: Client, tmp_path: Path) -> None:
    """Each knows what comes before it in its round."""
    async with searching(temporal, tmp_path, search={"width": 3, "stall_after": 50}) as run:
        await run.result()
        labels = [line.label for line in await run.handle.query(Run.history)]
    assert len(labels) == len(set(labels)) == 6
