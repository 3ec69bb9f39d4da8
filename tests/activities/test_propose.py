"""Proposals: the seed, a source that is there already, and the next combination of a kernel's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle import MAX_SOURCE_BYTES, pack
from activities.propose import ProposeInput, ProposeResult, Proposing
from activities.workshop import Workshop
from specs.history import Tried
from specs.outcomes import BlobRef, Origin
from tests.fakes import settings_at, write_task

SEED = "int MR = 1;  // ferret:tune MR 1 2 4\nint NR = 8;  // ferret:tune NR 8 16\n"
ALL = {f"tune MR={rows} NR={columns}" for rows in (1, 2, 4) for columns in (8, 16)}
START = Tried(label="seed", score=0.5)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(settings_at(tmp_path / "home"))


async def propose(workshop: Workshop, bundle: BlobRef, **fields: Any) -> ProposeResult:
    given = ProposeInput(bundle=bundle, **fields)
    result = await ActivityEnvironment().run(Proposing(workshop).propose, given)
    assert isinstance(result, ProposeResult)
    return result


async def tuned(workshop: Workshop, folder: Path, seed: str = SEED) -> BlobRef:
    """A task of provider tune with this seed."""
    folder.mkdir()
    (folder / "seed.cpp").write_text(seed)
    return await pack(write_task(folder, [], seed="seed.cpp", model={"provider": "tune"}), workshop.store)


async def text_of(workshop: Workshop, result: ProposeResult) -> str:
    assert result.proposal is not None
    return (await workshop.store.get(result.proposal.source)).decode()


async def test_the_seed_is_proposed_as_it_is(workshop: Workshop, tmp_path: Path) -> None:
    """Byte for byte, under the name that histories know it by."""
    result = await propose(workshop, await tuned(workshop, tmp_path / "task"), use_seed=True)
    assert result.proposal is not None
    assert (result.proposal.origin, result.proposal.label) == (Origin.SEED, "seed")
    assert await text_of(workshop, result) == SEED


@pytest.mark.parametrize("by", [Origin.PERSON, Origin.OPTIMIZER])
async def test_a_source_that_is_there_keeps_its_label(workshop: Workshop, tmp_path: Path, by: Origin) -> None:
    """A person's, or what a conversation handed in; no search is asked."""
    bundle = await pack(write_task(tmp_path / "task", ["// one"]), workshop.store)
    source = await workshop.store.put(b"// mine")
    result = await propose(workshop, bundle, submitted=source, label="mine", by=by)
    assert result.proposal is not None
    assert (result.proposal.origin, result.proposal.label, result.proposal.source) == (by, "mine", source)


async def test_a_source_that_is_not_there_or_too_large_is_answered(workshop: Workshop, tmp_path: Path) -> None:
    """With a reason, not a failure of the run."""
    bundle = await pack(write_task(tmp_path / "task", ["// one"]), workshop.store)
    missing = BlobRef(sha256="0" * 64, size=3)
    gone = await propose(workshop, bundle, submitted=missing, label="mine")
    assert gone.proposal is None
    assert "'mine' is not in the worker's store" in gone.reason
    large = await workshop.store.put(b"/" * (MAX_SOURCE_BYTES + 1))
    refused = await propose(workshop, bundle, submitted=large, label="mine")
    assert refused.reason == f"'mine' has {MAX_SOURCE_BYTES + 1} bytes; at most {MAX_SOURCE_BYTES} are accepted"


# ---------------------------------------------------------------- tuning


async def test_a_search_tries_every_combination_but_the_seeds_own(workshop: Workshop, tmp_path: Path) -> None:
    """Each once, in the seed's source with its marks; then there is nothing more, and why."""
    bundle, tried = await tuned(workshop, tmp_path / "task"), [START]
    while (result := await propose(workshop, bundle, tried=tuple(tried))).proposal is not None:
        assert result.proposal.origin is Origin.OPTIMIZER
        rows, columns = (word.split("=")[1] for word in result.proposal.label.split()[1:])
        assert await text_of(workshop, result) == SEED.replace("MR = 1", f"MR = {rows}").replace(
            "NR = 8", f"NR = {columns}"
        )
        tried.append(Tried(label=result.proposal.label, score=1.0))
    assert {one.label for one in tried} == (ALL - {"tune MR=1 NR=8"}) | {"seed"}
    assert len(tried) == len(ALL)
    assert result.reason == "all 6 combinations were tried"


async def test_a_retry_proposes_the_same(workshop: Workshop, tmp_path: Path) -> None:
    """The search keeps nothing between two calls."""
    bundle = await tuned(workshop, tmp_path / "task")
    assert await propose(workshop, bundle, tried=(START,)) == await propose(workshop, bundle, tried=(START,))


async def test_siblings_of_a_round_do_not_propose_the_same(workshop: Workshop, tmp_path: Path) -> None:
    """And one for whom nothing is left says so."""
    bundle = await tuned(workshop, tmp_path / "task")
    round_ = [await propose(workshop, bundle, tried=(START,), ahead=ahead) for ahead in range(6)]
    assert {one.proposal.label for one in round_ if one.proposal} == ALL - {"tune MR=1 NR=8"}
    assert round_[-1].reason == "every combination left is tried beside this one"


async def test_the_champion_is_tuned_where_it_can_be(workshop: Workshop, tmp_path: Path) -> None:
    """A person's champion with marks is what the search goes on with; one without leaves it with the seed."""
    bundle = await tuned(workshop, tmp_path / "task")
    better = await workshop.store.put(b"// mine\n#define KB 32  // ferret:tune KB 32 64\n")
    result = await propose(workshop, bundle, champion=better, tried=(START,))
    assert result.proposal is not None
    assert result.proposal.label == "tune KB=64"
    assert await text_of(workshop, result) == "// mine\n#define KB 64  // ferret:tune KB 32 64\n"
    for plain in (b"// mine", b"// mine\nint MR;  // ferret:tune MR 1 2\n"):
        result = await propose(workshop, bundle, champion=await workshop.store.put(plain), tried=(START,))
        assert "// ferret:tune NR 8 16" in await text_of(workshop, result)


async def test_a_combination_answered_from_history_keeps_its_score(workshop: Workshop, tmp_path: Path) -> None:
    """A repeat has no score of its own; people's labels and other parameters tell the search nothing."""
    bundle = await tuned(workshop, tmp_path / "task")
    past = (START, Tried(label="tune MR=2 NR=8", score=0.9), Tried(label="tune MR=4 NR=8", score=0.7))
    noise = (
        Tried(label="tune MR=2 NR=8"),
        Tried(label="mine.cpp (submitted by me)", score=3.0),
        Tried(label="tune KB=64", score=3.0),
        Tried(label="tune MR=3 NR=8", score=3.0),
    )
    assert await propose(workshop, bundle, tried=past + noise) == await propose(workshop, bundle, tried=past)


async def test_a_seed_without_marks_ends_the_search(workshop: Workshop, tmp_path: Path) -> None:
    """The client refuses such a task before it starts; a run that got there all the same is told why."""
    result = await propose(workshop, await tuned(workshop, tmp_path / "task", "int MR = 1;"), tried=(START,))
    assert result.proposal is None
    assert result.reason.startswith("the seed cannot be tuned: no parameter is marked")
