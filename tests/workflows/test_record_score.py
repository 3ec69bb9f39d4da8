"""After acceptance one score is told everywhere: the one that acceptance measured."""

from __future__ import annotations

import pytest

from specs.history import Champion
from tests.run_values import RATIOS, WORST, make_acceptance, make_champion, make_measurement, make_plan
from workflows import details, ledger, visibility
from workflows.state import Phase, RunState


@pytest.fixture
def searched() -> Champion:
    """What the search had seen: twice the ratios that acceptance finds."""
    return make_champion().model_copy(
        update={"score": 2 * RATIOS[WORST], "ratios": {name: 2 * ratio for name, ratio in RATIOS.items()}}
    )


def state_of(champion: Champion | None, **more: object) -> RunState:
    return RunState(budget=make_plan().budget, champion=champion, measurement=make_measurement()).model_copy(
        update=more
    )


def test_an_accepted_champion_has_the_score_of_the_acceptance(searched: Champion) -> None:
    """Score and ratios; the search's own score is kept beside it."""
    champion = ledger.of_record(searched, make_acceptance())

    assert (champion.score, champion.ratios, champion.searched) == (RATIOS[WORST], RATIOS, 2 * RATIOS[WORST])


def test_a_champion_that_was_not_accepted_keeps_its_score(searched: Champion) -> None:
    """What failed has set no record."""
    assert ledger.of_record(searched, make_acceptance(accepted=False)) == searched


def test_lists_and_details_tell_the_same_score(searched: Champion) -> None:
    """The search attribute and the Markdown of the Temporal UI; in the latter the search's figure is labelled."""
    acceptance = make_acceptance()
    state = state_of(ledger.of_record(searched, acceptance), acceptance=acceptance)
    found = {update.key: update.value for update in visibility.of_run(make_plan(), state, Phase.DELIVERING)}
    text = details.run(make_plan(), state, Phase.DELIVERING, "")

    assert found[visibility.SCORE] == RATIOS[WORST]
    assert f"**{RATIOS[WORST]:.4f}** (min_ratio, v002; search {2 * RATIOS[WORST]:.4f})" in text


def test_details_show_the_ratios_of_the_acceptance(searched: Champion) -> None:
    """Not those with which the champion had won."""
    measured = make_measurement()
    halved = tuple(one.model_copy(update={"config": f"held-{one.config}"}) for one in measured.configs)
    acceptance = make_acceptance().model_copy(update={"measurement": measured.model_copy(update={"configs": halved})})
    state = state_of(searched, acceptance=acceptance)

    assert "| held-n1024 |" in details.run(make_plan(), state, Phase.DONE, "")


def test_a_run_whose_wins_all_failed_acceptance_lists_no_champion() -> None:
    """What was listed during the search is taken back."""
    state = state_of(None, acceptance=make_acceptance(accepted=False))
    found = {update.key: update.value for update in visibility.of_run(make_plan(), state, Phase.DONE)}

    assert (found[visibility.CHAMPION], found[visibility.SCORE]) == (None, None)


def test_what_a_candidate_calls_itself_is_no_markdown(searched: Champion) -> None:
    """Neither a link nor a picture: the UI would fetch it."""
    state = state_of(searched).model_copy(update={"stop_reason": "![x](https://a.example/p.png) <b> a | b [c](d)"})
    text = details.run(make_plan(), state, Phase.DONE, "")
    assert "[x](" not in text
    assert "[c](" not in text
    assert "<b>" not in text
