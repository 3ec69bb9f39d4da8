"""Proposals: the script in order, a person's source as it is, nothing after the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle import pack
from activities.propose import ProposeInput, ProposeResult, Proposing
from activities.workshop import Workshop
from specs.outcomes import BlobRef, Origin
from tests.fakes import settings_at, write_task


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(settings_at(tmp_path / "home"))


async def propose(workshop: Workshop, bundle: BlobRef, position: int = 0, **fields: object) -> ProposeResult:
    given = ProposeInput.model_validate(
        {"bundle": bundle, "submitted": None, "use_seed": False, "script_position": position} | fields
    )
    result = await ActivityEnvironment().run(Proposing(workshop).propose, given)
    assert isinstance(result, ProposeResult)
    return result


async def test_the_script_is_played_in_name_order_to_its_end(workshop: Workshop, tmp_path: Path) -> None:
    """The position comes from the run's state, so a retry plays the same step."""
    bundle = await pack(write_task(tmp_path / "task", ["// one", "// two"]), workshop.store)
    played = [await propose(workshop, bundle, position) for position in (0, 1, 1, 2)]
    assert [one.proposal.label if one.proposal else None for one in played] == ["00.cpp", "01.cpp", "01.cpp", None]
    assert played[1] == played[2]
    assert "2 candidates were all played" in played[3].reason


async def test_a_persons_source_keeps_its_label(workshop: Workshop, tmp_path: Path) -> None:
    """And is not asked of the script."""
    bundle = await pack(write_task(tmp_path / "task", ["// one"]), workshop.store)
    source = await workshop.store.put(b"// mine")
    result = await propose(workshop, bundle, submitted=source, label="mine")
    assert result.proposal is not None
    assert (result.proposal.origin, result.proposal.label, result.proposal.source) == (Origin.PERSON, "mine", source)
