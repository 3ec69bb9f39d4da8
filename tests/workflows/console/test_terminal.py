"""What a person sees of a run on a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console, RenderableType
from rich.spinner import Spinner

from specs.outcomes import Charge, Ending, Stage
from specs.plan import ConfigTarget
from specs.schema import Budget
from tests.run_values import (
    BASELINE_US,
    RATIOS,
    RUN,
    WORST,
    make_acceptance,
    make_baseline,
    make_champion,
    make_delivery,
    make_history,
    make_line,
    make_measurement,
    make_plan,
    make_result,
    make_status,
)
from workflows.console.terminal import (
    RunRow,
    accepted,
    config_rows,
    history_table,
    ratio_bar,
    result_view,
    run_view,
    runs_table,
    status_of_result,
    worst,
)
from workflows.console.waiting import Notice
from workflows.state import Phase

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def drawn(view: RenderableType, width: int = 110, *, colour: bool = False) -> str:
    """What a console of this width would print."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("width", [80, 110])
def test_a_run_fits_the_width_of_the_terminal(width: int) -> None:
    """No line of a running run is longer than the terminal is wide."""
    text = drawn(run_view(make_status(), make_history(), elapsed=timedelta(hours=2), width=width), width)

    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert all(name in text for name in RATIOS)


@pytest.mark.parametrize("width", [80, 110])
def test_a_result_fits_the_width_of_the_terminal(width: int) -> None:
    """No line of a result is longer than the terminal is wide, and no number is cut off."""
    status = make_status(phase=Phase.DONE, acceptance=make_acceptance(), delivery=make_delivery())
    text = drawn(result_view(status, "accepted", "done", ui="http://127.0.0.1:8233/x", width=width), width)

    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "0.696 to 0.724" in row_of(text, WORST)


def test_a_plain_console_gets_no_control_codes() -> None:
    """Without a terminal nothing but printable characters is written."""
    status = make_status(hints=["\x1b[2Jclear"], activity="judging \x1b]0;title\x07", acceptance=make_acceptance())
    text = drawn(run_view(status, make_history())) + drawn(result_view(status, "accepted", "x", ui="http://x"))

    assert CONTROL.search(text) is None


def test_what_a_candidate_writes_cannot_command_the_terminal() -> None:
    """An escape sequence in a reason or a label is not passed on to a real terminal."""
    line = make_line(4, "a003", Ending.BUILD_FAILED, "\x1b[31mred.cpp", "error: \x1b[2J\x07gone\r\n[bold]markup[/bold]")
    text = drawn(run_view(make_status(), [line]), colour=True)

    assert "\x1b[2J" not in text
    assert "\x1b[31mred" not in text
    assert "\x07" not in text
    assert "[bold]markup[/bold]" in text


def test_the_worst_config_is_marked() -> None:
    """Exactly the config with the lowest ratio is called worst."""
    lines = drawn(run_view(make_status(), [])).splitlines()

    assert [line.split()[0] for line in lines if line.rstrip().endswith("worst")] == [WORST]


def test_a_single_config_is_not_called_worst() -> None:
    """With one config there is nothing to be worse than."""
    plan = make_plan(configs=(ConfigTarget(name="n1024", target_ratio=1.0, weight=1.0),))

    assert worst(config_rows(make_status(plan=plan))) is None


def test_the_focus_config_is_marked() -> None:
    """A person sees which config the score is about."""
    text = drawn(run_view(make_status(plan=make_plan(focus_config="n4096")), []))

    assert row_of(text, "n4096").rstrip().endswith("focus")


def test_configs_show_the_baseline_alone_before_a_champion() -> None:
    """Before the first correct kernel a row has the vendor's time and no ratio."""
    rows = config_rows(make_status(champion=None))

    assert [(row.baseline_us, row.kernel_us, row.ratio) for row in rows] == [
        (us, None, None) for us in BASELINE_US.values()
    ]


def test_configs_show_the_champion_against_the_baseline() -> None:
    """The champion's time is the baseline's divided by its ratio."""
    row = config_rows(make_status())[0]

    assert row.ratio == RATIOS["n1024"]
    assert row.kernel_us == pytest.approx(BASELINE_US["n1024"] / RATIOS["n1024"])


def test_a_config_the_champion_lacks_counts_as_ratio_zero() -> None:
    """A missing config is the worst one, not a blank."""
    champion = make_champion().model_copy(update={"ratios": {"n1024": 1.1}})

    assert [row.ratio for row in config_rows(make_status(champion=champion))] == [1.1, 0.0, 0.0, 0.0]


def test_the_champions_measurement_comes_with_intervals() -> None:
    """Once the champion's measurement is known the rows carry its intervals."""
    rows = config_rows(make_status(measurement=make_measurement()))

    assert all(row.interval is not None and row.interval.value == RATIOS[row.name] for row in rows)


def test_the_final_measurement_replaces_the_champions() -> None:
    """What acceptance measured is what a result shows, whatever the champion scored during the search."""
    better = dict.fromkeys(RATIOS, 2.0)
    champion = make_champion().model_copy(update={"ratios": better})
    rows = config_rows(make_status(champion=champion, acceptance=make_acceptance()))

    assert {row.name: row.ratio for row in rows} == RATIOS


def test_the_bar_reads_without_colour() -> None:
    """Fill, rest and target of a bar are different characters."""
    assert ratio_bar(0.5, 1.0, 2.0, 8).plain == "━━╌╌┃╌╌╌"
    assert ratio_bar(1.5, 1.0, 2.0, 8).plain == "━━━━┃━╌╌"


@pytest.mark.parametrize("ratio", [0.0, 0.001, 1.0, 1.25, 99.0])
def test_a_bar_keeps_its_width(ratio: float) -> None:
    """However small or large the ratio, the bar is as wide as asked and shows the target."""
    bar = ratio_bar(ratio, 1.0, 1.25, 10).plain

    assert len(bar) == 10
    assert bar.count("┃") == 1


def test_the_newest_iterations_come_first_and_only_the_last_ones() -> None:
    """A long run's picture stays one screen high."""
    text = drawn(run_view(make_status(), make_history(), last=2))

    assert text.index("v002") < text.index("a002")
    assert "01_typo.cpp" not in text


def test_a_running_run_shows_what_it_does_beside_the_spinner() -> None:
    """The activity at work stands beside the spinner."""
    assert "measuring 04_vector.cpp" in drawn(run_view(make_status(), [], spinner=Spinner("dots")))


def test_a_paused_run_does_not_spin() -> None:
    """A run that waits for a person says so and stands still."""
    spinner = Spinner("line")
    status = make_status(phase=Phase.PAUSED, paused=True, activity="paused")

    assert "now paused" in drawn(run_view(status, [], spinner=spinner))


def test_a_notice_is_shown() -> None:
    """What keeps the run from going on is in the picture."""
    assert "no worker is polling ferret-cpu" in drawn(
        run_view(make_status(), [], notice=Notice("no worker is polling ferret-cpu"))
    )


def test_hints_and_waiting_kernels_are_shown() -> None:
    """A person sees that what they sent has arrived."""
    text = drawn(run_view(make_status(hints=["use 6x16 tiles"], waiting_submissions=1), []))

    assert "use 6x16 tiles" in text
    assert "1 submitted kernel waiting" in text


def test_budgets_that_are_not_limited_and_not_used_are_left_out() -> None:
    """A run without a model shows neither tokens nor money."""
    text = drawn(run_view(make_status(), []))

    assert "iterations" in text
    assert "4 of 20" in text
    assert "tokens" not in text
    assert "USD" not in text


def test_an_unknown_price_is_not_shown_as_zero() -> None:
    """Cost that nobody knows is called unknown."""
    status = make_status(
        charge=Charge(input_tokens=900_000, output_tokens=100_000, usd=None),
        budget=Budget(max_tokens=20_000_000, max_usd=50.0),
    )
    text = drawn(run_view(status, []))

    assert "1M of 20M" in text
    assert "1M of 20M, 19M left" in text
    assert "price unknown, limit 50" in text


def test_what_models_cost_is_shown_by_class() -> None:
    """Tokens in, from a cache and out, calls, money, and what is left of both."""
    charge = Charge(
        input_tokens=40_000,
        cache_write_tokens=2_000,
        cache_read_tokens=900_000,
        output_tokens=58_000,
        calls=41,
        usd=3.4,
    )
    status = make_status(charge=charge, budget=Budget(max_tokens=20_000_000, max_usd=50.0))
    text = drawn(run_view(status, [], width=80), 80)

    assert "1M of 20M, 19M left" in text
    assert "3.40 of 50, 46.60 left" in text
    assert "42k in, 900k cached, 58k out, 41 calls" in text
    ended = drawn(result_view(status, "accepted", "done", ui="http://x"))
    assert "42k in, 900k cached, 58k out, 41 calls, 3.40 USD" in ended


@pytest.mark.parametrize("width", [80, 110])
def test_an_iteration_shows_its_cost_where_a_model_was_asked(width: int) -> None:
    """In a column of its own, or below the reason where there is no room for one."""
    charge = Charge(input_tokens=1_000, output_tokens=500, calls=3, usd=0.0213)
    lines = [*make_history()[:1], make_line(4, "a003", Ending.SLOWER, "tiles", "slower", charge=charge)]
    paid, free = (
        drawn(history_table(lines, width=width), width),
        drawn(history_table(make_history(), width=width), width),
    )

    assert "0.0213" in paid
    assert "1.5k" in paid or "1k in, 0 cached, 500 out, 3 calls" in paid
    assert "USD" not in free


def test_a_run_that_waits_for_a_person_says_how_to_answer() -> None:
    """Read first, then approve."""
    text = drawn(run_view(make_status(phase=Phase.AWAITING_APPROVAL), []), 400)

    assert f"client.py gate {RUN}; then: " in text
    assert f"client.py approve-gate {RUN} (or with --refuse --reason TEXT)" in text


def test_a_run_that_has_paused_itself_says_why() -> None:
    """A key that is missing, for example, is for a person to put right."""
    status = make_status(phase=Phase.PAUSED, paused=True, pause_reason="ANTHROPIC_API_KEY is not set")

    assert "paused: ANTHROPIC_API_KEY is not set" in drawn(run_view(status, []))


def test_the_list_shows_cost_only_where_a_model_was_asked() -> None:
    """A price that nobody knows is not a price of nothing."""
    now = datetime.now(UTC)
    free = RunRow("one", "gemm", "completed", "done", "REPRODUCE", "", None, None, now)
    paid = RunRow("two", "gemm", "running", "iterating", "OPTIMIZE", "v003", 1.07, 9, now, tokens=1_200_000, usd=3.41)
    unpriced = replace(paid, id="three", usd=None)

    assert "cost" not in drawn(runs_table([free], now), 160)
    text = drawn(runs_table([free, paid, unpriced], now), 160)
    assert "1.2M tokens, 3.41 USD" in row_of(text, "two")
    assert "1.2M tokens, price unknown" in row_of(text, "three")


def test_a_result_tells_everything_that_matters() -> None:
    """Score with interval, geomean, device, gate digest, folder, record and UI address are all there."""
    status = make_status(phase=Phase.DONE, acceptance=make_acceptance(), delivery=make_delivery())
    text = drawn(result_view(status, "accepted", "all played", ui="http://127.0.0.1:8233/run"))

    for part in (
        "ACCEPTED v002",
        "0.710 (min_ratio, 95% 0.696 to 0.724)",
        "geomean 0.992",
        "AMD EPYC 7B13, core 1 pinned, g++ 12.2.0",
        status.gate_digest,
        "runs/r/delivered (kernel.cpp, result.json)",
        "runs/r/record",
        "http://127.0.0.1:8233/run",
        RUN,
    ):
        assert part is not None
        assert part in text


def test_a_run_without_a_kernel_shows_no_table() -> None:
    """With no champion there is nothing to compare; the reason stands alone."""
    status = make_status(phase=Phase.DONE, champion=None, acceptance=None)
    text = drawn(result_view(status, "no kernel", "the budget of 3 iterations is used up", ui="http://x"))

    assert "NO KERNEL" in text
    assert "the budget of 3 iterations is used up" in text
    assert "baseline us" not in text


def test_a_refused_acceptance_says_why() -> None:
    """When the champion fails its last judgement, the reason is part of the result."""
    status = make_status(acceptance=make_acceptance(accepted=False, reason="wrong at the held-out shape odd"))
    text = drawn(result_view(status, "best effort", "all played", ui="http://x"))

    assert not accepted(status)
    assert "acceptance: wrong at the held-out shape odd" in text


def test_the_result_alone_gives_the_same_picture() -> None:
    """An ended run looks the same when no worker is left to answer a query."""
    asked = make_status(phase=Phase.DONE, acceptance=make_acceptance(), delivery=make_delivery())
    read = status_of_result(RUN, make_plan(), make_result(), Stage.OPTIMIZE)

    views = [result_view(status, "accepted", "all played", ui="http://x") for status in (asked, read)]
    assert drawn(views[0]) == drawn(views[1])
    assert read.stage is Stage.OPTIMIZE


def test_a_run_that_has_only_just_begun_can_be_drawn() -> None:
    """Nothing is known yet, and still there is a picture."""
    status = make_status(
        phase=Phase.STARTING, champion=None, baseline=None, last=None, wins=0, attempts=0, activity="", gate_digest=None
    )
    text = drawn(run_view(status, []))

    assert "starting" in text
    assert "no champion yet" in text


def test_a_list_shows_runs_at_work_and_ended() -> None:
    """Id, task, state, champion, score and age of each run are in its row."""
    now = datetime(2026, 11, 30, 3, 20, tzinfo=UTC)
    rows = [
        RunRow("one", "gemm", "running", "iterating", "OPTIMIZE", "v003", 1.07, 9, now - timedelta(minutes=8)),
        RunRow("two", "norm", "completed", "done", "REPRODUCE", "", None, None, now - timedelta(days=1)),
    ]
    text = drawn(runs_table(rows, now), 120)

    assert re.search(r"one +gemm +running +iterating +OPTIMIZE +v003 +1\.070 +8 min 00 s ago", text)
    assert re.search(r"two +norm +completed +done +REPRODUCE +- +- +24 h 00 min ago", text)


def test_a_narrow_list_drops_columns_but_never_an_id() -> None:
    """Task, stage and phase go in this order; ids that begin alike stay apart to the last letter, however narrow."""
    now = datetime(2026, 11, 30, 3, 20, tzinfo=UTC)
    rows = [
        RunRow(f"{RUN}{end}", "skinny-gemm-f32-cpu", "running", "iterating", "OPTIMIZE", "v003", 1.07, 9, now)
        for end in ("", "-2")
    ]
    heads = {}
    for width in (120, 110, 100, 80, 60):
        table = runs_table(rows, now, width=width)
        lines = drawn(table, max(width, table.width or 0)).splitlines()
        heads[width] = lines[0].split()
        assert [line.split()[0] for line in lines[1:]] == [row.id for row in rows]
        assert all("1.070" in line for line in lines[1:])
    everything = ["run", "task", "state", "phase", "stage", "champion", "score", "started"]
    assert heads[120] == everything
    assert heads[110] == [name for name in everything if name != "task"]
    assert heads[80] == [name for name in everything if name not in ("task", "stage", "phase")]
    assert heads[60] == heads[80]


def test_a_narrow_result_cuts_no_number_and_no_path() -> None:
    """With long names of configs, at 80 columns: intervals and ratios whole, no empty bar, paths in one piece."""
    long = {f"{name}_with_a_name_beyond_measure": ratio for name, ratio in RATIOS.items()}
    measured = make_measurement()
    renamed = measured.model_copy(
        update={
            "configs": tuple(
                one.model_copy(update={"config": name}) for one, name in zip(measured.configs, long, strict=True)
            )
        }
    )
    plan = make_plan(
        configs=tuple(ConfigTarget(name=name, target_ratio=1.0, weight=1.0) for name in long),
        focus_config=f"{WORST}_with_a_name_beyond_measure",
    )
    folder = "/" + "/".join(["a-long-folder"] * 8)
    status = make_status(
        plan=plan,
        acceptance=make_acceptance().model_copy(update={"measurement": renamed}),
        delivery=make_delivery().model_copy(update={"folder": folder}),
    )
    address = "http://127.0.0.1:8233/namespaces/default/workflows/" + RUN * 2
    console = Console(file=io.StringIO(), width=80)
    console.print(result_view(status, "accepted", "done", ui=address, width=80), crop=False)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()

    for one in renamed.configs:
        assert f"{one.ratio.value:.3f}  {one.ratio.low:.3f} to {one.ratio.high:.3f}" in text
    assert folder in text
    assert address in text
    assert "━" not in text


def test_a_narrow_history_gives_reasons_their_own_lines() -> None:
    """At 80 columns a reason is indented below its iteration; at 110 it stands beside it."""
    reason = "wrong at n4096: y differs by 3.2 at [0, 4095]"
    narrow = drawn(run_view(make_status(), make_history(), width=80), 80)
    wide = drawn(run_view(make_status(), make_history(), width=110), 110)

    assert f"    {reason}" in [line.rstrip() for line in narrow.splitlines()]
    assert reason in row_of(wide, "a002")


def test_the_score_of_the_search_stands_beside_the_one_of_record() -> None:
    """Whoever remembers the search's figure is told where it went."""
    champion = make_champion().model_copy(update={"searched": 1.647})
    status = make_status(champion=champion, acceptance=make_acceptance())
    text = drawn(result_view(status, "accepted", "done", ui="http://x"))

    assert "measured again at acceptance; the search had seen 1.647" in text
    assert "measured again" not in drawn(result_view(make_status(), "accepted", "done", ui="http://x"))


def test_a_baseline_without_a_description_is_named_by_the_task() -> None:
    """When the baseline does not say what it is, the task file's words stand in."""
    baseline = make_baseline().model_copy(update={"description": ""})

    assert "skinny-gemm-f32-cpu against OpenBLAS on AMD EPYC 7B13" in drawn(
        run_view(make_status(baseline=baseline), [])
    )
