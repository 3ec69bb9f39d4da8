"""What a person reads of a run as plain text."""

from __future__ import annotations

import pytest

from specs.outcomes import Charge, Ending, Stage
from specs.schema import Budget
from tests.run_values import RUN, make_history, make_line, make_status
from workflows.console.lines import (
    budget_text,
    clean,
    cost_text,
    duration,
    events,
    history_line,
    microseconds,
    printable_source,
    ratio_text,
    size,
)
from workflows.state import Phase


def test_a_refusal_is_one_plain_line() -> None:
    """Version, outcome and the candidate's name stand first, the reason after them."""
    assert history_line(make_history()[2]) == (
        "a002 refused 02_tail.cpp: wrong at n4096: y differs by 3.2 at [0, 4095]"
    )


def test_a_win_carries_its_score_and_ratios() -> None:
    """A log without a table still has every number."""
    line = history_line(make_history()[3])

    assert line.startswith("v002 win 03_tiled.cpp: 5.9 times the champion, score 0.710 (n1024 1.120, n4096 0.930")


def test_a_score_is_told_once() -> None:
    """A reason that names the score is not followed by the score again."""
    line = history_line(make_line(4, "a003", Ending.SLOWER, "x.cpp", "score 0.700 is too low", score=0.7))

    assert line == "a003 slower x.cpp: score 0.700 is too low"


def test_a_reason_of_several_lines_stays_one_line() -> None:
    """Compiler output with line ends and escape codes is still one line."""
    line = history_line(make_line(4, "a003", Ending.BUILD_FAILED, "x.cpp", "error:\n\x1b[1mhere\x1b[0m\r\n  more"))

    assert "\n" not in line
    assert "\x1b" not in line
    assert line == "a003 build failed x.cpp: error: [1mhere [0m more"


def test_the_first_look_tells_the_story_so_far() -> None:
    """Whoever begins to watch late is told what they have missed."""
    lines = events(None, make_status(), make_history())

    assert lines[0] == f"{RUN}: skinny-gemm-f32-cpu against OpenBLAS"
    assert "gate locked: 3f2a1c000000" in lines
    assert any(line.startswith("baseline OpenBLAS 0.3.30 SkylakeX, 1 thread: n1024 61.2 us") for line in lines)
    assert [line[:4] for line in lines if line[:1] in "va" and line[1:4].isdigit()] == ["v001", "a001", "a002", "v002"]
    assert lines[-1] == "iterating"


def test_nothing_new_gives_no_line() -> None:
    """A quiet run writes nothing, however often it is looked at."""
    assert events(make_status(), make_status(activity="judging"), []) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"phase": Phase.ACCEPTING}, "accepting"),
        ({"phase": Phase.PAUSED, "paused": True}, "paused"),
        ({"stage": Stage.OPTIMIZE}, "stage OPTIMIZE"),
        ({"hints": ["use tiles"]}, "hint: use tiles"),
        ({"budget": Budget(max_iterations=25, max_wall_minutes=30)}, "budget now 25 iterations, 30 minutes"),
        ({"stop_reason": "a person said so"}, "ending: a person said so"),
    ],
)
def test_each_change_is_told_once(changes: dict[str, object], line: str) -> None:
    """A change between two looks is one line, and none at the third look."""
    after = make_status(**changes)

    assert events(make_status(), after, []) == [line]
    assert events(after, after, []) == []


def test_numbers_keep_three_or_four_digits() -> None:
    """Times and ratios are as precise as they are worth."""
    assert [microseconds(value) for value in (1.234, 61.25, 1250.4, None)] == ["1.23", "61.2", "1,250", "-"]
    assert [ratio_text(value) for value in (0.71, 12.345, 1234.5, None)] == ["0.710", "12.35", "1,234", "-"]
    assert [size(value) for value in (950, 12_500, 20_000_000)] == ["950", "12.5k", "20M"]
    assert [duration(value) for value in (41, 200, 7500)] == ["41 s", "3 min 20 s", "2 h 05 min"]


def test_one_is_singular() -> None:
    """A budget of one reads like one."""
    assert budget_text(Budget(max_iterations=1, max_wall_minutes=1.5)) == "1 iteration, 1.5 minutes"


def test_text_of_a_candidate_is_made_harmless() -> None:
    """Control characters go, in a phrase and in a source; a source keeps its lines and tabs."""
    assert clean("a\x1b[2J\tb\u202ec\n") == "a [2J b c"
    assert printable_source("a\tb\n\x1b[2J") == "a\tb\n\N{REPLACEMENT CHARACTER}[2J"


@pytest.mark.parametrize(
    ("usd", "shown"), [(None, "price unknown"), (0.0, "0.00 USD"), (0.00213, "0.0021 USD"), (12.345, "12.35 USD")]
)
def test_a_cost_is_tokens_by_class_calls_and_a_price(usd: float | None, shown: str) -> None:
    """What was written to a cache was read in as well; an unknown price is no price of nothing."""
    charge = Charge(
        input_tokens=300, cache_write_tokens=200, cache_read_tokens=9_000, output_tokens=1_250, calls=1, usd=usd
    )

    assert cost_text(charge) == f"500 in, 9k cached, 1.25k out, 1 call, {shown}"


def test_an_iterations_cost_ends_its_line() -> None:
    """Only where a model was asked."""
    charge = Charge(input_tokens=300, output_tokens=20, calls=2, usd=0.5)
    line = history_line(make_line(4, "a003", Ending.SLOWER, "tiles", "slower", charge=charge))

    assert line == "a003 slower tiles: slower [300 in, 0 cached, 20 out, 2 calls, 0.5000 USD]"


def test_a_run_that_stands_still_says_why_once() -> None:
    """Whether it waits for approval or has paused itself."""
    before = make_status()
    waiting = make_status(phase=Phase.AWAITING_APPROVAL)
    paused = make_status(phase=Phase.PAUSED, paused=True, pause_reason="no key")

    said = events(before, waiting, [])
    assert said[0] == "waiting for approval of the gate"
    assert f"approve-gate {RUN}" in said[1]
    assert events(before, paused, []) == ["paused: no key", "paused"]
    assert events(paused, paused, []) == []
