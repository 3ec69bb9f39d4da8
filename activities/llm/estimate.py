"""What a run may cost, said before it starts: typical work times its prices, and at most its budget. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activities.llm.prices import Prices, charge_of
from specs.outcomes import Charge
from specs.schema import Provider, Task


@dataclass(frozen=True, slots=True)
class Work:
    """A typical conversation; its context grows by what is said and what the tools answer."""

    turns: int
    shared: int  # tokens of prompt and tools, which stay in the server's cache from one conversation to the next
    first: int  # of the first message
    said: int  # by the model, a turn
    answered: int  # by the tools, a turn


# As benchmarks/run_cost.md has them, at four bytes a token. What the code makes is measured: prompts, tools, answers.
# Turns and what is said in one are its script's, and the gate writer's but for `shared` are a guess.
OPTIMIZER = Work(turns=16, shared=3_300, first=4_400, said=1_000, answered=500)
REVIEWER = Work(turns=2, shared=1_000, first=3_000, said=900, answered=1_300)
GATE_WRITER = Work(turns=30, shared=2_300, first=6_000, said=1_500, answered=1_000)
REVIEWS = 0.3  # an iteration: one for every win, and one for every plan


@dataclass(frozen=True, slots=True)
class Estimate:
    provider: Provider
    iterations: int
    tokens: int
    usd: float | None  # None: the price of a model is unknown
    unknown: tuple[str, ...] = ()  # the models without a price
    most_tokens: int | None = None  # the budget; None: no limit
    most_usd: float | None = None


def estimate(task: Task, prices: Prices) -> Estimate:
    """For all of the iterations that the budget allows; a run that stalls ends sooner."""
    model, iterations = task.model, task.budget.max_iterations
    work: list[tuple[str, Work, float]] = []
    if model.provider.is_model:
        work.append((model.optimizer, OPTIMIZER, iterations))
        if model.reviewer is not None:
            work.append((model.reviewer, REVIEWER, iterations * REVIEWS))
        if task.gate is None:
            work.append((model.gate_writer, GATE_WRITER, 1))
    costs = [(name, _charge(task, name, typical, prices), times) for name, typical, times in work]
    unknown = tuple(dict.fromkeys(name for name, charge, _ in costs if charge.usd is None))
    return Estimate(
        provider=model.provider,
        iterations=iterations,
        tokens=round(sum(charge.tokens * times for _, charge, times in costs)),
        usd=None if unknown else sum((charge.usd or 0.0) * times for _, charge, times in costs),
        unknown=unknown,
        most_tokens=task.budget.max_tokens,
        most_usd=task.budget.max_usd,
    )


def described(estimate: Estimate) -> str:
    """One line for people."""
    if not estimate.provider.is_model:
        return f"provider '{estimate.provider.value}' asks no model: no tokens, 0 USD"
    if estimate.unknown:
        usd = f"USD unknown, since nobody has told the price of {', '.join(estimate.unknown)}"
    else:
        usd = f"{estimate.usd:,.2f} USD"
    limits = [
        f"{estimate.most_tokens:,} tokens" if estimate.most_tokens is not None else "",
        f"{estimate.most_usd:,.2f} USD" if estimate.most_usd is not None else "",
    ]
    most = " and ".join(limit for limit in limits if limit)
    return (
        f"{estimate.iterations} iterations use about {estimate.tokens / 1e6:,.1f} million tokens, {usd}; "
        f"{f'never more than {most}' if most else 'the budget sets no limit in tokens or USD'}"
    )


def _charge(task: Task, model: str, work: Work, prices: Prices) -> Charge:
    """What one conversation costs, turn by turn: each reads the one before from the cache and adds to it."""
    free = task.model.provider is Provider.LOCAL
    written = "ephemeral_1h_input_tokens" if task.model.cache_ttl == "1h" else "ephemeral_5m_input_tokens"
    grows = work.said + work.answered
    total, cached, context = Charge(), work.shared, work.shared + work.first
    usage: dict[str, Any]
    for _ in range(min(work.turns, task.search.max_steps)):
        if free:  # compatible servers have no cache that counts
            usage = {"input_tokens": context, "output_tokens": work.said}
        else:
            kept = {"cache_read_input_tokens": cached, "cache_creation": {written: context - cached}}
            usage = {**kept, "output_tokens": work.said}
        total = _added(total, charge_of(model, usage, free=free, prices=prices))
        cached, context = context, context + grows
    return total


def _added(one: Charge, other: Charge) -> Charge:
    return Charge(
        input_tokens=one.input_tokens + other.input_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        usd=None if one.usd is None or other.usd is None else one.usd + other.usd,
    )
