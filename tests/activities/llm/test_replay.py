"""A run's answers, written to a file and given once more through the real SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from activities.bundle import pack
from activities.llm import client, journal
from activities.llm.client import Attempt, ask
from activities.llm.journal import Entry
from activities.llm.profiles import Profile, profile_of
from activities.llm.replay import read_recording, user_digest, write_recording
from activities.workshop import Workshop
from specs.errors import ModelError, ModelFault, UserError
from specs.outcomes import BlobRef
from tests.activities.llm.sessions import make_session, workshop_at
from tests.fakes import write_task

PLACE, RUN = "iter-001/optimizer/0", "run-1"
FIRST: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "The worst config takes 12.5 us."}]}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [
        {"type": "thinking", "thinking": "Hm\u2028\u00e4.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "I shall read."},
        {"type": "tool_use", "id": "toolu_1", "name": "read_kernel", "input": {"first_line": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 30},
}
SHORT: dict[str, Any] = MESSAGE | {
    "id": "msg_2",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
}


async def journalled(workshop: Workshop, *turns: tuple[str, int, int, dict[str, Any]]) -> None:
    """Answers, as turns leave them behind."""
    for place, turn, roomier, message in turns:
        session = make_session(run=RUN, place=place)
        entry = Entry(
            body="0" * 64, newest=user_digest(FIRST), model="claude-opus-5-5", message=message, request_id="req_1"
        )
        await journal.write(workshop.store, journal.place_of(session, turn, roomier), entry)


async def recorded(folder: Path, **model: Any) -> tuple[Workshop, BlobRef]:
    """A bundle with the recording of two turns, the second of which had been cut."""
    workshop = workshop_at(folder / "home")
    cut = SHORT | {"stop_reason": "max_tokens"}
    await journalled(workshop, (PLACE, 0, 0, MESSAGE), (PLACE, 1, 0, cut), (PLACE, 1, 1, SHORT))
    (folder / "task").mkdir(parents=True)
    (folder / "task" / "run.jsonl").write_bytes(await write_recording(workshop.store, RUN))
    loaded = write_task(folder / "task", ["// one"], model={"provider": "replay", "recording": "run.jsonl", **model})
    return workshop, await pack(loaded, workshop.store)


async def profile_at(workshop: Workshop, bundle: BlobRef, place: str = PLACE) -> Profile:
    task = (await workshop.bundle(bundle)).task
    return profile_of(make_session(bundle=bundle, place=place, model=task.model), workshop.settings, {})


async def asked(profile: Profile, turn: str, message: dict[str, Any]) -> tuple[dict[str, Any], Attempt]:
    attempt = Attempt(turn=turn)
    try:
        body = {"model": "claude-opus-5-5", "max_tokens": 1_024, "messages": [message]}
        return await ask(profile, body, attempt), attempt
    finally:
        await client.close_all()


def kept(message: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that the SDK adds as null."""
    return {key: _without_null(value) for key, value in message.items() if value is not None}


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return kept(value)
    return [_without_null(inner) for inner in value] if isinstance(value, list) else value


async def test_every_answer_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    """By place and turn, thinking and what servers hide of it too; what was cut is not what came after it."""
    workshop, bundle = await recorded(tmp_path)
    profile = await profile_at(workshop, bundle)
    assert (profile.free, profile.stream, profile.trust_env) == (True, True, False)
    first, attempt = await asked(profile, "0-0", FIRST)
    assert kept(first) == kept(MESSAGE)
    assert attempt.drift == ""
    assert (await asked(profile, "1-0", FIRST))[0]["stop_reason"] == "max_tokens"
    assert kept((await asked(profile, "1-1", FIRST))[0]) == kept(SHORT)


async def test_other_figures_are_no_drift(tmp_path: Path) -> None:
    """No two runs measure the same; how a request is marked for caching is no matter either."""
    workshop, bundle = await recorded(tmp_path, on_drift="stop")
    marked = {"type": "ephemeral", "ttl": "1h"}
    text = "The worst config  takes\n-3.25e-1 us."
    other = {"role": "user", "content": [{"type": "text", "text": text, "cache_control": marked}]}
    assert (await asked(await profile_at(workshop, bundle), "0-0", other))[1].drift == ""


DRIFTED = {"role": "user", "content": "The worst config takes 12.5 ms."}


async def test_a_drift_is_reported_beside_the_answer(tmp_path: Path) -> None:
    """The run goes on; whoever asked knows."""
    workshop, bundle = await recorded(tmp_path)
    message, attempt = await asked(await profile_at(workshop, bundle), "0-0", DRIFTED)
    assert kept(message) == kept(MESSAGE)
    assert attempt.drift == f"replay drift at turn 0 of {PLACE}: the prompt is not the one that was recorded"


@pytest.mark.parametrize(
    ("place", "turn", "message", "told"),
    [
        (PLACE, "0-0", DRIFTED, f"replay drift at turn 0 of {PLACE}"),
        (PLACE, "7-0", FIRST, f"the recording has no turn 7 of {PLACE}"),
        (PLACE, "0-2", FIRST, f"the recording has no turn 0 of {PLACE} after 2 that were cut"),
        ("iter-009/optimizer/0", "0-0", FIRST, "the recording has no turn 0 of iter-009/optimizer/0"),
        (PLACE, "first", FIRST, "turn 'first'"),
    ],
)
async def test_what_was_not_recorded_stops_a_strict_replay(
    tmp_path: Path, place: str, turn: str, message: dict[str, Any], told: str
) -> None:
    """For good: another attempt would find the same."""
    workshop, bundle = await recorded(tmp_path, on_drift="stop")
    with pytest.raises(ModelError) as refused:
        await asked(await profile_at(workshop, bundle, place), turn, message)
    assert (refused.value.kind, refused.value.retryable) == (ModelFault.INVALID_REQUEST, False)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.25x of the champion", "0.98x of the champion"),
        ("|  12.5 us |", "| 1,234.5 us |"),
        ("gain +3 %", "gain -0.5 %"),
        (".5 and 1e-9", "0.25 and 3"),
    ],
)
def test_texts_that_differ_in_figures_alone_are_the_same(one: str, other: str) -> None:
    """Signs, separators, exponents and the width of a column."""
    assert user_digest({"content": one}) == user_digest({"content": [{"type": "text", "text": other}]})


@pytest.mark.parametrize(
    ("one", "other"),
    [("float4", "float2"), ("v001", "v002"), ("sm_90a", "sm_80"), ("correct", "wrong"), ("12 us", "12 ms"), ("", "1")],
)
def test_texts_that_differ_otherwise_are_not(one: str, other: str) -> None:
    """A digit inside a name is no figure."""
    assert user_digest({"content": one}) != user_digest({"content": other})


def test_a_result_that_became_an_error_is_another_prompt() -> None:
    """And so is one that answers another call."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no"}
    digests = {
        user_digest({"content": [result | change]})
        for change in ({}, {"is_error": True}, {"tool_use_id": "toolu_2"}, {"content": "yes"})
    }
    assert len(digests) == 4


async def test_a_recording_holds_a_run_and_no_other(tmp_path: Path) -> None:
    """In order of place and turn, under a header that says what it is."""
    workshop = workshop_at(tmp_path)
    await journalled(workshop, ("iter-002/optimizer/0", 10, 0, SHORT), (PLACE, 0, 0, MESSAGE), (PLACE, 10, 0, SHORT))
    await journalled(workshop, (PLACE, 9, 0, SHORT))
    other = journal.place_of(make_session(run="run-10"), 0, 0)
    await workshop.store.remember(f"{journal.JOURNAL}/{other}", b"not read")
    content = await write_recording(workshop.store, RUN, task="copy-f32")
    header, *lines = (json.loads(line) for line in content.splitlines())
    assert header == {"format": "ferret recording", "version": 1, "task": "copy-f32", "run": RUN}
    assert [(line["place"], line["turn"]) for line in lines] == [
        (PLACE, 0),
        (PLACE, 9),
        (PLACE, 10),
        ("iter-002/optimizer/0", 10),
    ]
    recording = read_recording(content)
    found = recording.at(PLACE, 0, 0)
    assert found is not None
    assert (found.message, found.request_id, found.user) == (MESSAGE, "req_1", user_digest(FIRST))


async def test_a_run_that_asked_no_model_has_no_recording(tmp_path: Path) -> None:
    """A file without a turn could not be replayed."""
    with pytest.raises(UserError, match="run run-1 has no answer of a model in file://"):
        await write_recording(workshop_at(tmp_path).store, RUN)


HEADER = '{"format": "ferret recording", "version": 1, "run": "run-1"}'


def line(**changes: Any) -> str:
    return json.dumps({"place": PLACE, "turn": 0, "user": "a" * 64, "message": MESSAGE} | changes)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([""], "line 1: "),
        (["{}"], "line 1: run: Field required; accepted: a line that `client.py recording` wrote"),
        ([HEADER.replace("1,", "2,")], "line 1: version: "),
        ([HEADER.replace("ferret", "other")], "line 1: format: "),
        ([HEADER], "line 2: no turn follows the header; accepted: at least one"),
        ([HEADER, line(), line()], f"line 3: turn 0 of {PLACE} stands in the file twice; accepted: once"),
        ([HEADER, "", line(turn=-1)], "line 3: turn: "),
        ([HEADER, line(user="x")], "line 2: user: "),
        ([HEADER, line(message={})], "line 2: message: not a finished answer of a model"),
        ([HEADER, line(message=MESSAGE | {"stop_reason": None})], "line 2: message: not a finished answer"),
        ([HEADER, line(message=MESSAGE | {"content": [{"type": "tool_use"}]})], "line 2: message: not a finished"),
        ([HEADER, line(message=MESSAGE | {"content": ["text"]})], "line 2: message: not a finished answer"),
        ([HEADER, "\udcff"], "line 2: not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_its_line(lines: list[str], told: str) -> None:
    """One line, whatever is wrong."""
    with pytest.raises(UserError) as refused:
        read_recording("\n".join(lines).encode(errors="surrogateescape"))
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


async def test_a_run_whose_journal_is_damaged_is_not_recorded(tmp_path: Path) -> None:
    """Not without saying which answer is missing."""
    store = workshop_at(tmp_path).store
    await store.remember("journal/run-1/iter-001/0-optimizer/0/0-0", b'{"body": ')
    with pytest.raises(UserError, match=r"iter-001/0-optimizer/0/0-0 in .* is damaged"):
        await write_recording(store, "run-1")
