"""A conversation is opened from what the run knows: the same state gives the same prompts, on any worker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.agents import logbook, profiles, transcript
from activities.agents.draft import Draft
from activities.agents.opening import open_conversation
from activities.agents.session import Session, Subject
from activities.agents.toolbox import offered
from activities.bundle import pack
from activities.open_session import OpenSessionInput, OpenSessionResult
from activities.workshop import Workshop
from kernels.harness.requests import GateLock
from specs.dialogue import Chapter, Mode, Question, Role, Workspace
from specs.notes import Notes
from specs.outcomes import BaselineTimes, BlobRef, Device, Ending, Stage, Timing
from specs.schema import Language
from tests.activities.agents.prompts.values import make_champion, make_iteration, make_notes
from tests.fakes import settings_at, write_task

MODEL = {"provider": "anthropic"}
LOCK = GateLock(digest="a" * 64, files={}, calibration={"y": {"elementwise": 3.25e-6}})


async def packed(workshop: Workshop, folder: Path, **overrides: Any) -> BlobRef:
    folder.mkdir(parents=True, exist_ok=True)
    return await pack(write_task(folder, ["// one", "// two"], **{"model": MODEL, **overrides}), workshop.store)


async def given_for(workshop: Workshop, folder: Path, **changes: Any) -> OpenSessionInput:
    values: dict[str, Any] = {
        "run": "run-1",
        "place": "iter-003/optimizer",
        "role": Role.OPTIMIZER,
        "stage": Stage.REPRODUCE,
        "sandbox": "off",
        **changes,
    }
    if "bundle" not in values:
        values["bundle"] = await packed(workshop, folder)
    return OpenSessionInput(**values)


async def session_of(workshop: Workshop, opened: OpenSessionResult) -> Session:
    return Session.model_validate_json(await workshop.store.get(opened.session))


async def told_by(workshop: Workshop, opened: OpenSessionResult) -> str:
    """The first message."""
    messages = await transcript.messages(workshop.store, opened.head)
    assert [message["role"] for message in messages] == ["user"]
    return str(messages[0]["content"])


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(settings_at(tmp_path / "home"))


async def test_the_same_input_opens_the_same_conversation(workshop: Workshop, tmp_path: Path) -> None:
    """On another worker too, which lays the bundle out elsewhere."""
    given = await given_for(workshop, tmp_path / "task")
    first = await open_conversation(workshop, given)
    assert await open_conversation(workshop, given) == first
    other = Workshop(replace(settings_at(tmp_path / "other"), store=workshop.settings.store))
    assert await open_conversation(other, given) == first


async def test_a_session_has_all_that_its_turns_need(workshop: Workshop, tmp_path: Path) -> None:
    given = await given_for(workshop, tmp_path / "task", lock=LOCK, epoch=2)
    opened = await open_conversation(workshop, given)
    session = await session_of(workshop, opened)
    assert session.place == "iter-003/optimizer/2"
    assert session.tools == offered(Role.OPTIMIZER, Mode.IMPROVE, Stage.REPRODUCE, Language.CPP)
    assert session.start == opened.workspace
    assert (session.lock, session.bundle, session.model.provider.value) == (LOCK, given.bundle, "anthropic")
    assert str(tmp_path) not in session.system + await told_by(workshop, opened)


async def test_the_system_prompt_is_the_same_all_through_a_run(workshop: Workshop, tmp_path: Path) -> None:
    early = await given_for(workshop, tmp_path / "task")
    champion = await workshop.store.put(b"// the best\n")
    late = early.model_copy(
        update={
            "place": "iter-060/optimizer",
            "stage": Stage.OPTIMIZE,
            "mode": Mode.RESEARCH,
            "champion": make_champion(source=champion),
            "hints": ("look at the tail",),
        }
    )
    sessions = [await session_of(workshop, await open_conversation(workshop, given)) for given in (early, late)]
    assert sessions[0].system == sessions[1].system


async def test_the_contract_is_told_with_the_locks_limits_and_without_the_reference(
    workshop: Workshop, tmp_path: Path
) -> None:
    given = await given_for(workshop, tmp_path / "task", lock=LOCK)
    bundle = await workshop.bundle(given.bundle)
    session = await session_of(workshop, await open_conversation(workshop, given))
    assert "- `y`: each |got - want| <= 3.25e-06 * scale" in session.system
    assert (bundle.gate / "reference.py").read_text() not in session.system


# ---------------------------------------------------------------- the kernel that it begins with


async def test_work_goes_on_from_the_workspace(workshop: Workshop, tmp_path: Path) -> None:
    kernel = await workshop.store.put(b"// half done\n")
    champion = make_champion(source=await workshop.store.put(b"// the best\n"))
    given = await given_for(workshop, tmp_path / "task", workspace=Workspace(kernel=kernel), champion=champion)
    opened = await open_conversation(workshop, given)
    assert opened.workspace.kernel == kernel
    assert "The kernel: as you left it" in await told_by(workshop, opened)


async def test_a_new_iteration_begins_with_the_champion(workshop: Workshop, tmp_path: Path) -> None:
    champion = make_champion(source=await workshop.store.put(b"// the best\n"))
    opened = await open_conversation(workshop, await given_for(workshop, tmp_path / "task", champion=champion))
    assert opened.workspace.kernel == champion.source
    told = await told_by(workshop, opened)
    assert "The kernel: the champion v003" in told
    assert "// the best\n" in told


async def test_without_a_champion_it_begins_with_the_seed(workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "seed.cpp").write_text("// slow and right\n")
    given = await given_for(workshop, folder, bundle=await packed(workshop, folder, seed="seed.cpp"))
    opened = await open_conversation(workshop, given)
    assert opened.workspace.kernel is not None
    assert await workshop.store.get(opened.workspace.kernel) == b"// slow and right\n"
    assert "The kernel: the task's seed" in await told_by(workshop, opened)


async def test_without_a_seed_it_begins_with_the_signature(workshop: Workshop, tmp_path: Path) -> None:
    opened = await open_conversation(workshop, await given_for(workshop, tmp_path / "task"))
    assert opened.workspace.kernel is not None
    assert b'extern "C" void ' in await workshop.store.get(opened.workspace.kernel)
    assert "an empty entry" in await told_by(workshop, opened)


# ---------------------------------------------------------------- what the run remembers


async def stored(workshop: Workshop, notes: Notes) -> BlobRef:
    return await workshop.store.put(notes.model_dump_json().encode())


async def test_notes_are_those_of_the_iteration_before(workshop: Workshop, tmp_path: Path) -> None:
    old, new = await stored(workshop, Notes(tried=("old",))), await stored(workshop, Notes(tried=("old", "new")))
    past = tuple(
        make_iteration(index, f"a{index:03d}", Ending.SLOWER, "lever").model_copy(update={"notes": notes})
        for index, notes in enumerate((old, new, None))
    )
    book = await logbook.append(workshop.store, None, past)
    opened = await open_conversation(workshop, await given_for(workshop, tmp_path / "task", logbook=book))
    assert opened.workspace.notes == new
    assert "- new" in await told_by(workshop, opened)


async def test_notes_of_iterations_side_by_side_are_put_together(workshop: Workshop, tmp_path: Path) -> None:
    """What one of them has tried is no longer untried, whatever the other says."""
    one = await stored(workshop, Notes(tried=("split k",), untried=("swizzle",)))
    two = await stored(workshop, Notes(untried=("split k", "cluster")))
    past = tuple(
        make_iteration(index, f"a{index:03d}", Ending.SLOWER, "lever").model_copy(update={"notes": notes})
        for index, notes in enumerate((one, two))
    )
    book = await logbook.append(workshop.store, None, past)
    bundle = await packed(workshop, tmp_path / "task", search={"width": 2})
    opened = await open_conversation(workshop, await given_for(workshop, tmp_path, bundle=bundle, logbook=book))
    assert opened.workspace.notes is not None
    together = Notes.model_validate_json(await workshop.store.get(opened.workspace.notes))
    assert together == Notes(tried=("split k",), untried=("swizzle", "cluster"))


async def test_baseline_times_profile_and_plan_are_told(workshop: Workshop, tmp_path: Path) -> None:
    champion = make_champion(source=await workshop.store.put(b"// the best\n"))
    profile = profiles.Profile(source=champion.source.sha256, config="c1", bottleneck="memory", text="dram 71%")
    bundle = await packed(workshop, tmp_path / "task")
    name = (await workshop.bundle(bundle)).task.configs[0].name
    timing = Timing(median_us=321.5, q1_us=321, q3_us=322, samples=9)
    given = await given_for(
        workshop,
        tmp_path,
        bundle=bundle,
        champion=champion,
        stage=Stage.OPTIMIZE,
        mode=Mode.PIVOT,
        baseline=BaselineTimes(timings={name: timing}, device=Device(name="CPU")),
        workspace=Workspace(
            profile=await profiles.keep(workshop.store, profile), notes=await stored(workshop, make_notes())
        ),
        plan=await workshop.store.put(b"Lever: hold a row in registers\n"),
    )
    told = await told_by(workshop, await open_conversation(workshop, given))
    assert "321.5" in told
    assert "**memory**, on `c1` (this kernel)" in told
    assert "Lever: hold a row in registers" in told.split("## Where it stands")[0]


# ---------------------------------------------------------------- anew


async def talk(workshop: Workshop, calls: int) -> Chapter:
    """A chapter of so many calls, the last of them with an answer that no message holds yet."""
    head = await transcript.append(workshop.store, None, {"role": "user", "content": "begin"})
    answers: tuple[BlobRef, ...] = ()
    for number in range(calls):
        call = {"type": "tool_use", "id": f"t{number}", "name": "compile", "input": {}}
        head = await transcript.append(workshop.store, head, {"role": "assistant", "content": [call]})
        answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"\nerror {number}\nmore"}
        if number < calls - 1:
            head = await transcript.append(workshop.store, head, {"role": "user", "content": [answer]})
        else:
            answers = (await workshop.store.put(json.dumps({**answer, "is_error": True}).encode()),)
    return Chapter(role=Role.OPTIMIZER, head=head, answers=answers)


async def test_a_conversation_that_begins_anew_is_told_what_it_did(workshop: Workshop, tmp_path: Path) -> None:
    given = await given_for(workshop, tmp_path / "task", epoch=1)
    because = "the transcript had grown to 100001 tokens"
    anew = given.model_copy(update={"earlier": await talk(workshop, 3), "because": because})
    told = await told_by(workshop, await open_conversation(workshop, anew))
    assert f"It begins anew here: {because}." in told
    assert "- `compile`: error 0\n- `compile`: error 1\n- `compile`: error: error 2" in told
    assert "performance engineering" not in told


async def test_what_it_did_is_bounded(workshop: Workshop, tmp_path: Path) -> None:
    given = await given_for(workshop, tmp_path / "task", epoch=1)
    anew = given.model_copy(update={"earlier": await talk(workshop, 60), "because": "too long"})
    told = await told_by(workshop, await open_conversation(workshop, anew))
    assert told.count("- `compile`: ") == 40
    assert "(20 calls before them left out)" in told
    assert "error 59" in told


async def test_a_refusal_is_answered_by_saying_what_the_work_is(workshop: Workshop, tmp_path: Path) -> None:
    given = await given_for(workshop, tmp_path / "task", epoch=1)
    anew = given.model_copy(update={"earlier": await talk(workshop, 1), "because": "the model refused (cyber)"})
    told = await told_by(workshop, await open_conversation(workshop, anew))
    assert "performance engineering of a numerical kernel" in told


async def test_a_call_without_an_answer_was_not_run(workshop: Workshop, tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "t0", "name": "measure", "input": {}}
    head = await transcript.append(workshop.store, None, {"role": "assistant", "content": [call]})
    given = await given_for(workshop, tmp_path / "task", epoch=1, because="it broke")
    anew = given.model_copy(update={"earlier": Chapter(role=Role.OPTIMIZER, head=head)})
    assert "- `measure`: error: was not run" in await told_by(workshop, await open_conversation(workshop, anew))


# ---------------------------------------------------------------- other roles and providers


async def test_a_script_is_handed_in_by_position_until_it_is_played_out(workshop: Workshop, tmp_path: Path) -> None:
    bundle = await packed(workshop, tmp_path / "task", model={"provider": "scripted", "script": "script"})
    for position, nothing in ((1, ""), (2, "the script's 2 candidates were all played")):
        given = await given_for(workshop, tmp_path, bundle=bundle, script_position=position)
        opened = await open_conversation(workshop, given)
        assert opened.nothing == nothing
        assert (await session_of(workshop, opened)).script_position == position
        assert len(await told_by(workshop, opened)) < 100


async def test_a_reviewer_is_shown_the_candidate_and_the_contract(workshop: Workshop, tmp_path: Path) -> None:
    kernel = await workshop.store.put(b"// the candidate\n")
    subject = Subject(question=Question.INTEGRITY, kernel=kernel, figures="score 1.043")
    given = await given_for(
        workshop, tmp_path / "task", role=Role.REVIEWER, subject=subject, workspace=Workspace(kernel=kernel)
    )
    opened = await open_conversation(workshop, given)
    told = await told_by(workshop, opened)
    assert "// the candidate\n" in told
    assert "score 1.043" in told
    assert "The gate's contract" in told
    assert (await session_of(workshop, opened)).subject == subject
    assert opened.workspace == given.workspace


async def test_a_plan_is_reviewed_with_what_was_tried(workshop: Workshop, tmp_path: Path) -> None:
    book = await logbook.append(
        workshop.store, None, (make_iteration(1, "a001", Ending.SLOWER, "split k", "slower by 3%"),)
    )
    subject = Subject(
        question=Question.PLAN,
        kernel=await workshop.store.put(b"// the kernel\n"),
        plan=await workshop.store.put(b"Lever: split k once more\n"),
    )
    given = await given_for(workshop, tmp_path / "task", role=Role.REVIEWER, subject=subject, logbook=book)
    told = await told_by(workshop, await open_conversation(workshop, given))
    assert "Lever: split k once more" in told
    assert '"split k": slower. slower by 3%' in told


async def test_a_gate_is_written_and_reviewed_from_canonical_sources(workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "norm.py").write_text("def norm(x): ...\n")
    bundle = await packed(workshop, folder, gate=None, canonical=["norm.py"])
    files = {"reference.py": await workshop.store.put(b"import numpy\n")}
    draft = await workshop.store.put(Draft(files=files).model_dump_json().encode())
    writer = await given_for(
        workshop,
        folder,
        bundle=bundle,
        role=Role.GATE_WRITER,
        workspace=Workspace(gate=draft),
        feedback="eps is missing",
        hints=("eps stands inside the root",),
    )
    told = await told_by(workshop, await open_conversation(workshop, writer))
    assert "- `norm.py`" in told
    assert "import numpy\n" in told
    assert "> eps is missing" in told
    assert "eps stands inside the root" in told
    subject = Subject(question=Question.GATE, gate=draft)
    review = writer.model_copy(update={"role": Role.REVIEWER, "subject": subject, "feedback": ""})
    told = await told_by(workshop, await open_conversation(workshop, review))
    assert "def norm(x): ...\n" in told
    assert "import numpy\n" in told
