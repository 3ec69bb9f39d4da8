"""What must hold between the keys of a task."""

from __future__ import annotations

import pytest

from specs.loader import load_task
from specs.schema import MAX_CONFIGS
from tests.specs.conftest import INTERFACE, SMALL, Write, refused, the_error


def test_two_configs_of_one_name_are_refused_with_both_lines(write: Write) -> None:
    """Results are kept by name."""
    problem = the_error(write(SMALL.replace("name: large", "name: small")))
    assert (problem.line, problem.field) == (12, "configs[1].name")
    assert problem.message == "'small' is the name of configs[0] too (line 10)"


def test_focus_needs_a_config_to_focus_on(write: Write) -> None:
    """The names to choose from are told."""
    problem = the_error(write(f"{SMALL}scoring: focus\n"))
    assert (problem.line, problem.field) == (14, "scoring")
    assert problem.message == "focus needs focus_config, the name of a config; accepted: small, large"


@pytest.mark.parametrize("scoring", ["focus", "min_ratio"])
def test_a_focus_config_that_no_config_bears_is_refused(write: Write, scoring: str) -> None:
    """Whatever the scoring."""
    errors = refused(write(f"{SMALL}scoring: {scoring}\nfocus_config: medium\n"))
    assert [(e.line, e.message) for e in errors] == [(15, "'medium' is the name of no config; accepted: small, large")]


def test_a_focus_config_without_focus_is_a_warning(write: Write) -> None:
    """It does nothing, and a person may think that it does."""
    loaded = load_task(write(f"{SMALL}focus_config: small\n"))
    assert [(w.field, w.message) for w in loaded.warnings] == [
        ("focus_config", "has no effect unless scoring is focus")
    ]


def test_focus_on_a_config_loads(write: Write) -> None:
    """The sound case."""
    assert load_task(write(f"{SMALL}scoring: focus\nfocus_config: large\n")).warnings == []


def test_weighted_avg_with_all_weights_zero_is_refused(write: Write) -> None:
    """It would divide by zero."""
    text = SMALL.replace("{N: 64}", "{N: 64}\n    weight: 0").replace("{N: 4096}", "{N: 4096}\n    weight: 0.0")
    assert the_error(write(f"{text}scoring: weighted_avg\n")).field == "scoring"


def test_weights_of_zero_do_not_matter_to_other_scorings(write: Write) -> None:
    """Only weighted_avg weighs."""
    text = SMALL.replace("{N: 64}", "{N: 64}\n    weight: 0").replace("{N: 4096}", "{N: 4096}\n    weight: 0")
    assert [c.weight for c in load_task(write(text)).task.configs] == [0, 0]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("shape: [N]}\n    - {name: y", 'shape: ["4 * Q"]}\n    - {name: y', "interface.arguments[0].shape[0]"),
        (
            "kind: scalar, dtype: i32}",
            "kind: scalar, dtype: i32}\n    - {name: w, kind: workspace, bytes: Q}",
            "interface.arguments[3].bytes",
        ),
        ("interface:", "work: {flops: 2 * Q}\ninterface:", "work.flops"),
        ("interface:", "work: {bytes: Q}\ninterface:", "work.bytes"),
    ],
)
def test_an_expression_that_names_no_argument_is_refused(write: Write, old: str, new: str, field: str) -> None:
    """In every place that holds expressions; the names that there are are told."""
    problem = the_error(write(SMALL + INTERFACE.replace(old, new, 1)))
    assert problem.field == field
    assert "in config 'small' (and in 1 more)" in problem.message
    assert "'Q', which no argument or shape bears (known: N)" in problem.message


def test_an_expression_is_checked_for_every_config(write: Write) -> None:
    """An argument that only the second config lacks is found."""
    problem = the_error(write(f"{SMALL.replace('{N: 4096}', '{M: 4096}')}work: {{flops: N}}\n"))
    assert problem.message == "in config 'large': 'N' names 'N', which no argument or shape bears (known: M)"


def test_an_expression_may_name_a_shape_of_the_problem(write: Write) -> None:
    """problem.shapes are shared by all configs."""
    text = SMALL.replace("baseline:", "  shapes: {K: 8}\nbaseline:") + INTERFACE.replace("shape: [N]", "shape: [N, K]")
    assert load_task(write(text)).warnings == []


@pytest.mark.parametrize("expression", ["N / 7", "N - 100", "N // 0", "N * 9999999999999999999"])
def test_an_expression_that_yields_no_size_is_refused(write: Write, expression: str) -> None:
    """A fraction, a negative, a division by zero, a number beyond 64 bits."""
    assert "in config 'small'" in the_error(write(SMALL + INTERFACE.replace("[N]", f'["{expression}"]', 1))).message


def test_a_mistaken_argument_is_told_once_not_wherever_it_is_used(write: Write) -> None:
    """The argument is the mistake."""
    problem = the_error(write(SMALL.replace("{N: 64}", "{N: [64]}") + INTERFACE))
    assert problem.field == "configs[0].args.N"


def test_a_scalar_that_no_config_gives_is_refused(write: Write) -> None:
    """It has neither a value nor an argument of its name."""
    problem = the_error(write(SMALL + INTERFACE + "    - {name: eps, kind: scalar, dtype: f32}\n"))
    assert (problem.line, problem.field) == (20, "interface.arguments[3]")
    assert problem.message == "scalar 'eps' has no value, and config 'small' has no argument 'eps' (it has: N)"


def test_a_scalar_that_one_config_lacks_is_refused(write: Write) -> None:
    """Every config must give it."""
    text = SMALL.replace("{N: 64}", "{N: 64, eps: 0.5}") + INTERFACE + "    - {name: eps, kind: scalar, dtype: f32}\n"
    assert "config 'large' has no argument 'eps'" in the_error(write(text)).message


@pytest.mark.parametrize("given", ["value: 1.0e-6", "value: 1"])
def test_a_scalar_with_a_value_needs_no_argument(write: Write, given: str) -> None:
    """A constant of the contract."""
    assert (
        load_task(write(f"{SMALL}{INTERFACE}    - {{name: eps, kind: scalar, dtype: f32, {given}}}\n")).warnings == []
    )


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("i8", "128"), ("u8", "-1"), ("i32", "1.5"), ("i32", "text"), ("f32", "true"), ("bf16", "text")],
)
def test_a_scalar_that_its_dtype_cannot_hold_is_refused(write: Write, dtype: str, value: str) -> None:
    """Whether it is a constant or an argument."""
    constant = f"{SMALL}{INTERFACE}    - {{name: v, kind: scalar, dtype: {dtype}, value: {value}}}\n"
    assert f"accepted for {dtype}" in the_error(write(constant)).message
    argument = SMALL.replace("{N: 64}", f"{{N: 64, v: {value}}}").replace("{N: 4096}", "{N: 4096, v: 1}")
    assert (
        "in config 'small'"
        in the_error(write(f"{argument}{INTERFACE}    - {{name: v, kind: scalar, dtype: {dtype}}}\n")).message
    )


@pytest.mark.parametrize(
    ("dtype", "value"), [("i8", "-128"), ("u8", "255"), ("i32", "true"), ("f8e4m3", "2"), ("i64", str(2**63 - 1))]
)
def test_a_scalar_that_its_dtype_can_hold_is_accepted(write: Write, dtype: str, value: str) -> None:
    """To the very ends of the range; a flag passes as 0 or 1."""
    text = f"{SMALL}{INTERFACE}    - {{name: v, kind: scalar, dtype: {dtype}, value: {value}}}\n"
    assert load_task(write(text)).warnings == []


def test_a_stream_on_a_cpu_is_refused(write: Write) -> None:
    """There is none."""
    assert the_error(write(f"{SMALL}{INTERFACE}    - {{kind: stream}}\n")).field == "interface.arguments[3]"


def test_a_stream_on_a_gpu_is_accepted(write: Write) -> None:
    """The sound case."""
    assert load_task(write(f"{SMALL.replace('CPU', 'H200')}{INTERFACE}    - {{kind: stream}}\n")).warnings == []


def test_more_configs_than_any_task_has_are_refused(write: Write) -> None:
    """The limit is told."""
    text = SMALL + "".join(f"  - {{name: c{i}, args: {{N: 1}}}}\n" for i in range(MAX_CONFIGS))
    assert f"at most {MAX_CONFIGS}" in the_error(write(text)).message


def test_an_interface_that_costs_an_hour_of_arithmetic_is_refused(write: Write) -> None:
    """Long expressions times many configs are counted before they are evaluated."""
    configs = "".join(f"  - {{name: c{i}, args: {{N: 1}}}}\n" for i in range(MAX_CONFIGS - 2))
    long = "N" + "+N" * 200
    text = SMALL + configs + INTERFACE.replace("shape: [N]", f"shape: [{', '.join([long] * 8)}]")
    assert "characters over all configs" in the_error(write(text)).message
