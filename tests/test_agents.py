"""A whole run by a model: real Temporal server, real worker process, real SDK over HTTP, real g++, judge and clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from activities.agents import transcript
from activities.store import Store
from specs.history import HistoryLine
from specs.outcomes import Role
from tests.fake_messages import Step, call
from tests.fake_models import Models, approves, role_of, serving
from tests.real_run import FASTEST, SWEEPS, make_task, own_ports, place, shipped

pytestmark = pytest.mark.timeout(900)

RUN = "by-a-model"
ENTRY = 'extern "C" void skinny_gemm'
RIGHT, BROKEN = "const float x = a[", "const float x a["
BUDGET: dict[str, float] = {"max_iterations": 2, "max_wall_minutes": 30, "max_usd": 20.0}


def first() -> list[Step]:
    """Reads, writes what does not compile, mends it, breaks the maths, comes back, measures, takes notes, hands in."""
    sweeps = shipped(SWEEPS)
    assert RIGHT in sweeps
    return [
        call("read_kernel"),
        call("search_docs", query="register tiling for AVX"),
        call("write_kernel", source=sweeps.replace(RIGHT, BROKEN)),
        call("compile"),
        call("edit_kernel", old=BROKEN, new=RIGHT),
        call("compile"),
        call("write_kernel", source=sweeps.replace("row[j] += x", "row[j] = x")),
        call("check"),
        call("write_kernel", source=sweeps),
        call("check"),
        call("assembly"),
        call("measure"),
        call("note", section="tried", text="row sweeps instead of dot products"),
        call("note", section="untried_hard", text="a register tile over rows and columns"),
        call("submit", title="row sweeps"),
    ]


def second() -> list[Step]:
    """Goes straight for what the notes say."""
    return [
        call("write_kernel", source=shipped(FASTEST)),
        call("check"),
        call("submit", title="register tile, prefetch"),
    ]


async def test_a_model_comes_from_an_empty_file_to_two_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did can be read back word for word, and everything that it was told came from real parts."""
    policy = Models(first(), second(), reviewer=approves(ENTRY))
    async with serving(monkeypatch, policy) as server, place(tmp_path / "place") as here:
        task = make_task(tmp_path, {}, configs=1, seed=None, model={"provider": "anthropic"}, budget=BUDGET)
        await here.start_worker(*own_ports())
        started = await here.command("start", task, "--id", RUN, "--follow")
        assert started.code == 0, started.err + started.out
        history = json.loads((await here.command("history", RUN, "--json")).out)
        lines = [HistoryLine.model_validate(line) for line in history]
        status = json.loads((await here.command("status", RUN, "--json")).out)
        told = await here.command("transcript", RUN, "v001")
        store = Store.open(here.settings.store)
        said = await transcript.messages(store, lines[0].chapters[0].head)

    assert [(line.version, line.label) for line in lines] == [
        ("v001", "row sweeps"), ("v002", "register tile, prefetch"),
    ]  # fmt: skip
    answers = _answers(said)
    assert "error: " in answers["compile"][0]
    assert "built" in answers["compile"][1].lower()
    assert "wrong" in answers["check"][0].lower()
    assert "passed" in answers["check"][1].lower()
    assert "ratio" in answers["measure"][0].lower()
    assert [role_of(asked) for asked in server.requests].count(Role.REVIEWER) == 2
    assert status["charge"]["calls"] == len(server.requests)
    assert 0 < status["charge"]["usd"] < BUDGET["max_usd"]
    assert "row sweeps" in told.out


def _answers(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Tool -> what its calls were answered, in order."""
    names: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for message in messages:
        content = message["content"]
        for block in content if isinstance(content, list) else []:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                found.setdefault(names[block["tool_use_id"]], []).append(str(block["content"]))
    return found
