"""When the search is over, and what an extension adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specs.outcomes import Charge, Stage
from specs.plan import Plan
from specs.schema import Budget
from tests.fakes import write_task
from workflows.budget import MOST, allowance, extend, left, unusable, why_over
from workflows.state import Allowance, BudgetExtension, RunState


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    loaded = write_task(tmp_path, ["// one"])
    return Plan.of(loaded.task, loaded.digest)


def state(**fields: Any) -> RunState:
    budget = Budget(max_iterations=5, max_wall_minutes=1, max_tokens=100, max_usd=2)
    return RunState.model_validate({"budget": budget, "wins": 1, "attempts": 1} | fields)


def test_within_its_budget_the_search_goes_on(plan: Plan) -> None:
    """Nothing is over yet."""
    assert why_over(plan, state()) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attempts": 4}, "5 iterations"),
        ({"charged_s": 60.0}, "1 minute "),
        ({"charge": Charge(input_tokens=60, output_tokens=40)}, "100 tokens"),
        ({"charge": Charge(usd=2.0)}, "2 USD"),
        ({"stage": Stage.OPTIMIZE, "stalls": 2, "since_win": 8}, "no win in 8 iterations"),
        ({"exhausted": True}, "nothing more to propose"),
        ({"stop_reason": "enough"}, "enough"),
    ],
)
def test_each_limit_ends_it_with_its_own_words(plan: Plan, fields: dict[str, Any], words: str) -> None:
    """The reason is what a person reads at the end."""
    assert words in (why_over(plan, state(**fields)) or "")


def test_stalls_do_not_end_reproduce(plan: Plan) -> None:
    """Until the vendor's speed is reproduced, only the budget does."""
    assert why_over(plan, state(stage=Stage.REPRODUCE, stalls=9)) is None


def test_an_unknown_price_stays_unknown() -> None:
    """It never becomes 0 on the way."""
    assert Charge(usd=1.0) + Charge(usd=None, input_tokens=3) == Charge(usd=None, input_tokens=3)
    assert (Charge(usd=1.0) + Charge(usd=0.5)).usd == 1.5


def test_every_class_of_tokens_counts_against_the_budget() -> None:
    """Also those that a cache made cheap: the USD budget knows the difference."""
    charge = Charge(input_tokens=1, cache_read_tokens=2, cache_write_tokens=3, output_tokens=4, calls=1)
    assert charge.tokens == 10
    twice = charge + charge
    assert (twice.tokens, twice.calls, twice.cache_read_tokens) == (20, 2, 4)


def test_conversations_side_by_side_share_what_is_left() -> None:
    """Together they cannot use more than there is."""
    one = state(charge=Charge(output_tokens=40, usd=0.5))
    assert allowance(one, 3) == Allowance(tokens=20, usd=0.5)
    assert allowance(one.model_copy(update={"budget": Budget()}), 3) == Allowance()


def test_what_is_left_of_an_allowance_is_never_less_than_nothing() -> None:
    """And a price that is unknown leaves nothing of an allowance in USD."""
    assert left(Allowance(tokens=100, usd=2.0), Charge(output_tokens=30, usd=0.5)) == (70, 1.5)
    assert left(Allowance(tokens=10, usd=0.1), Charge(output_tokens=30, usd=0.5)) == (0, 0.0)
    assert left(Allowance(usd=2.0), Charge(usd=None)) == (None, 0.0)
    assert left(Allowance(), Charge(usd=None)) == (None, None)


def test_an_extension_adds_to_what_is_limited() -> None:
    """And leaves the rest as it was."""
    one = state()
    extend(one, BudgetExtension(iterations=2, usd=0.5))
    assert one.budget == Budget(max_iterations=7, max_wall_minutes=1, max_tokens=100, max_usd=2.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 0, 10**30])
@pytest.mark.parametrize("name", ["iterations", "wall_minutes", "tokens", "usd"])
def test_a_limit_that_is_none_is_told_with_what_is_accepted(name: str, value: float) -> None:
    """NaN, infinities and slips of the finger never become a budget."""
    problem = unusable(name, value)
    assert problem is not None
    assert problem.startswith(f"{value}; accepted: ")
    assert unusable(name, 1) is None


def test_a_limit_cannot_be_extended_beyond_the_most_there_is() -> None:
    """However small the steps."""
    assert unusable("iterations", 1, MOST["iterations"] - 1) is None
    assert "together with the" in (unusable("iterations", 2, MOST["iterations"] - 1) or "")
