"""Conversations in a real run: real server, real SDK over HTTP, and a model that says what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from activities.agents import transcript
from activities.agents.prompts import nudges
from activities.model_turn import Nudge
from specs.history import HistoryLine
from specs.outcomes import Ending, Role
from tests.fake_messages import Asked, Fault, call, called, fault, reply, spoken, text
from tests.fake_models import Models, hands_in, role_of, serving, verdict
from tests.fakes import Running, kernel, running, until
from workflows.optimization import OptimizationWorkflow as Run
from workflows.state import Phase

SLOW, FAST, FASTER = kernel("ratio 0.5", "slow"), kernel("ratio 1.2", "fast"), kernel("ratio 1.5", "faster")
SEED = {"seed.cpp": SLOW}
EVENTS, BYTES = 14, 4_000  # of a turn with its tool call


def model(**fields: Any) -> dict[str, Any]:
    return {"model": {"provider": "anthropic"} | fields}


def budget(**fields: Any) -> dict[str, Any]:
    return {"budget": {"max_iterations": 2, "max_wall_minutes": 10} | fields}


def asking(temporal: Client, folder: Path, *, overrides: Mapping[str, Any] = {}, **more: Any) -> Any:
    """A run whose optimiser is a model; by default of two iterations."""
    return running(temporal, folder, ["// none"], overrides=model() | budget() | dict(overrides), **more)


async def lines_of(run: Running) -> list[HistoryLine]:
    return await run.handle.query(Run.history)


async def story_of(run: Running) -> list[tuple[str, str]]:
    return [(line.version, line.ending.value) for line in await lines_of(run)]


async def test_a_model_works_on_a_kernel_until_it_hands_it_in(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn and each call is an activity; what was said can be read back, and what it cost is booked."""
    script = [
        call("read_kernel"),
        call("write_kernel", source=kernel("fails", "typo")),
        call("compile"),
        call("write_kernel", source=FAST),
        call("compile"),
        call("check"),
        call("measure"),
        call("note", section="tried", text="wider vectors: 1.2x"),
        call("submit", title="wider vectors"),
    ]
    policy = Models(script, hands_in(FASTER, "unrolled"))
    async with serving(monkeypatch, policy) as server, asking(temporal, tmp_path) as run:
        result = await run.result()
        lines = await lines_of(run)
        said = await transcript.messages(run.store, lines[0].chapters[0].head)
    assert [(line.version, line.label) for line in lines] == [("v001", "wider vectors"), ("v002", "unrolled")]
    assert [chapter.role for chapter in lines[0].chapters] == [Role.OPTIMIZER, Role.REVIEWER]
    called_ = [block["name"] for one in said for block in one["content"] if isinstance(block, dict) and "name" in block]
    assert called_ == [one.content[-1]["name"] for one in script]
    assert result.charge.calls == len(server.requests) == 12
    assert result.charge.usd is not None
    assert result.charge.usd > 0
    charged = [line.charge for line in lines]
    assert sum(one.calls for one in charged if one) == 12
    # The notes of the first iteration stand in the second one's prompt.
    second = next(
        one
        for one in server.requests
        if one.turns == 0 and role_of(one) is Role.OPTIMIZER and "v001" in str(one.messages)
    )
    assert "wider vectors: 1.2x" in str(second.messages)


async def test_a_veto_is_recorded_with_its_evidence_and_the_champion_stays(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second kernel is faster, and the reviewer has seen why."""

    def reviewer(asked: Asked) -> Any:
        vetoed = "faster" in str(asked.messages[0])
        return verdict(approved=not vetoed, quote="void copy()", summary="It skips work." if vetoed else "Fine.")

    async with (
        serving(monkeypatch, Models(hands_in(FAST), hands_in(FASTER), reviewer=reviewer)),
        asking(temporal, tmp_path) as run,
    ):
        result = await run.result()
        lines = await lines_of(run)
    assert [(line.version, line.ending) for line in lines] == [("v001", Ending.WIN), ("a001", Ending.VETOED)]
    assert lines[1].reason == 'It skips work. ("void copy()": this is the work)'
    assert lines[1].score == 1.5  # measured, and no champion for it
    assert result.champion is not None
    assert (result.champion.version, result.outcome) == ("v001", "accepted")


@pytest.mark.parametrize(
    ("reviewer", "why"),
    [
        (lambda asked: fault(401), "the reviewer cannot be asked"),
        (lambda asked: text("Looks good to me! Approved."), "gave no verdict"),
        (lambda asked: verdict(approved=True, quote="words that stand nowhere"), "gave no verdict"),
    ],
)
async def test_no_verdict_is_no_approval(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reviewer: Any, why: str
) -> None:
    """Whether the reviewer cannot be reached, only talks, or makes its evidence up: nothing is crowned."""
    async with (
        serving(monkeypatch, Models(hands_in(FAST), reviewer=reviewer)),
        asking(temporal, tmp_path, overrides=budget(max_iterations=1)) as run,
    ):
        result = await run.result()
        lines = await lines_of(run)
    assert result.champion is None
    assert [line.ending for line in lines] == [Ending.UNREVIEWED]
    assert why in lines[0].reason


async def test_a_refusal_begins_anew_and_costs_no_champion(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same conversation would go on refusing; a second one says plainly what the work is."""
    refuses = reply(spoken("I cannot."), stop_reason="refusal", stop_details={"category": "frontier_llm"})
    policy = Models(hands_in(FAST), [refuses], [refuses])
    async with serving(monkeypatch, policy) as server, asking(temporal, tmp_path) as run:
        result = await run.result()
        lines = await lines_of(run)
    assert [line.ending for line in lines] == [Ending.WIN, Ending.NO_PROPOSAL]
    assert "refused twice (category frontier_llm)" in lines[1].reason
    assert len(policy.conversations) == 3
    assert "refused" in str(server.requests[-1].messages[0])
    assert result.outcome == "accepted"


async def test_an_answer_that_was_cut_is_asked_for_with_more_room_and_none_of_its_calls_runs(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice from the same head; then the model is told to send less at a time."""
    cut = reply(called("write_kernel", source="half"), stop_reason="max_tokens")
    script = [cut, *hands_in(FAST)]
    async with (
        serving(monkeypatch, Models(script)) as server,
        asking(temporal, tmp_path, overrides=model(max_tokens=4_000) | budget(max_iterations=1)) as run,
    ):
        await run.result()
        story = await story_of(run)
    rooms = [one.body["max_tokens"] for one in server.requests if role_of(one) is Role.OPTIMIZER]
    assert rooms == [4_000, 8_000, 16_000, 4_000]
    answers = server.requests[3].answers
    assert [answer["is_error"] for answer in answers] == [True]
    assert nudges.text(Nudge.TRUNCATED) in str(server.requests[3].messages[-1])
    assert story == [("v001", "win")]


async def test_a_stop_that_nobody_knows_runs_nothing_and_the_model_is_told(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version of the API must not be obeyed half."""
    odd = reply(called("submit", title="odd"), stop_reason="out_of_cheese")
    async with (
        serving(monkeypatch, Models([odd, *hands_in(FAST, "even")])),
        asking(temporal, tmp_path, overrides=budget(max_iterations=1)) as run,
    ):
        await run.result()
        assert [line.label for line in await lines_of(run)] == ["even"]


async def test_a_transcript_that_is_too_long_begins_anew_with_the_work_so_far(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel as it was left, and a line a call."""
    full = reply(spoken("..."), stop_reason="model_context_window_exceeded")
    policy = Models([call("write_kernel", source=FAST), full], [call("submit", title="after all")])
    async with (
        serving(monkeypatch, policy) as server,
        asking(temporal, tmp_path, overrides=budget(max_iterations=1)) as run,
    ):
        await run.result()
        lines = await lines_of(run)
    assert [(line.version, line.label) for line in lines] == [("v001", "after all")]
    assert [chapter.role.value for chapter in lines[0].chapters] == ["optimizer", "optimizer", "reviewer"]
    again = server.requests[2].messages
    assert len(again) == 1
    assert "write_kernel" in str(again)
    assert "fake: ratio 1.2" in str(again)


async def test_a_conversation_that_has_grown_begins_anew(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At model.context_tokens, before the server would refuse it."""
    grown = reply(called("read_kernel"), usage={"input_tokens": 9_000, "output_tokens": 5})
    policy = Models([grown], hands_in(FAST))
    overrides = model(context_tokens=8_000) | budget(max_iterations=1)
    async with serving(monkeypatch, policy), asking(temporal, tmp_path, overrides=overrides) as run:
        await run.result()
        assert len((await lines_of(run))[0].chapters) == 3


async def test_the_last_state_that_compiles_is_judged_when_the_steps_are_used_up(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that was paid for is not thrown away; before that the model is told that few steps are left."""
    script = [call("write_kernel", source=FAST), call("compile"), *[call("read_kernel")] * 9]
    overrides = {"search": {"max_steps": 5}} | budget(max_iterations=1)
    async with (
        serving(monkeypatch, Models(script)) as server,
        asking(temporal, tmp_path, overrides=overrides) as run,
    ):
        await run.result()
        lines = await lines_of(run)
    assert lines[0].ending is Ending.WIN
    assert lines[0].label.startswith("last state: all 5 steps were used")
    assert nudges.text(Nudge.HAND_IN) in str(server.requests[2].messages[-1])


@pytest.mark.parametrize("code", ["enforced_spend_limit_reached", "contract_spend_limit_reached"])
async def test_a_spend_limit_parks_the_run_until_a_person_resumes_it(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """It looks like a rate limit and no waiting helps; nothing is lost meanwhile."""
    async with serving(monkeypatch, Models(hands_in(FAST))) as server:
        server.push(fault(429, code=code))
        async with asking(temporal, tmp_path, overrides=budget(max_iterations=1)) as run:
            await run.reaches(Phase.PAUSED)
            assert "the model cannot be asked" in ((await run.status()).pause_reason or "")
            assert len(server.requests) == 1
            await run.handle.execute_update(Run.resume)
            await run.result()
            assert await story_of(run) == [("v001", "win")]


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_a_parked_run_can_be_ended(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Without a resume, and with the best so far."""
    policy = Models(hands_in(FAST), [call("read_kernel"), lambda asked: fault(402)])
    async with serving(monkeypatch, policy), asking(temporal, tmp_path) as run:
        await run.reaches(Phase.PAUSED)
        assert "the model cannot be asked" in ((await run.status()).pause_reason or "")
        if end == "stop":
            await run.handle.signal(Run.request_stop)
            assert (await run.result()).outcome == "accepted"
        else:
            await run.handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await run.result()
            assert (await run.handle.describe()).status is WorkflowExecutionStatus.CANCELED
        status = await run.status()
        assert status.delivery is not None
        assert status.charge.calls == (3 if end == "stop" else 2)


async def test_a_rate_limit_is_waited_for_and_not_charged(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names the delay; the run goes on after it."""
    async with serving(monkeypatch, Models(hands_in(FAST))) as server:
        server.push(fault(429, retry_after=2))
        async with asking(temporal, tmp_path, overrides=budget(max_iterations=1)) as run:
            result = await run.result()
            described = await run.handle.describe()
            assert await story_of(run) == [("v001", "win")]
    assert described.close_time is not None
    whole = (described.close_time - described.start_time).total_seconds()
    assert whole >= 2
    assert result.charged_minutes * 60 <= whole - 2


async def test_a_key_that_is_refused_ends_the_run_with_the_servers_words(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And asks once."""
    async with serving(monkeypatch, lambda asked: fault(401)) as server, asking(temporal, tmp_path) as run:
        with pytest.raises(WorkflowFailureError) as caught:
            await run.result()
        assert len(server.requests) == 1
    assert "401" in str(caught.value.cause)


async def test_a_broken_model_later_on_still_delivers_the_best(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was won stays won."""

    def policy(asked: Asked) -> Any:
        if role_of(asked) is Role.REVIEWER or "v001" not in str(asked.messages[0]):
            return models(asked)
        return fault(404)

    models = Models(hands_in(FAST))
    async with serving(monkeypatch, policy), asking(temporal, tmp_path) as run:
        result = await run.result()
    assert result.outcome == "accepted"
    assert "Model.not_found" in result.reason


async def test_what_a_conversation_has_cost_is_booked_when_the_model_breaks_in_its_middle(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration that failed would have no result, and its turns would stand in no book."""
    policy = Models(hands_in(FAST), [call("read_kernel"), call("read_kernel"), lambda asked: fault(403)])
    async with serving(monkeypatch, policy) as server, asking(temporal, tmp_path) as run:
        result = await run.result()
        lines = await lines_of(run)
        status = await run.status()
    assert result.outcome == "accepted"
    assert "Model.permission" in result.reason
    assert [line.ending for line in lines] == [Ending.WIN, Ending.NO_PROPOSAL]
    assert status.charge.calls == len(server.requests) - 1
    assert lines[1].charge is not None
    assert lines[1].charge.calls == 2


@pytest.mark.parametrize("limits", [{"max_tokens": 20_000}, {"max_usd": 0.4}])
async def test_a_budget_ends_the_search_before_the_call_that_could_break_it(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    """However long the model would like to go on; what it had is kept."""
    script = [call("write_kernel", source=FAST), call("compile"), *[call("read_kernel")] * 200]
    overrides = (
        model(max_tokens=2_048, reviewer=None) | budget(max_iterations=9, **limits) | {"search": {"max_steps": 300}}
    )
    async with serving(monkeypatch, Models(script)), asking(temporal, tmp_path, overrides=overrides) as run:
        result = await run.result()
        lines = await lines_of(run)
    assert lines[0].ending is Ending.WIN
    assert "are left of max_" in result.reason
    assert result.charge.tokens <= limits.get("max_tokens", 10**9)
    assert (result.charge.usd or 0) <= limits.get("max_usd", 10**9)


async def test_a_stall_is_answered_with_research_and_a_pivot(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel is asked for; notes and plan stand in the pivot's prompt, with what the reviewer has against them."""
    research = [
        call("submit_plan", lever="split K", why="idle cores", steps=["split"], expected_gain="1.3x"),
        call("note", section="tried", text="tiles: no gain"),
        call("note", section="untried_hard", text="split K with a second pass"),
        call("submit_plan", lever="split K", why="idle cores", steps=["split"], expected_gain="1.3x"),
    ]

    def reviewer(asked: Asked) -> Any:
        plan = "idle cores" in str(asked.messages[0])
        return verdict(approved=not plan, quote="idle cores" if plan else "void copy()", summary="Which cores?")

    policy = Models(
        hands_in(kernel("wrong", "one")),
        hands_in(kernel("wrong", "two")),
        research,
        research,
        hands_in(FAST),
        reviewer=reviewer,
    )
    overrides = {"search": {"stall_after": 2}} | budget(max_iterations=4)
    async with serving(monkeypatch, policy) as server, asking(temporal, tmp_path, overrides=overrides) as run:
        await run.result()
        lines = await lines_of(run)
    assert [line.ending.value for line in lines] == ["refused", "refused", "researched", "win"]
    assert lines[2].reason.startswith("next lever: ")
    assert "Which cores?" in lines[2].reason
    names = {tool["name"] for tool in server.requests[2].body["tools"]}
    assert not names & {"write_kernel", "edit_kernel", "submit"}
    assert server.requests[3].answers[0]["is_error"]  # no plan without notes
    pivot = next(one for one in server.requests if "the hard rewrite" in str(one.messages[0])[:200])
    for words in ("split K with a second pass", "idle cores", "Which cores?"):
        assert words in str(pivot.messages[0])


async def test_a_stop_in_the_middle_of_a_conversation_keeps_the_best(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step at work is finished, the conversation is not."""
    going = asyncio.Event()

    def endless(asked: Asked) -> Any:
        going.set()
        return call("read_kernel")

    policy = Models(hands_in(FAST), [endless] * 100)
    async with (
        serving(monkeypatch, policy),
        asking(temporal, tmp_path, overrides={"search": {"max_steps": 100}}) as run,
    ):
        await going.wait()
        await run.handle.signal(Run.request_stop)
        result = await run.result()
        lines = await lines_of(run)
    assert result.outcome == "accepted"
    assert [line.ending for line in lines] == [Ending.WIN, Ending.STOPPED]
    assert lines[1].chapters


async def test_a_cancel_closes_the_connection_to_the_model(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that says nothing but that it lives is not waited for."""
    async with serving(monkeypatch, lambda asked: Fault("pings")) as server, asking(temporal, tmp_path) as run:
        await until(lambda: server.requests, "the model was asked")
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        await until(lambda: server.hung_up, "the connection is closed")
        assert (await run.handle.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_turn_with_its_tool_call_stays_small_in_the_history(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference between a long conversation and a short one, with a kernel of 300 kB in each message."""
    large = FAST + "// padding\n" * (300_000 // 11)

    overrides = model(context_tokens=10_000_000) | budget(max_iterations=1)

    async def size(turns: int) -> tuple[int, int]:
        scripts: Sequence[Any] = [
            *[call("write_kernel", source=large + f"// {n}\n") for n in range(turns)],
            call("submit", title="x"),
        ]
        async with (
            serving(monkeypatch, Models(scripts)),
            asking(temporal, tmp_path / str(turns), overrides=overrides) as run,
        ):
            assert (await run.result()).champion is not None
            child = run.client.get_workflow_handle(f"{run.handle.id}/iter-000")
            described = await child.describe()
            return described.history_length, described.raw_description.workflow_execution_info.history_size_bytes

    (few_events, few_bytes), (more_events, more_bytes) = await size(1), await size(5)
    assert (more_events - few_events) / 4 <= EVENTS
    assert (more_bytes - few_bytes) / 4 <= BYTES
