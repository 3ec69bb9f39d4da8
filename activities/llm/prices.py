"""What an answer costs: tokens as the server counts them, USD by bundled prices or by the user's own.

A model whose price nobody knows costs None, never 0. Nothing is ever fetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Self, TypeGuard

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from activities.settings import Settings
from specs.errors import UserError
from specs.outcomes import Charge
from specs.wording import given

MILLION = 1e6
MOST_RATE = 1e6  # beyond it a price is a slip of the finger
MOST_COUNTED = 10**9  # tokens of one pass, whatever a server says
ACCEPTED = "a mapping of models to input, output, cache_read, cache_write_5m, cache_write_1h, each USD per 1e6 tokens"

Rate = Annotated[float, Field(ge=0, le=MOST_RATE, allow_inf_nan=False, strict=True)]


class Rates(BaseModel):
    """USD per million tokens. The ratios between them differ from model to model: none is derived from another."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Rate
    output: Rate
    cache_read: Rate
    cache_write_5m: Rate
    cache_write_1h: Rate


class LongPrompt(Rates):
    """All tokens of a call whose prompt is longer cost this."""

    above_tokens: int = Field(ge=1, strict=True)


class Price(Rates):
    """One model's, as a price file has it."""

    web_search: Rate | None = None  # USD per thousand searches
    long_prompt: LongPrompt | None = None
    effective_from: date | None = None  # before that day the bundled price counts

    def rates(self, prompt_tokens: int) -> Rates:
        tier = self.long_prompt
        return tier if tier is not None and prompt_tokens > tier.above_tokens else self


class _BundledPrice(Price):
    """The bundled data may have several steps."""

    tiers: tuple[LongPrompt, ...] = ()  # in growing order

    def rates(self, prompt_tokens: int) -> Rates:
        return next((tier for tier in reversed(self.tiers) if prompt_tokens > tier.above_tokens), self)


@dataclass(frozen=True, slots=True)
class Prices:
    """Where prices come from: the user's file first, then what is bundled."""

    own: Mapping[str, Price] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises UserError for a price file that cannot be used."""
        return cls() if settings.prices is None else cls(read_prices(settings.prices))

    def price(self, model: str) -> Price | None:
        """None: nobody knows."""
        own, now = self.own.get(model), datetime.now(UTC)
        if own is not None and (own.effective_from is None or own.effective_from <= now.date()):
            return own
        return _bundled(model, now)


def known(model: str, *, free: bool, prices: Prices | None = None) -> bool:
    return free or (prices or Prices()).price(model) is not None


def charge_of(model: str, usage: Mapping[str, Any], *, free: bool, prices: Prices | None = None) -> Charge:
    """What one answer cost, by the `usage` that came with it."""
    calls = list(_calls(usage))
    searches = _count(usage.get("server_tool_use"), "web_search_requests")
    return Charge(
        input_tokens=sum(call.fresh for call in calls),
        cache_read_tokens=sum(call.read for call in calls),
        cache_write_tokens=sum(call.written_5m + call.written_1h for call in calls),
        output_tokens=sum(call.output for call in calls),
        calls=1,
        usd=0.0 if free else _usd((prices or Prices()).price(model), calls, searches),
    )


def worst_case_usd(
    model: str, input_tokens: int, output_tokens: int, *, free: bool, prices: Prices | None = None
) -> float | None:
    """The most that a call of this size can cost: every token read at the dearest rate."""
    if free:
        return 0.0
    price = (prices or Prices()).price(model)
    if price is None:
        return None
    rates = price.rates(input_tokens)
    dearest = max(rates.input, rates.cache_read, rates.cache_write_5m, rates.cache_write_1h)
    return (input_tokens * dearest + output_tokens * rates.output) / MILLION


# ---------------------------------------------------------------- usage


@dataclass(frozen=True, slots=True)
class _Call:
    """Tokens of one pass of the model."""

    fresh: int
    read: int
    written_5m: int
    written_1h: int
    output: int

    @property
    def prompt(self) -> int:
        return self.fresh + self.read + self.written_5m + self.written_1h

    def usd(self, price: Price) -> float:
        rates = price.rates(self.prompt)
        return (
            self.fresh * rates.input
            + self.read * rates.cache_read
            + self.written_5m * rates.cache_write_5m
            + self.written_1h * rates.cache_write_1h
            + self.output * rates.output
        ) / MILLION


def _calls(usage: Mapping[str, Any]) -> Iterator[_Call]:
    """The answer's own, and each compaction beside it: that is billed, but not in the top-level numbers."""
    yield _call(usage)
    passes = usage.get("iterations")
    for one in passes if isinstance(passes, list) else ():
        if isinstance(one, Mapping) and one.get("type") == "compaction":
            yield _call(one)


def _call(usage: Mapping[str, Any]) -> _Call:
    written_5m = _count(usage.get("cache_creation"), "ephemeral_5m_input_tokens")
    written = max(_count(usage, "cache_creation_input_tokens"), written_5m)
    split = _count(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
    return _Call(
        fresh=_count(usage, "input_tokens"),
        read=_count(usage, "cache_read_input_tokens"),
        written_5m=written_5m,
        # What a server does not split is taken to be the dearer.
        written_1h=max(split, written - written_5m),
        output=_count(usage, "output_tokens"),
    )


def _count(usage: Any, key: str) -> int:
    """0 for what is absent or no number: compatible servers leave out much."""
    value = usage.get(key) if isinstance(usage, Mapping) else None
    return min(math.ceil(value), MOST_COUNTED) if is_count(value) else 0


def is_count(value: Any) -> TypeGuard[int | float]:
    """Some servers count in floats."""
    number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return number and not isinstance(value, bool) and value >= 0


def _usd(price: Price | None, calls: list[_Call], searches: int) -> float | None:
    if price is None or (searches and price.web_search is None):
        return None
    return sum(call.usd(price) for call in calls) + searches * (price.web_search or 0.0) / 1_000


# ---------------------------------------------------------------- bundled prices


def _bundled(model: str, now: datetime) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot  # half a second

    name = model.lower()
    sold_by = "aws" if "anthropic." in name else "google" if "@" in name else "anthropic"
    try:
        _, info = get_snapshot().find_provider_model(name, None, sold_by, None)
    except LookupError:
        return None
    return _converted(info.get_prices(now))


def _converted(prices: Any) -> Price | None:
    """None where a class of tokens that we use has no price."""
    columns = {
        "input": prices.input_mtok,
        "output": prices.output_mtok,
        "cache_read": prices.cache_read_mtok,
        "cache_write_5m": prices.cache_write_5m_mtok or prices.cache_write_mtok,
        "cache_write_1h": prices.cache_write_1h_mtok,
    }
    if any(column is None for column in columns.values()):
        return None
    steps = sorted({tier.start for column in columns.values() for tier in getattr(column, "tiers", ())})
    searches = prices.web_searches_kcount
    return _BundledPrice(
        **{name: _at(column, 0) for name, column in columns.items()},
        web_search=None if searches is None else _at(searches, 0),
        tiers=tuple(
            LongPrompt(above_tokens=step, **{name: _at(column, step + 1) for name, column in columns.items()})
            for step in steps
        ),
    )


def _at(column: Any, prompt_tokens: int) -> float:
    """A rate at a prompt's length: crossing a step sets the rate of all tokens."""
    rate = getattr(column, "base", column)
    for tier in getattr(column, "tiers", ()):
        if prompt_tokens > tier.start:
            rate = tier.price
    return float(rate)


# ---------------------------------------------------------------- a price file

_FILE = TypeAdapter(dict[str, Price])


def read_prices(path: Path) -> dict[str, Price]:
    """Raises UserError, one line for each thing that is wrong."""
    try:
        read = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); accepted: {ACCEPTED}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a day that is none is a bare ValueError
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f":{mark.line + 1}"
        raise UserError(f"{path}{where}: not YAML; accepted: {ACCEPTED}") from None
    if not isinstance(read, dict) or not all(isinstance(model, str) for model in read):
        raise UserError(f"{path}: {given(read)} given; accepted: {ACCEPTED}")
    try:
        return _FILE.validate_python(read)
    except ValidationError as error:
        lines = [f"{path}: {_problem(one['loc'], one['type'], one['input'])}" for one in error.errors()]
        raise UserError("\n".join(lines)) from None


def _problem(where: tuple[int | str, ...], kind: str, value: Any) -> str:
    key = ".".join(map(str, where))
    match kind:
        case "missing":
            return f"{key}: none given; accepted: {_accepted(str(where[-1]))}"
        case "extra_forbidden":
            return f"{key}: no such key; accepted: {', '.join(Price.model_fields)}"
    return f"{key}: {given(value)} given; accepted: {_accepted(str(where[-1]))}"


def _accepted(key: str) -> str:
    match key:
        case "effective_from":
            return "a day, as 2026-10-01"
        case "above_tokens":
            return "a whole number, 1 or more"
        case "long_prompt":
            return f"a mapping with the keys {', '.join(LongPrompt.model_fields)}"
        case "web_search":
            return f"a number, 0 to {MOST_RATE:.0f}: USD per thousand searches"
        case key if key in Rates.model_fields:
            return f"a number, 0 to {MOST_RATE:.0f}: USD per million tokens"
    return f"a mapping with the keys {', '.join(Price.model_fields)}"
