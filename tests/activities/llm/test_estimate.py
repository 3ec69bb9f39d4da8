"""What a run may cost, said before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.llm.estimate import OPTIMIZER, described, estimate
from activities.llm.prices import Price, Prices
from specs.schema import Task
from tests.fakes import write_task

RATES = {"input": 1.0, "output": 1.0, "cache_read": 1.0, "cache_write_5m": 1.0, "cache_write_1h": 1.0}


def task(folder: Path, **overrides: Any) -> Task:
    """Without a reviewer, unless a model block is given."""
    found = write_task(folder, ["// one"], **{"model": {"provider": "anthropic"}, **overrides}).task
    if "model" in overrides:
        return found
    return found.model_copy(update={"model": found.model.model_copy(update={"reviewer": None})})


def test_a_run_costs_in_proportion_to_its_iterations(tmp_path: Path) -> None:
    """Every conversation begins anew, so none is dearer than the one before."""
    ten, sixty = (estimate(task(tmp_path, budget={"max_iterations": count}), Prices()) for count in (10, 60))
    assert sixty.tokens == 6 * ten.tokens
    assert ten.usd is not None
    assert sixty.usd == pytest.approx(6 * ten.usd)


def test_tokens_and_usd_are_of_the_same_work(tmp_path: Path) -> None:
    """At a USD per million of whatever kind, a run costs as many USD as it has millions of tokens."""
    flat = Prices({"claude-opus-5-5": Price.model_validate(RATES)})
    found = estimate(task(tmp_path), flat)
    assert found.usd == pytest.approx(found.tokens / 1e6)
    smallest = OPTIMIZER.turns * (OPTIMIZER.shared + OPTIMIZER.first + OPTIMIZER.said)
    assert found.tokens > found.iterations * smallest


def test_fewer_steps_cost_less_and_reviews_and_a_gate_cost_more(tmp_path: Path) -> None:
    """Each of them is work of a model."""
    plain = estimate(task(tmp_path), Prices()).tokens
    assert estimate(task(tmp_path, search={"max_steps": 2}), Prices()).tokens < plain
    assert estimate(task(tmp_path, model={"provider": "anthropic"}), Prices()).tokens > plain
    assert estimate(task(tmp_path, gate=None), Prices()).tokens > plain


def test_an_unknown_price_leaves_the_sum_unknown(tmp_path: Path) -> None:
    """And names the models, each once."""
    model = {"optimizer": "mine", "reviewer": "mine", "gate_writer": "other"}
    found = estimate(task(tmp_path, model=model, gate=None), Prices())
    assert (found.usd, found.unknown) == (None, ("mine", "other"))
    assert found.tokens > 0
    assert "USD unknown, since nobody has told the price of mine, other" in described(found)


def test_a_server_of_ones_own_costs_tokens_and_no_money(tmp_path: Path) -> None:
    """Whatever its models are called."""
    model = {"provider": "local", "base_url": "http://localhost:1", "optimizer": "mine"}
    found = estimate(task(tmp_path, model=model), Prices())
    assert (found.usd, found.unknown) == (0.0, ())
    assert found.tokens > 0


def test_a_script_costs_nothing(tmp_path: Path) -> None:
    """No model is asked."""
    found = estimate(task(tmp_path, model={"provider": "scripted", "script": "script"}), Prices())
    assert (found.tokens, found.usd) == (0, 0.0)
    assert described(found) == "provider 'scripted' asks no model: no tokens, 0 USD"


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        ({}, "the budget sets no limit in tokens or USD"),
        ({"max_tokens": 5_000_000}, "never more than 5,000,000 tokens"),
        ({"max_tokens": 5_000_000, "max_usd": 12.5}, "never more than 5,000,000 tokens and 12.50 USD"),
    ],
)
def test_one_line_tells_the_estimate_and_the_most_it_can_be(tmp_path: Path, budget: dict[str, Any], most: str) -> None:
    """The budget ends a run before the call that would break it."""
    flat = Prices({"claude-opus-5-5": Price.model_validate(RATES)})
    found = estimate(task(tmp_path, budget={"max_iterations": 20, **budget}), flat)
    millions = found.tokens / 1e6
    told = f"20 iterations use about {millions:,.1f} million tokens, {millions:,.2f} USD; {most}"
    assert described(found) == told
