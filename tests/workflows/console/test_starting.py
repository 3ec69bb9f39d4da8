"""From a task file to a run at work: what is decided before the server is asked."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from activities.settings import Settings
from specs.errors import UserError
from specs.loader import LoadedTask, load_task
from tests.run_values import make_plan
from workflows.console.starting import checked_id, default_id, details, estimated, isolation, planned

NOW = datetime(2026, 11, 30, 3, 12)  # an id shows the wall clock of the person who starts

TASK = """
name: t
gpu: CPU
arch: x86-64
precision: f32
problem: {description: d}
baseline: {source: b}
configs: [{name: c, args: {N: 1}}]
budget: {max_iterations: 7, max_wall_minutes: 9}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedTask:
    path = tmp_path / "task.yaml"
    path.write_text(TASK)
    return load_task(path)


def test_a_default_id_names_task_digest_and_time() -> None:
    """An id can be read: which task, which version of it, when."""
    assert default_id(make_plan(), NOW) == "skinny-gemm-f32-cpu-3f2a1c-1130-0312"


@pytest.mark.parametrize("name", ["FP8 GEMM / B200", "ключ", "..", "x" * 200, "a\nb"])
def test_a_default_id_of_any_task_name_is_an_id(name: str) -> None:
    """Whatever the task is called, the id is plain and not too long."""
    assert checked_id(default_id(make_plan(task=name), NOW))


@pytest.mark.parametrize("given", ["", "a/b", "../x", ".hidden", "a b", "x" * 101])
def test_an_id_that_could_not_be_a_folder_is_refused(given: str) -> None:
    """A run's folder bears its id, so an id with a path in it is an error."""
    with pytest.raises(UserError, match="is no run id; accepted: up to 100 letters"):
        checked_id(given)


def test_the_command_line_overrides_only_what_it_gives(loaded: LoadedTask) -> None:
    """An option that is left out leaves the task's value alone."""
    plan = planned(loaded, {"max_iterations": 3, "max_wall_minutes": None, "max_usd": 1.5}, "some-model")

    assert (plan.budget.max_iterations, plan.budget.max_wall_minutes, plan.budget.max_usd) == (3, 9, 1.5)
    assert plan.model.optimizer == "some-model"
    assert plan.digest == loaded.digest


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_iterations", 0), ("max_wall_minutes", float("nan")), ("max_usd", -1.0), ("max_tokens", 0)],
)
def test_a_budget_that_is_none_is_refused(loaded: LoadedTask, option: str, value: float) -> None:
    """Zero, negative and NaN limits are errors that name the option."""
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} "):
        planned(loaded, {option: value}, None)


def test_isolation_comes_from_the_settings_unless_given(tmp_path: Path) -> None:
    """The option wins over the environment; a word that is none of the three is refused."""
    settings = Settings(home=tmp_path, store="memory:///", sandbox="required")

    assert isolation(settings, None) == "required"
    assert isolation(settings, "off") == "off"
    with pytest.raises(UserError, match="accepted: required, preferred, off"):
        isolation(settings, "maybe")


def test_the_details_list_every_config() -> None:
    """The Temporal UI shows the plan before a worker has touched the run."""
    text = details(make_plan())

    assert all(f"| {config.name} | 1 | 1 |" in text for config in make_plan().configs)


def test_what_a_run_may_cost_is_told_before_it_starts(loaded: LoadedTask, tmp_path: Path) -> None:
    """By the models and the budget that the command line gives; an unknown price is unknown."""
    settings = Settings(home=tmp_path, store="memory:///")
    priced = estimated(settings, loaded.task, planned(loaded, {"max_iterations": 3, "max_usd": 5.0}, "claude-opus-4-5"))
    unpriced = estimated(settings, loaded.task, planned(loaded, {}, "nobodys-model"))

    assert priced.startswith("3 iterations use about ")
    assert priced.endswith("never more than 5.00 USD")
    assert "USD unknown, since nobody has told the price of nobodys-model" in unpriced


def test_a_limit_in_usd_that_nobody_could_keep_is_refused(
    loaded: LoadedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is never taken for nothing; with a price of the user's own the run may start."""
    plan = planned(loaded, {"max_usd": 5.0}, "nobodys-model")
    with pytest.raises(UserError, match=r"^budget\.max_usd: 5 USD cannot be kept: nobody knows the price of nobodys-"):
        estimated(Settings.from_env(), loaded.task, plan)
    rates = "{input: 1, output: 2, cache_read: 0.1, cache_write_5m: 1.25, cache_write_1h: 2}"
    names = ("nobodys-model", plan.model.reviewer, plan.model.gate_writer)
    (tmp_path / "prices.yaml").write_text("".join(f"{name}: {rates}\n" for name in dict.fromkeys(names)))
    monkeypatch.setenv("FERRET_PRICES", str(tmp_path / "prices.yaml"))

    assert "never more than 5.00 USD" in estimated(Settings.from_env(), loaded.task, plan)
