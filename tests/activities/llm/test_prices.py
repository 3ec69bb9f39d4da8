"""What an answer costs: every class of tokens at its own rate, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.llm.prices import Prices, charge_of, known, read_prices, worst_case_usd
from activities.settings import Settings
from specs.errors import UserError

OPUS, HAIKU = "claude-opus-5-5", "claude-haiku-5-5"
NOBODYS = "my-own-model"
OWN = """\
my-own-model:
  input: 1
  output: 2.5
  cache_read: 0.1
  cache_write_5m: 1.25
  cache_write_1h: 2
"""
MIXED = {
    "input_tokens": 1_000_000,
    "output_tokens": 1_000_000,
    "cache_read_input_tokens": 1_000_000,
    "cache_creation_input_tokens": 2_000_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 1_000_000, "ephemeral_1h_input_tokens": 1_000_000},
}


def prices(folder: Path, text: str) -> Prices:
    path = folder / "prices.yaml"
    path.write_text(text)
    return Prices.of(Settings(home=folder, store="", prices=path))


def test_every_class_of_tokens_has_its_own_rate() -> None:
    """As the pages of the provider tell them for this model: 4, 20, 0.20, 5 and 8 USD per million."""
    charge = charge_of(OPUS, MIXED, free=False)
    assert charge.usd == pytest.approx(4 + 20 + 0.2 + 5 + 8)
    assert (charge.input_tokens, charge.cache_read_tokens, charge.cache_write_tokens) == (10**6, 10**6, 2 * 10**6)
    assert (charge.output_tokens, charge.calls, charge.tokens) == (10**6, 1, 5 * 10**6)


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"input_tokens": 1_000_000, "output_tokens": None, "cache_creation": None}, 4.0),
        ({"cache_creation_input_tokens": 1_000_000}, 8.0),  # not split: the dearer
        ({"cache_creation": {"ephemeral_5m_input_tokens": 1_000_000}}, 5.0),
        ({"server_tool_use": {"web_search_requests": 100, "web_fetch_requests": 100}}, 1.0),
        ({"iterations": [{"type": "compaction", "input_tokens": 10**6, "output_tokens": 10**6}]}, 24.0),
        ({"iterations": [{"type": "message", "input_tokens": 10**6}, None]}, 0.0),
        ({"input_tokens": "many", "output_tokens": True, "cache_read_input_tokens": -1}, 0.0),
    ],
)
def test_whatever_a_usage_leaves_out_or_adds_is_counted(usage: dict[str, Any], usd: float) -> None:
    """Fields may be null, compactions stand beside the totals, and servers other than Claude's leave out much."""
    assert charge_of(OPUS, usage, free=False).usd == pytest.approx(usd)


def test_compactions_count_as_tokens() -> None:
    """They are missing from the answer's own numbers."""
    usage = {"input_tokens": 5, "iterations": [{"type": "compaction", "input_tokens": 7, "output_tokens": 3}]}
    assert charge_of(OPUS, usage, free=False).tokens == 15


def test_a_long_prompt_costs_its_own_rates() -> None:
    """All of it, its cached parts counted too; two calls beside each other are not one long one."""
    short, long = {"input_tokens": 100_000}, {"input_tokens": 1, "cache_read_input_tokens": 100_000}
    assert charge_of(HAIKU, short, free=False).usd == pytest.approx(0.1 * 0.1)
    assert charge_of(HAIKU, long, free=False).usd == pytest.approx((0.5 + 0.05 * 100_000) / 1e6)
    beside = short | {"iterations": [{"type": "compaction", "input_tokens": 100_000}]}
    assert charge_of(HAIKU, beside, free=False).usd == pytest.approx(2 * 0.1 * 0.1)


@pytest.mark.parametrize("model", [NOBODYS, "claude-opus-9", "claude-opus-5-55", "claude-opus-5-5-fast", "", "gpt-5"])
def test_an_unknown_model_costs_an_unknown_sum(model: str) -> None:
    """Never 0, and never the price of a model whose name begins in the same way."""
    charge = charge_of(model, MIXED, free=False)
    assert (charge.usd, charge.tokens) == (None, 5 * 10**6)
    assert worst_case_usd(model, 1, 1, free=False) is None
    assert not known(model, free=False)


@pytest.mark.parametrize(
    ("model", "usd"),
    [("claude-opus-5-5-20261001", 4.0), ("us.anthropic.claude-opus-5-5-v1:0", 4.4), ("claude-opus-5-5@20261001", 4.0)],
)
def test_a_model_is_known_by_the_names_that_clouds_give_it(model: str, usd: float) -> None:
    """A region of Bedrock costs a tenth more."""
    assert charge_of(model, {"input_tokens": 1_000_000}, free=False).usd == pytest.approx(usd)


def test_what_is_free_costs_nothing_and_still_counts() -> None:
    """A server of one's own; a budget in tokens holds for it too."""
    charge = charge_of(NOBODYS, MIXED, free=True)
    assert (charge.usd, charge.tokens) == (0.0, 5 * 10**6)
    assert worst_case_usd(NOBODYS, 10**6, 10**6, free=True) == 0.0
    assert known(NOBODYS, free=True)


def test_the_worst_case_is_never_below_the_real_charge() -> None:
    """However the tokens that are read turn out to be counted."""
    for model in (OPUS, HAIKU):
        for split in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            for size in (10, 100_000, 100_001, 900_000):
                real = charge_of(model, {split: size, "output_tokens": 1_000}, free=False).usd
                worst = worst_case_usd(model, size, 1_000, free=False)
                assert real is not None
                assert worst is not None
                assert worst >= real


def test_a_file_of_prices_wins(tmp_path: Path) -> None:
    """For a model that nobody else knows, and for one that others know differently."""
    text = OWN + OWN.replace(NOBODYS, OPUS)
    listed = prices(tmp_path, text)
    for model in (NOBODYS, OPUS):
        assert charge_of(model, MIXED, free=False, prices=listed).usd == pytest.approx(1 + 2.5 + 0.1 + 1.25 + 2)
        assert worst_case_usd(model, 10**6, 0, free=False, prices=listed) == pytest.approx(2)
    assert charge_of(HAIKU, {"input_tokens": 10}, free=False, prices=listed).usd == pytest.approx(1e-6)


def test_a_price_of_the_future_does_not_count_yet(tmp_path: Path) -> None:
    """Until its day, what is bundled does."""
    usage, later = {"input_tokens": 1_000_000}, "  effective_from: 2999-01-01\n"
    assert charge_of(NOBODYS, usage, free=False, prices=prices(tmp_path, OWN + later)).usd is None
    text = OWN.replace(NOBODYS, OPUS)
    assert charge_of(OPUS, usage, free=False, prices=prices(tmp_path, text + later)).usd == pytest.approx(4)
    now = prices(tmp_path, text + later.replace("2999", "2020"))
    assert charge_of(OPUS, usage, free=False, prices=now).usd == pytest.approx(1)


def test_a_file_may_have_rates_for_long_prompts(tmp_path: Path) -> None:
    """Beyond so many tokens, all of them."""
    rates = "input: 3, output: 3, cache_read: 3, cache_write_5m: 3, cache_write_1h: 3"
    listed = prices(tmp_path, f"{OWN}  long_prompt: {{above_tokens: 1000, {rates}}}\n")
    for tokens, usd in ((1_000, 1e-3), (1_001, 3.003e-3)):
        assert charge_of(NOBODYS, {"input_tokens": tokens}, free=False, prices=listed).usd == pytest.approx(usd)
        assert worst_case_usd(NOBODYS, tokens, 0, free=False, prices=listed) == pytest.approx(max(usd, tokens * 2e-6))


def test_searches_that_a_file_has_no_price_for_are_unknown(tmp_path: Path) -> None:
    """Not 0."""
    usage = {"server_tool_use": {"web_search_requests": 1}}
    assert charge_of(NOBODYS, usage, free=False, prices=prices(tmp_path, OWN)).usd is None
    with_price = prices(tmp_path, f"{OWN}  web_search: 10\n")
    assert charge_of(NOBODYS, usage, free=False, prices=with_price).usd == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            OWN.replace("2.5", "-1"),
            "my-own-model.output: -1 (a number) given; accepted: a number, 0 to 1000000: USD per ",
        ),
        (OWN.replace("2.5", "two"), "my-own-model.output: 'two' (text) given; accepted: a number, 0 to 1000000"),
        (OWN.replace("2.5", ".nan"), "my-own-model.output: nan (a number) given; accepted: a number, 0 to 1000000"),
        (
            OWN.replace("2.5", "true"),
            "my-own-model.output: true (a truth value) given; accepted: a number, 0 to 1000000",
        ),
        (
            OWN.replace("output", "outptu"),
            "my-own-model.output: none given; accepted: a number, 0 to 1000000: USD per ",
        ),
        (OWN + "  color: 3\n", "my-own-model.color: no such key; accepted: input, output, cache_read, "),
        (OWN + "  effective_from: soon\n", "my-own-model.effective_from: 'soon' (text) given; accepted: a day"),
        (
            OWN + "  long_prompt: 3\n",
            "my-own-model.long_prompt: 3 (a number) given; accepted: a mapping with the keys ",
        ),
        ("my-own-model: 3\n", "my-own-model: 3 (a number) given; accepted: a mapping with the keys input, output"),
        ("- 3\n", "[3] (a list) given; accepted: a mapping of models"),
        ("", "nothing given; accepted: a mapping of models"),
        ("a: [\n", "not YAML; accepted: a mapping of models"),
        (OWN + "  effective_from: 2026-13-45\n", "not YAML; accepted: a mapping of models"),
        ("[" * 400, "not YAML; accepted: a mapping of models"),
        ("a: \0", "not YAML; accepted: a mapping of models"),
        (OWN.replace("2.5", "1.0e+400"), "my-own-model.output: inf (a number) given; accepted: a number, 0 to 1000000"),
        (OWN.replace("2.5", "1" + "0" * 400), "my-own-model.output: 1000"),
        (OWN.replace("2.5", "2500000"), "my-own-model.output: 2500000 (a number) given; accepted: a number, 0 to"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_by_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    """One line a mistake."""
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_prices(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(str(path)) for line in lines)
    assert any(told in line for line in lines), lines


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """It was there when the worker started."""
    with pytest.raises(UserError, match=r"gone\.yaml: cannot be read \(No such file or directory\)"):
        Prices.of(Settings(home=tmp_path, store="", prices=tmp_path / "gone.yaml"))
