"""One turn: what is asked, what comes of each answer, and that nothing is paid for twice or beyond the budget."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import ActivityEnvironment

from activities.agents import transcript
from activities.llm import client, journal
from activities.llm.profiles import LOCAL_DROP
from activities.llm.turn import MOST_CALLS, take_turn
from activities.model_turn import ModelTurnInput, Nudge
from activities.store import Store
from activities.workshop import Workshop
from specs.dialogue import ModelTurn, Role, Stop
from specs.errors import ModelError, ModelFault, StoreError
from specs.outcomes import BlobRef, Charge
from specs.schema import Model
from tests.activities.llm.sessions import FIRST, make_session, opened, profile_at, workshop_at
from tests.fake_messages import FakeMessages, Step, call, called, fault, reply, spoken, text, thought
from tests.fakes import until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[FakeMessages]:
    async with FakeMessages() as server:
        yield server
        await client.close_all()


@pytest.fixture
def server(running: FakeMessages) -> FakeMessages:
    running.requests.clear()
    return running


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return workshop_at(tmp_path)


async def taken(
    workshop: Workshop, server: FakeMessages, given: ModelTurnInput, *steps: Step, **profile: Any
) -> ModelTurn:
    server.push(*steps)
    return await ActivityEnvironment().run(take_turn, workshop, given, profile_at(server.url, **profile))


async def answer_to(workshop: Workshop, turn: ModelTurn, words: str = "done") -> tuple[BlobRef, ...]:
    content = (await transcript.last(workshop.store, turn.head))["content"]
    blocks = [
        {"type": "tool_result", "tool_use_id": content[one.at]["id"], "content": words, "is_error": False}
        for one in turn.calls
    ]
    return tuple([await workshop.store.put(json.dumps(block).encode()) for block in blocks])


# ---------------------------------------------------------------- what is asked


async def test_a_request_says_who_speaks_what_is_there_and_what_may_be_kept(
    workshop: Workshop, server: FakeMessages
) -> None:
    """The system prompt is marked by itself, so that the next conversation of this role finds it."""
    session = make_session(tools=("read_kernel", "submit"), model=Model(effort="xhigh", cache_ttl="1h"))
    await taken(workshop, server, await opened(workshop, session))
    body = server.requests[0].body
    kept = {"type": "ephemeral", "ttl": "1h"}
    assert body["model"] == "claude-opus-5-5"
    assert body["max_tokens"] == 32_000
    assert body["system"] == [{"type": "text", "text": session.system, "cache_control": kept}]
    assert [tool["name"] for tool in body["tools"]] == ["read_kernel", "submit"]
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "xhigh"}
    assert body["cache_control"] == kept
    assert body["messages"] == [FIRST]
    assert body["stream"] is True


@pytest.mark.parametrize(
    ("role", "model"),
    [(Role.OPTIMIZER, "one"), (Role.REVIEWER, "two"), (Role.GATE_WRITER, "three")],
)
async def test_each_role_has_its_own_model(workshop: Workshop, server: FakeMessages, role: Role, model: str) -> None:
    """As the task names them."""
    session = make_session(role=role, model=Model(optimizer="one", reviewer="two", gate_writer="three"))
    await taken(workshop, server, await opened(workshop, session))
    assert server.requests[0].body["model"] == model


async def test_what_a_server_does_not_speak_is_not_sent(workshop: Workshop, server: FakeMessages) -> None:
    """Marks inside the system prompt neither."""
    await taken(workshop, server, await opened(workshop), drop=LOCAL_DROP, stream=False)
    body = server.requests[0].body
    assert not LOCAL_DROP & body.keys()
    assert "cache_control" not in json.dumps(body)
    assert body["system"] == make_session().system


@pytest.mark.parametrize(("roomier", "tokens"), [(0, 32_000), (1, 64_000), (2, 128_000), (3, 128_000)])
async def test_an_answer_that_was_cut_gets_twice_the_room(
    workshop: Workshop, server: FakeMessages, roomier: int, tokens: int
) -> None:
    """Up to what any model can write."""
    await taken(workshop, server, await opened(workshop, roomier=roomier))
    assert server.requests[0].body["max_tokens"] == tokens


async def test_answers_and_nudge_follow_the_calls(workshop: Workshop, server: FakeMessages) -> None:
    """In one message of the user's, and the transcript can be read back."""
    given = await opened(workshop)
    first = await taken(workshop, server, given, call("read_kernel", path="k.cpp"))
    follow = {"head": first.head, "turn": 1, "answers": await answer_to(workshop, first, "the source")}
    second = await taken(workshop, server, given.model_copy(update={**follow, "nudge": Nudge.HAND_IN}), text("well"))
    result, said = server.requests[1].messages[-1]["content"]
    assert (result["type"], result["content"], result["is_error"]) == ("tool_result", "the source", False)
    assert said["type"] == "text"
    assert said["text"]
    kept = await transcript.messages(workshop.store, second.head)
    assert [message["role"] for message in kept] == ["user", "assistant", "user", "assistant"]
    assert kept[:3] == server.requests[1].messages


@pytest.mark.parametrize("nudge", [Nudge.TRUNCATED, Nudge.NOT_RUN])
async def test_calls_that_were_not_run_are_answered_as_such(
    workshop: Workshop, server: FakeMessages, nudge: Nudge
) -> None:
    """A server would refuse the transcript otherwise."""
    given = await opened(workshop)
    both = reply(called("compile"), called("check"), stop_reason="max_tokens")
    cut = await taken(workshop, server, given, both)
    assert (cut.stop, cut.calls) == (Stop.TRUNCATED, ())
    after = await taken(workshop, server, given.model_copy(update={"head": cut.head, "turn": 1, "nudge": nudge}))
    assert after.stop is Stop.SPOKE
    results = server.requests[1].answers
    assert [(result["is_error"], "not run" in result["content"]) for result in results] == [(True, True)] * 2


async def test_calls_beyond_the_most_are_answered_as_not_run(workshop: Workshop, server: FakeMessages) -> None:
    """Only so many are told to the workflow."""
    given = await opened(workshop)
    many = reply(*(called("read_doc", page=str(page)) for page in range(MOST_CALLS + 4)))
    first = await taken(workshop, server, given, many)
    assert len(first.calls) == MOST_CALLS
    update = {"head": first.head, "turn": 1, "answers": await answer_to(workshop, first)}
    second = await taken(workshop, server, given.model_copy(update=update))
    assert second.stop is Stop.SPOKE
    assert [result["is_error"] for result in server.requests[1].answers] == [False] * MOST_CALLS + [True] * 4


async def test_a_message_of_many_calls_does_not_lose_what_the_server_has_kept(
    workshop: Workshop, server: FakeMessages
) -> None:
    """Its blocks are more than a server looks back over."""
    given = await opened(workshop, make_session(system="You make kernels fast. " * 400))
    await taken(workshop, server, given, reply(*(called("read_doc", page=str(page)) for page in range(14))))
    first = await taken(workshop, server, given)
    second = await taken(
        workshop,
        server,
        given.model_copy(update={"head": first.head, "turn": 1, "answers": await answer_to(workshop, first)}),
    )
    assert second.charge.cache_read_tokens >= first.context_tokens
    assert second.charge.input_tokens < 50


async def test_an_answer_without_words_can_be_followed(workshop: Workshop, server: FakeMessages) -> None:
    """An empty block cannot be sent back, and an empty message neither."""
    given = await opened(workshop)
    silent = await taken(workshop, server, given, reply(spoken("")))
    assert silent.stop is Stop.SPOKE
    update = {"head": silent.head, "turn": 1, "nudge": Nudge.USE_A_TOOL}
    after = await taken(workshop, server, given.model_copy(update=update), call("compile"))
    assert after.stop is Stop.TOOLS


async def test_a_paused_turn_is_sent_once_more_as_it_is(workshop: Workshop, server: FakeMessages) -> None:
    """Nothing of the user's comes in between."""
    given = await opened(workshop)
    paused = await taken(workshop, server, given, text("searching", stop_reason="pause_turn"))
    assert paused.stop is Stop.PAUSED
    await taken(workshop, server, given.model_copy(update={"head": paused.head, "turn": 1}))
    assert [message["role"] for message in server.requests[1].messages] == ["user", "assistant"]


# ---------------------------------------------------------------- what comes of an answer

STOPS = [
    (call("compile"), Stop.TOOLS, "Next step."),
    (text("I think so."), Stop.SPOKE, "I think so."),
    (reply(thought("Hm. " * 200)), Stop.SPOKE, "Hm. " * 29 + "Hm."),
    (text("done", stop_reason="stop_sequence"), Stop.SPOKE, "done"),
    (text("no call", stop_reason="tool_use"), Stop.SPOKE, "no call"),
    (reply(called("compile"), stop_reason="end_turn"), Stop.SPOKE, ""),
    (text("more", stop_reason="pause_turn"), Stop.PAUSED, ""),
    (text("short", stop_reason="compaction"), Stop.PAUSED, ""),
    (reply(called("compile"), stop_reason="max_tokens"), Stop.TRUNCATED, ""),
    (reply(called("compile"), stop_reason="model_context_window_exceeded"), Stop.TOO_LONG, ""),
    (
        reply(stop_reason="refusal", stop_details={"type": "refusal", "category": "frontier_llm"}),
        Stop.REFUSED,
        "category frontier_llm",
    ),
    (reply(stop_reason="refusal"), Stop.REFUSED, "no category was given"),
    (reply(called("compile"), stop_reason="coffee_break"), Stop.UNKNOWN, "stop reason 'coffee_break'"),
]


@pytest.mark.parametrize(("step", "stop", "detail"), STOPS)
async def test_every_reason_to_stop_has_its_outcome(
    workshop: Workshop, server: FakeMessages, step: Step, stop: Stop, detail: str
) -> None:
    """Calls are told of a finished message only, and what was said stays in the transcript."""
    given = await opened(workshop)
    turn = await taken(workshop, server, given, step)
    assert (turn.stop, turn.detail) == (stop, detail)
    assert [one.name for one in turn.calls] == (["compile"] if stop is Stop.TOOLS else [])
    assert turn.charge.calls == 1
    assert len(await transcript.messages(workshop.store, turn.head)) == 2


async def test_a_call_is_told_by_its_place_in_the_transcript(workshop: Workshop, server: FakeMessages) -> None:
    """Blocks that are not kept do not count."""
    turn = await taken(workshop, server, await opened(workshop), reply(spoken(" "), spoken("so"), called("x" * 99)))
    content = (await transcript.last(workshop.store, turn.head))["content"]
    (told,) = turn.calls
    assert content[told.at]["name"] == "x" * 99
    assert told.name == "x" * 64


async def test_some_servers_say_the_wrong_reason(workshop: Workshop, server: FakeMessages) -> None:
    """Their calls are run all the same."""
    step = reply(called("compile"), stop_reason="end_turn")
    turn = await taken(workshop, server, await opened(workshop), step, runs_calls_on_end_turn=True)
    assert turn.stop is Stop.TOOLS


@pytest.mark.parametrize("step", [fault(413), fault(400, message="prompt is too long: 210000 tokens > 200000 maximum")])
async def test_a_conversation_that_does_not_fit_is_an_outcome(
    workshop: Workshop, server: FakeMessages, step: Step
) -> None:
    """It can begin anew; its transcript is as it was."""
    given = await opened(workshop)
    turn = await taken(workshop, server, given, step)
    assert (turn.stop, turn.head, turn.charge) == (Stop.TOO_LONG, given.head, Charge())


async def test_a_server_that_fails_is_an_error(workshop: Workshop, server: FakeMessages) -> None:
    """Which says of what kind it is."""
    with pytest.raises(ModelError) as caught:
        await taken(workshop, server, await opened(workshop), fault(529))
    assert caught.value.kind is ModelFault.OVERLOADED


async def test_a_charge_counts_tokens_and_dollars(workshop: Workshop, server: FakeMessages) -> None:
    """What was read from a server's memory and what was written into it too."""
    usage = {
        "input_tokens": 1_000,
        "output_tokens": 2_000,
        "cache_read_input_tokens": 10_000,
        "cache_creation_input_tokens": 500,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 500},
    }
    turn = await taken(workshop, server, await opened(workshop), text("ok", usage=usage))
    assert turn.charge.tokens == 13_500
    assert turn.context_tokens == 11_500
    assert turn.charge.usd == pytest.approx((1_000 * 4 + 2_000 * 20 + 10_000 * 0.2 + 500 * 8) / 1e6)


# ---------------------------------------------------------------- nothing is paid for twice


async def test_an_answer_is_asked_for_once(workshop: Workshop, server: FakeMessages) -> None:
    """A worker that dies after the answer, before the activity ends, finds it in the journal."""
    given = await opened(workshop)
    first = await taken(workshop, server, given, call("compile"))
    assert await taken(workshop, server, given) == first
    assert len(server.requests) == 1


async def test_another_request_under_the_same_name_is_asked_anew(workshop: Workshop, server: FakeMessages) -> None:
    """A new version of a prompt or of a tool."""
    await taken(workshop, server, await opened(workshop, make_session()), text("old"))
    again = await taken(workshop, server, await opened(workshop, make_session(system="You are new.")), text("new"))
    assert again.detail == "new"
    assert len(server.requests) == 2


async def test_the_journal_holds_what_a_replay_needs(workshop: Workshop, server: FakeMessages) -> None:
    """The message as it came, and no header and no key."""
    await taken(workshop, server, await opened(workshop, turn=3, roomier=1), text("hello"))
    (name,) = await workshop.store.names("journal")
    assert name == "journal/run-1/iter-001/optimizer/0/3-1"
    entry = await journal.entry_at(workshop.store, "run-1/iter-001/optimizer/0/3-1")
    assert entry is not None
    assert entry.message["content"] == [{"type": "text", "text": "hello"}]
    assert entry.request_id
    content = b"".join(path.read_bytes() for path in workshop.settings.home.rglob("*") if path.is_file())
    assert b"canary" not in content


@pytest.mark.parametrize("kind", ["cut_in_call", "reset_midway", "error_event"])
async def test_what_a_broken_stream_has_cost_is_charged_with_the_answer(
    workshop: Workshop, server: FakeMessages, kind: str
) -> None:
    """Nobody gives the tokens back that it had read. A retry of the retry counts them once."""
    given = await opened(workshop)
    whole = await taken(workshop, server, await opened(workshop, make_session(place="elsewhere")), text("ok"))
    for _ in range(2):
        with pytest.raises(ModelError):
            await taken(workshop, server, given, fault(kind))
    turn = await taken(workshop, server, given, text("ok"))
    assert turn.charge.calls == 3
    # Of the two broken ones what was read, and the one token with which a stream begins.
    assert turn.charge.tokens == 3 * whole.context_tokens + whole.charge.output_tokens + 2
    assert turn.charge.usd is not None
    assert await taken(workshop, server, given) == turn


async def test_a_cancelled_stream_has_cost_something_too(
    workshop: Workshop, server: FakeMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the turn is taken after all."""
    given = await opened(workshop)
    attempt = client.Attempt()
    monkeypatch.setattr(client, "Attempt", lambda turn: attempt)
    server.push(fault("stall_midway"))
    taking = asyncio.create_task(take_turn(workshop, given, profile_at(server.url)))
    await until(lambda: attempt.usage, "the stream has begun")
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert (await taken(workshop, server, given)).charge.calls == 2


# ---------------------------------------------------------------- nothing is paid beyond the budget


async def test_an_answer_is_given_less_room_when_the_budget_runs_low(workshop: Workshop, server: FakeMessages) -> None:
    """Tokens or dollars, whichever is the tighter."""
    given = await opened(workshop, tokens_left=10_000)
    await taken(workshop, server, given)
    by_tokens = server.requests[0].body["max_tokens"]
    assert 9_000 < by_tokens < 10_000
    await taken(workshop, server, given.model_copy(update={"usd_left": 0.1, "turn": 1}))
    by_usd = server.requests[1].body["max_tokens"]
    assert 4_000 < by_usd < 5_000  # a tenth of a dollar at 20 USD per million


@pytest.mark.parametrize(
    ("left", "word"),
    [({"tokens_left": 2_000}, "max_tokens"), ({"usd_left": 0.03}, "max_usd"), ({"usd_left": 0.0}, "USD")],
)
async def test_a_call_that_could_break_the_budget_is_not_made(
    workshop: Workshop, server: FakeMessages, left: dict[str, Any], word: str
) -> None:
    """It is told in one sentence, and the transcript is as it was."""
    given = await opened(workshop, **left)
    turn = await taken(workshop, server, given)
    assert (turn.stop, turn.head, turn.charge) == (Stop.UNAFFORDABLE, given.head, Charge())
    assert word in turn.detail
    assert not server.requests


async def test_dollars_are_not_spent_at_an_unknown_price(workshop: Workshop, server: FakeMessages) -> None:
    """Tokens are: they can be counted."""
    given = await opened(workshop, make_session(model=Model(optimizer="my-own-model")), usd_left=100.0)
    assert (await taken(workshop, server, given)).stop is Stop.UNAFFORDABLE
    assert not server.requests
    by_tokens = await taken(workshop, server, given.model_copy(update={"usd_left": None, "tokens_left": 50_000}))
    assert by_tokens.charge.usd is None
    assert by_tokens.charge.tokens > 0


async def test_a_free_server_costs_no_dollars(workshop: Workshop, server: FakeMessages) -> None:
    """Whatever its model is called."""
    given = await opened(workshop, make_session(model=Model(optimizer="my-own-model")), usd_left=0.01)
    assert (await taken(workshop, server, given, free=True)).charge.usd == 0.0
    assert server.requests[0].body["max_tokens"] == 32_000


async def test_what_broken_streams_have_cost_is_gone_from_the_budget(workshop: Workshop, server: FakeMessages) -> None:
    """Before the next attempt."""
    given = await opened(workshop, tokens_left=4_000)
    lost = journal.Lost(model="claude-opus-5-5", usage={"input_tokens": 3_000})
    await journal.lose(workshop.store, "run-1/iter-001/optimizer/0/0-0", lost)
    turn = await taken(workshop, server, given)
    assert (turn.stop, turn.charge.tokens) == (Stop.UNAFFORDABLE, 3_000)


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        ({"input_tokens": 1_000.0, "output_tokens": 1_000.5}, range(2_001, 2_002)),
        ({"input_tokens": None, "output_tokens": None}, range(600, 1_200)),
        ({"input_tokens": -5, "output_tokens": "many"}, range(600, 1_200)),
        ({"input_tokens": 0, "output_tokens": 0}, range(600, 1_200)),
        ({"input_tokens": 10**400, "output_tokens": 10**400}, range(2 * 10**9, 2 * 10**9 + 1)),
        ({"input_tokens": True, "output_tokens": 1_000, "iterations": 7}, range(1_001, 1_300)),
    ],
)
async def test_a_budget_does_not_depend_on_what_a_server_likes_to_count(
    workshop: Workshop, server: FakeMessages, told: dict[str, Any], tokens: range
) -> None:
    """What it leaves out is taken to be as much as it can be; a charge is never negative and never without end."""
    nothing = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "cache_creation": None}
    step = text("word " * 400, usage={**nothing, **told})
    turn = await taken(workshop, server, await opened(workshop), step, stream=False)
    assert turn.charge.tokens in tokens
    assert turn.charge.usd is not None
    assert 0 < turn.charge.usd < 10**6


async def test_a_server_that_costs_nothing_may_count_nothing(workshop: Workshop, server: FakeMessages) -> None:
    """A script does so. One that says nothing at all is estimated all the same: max_tokens holds for it too."""
    given = await opened(workshop)
    nothing = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "cache_creation": None}
    zero = {**nothing, "input_tokens": 0, "output_tokens": 0}
    assert (await taken(workshop, server, given, text("ok", usage=zero), free=True)).charge == Charge(calls=1)
    silent = text("word " * 400, usage={**nothing, "input_tokens": None, "output_tokens": None})
    turn = await taken(workshop, server, given.model_copy(update={"turn": 1}), silent, stream=False, free=True)
    assert turn.charge.tokens > 600


@pytest.mark.parametrize("content", [b"", b'{"body": "', b"\xff\xfe", b"[1]"])
async def test_a_damaged_journal_is_asked_past(workshop: Workshop, server: FakeMessages, content: bytes) -> None:
    """Of what was lost before the answer too; the run does not fail on it for ever."""
    given = await opened(workshop)
    await taken(workshop, server, given, text("first"))
    await workshop.store.remember("journal/run-1/iter-001/optimizer/0/0-0", content)
    await workshop.store.remember("lost/run-1/iter-001/optimizer/0/0-0/1", content)
    again = await taken(workshop, server, given, text("second"))
    assert again.detail == "second"
    assert await taken(workshop, server, given) == again
    assert len(server.requests) == 2


async def test_an_answer_that_a_full_disk_would_not_take_is_paid_for_once(
    workshop: Workshop, server: FakeMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt would pay again otherwise, for as long as the disk is full."""
    given = await opened(workshop)

    async def full(store: Store, name: str, content: bytes) -> None:
        raise StoreError(f"cannot write {name!r}: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "remember", full)
        for _ in range(3):
            with pytest.raises(StoreError):
                await taken(workshop, server, given)
    turn = await taken(workshop, server, given)
    assert len(server.requests) == turn.charge.calls == 1
    assert await journal.entry_at(Store.of(workshop.settings), "run-1/iter-001/optimizer/0/0-0") is not None
    assert not journal._unwritten


async def test_of_two_workers_that_have_the_same_turn_one_is_believed(workshop: Workshop, server: FakeMessages) -> None:
    """The one whose answer was there first, and what the other one's has cost is counted."""
    given = await opened(workshop)
    late = text("late", delay_s=0.3)
    server.push(late)
    slow = asyncio.create_task(take_turn(workshop, given, profile_at(server.url)))
    await until(lambda: server.requests, "the first worker has asked")
    quick = await taken(workshop, server, given, text("quick"))
    turn = await slow
    assert (quick.detail, turn.detail) == ("quick", "quick")
    assert (turn.head, turn.charge.calls) == (quick.head, 2)
    assert await taken(workshop, server, given) == turn


async def test_a_price_file_that_breaks_during_a_run_ends_the_search_alone(
    workshop: Workshop, server: FakeMessages, tmp_path: Path
) -> None:
    """What was won stays won: it is no mistake of the task's."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("my-model: {input: 1")
    broken = Workshop(dataclasses.replace(workshop.settings, prices=prices))
    with pytest.raises(ModelError) as caught:
        await taken(broken, server, await opened(broken))
    assert (caught.value.kind, caught.value.retryable) == (ModelFault.CONFIG, False)
    assert "prices.yaml" in str(caught.value)


async def test_what_a_model_says_cannot_draw_in_a_terminal(workshop: Workshop, server: FakeMessages) -> None:
    """Nor can names of tools break a line: both stand in histories, in the UI and in logs."""
    odd = reply(spoken("\x1b[2Jclean\u202e \0"), called("check\n\n# Heading\x1b[0m"))
    turn = await taken(workshop, server, await opened(workshop), odd, stream=False)
    assert all(one.isprintable() for one in (turn.detail, turn.calls[0].name))


@pytest.mark.parametrize("details", ["cyber", ["cyber"], None])
async def test_a_refusal_needs_no_details(workshop: Workshop, server: FakeMessages, details: Any) -> None:
    """Of whatever kind they are."""
    step = text("I cannot.", stop_reason="refusal", stop_details=details)
    assert (await taken(workshop, server, await opened(workshop), step, stream=False)).stop is Stop.REFUSED
