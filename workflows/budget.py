"""When the search is over, and what it has used. Pure functions of the run's state."""

from __future__ import annotations

from specs.outcomes import Charge, Stage
from specs.plan import Plan
from workflows.state import Allowance, BudgetExtension, RunState

# Beyond these a number is a slip of the finger; all of them fit every integer and clock on their way.
MOST = {"iterations": 10_000_000, "wall_minutes": 366 * 24 * 60, "tokens": 10**13, "usd": 10**7}
LAST_STALL = 2  # the second stall in OPTIMIZE ends the run


def why_over(plan: Plan, state: RunState) -> str | None:
    """Why no further iteration starts, in words for people; None when the search goes on."""
    budget, spent = state.budget, state.charge
    if state.stop_reason is not None:
        return state.stop_reason
    if iterations_done(state) >= budget.max_iterations:
        return f"the budget of {counted(budget.max_iterations, 'iteration')} is used up"
    if state.charged_s >= budget.max_wall_minutes * 60:
        return f"the budget of {counted(budget.max_wall_minutes, 'minute')} is used up"
    if budget.max_tokens is not None and spent.tokens >= budget.max_tokens:
        return f"the budget of {budget.max_tokens} tokens is used up"
    if budget.max_usd is not None and spent.usd is not None and spent.usd >= budget.max_usd:
        return f"the budget of {budget.max_usd:g} USD is used up"
    if state.stage is Stage.OPTIMIZE and state.stalls >= LAST_STALL:
        return (
            f"no win in {counted(state.since_win, 'iteration')} (search.stall_after {plan.search.stall_after}, twice)"
        )
    if state.exhausted and not state.submissions:
        return "the optimiser has nothing more to propose"
    return None


def counted(count: float, noun: str) -> str:
    """`1 attempt`, `3 attempts`."""
    return f"{count:.12g} {noun}" if count == 1 else f"{count:.12g} {noun}s"


def iterations_done(state: RunState) -> int:
    return state.wins + state.attempts


def allowance(state: RunState, shares: int) -> Allowance:
    """What one of so many conversations side by side may use, of what is left of the run's budget."""
    tokens, usd = left(Allowance(tokens=state.budget.max_tokens, usd=state.budget.max_usd), state.charge)
    return Allowance(tokens=None if tokens is None else tokens // shares, usd=None if usd is None else usd / shares)


def left(of: Allowance, spent: Charge) -> tuple[int | None, float | None]:
    """Tokens and USD that are left; None: no limit. A price that is unknown is not known to leave anything."""
    tokens = None if of.tokens is None else max(0, of.tokens - spent.tokens)
    usd = None if of.usd is None else 0.0 if spent.usd is None else max(0.0, of.usd - spent.usd)
    return tokens, usd


def unusable(name: str, value: float, used: float = 0) -> str | None:
    """What is wrong with a limit, or with adding `value` to the limit `used`, in words; None when it can be used."""
    # NaN fails the comparison, infinity the upper one.
    if 0 < value <= MOST[name] - used:
        return None
    up_to = f"a number above 0, up to {MOST[name]}" if name in ("wall_minutes", "usd") else f"1 to {MOST[name]}"
    together = f" together with the {used:g} there are" if used and value > 0 else ""
    return f"{value}; accepted: {up_to}{together}"


def extend(state: RunState, more: BudgetExtension) -> None:
    budget = state.budget
    state.budget = budget.model_copy(
        update={
            "max_iterations": budget.max_iterations + (more.iterations or 0),
            "max_wall_minutes": budget.max_wall_minutes + (more.wall_minutes or 0.0),
            "max_tokens": None if budget.max_tokens is None else budget.max_tokens + (more.tokens or 0),
            "max_usd": None if budget.max_usd is None else budget.max_usd + (more.usd or 0.0),
        }
    )
