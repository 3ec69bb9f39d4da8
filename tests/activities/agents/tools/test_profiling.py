"""The profile tool: in OPTIMIZE only, honest about what was measured and what was derived."""

from __future__ import annotations

import pytest

from activities.agents import profiles
from activities.agents.tools import profiling
from activities.agents.tools.profiling import Profile
from activities.agents.tools.tool import Desk, NoArguments
from specs.outcomes import Stage
from tests.activities.agents.tools.bench import COPY, in_session, working_on


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SAMPLING_S", 0.2)


async def test_reproduce_has_no_profile_and_says_why(desk: Desk) -> None:
    there = in_session(await working_on(desk, COPY), stage=Stage.REPRODUCE)
    answer = await Profile().use(there, NoArguments())
    assert answer.error
    assert answer.text == profiling.TOO_EARLY


async def test_a_profile_says_what_was_measured_and_what_could_not_be_derived_and_is_kept(desk: Desk) -> None:
    """Of a task that says nothing of its work, so that no class can be told."""
    there = await working_on(desk, COPY)
    answer = await Profile().use(there, NoArguments())
    assert not answer.error, answer.text
    assert "us a call" in answer.text
    assert "the task gives no work.flops and no work.bytes" in answer.text
    assert answer.workspace is not None
    assert answer.workspace.profile is not None
    kept = await profiles.read(there.workshop.store, answer.workspace.profile)
    assert there.workspace.kernel is not None
    assert (kept.source, kept.bottleneck) == (there.workspace.kernel.sha256, "unknown")
    assert kept.text == answer.text
