"""What a program prints about itself becomes one ratio a config, or a reason why there is none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.kernel_result import MAX_INVALID, MAX_LINE, Reading, read
from specs.scoring import MAX_RATIO

CONFIGS = ("Q1", "Q2")
REFERENCE = 'KERNEL_RESULT_REFERENCE {"Q1": 10, "Q2": 20}'


def ratios(output: str) -> dict[str, float]:
    reading = read(output, CONFIGS)
    assert reading.refused == ""
    return {one.config: one.ratio for one in reading.configs}


def reasons(output: str) -> dict[str, str]:
    reading = read(output, CONFIGS)
    assert reading.refused == ""
    return {one.config: one.reason for one in reading.configs if one.reason}


@pytest.mark.parametrize(
    "output",
    [
        f'KERNEL_RESULT {{"Q1": 12, "Q2": 22}}\n{REFERENCE}',
        f'warming up\n  KERNEL_RESULT  {{"Q2": 22.0, "Q1": 1.2e1}}  \r\n{REFERENCE}\ndone',
        f'{REFERENCE}\nKERNEL_RESULT: {{"Q1": 12, "Q2": 22, "Q3": 5}}',
        f'KERNEL_RESULT {{"Q1": 12}}\nKERNEL_RESULT {{"Q2": 22}}\nKERNEL_RESULT {{"Q1": 12}}\n{REFERENCE}',
        f'KERNEL_RESULT {{"Q1": {{"tflops": 12}}, "Q2": {{"gflops": 22000}}}}\n{REFERENCE}',
        'KERNEL_RESULT {"Q1": {"us": 10, "ref_us": 12}, "Q2": {"latency_us": 10, "baseline_us": 11}}',
        'KERNEL_RESULT {"Q1": {"us": 10}, "Q2": {"ms": 1}}\n'
        'KERNEL_RESULT_REFERENCE {"Q1": {"us": 12}, "Q2": {"us": 1100}}',
        'KERNEL_RESULT {"config": "Q1", "us": 10, "reference_us": 12}\n'
        'KERNEL_RESULT {"config": "Q2", "ours_us": 10, "ref_us": 11, "ratio": 1.1}',
        'KERNEL_RESULT {"config": "Q1", "kernel_us": 10}\nKERNEL_RESULT {"config": "Q2", "speedup": 1.1}\n'
        'KERNEL_RESULT_REFERENCE {"config": "Q1", "us": 12}',
        "KERNEL_RESULT config=Q1 ours=10us ref=12us ratio=1.2\nKERNEL_RESULT config='Q2', ours=1.0ms, ref=1.1ms",
        "KERNEL_RESULT config=Q1 ours=10 ref=12 ratio=1.2\nKERNEL_RESULT config=Q2 us=10 ref_us=11",
        f"Q_LEN=1: 12 TFLOPS\nQ_LEN=2: 22.0 TFLOPS (3.1 us)\n{REFERENCE}",
        f"Q1: 12 TFLOPS\n  Q2 : 22 TFLOPS, 4 us\n{REFERENCE}",
        f"Latency_ms: Q1=18.4 Q2=9\nTFLOPS: Q1=12, Q2=22\n{REFERENCE}",
    ],
)
def test_every_form_is_read(output: str) -> None:
    """Throughput by config as public programs print it, named quantities, one config a line, and the older prints."""
    assert ratios(output) == pytest.approx({"Q1": 1.2, "Q2": 1.1})


def test_times_and_throughputs_are_kept() -> None:
    """In microseconds and TFLOPS, the program's and its baseline's."""
    output = (
        'KERNEL_RESULT {"Q1": {"ms": 0.01, "tflops": 3}, "Q2": 4}\nKERNEL_RESULT_REFERENCE {"Q1": {"us": 12}, "Q2": 2}'
    )
    first, second = read(output, CONFIGS).configs
    assert (first.ours_us, first.reference_us, first.ours_tflops, first.reference_tflops) == (10.0, 12.0, 3.0, None)
    assert (second.ours_us, second.ours_tflops, second.reference_tflops) == (None, 4.0, 2.0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "TFLOPS is 'NaN', which is no number"),
        ("-nan", "TFLOPS is '-nan', which is no number"),
        ("nan(0x8000)", "TFLOPS is 'nan(0x8000)', which is no number"),
        ("inf", "TFLOPS is 'inf', which is no number"),
        ("-Infinity", "TFLOPS is '-Infinity', which is no number"),
        ("1e999", "TFLOPS is inf; a finite number from 0 is accepted"),
        ("-3", "TFLOPS is -3; a finite number from 0 is accepted"),
        ("0.0", "the program reports TFLOPS 0, which stands for no result"),
        ('"12"', "TFLOPS is '12', which is no number"),
        ("true", "TFLOPS is True, which is no number"),
        ("null", "TFLOPS is None, which is no number"),
        ("[12]", "TFLOPS is [12], which is no number"),
        ("1e300", "ratio 1e+299; a number above 0, up to 1e+06, is accepted"),
        ("INVALID", "the program says 'INVALID'"),
        ('"INVALID"', "the program says 'INVALID'"),
        ('{"tflops": 12, "valid": false}', "the program says valid: False"),
        ('{"tflops": 12, "status": "FAIL"}', "the program says 'FAIL'"),
        ('{"ratio": "1.2"}', "ratio is '1.2', which is no number"),
        ('{"ratio": -1}', "ratio is -1; a finite number from 0 is accepted"),
        ('{"ratio": 0}', "ratio 0; a number above 0"),
        ('{"us": 4, "ref_us": 8, "ratio": 3}', "its numbers do not agree: ratios 3, 2"),
        ("{}", "no ratio, and no reference in the same unit to make one from"),
        ('{"us": 4}', "no ratio, and no reference in the same unit to make one from"),
    ],
)
def test_what_is_no_number_is_ratio_0_with_a_reason(value: str, reason: str) -> None:
    """For that config alone."""
    output = f'KERNEL_RESULT {{"Q1": {value}, "Q2": 22}}\n{REFERENCE}'
    assert ratios(output) == pytest.approx({"Q1": 0.0, "Q2": 1.1})
    assert reasons(output)["Q1"].startswith(reason)


def test_a_config_that_is_missing_is_ratio_0() -> None:
    """So a program that skips the hard one cannot win."""
    assert reasons(f'KERNEL_RESULT {{"Q1": 12}}\n{REFERENCE}') == {"Q2": "the program reports nothing for it"}


@pytest.mark.parametrize("reference", ["", "KERNEL_RESULT_REFERENCE {}", 'KERNEL_RESULT_REFERENCE {"Q1": 0, "Q2": 0}'])
def test_without_a_reference_there_is_no_ratio(reference: str) -> None:
    """A throughput alone says nothing; a reference of 0 is one that did not run."""
    output = f'KERNEL_RESULT {{"Q1": 12, "Q2": 22}}\n{reference}'
    assert ratios(output) == {"Q1": 0.0, "Q2": 0.0}


@pytest.mark.parametrize(
    "line",
    [
        "Q1: INVALID",
        "INVALID: Q1 differs",
        "KERNEL_RESULT config=Q1 INVALID",
        "KERNEL_RESULT INVALID Q1",
        "(Q1) INVALID",
    ],
)
def test_a_line_that_calls_a_config_invalid_overrules_its_number(line: str) -> None:
    """Wherever it stands."""
    rest = f'KERNEL_RESULT {{"Q2": 22}}\n{REFERENCE}'
    assert ratios(f"{line}\n{rest}")["Q1"] == 0.0
    assert ratios(f"{rest}\n{line}") == pytest.approx({"Q1": 0.0, "Q2": 1.1})


@pytest.mark.parametrize(
    "line", ["INVALID", "  INVALID (max error 3)", "KERNEL_RESULT INVALID", "KERNEL_RESULT: INVALID"]
)
def test_a_bare_invalid_means_every_config(line: str) -> None:
    """It cannot be told which one is meant, so none counts."""
    assert ratios(f'KERNEL_RESULT {{"Q1": 12, "Q2": 22}}\n{line}\n{REFERENCE}') == {"Q1": 0.0, "Q2": 0.0}


@pytest.mark.parametrize("line", ["caches INVALIDATED", "0 configs INVALID", "Q10: INVALID", "a_Q1: INVALID"])
def test_a_word_that_is_about_no_config_is_none(line: str) -> None:
    """Neither a longer name nor a longer word."""
    assert ratios(f'{line}\nKERNEL_RESULT {{"Q1": 12, "Q2": 22}}\n{REFERENCE}') == pytest.approx({"Q1": 1.2, "Q2": 1.1})


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "no KERNEL_RESULT line was printed"),
        ("all good\nKERNEL_RESULTS {}\n", "no KERNEL_RESULT line was printed"),
        ('KERNEL_RESULT {"Q1": 12}\nKERNEL_RESULT {"Q1": 13}', "line 2, KERNEL_RESULT: 'Q1' was reported before"),
        ('KERNEL_RESULT {"Q1": 12, "Q1": 13}', "line 1, KERNEL_RESULT: 'Q1' is given twice, as 12 and 13"),
        (f'KERNEL_RESULT {{"Q1": 12}}\n{REFERENCE}\nKERNEL_RESULT_REFERENCE {{"Q1": 1}}', "line 3, KERNEL_RESULT_REF"),
        ('KERNEL_RESULT {"Q1": {"us": 1, "ours_us": 2}}', "line 1, KERNEL_RESULT: two values of us, 1 and 2"),
        ('KERNEL_RESULT {"Q1": {"ratio": 1, "speedup": 2}}', "line 1, KERNEL_RESULT: two ratios, 1 and 2"),
        (
            'KERNEL_RESULT {"Q1": {"us": 1, "ref_us": 2}}\nKERNEL_RESULT_REFERENCE {"Q1": {"us": 9}}',
            "'Q1' has two references, 2 and 9 us",
        ),
        ("Q1: 12 TFLOPS\nQ1: 13 TFLOPS", "line 2: 'Q1' was reported before"),
        ("KERNEL_RESULT config=Q1 us=1 us=2", "line 1, KERNEL_RESULT: a key is given twice"),
        ('KERNEL_RESULT {"Q1": 12', "line 1, KERNEL_RESULT is no JSON object"),
        ('KERNEL_RESULT {"Q1": 12} and more', "line 1, KERNEL_RESULT is no JSON object"),
        ("KERNEL_RESULT 12", "line 1, KERNEL_RESULT is neither a JSON object nor config=NAME"),
        ('KERNEL_RESULT {"Q7": 12}', "line 1, KERNEL_RESULT: names no config of the task"),
        ('KERNEL_RESULT {"config": 1, "us": 3}', "line 1, KERNEL_RESULT: config is 1; the name of a config"),
        ("KERNEL_RESULT {" + "[" * 5000, "line 1, KERNEL_RESULT is nested deeper than"),
        ("KERNEL_RESULT {" + " " * MAX_LINE + "}", "line 1, KERNEL_RESULT has 262146 characters"),
        ("Q1 is INVALID\n" * (MAX_INVALID + 1) + 'KERNEL_RESULT {"Q1": 1}', "more than 1000 lines say INVALID"),
    ],
    ids=range(18),
)
def test_a_report_that_contradicts_itself_is_refused(output: str, why: str) -> None:
    """As a whole: which of two answers would be the right one?"""
    reading = read(output, CONFIGS)
    assert reading.refused.startswith(why)
    assert [one.ratio for one in reading.configs] == [0.0, 0.0]
    assert all(one.reason for one in reading.configs)


@pytest.mark.parametrize(
    "line", ["a" * 500_000, ":" * 500_000, "KERNEL_RESULT a" + " " * 500_000 + "b", ",nan(" * 50_000, "TFLOPS" * 80_000]
)
@pytest.mark.timeout(20)
def test_hostile_lines_are_cheap(line: str) -> None:
    """No pattern may take a run's minutes."""
    for text in (line, f"KERNEL_RESULT {line}", f'KERNEL_RESULT {{"Q1": {line}}}'):
        assert {one.ratio for one in read(text, CONFIGS).configs} == {0.0}


# ---------------------------------------------------------------- anything at all


def sound(reading: Reading) -> None:
    assert [one.config for one in reading.configs] == list(CONFIGS)
    for one in reading.configs:
        assert math.isfinite(one.ratio)
        assert 0 <= one.ratio <= MAX_RATIO
        assert (one.ratio == 0) == bool(one.reason)
    if reading.refused:
        assert all(one.ratio == 0 for one in reading.configs)


keys = st.sampled_from(
    ["Q1", "Q2", "config", "ratio", "us", "ref_us", "tflops", "ref_tflops", "ours", "ref", "valid", "status", "x"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("INVALID"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
marks = st.sampled_from(["KERNEL_RESULT ", "KERNEL_RESULT_REFERENCE ", "Q1: ", "TFLOPS: ", "Q_LEN=1: ", "INVALID ", ""])
pieces = st.sampled_from(
    ["Q1", "=", ":", " ", "{", "}", '"', "1.5", "nan", "us", " TFLOPS", "INVALID", ",", "config", "\n"]
)


@given(st.text())
def test_any_text_is_survived_and_none_of_it_is_a_ratio(text: str) -> None:
    """Without a result line nothing counts."""
    reading = read(text, CONFIGS)
    sound(reading)
    if "KERNEL_RESULT" not in text:
        assert all(one.ratio == 0 for one in reading.configs)


@given(st.lists(st.tuples(marks, st.lists(pieces, max_size=12).map("".join)), max_size=6))
def test_pieces_of_every_form_are_survived(lines: list[tuple[str, str]]) -> None:
    """However they are put together."""
    sound(read("\n".join(mark + rest for mark, rest in lines), CONFIGS))


@given(st.lists(st.tuples(marks, st.dictionaries(keys, anything, max_size=4)), max_size=4))
def test_any_json_is_survived(lines: list[tuple[str, Any]]) -> None:
    """NaN and infinity among it, as Python and C print them."""
    sound(read("\n".join(mark + json.dumps(content) for mark, content in lines), CONFIGS))


@given(
    st.floats(min_value=1e-3, max_value=1e3),
    st.floats(min_value=1e-3, max_value=1e3),
    st.sampled_from(["tflops", "us"]),
)
def test_two_honest_numbers_give_their_quotient(ours: float, theirs: float, unit: str) -> None:
    """Throughput: ours over theirs. Time: theirs over ours."""
    output = "\n".join(
        f"{mark} {json.dumps({name: {unit: value} for name in CONFIGS})}"
        for mark, value in (("KERNEL_RESULT", ours), ("KERNEL_RESULT_REFERENCE", theirs))
    )
    wanted = ours / theirs if unit == "tflops" else theirs / ours
    assert ratios(output) == pytest.approx({"Q1": wanted, "Q2": wanted}, rel=1e-6)
