"""The report: complete, self-contained, and safe to open whatever a candidate called itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from activities.report import render
from activities.summary import RunSummary

SHA = "ab" * 32
EVIL = '<script>alert("x")</script>'


def summary(**overrides: Any) -> RunSummary:
    timing = {"median_us": 10.0, "q1_us": 9.0, "q3_us": 11.0, "samples": 5}
    ratio = {"value": 1.1, "low": 1.05, "high": 1.15}
    measurement = {
        "library": SHA,
        "configs": [{"config": EVIL, "baseline": timing, "candidate": timing, "ratio": ratio}],
        "score": ratio,
        "geomean": 1.1,
        "device": {"name": "cpu", "detail": EVIL},
    }
    line = {
        "index": 0, "version": "v001", "stage": "OPTIMIZE", "ending": "win", "label": EVIL, "reason": EVIL,
        "score": 1.1, "seconds": 2.0,
    }  # fmt: skip
    champion = {
        "version": "v001",
        "index": 0,
        "source": {"sha256": SHA, "size": 1},
        "library": {"sha256": SHA, "size": 1},
    }
    given: dict[str, Any] = {
        "run_id": EVIL, "task": EVIL, "task_digest": SHA, "scoring": "min_ratio", "baseline_name": EVIL,
        "targets": {EVIL: 0.95}, "outcome": "accepted", "reason": EVIL, "stage": "OPTIMIZE",
        "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:00Z", "gate_digest": SHA, "device": EVIL,
        "champion": champion | {"score": 1.1, "ratios": {EVIL: 1.1}}, "measurement": measurement, "acceptance": None,
        "baseline": None, "history": [line], "wins": 1, "attempts": 0, "charge": {}, "charged_minutes": 0.1,
    }  # fmt: skip
    return RunSummary.model_validate(given | overrides)


class Balance(HTMLParser):
    """Fails on a tag that is closed out of order."""

    VOID = frozenset({"meta", "link", "br", "hr", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_from_outside_is_escaped_everywhere() -> None:
    """A kernel, a task or a person may not put a tag into the page."""
    page = render(summary())
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


def test_nothing_is_loaded_from_anywhere() -> None:
    """The file can be mailed and archived."""
    page = render(summary())
    assert not re.search(r"(src|href)\s*=|url\(|@import", page)


def test_every_tag_is_closed() -> None:
    """In the right order."""
    parser = Balance()
    parser.feed(render(summary()))
    assert parser.open == []


def test_the_page_shows_ratio_interval_and_target() -> None:
    """A speed-up never stands alone."""
    page = render(summary())
    for part in ("1.100", "1.050 to 1.150", "0.95", "10.00"):
        assert part in page


def test_a_run_without_a_kernel_has_a_report() -> None:
    """Nothing measured, nothing drawn, no error."""
    page = render(summary(champion=None, measurement=None, history=[], outcome="no kernel"))
    assert "No kernel was measured." in page


def test_an_unknown_price_is_not_nothing() -> None:
    """A cost that is not known says so."""
    page = render(summary(charge={"calls": 1, "input_tokens": 5, "usd": None}))
    assert "unknown price" in page
    assert "No model was asked" not in page


def test_every_iterations_cost_is_told_and_summed_up() -> None:
    """By class of token; from an iteration without a price on, the sum has none either."""
    line = summary().history[0]
    charge = {"input_tokens": 100, "cache_write_tokens": 20, "cache_read_tokens": 3000, "output_tokens": 50, "calls": 2}
    lines = [
        line.model_dump() | {"charge": charge | {"usd": 0.25}},
        line.model_dump() | {"version": "a001"},
        line.model_dump() | {"version": "a002", "charge": charge | {"usd": 1.0}},
        line.model_dump() | {"version": "a003", "charge": charge | {"usd": None}},
    ]
    whole = {"input_tokens": 300, "cache_read_tokens": 9000, "output_tokens": 150, "calls": 7, "usd": None}
    rows = re.findall(r"<tr>(.*?)</tr>", render(summary(history=lines, charge=whole)).partition("<h2>Cost</h2>")[2])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows[1:5]]
    assert cells == [
        ["v001", "2", "100", "20", "3,000", "50", "0.2500", "3,170", "0.2500"],
        ["a002", "2", "100", "20", "3,000", "50", "1.00", "6,340", "1.25"],
        ["a003", "2", "100", "20", "3,000", "50", "unknown price", "9,510", "unknown price"],
        ["the whole run", "7", "300", "0", "9,000", "150", "unknown price", "9,450", "unknown price"],
    ]


def test_a_self_reported_page_says_so_everywhere() -> None:
    """Title, badge, headings, figures, and the standing of the run; never in the green of a proven win."""
    said = {"config": EVIL, "ratio": 1.2, "ours_us": 10.0, "reference_us": 12.0}
    bad = {"config": "large", "ratio": 0.0, "reason": EVIL}
    report = {"program": SHA, "configs": [said, bad], "score": 1.2, "geomean": 0.0, "machine": EVIL}
    page = render(
        summary(
            standing="self-reported", outcome="accepted (self-reported)", measurement=None, self_reported=report,
            gate_digest=None,
        )
    )  # fmt: skip
    assert EVIL not in page
    assert "accepted (self-reported)</title>" in page
    assert '<span class="badge" style="background:#b7791f">accepted (self-reported)</span>' in page
    assert "Every number here is self-reported" in page
    assert "Nothing was verified." in page
    for heading in ("Ratio to the baseline, per config", "Score over the iterations", "Iterations"):
        assert f"<h2>{heading} (self-reported)</h2>" in page
    for figure in ("score (min_ratio)", "geomean", "champion"):
        assert f"<span>{figure} (self-reported)</span>" in page
    assert '<th class="n">self-reported ratio</th>' in page
    assert "95% interval" not in page
