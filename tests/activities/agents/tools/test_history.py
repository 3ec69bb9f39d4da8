"""The past is told in pages, one iteration in full, or its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from activities.agents import logbook
from activities.agents.tools.tool import MOST_ANSWERED, Desk
from specs.outcomes import Iteration
from tests.activities.agents.calls import refused, said
from tests.desks import desk_at

SHA = "0" * 64
TIMING = {"median_us": 12.5, "q1_us": 12, "q3_us": 13, "samples": 9}
BUILT = {"status": "built", "key": SHA, "library": {"sha256": SHA, "size": 1}}
PASSED = {"passed": True, "library": SHA, "gate": SHA, "cases": 3}
FAILURE = {
    "kind": "wrong", "verification": "numerics", "case": "small (normal)", "first_failing_stage": "rstd",
    "message": "3 elements of rstd are off",
    "metrics": {"tensor": "rstd", "max_abs": 0.25, "cosine": 0.5, "worst_index": [1, 2], "worst_got": "nan",
                "worst_want": "1.5"},
}  # fmt: skip


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


async def desk_with(tmp_path: Path, *iterations: dict[str, Any]) -> Desk:
    desk = await desk_at(tmp_path)
    store = desk.workshop.store
    source = await store.put(b"int past;\n" * 1_000)
    book = None
    for index, fields in enumerate(iterations):
        common = {"index": index, "version": f"a{index:03d}", "stage": "OPTIMIZE", "ending": "slower", "reason": "slow"}
        label = {"proposal": {"source": source, "normal": SHA, "origin": "optimizer", "label": f"title {index}"}}
        book = await logbook.append(store, book, (Iteration.model_validate(common | label | fields),))
    return replace(desk, session=desk.session.model_copy(update={"logbook": book}))


def win(score: float = 1.25) -> dict[str, Any]:
    config = {"config": "small", "baseline": TIMING, "candidate": TIMING, "ratio": interval(score)}
    measurement = {
        "library": SHA, "configs": [config], "score": interval(score), "geomean": score, "device": {"name": "cpu"},
        "gain": interval(1.04),
    }  # fmt: skip
    return {"version": "v001", "ending": "win", "build": BUILT, "verdict": PASSED, "measurement": measurement}


async def test_an_empty_past_is_told(tmp_path: Path) -> None:
    """The first iteration of a task without a seed."""
    assert await said(await desk_with(tmp_path), "history") == "Nothing has been tried yet."


async def test_the_table_has_the_newest_first_a_page_at_a_time(tmp_path: Path) -> None:
    """With ending, score, title and reason; a long run stays within an answer."""
    desk = await desk_with(tmp_path, win(), *[{"reason": "x" * 400} for _ in range(44)])
    text = await said(desk, "history")
    assert text.startswith("45 iterations, page 1 of 3")
    assert text.splitlines()[1].startswith("a044 OPTIMIZE slower title 44: xxx")
    assert len(text) < MOST_ANSWERED
    last = await said(desk, "history", page=3)
    assert last.splitlines()[-1] == "v001 OPTIMIZE win score 1.250, gain 1.040 title 0: slow"
    assert "accepted: 1 to 3" in await refused(desk, "history", page=4)


async def test_a_win_has_its_ratios(tmp_path: Path) -> None:
    """Config by config, with the interval."""
    text = await said(await desk_with(tmp_path, win()), "history", version="v001")
    assert "small: ratio 1.250 (1.240 to 1.260), 12.50 us" in text


async def test_a_refusal_has_the_first_tensor_that_diverges(tmp_path: Path) -> None:
    """With its metrics and the worst element."""
    refusal = {"ending": "refused", "build": BUILT, "verdict": PASSED | {"passed": False, "failure": FAILURE}}
    text = await said(await desk_with(tmp_path, refusal), "history", version="A000")
    assert "refused: wrong in numerics, case small (normal)" in text
    assert "first tensor that diverges: rstd" in text
    assert "rstd: max_abs 0.25, cosine 0.5; worst at [1, 2]: got nan, want 1.5" in text


async def test_a_failed_build_has_the_end_of_its_log(tmp_path: Path) -> None:
    """Bounded."""
    build = {"status": "failed", "key": SHA, "log_tail": "y" * 4_000 + " error: no such type"}
    text = await said(await desk_with(tmp_path, {"ending": "build_failed", "build": build}), "history", version="a000")
    assert text.endswith("error: no such type")
    assert len(text) < 2_000


async def test_a_veto_has_its_evidence(tmp_path: Path) -> None:
    """What the reviewer quoted."""
    evidence = [{"quote": "if (calls > 9)", "why": "counts its calls"}]
    review = {"question": "integrity", "approved": False, "summary": "not the maths", "evidence": evidence}
    vetoed = win() | {"version": "a000", "ending": "vetoed", "review": review}
    text = await said(await desk_with(tmp_path, vetoed), "history", version="a000")
    assert "review: vetoed: not the maths\n  'if (calls > 9)': counts its calls" in text


async def test_what_a_program_says_of_itself_is_labelled(tmp_path: Path) -> None:
    """Its numbers were measured by nobody."""
    configs = [{"config": "small", "ratio": 1.5}, {"config": "large", "ratio": 0, "reason": "INVALID"}]
    told = {"program": SHA, "configs": configs, "score": 0.0, "geomean": 0.0}
    text = await said(await desk_with(tmp_path, {"build": BUILT, "self_reported": told}), "history", version="a000")
    assert "configs (self-reported)\n  small: ratio 1.500\n  large: no ratio: INVALID" in text


async def test_a_source_is_read_by_pages(tmp_path: Path) -> None:
    """As the kernel is."""
    desk = await desk_with(tmp_path, {}, {"proposal": None, "ending": "no_proposal"})
    text = await said(desk, "history", version="a000", source=True)
    assert text.startswith("source of a000: lines 1 to ")
    assert "More: history with version and source, with first_line" in text
    text = await said(desk, "history", version="a000", source=True, first_line=1_000)
    assert " 1000 int past;" in text
    assert "a001 has no source" in await refused(desk, "history", version="a001", source=True)


async def test_an_unknown_version_is_told_which_there_are(tmp_path: Path) -> None:
    """The newest of them."""
    assert "accepted: a000" in await refused(await desk_with(tmp_path, {}), "history", version="v9")
