"""Who is offered which tool, how tools are told, and what a wrong call is answered."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.agents import transcript
from activities.agents.toolbox import TOOLS, offered, schemas
from activities.agents.tools.tool import MOST_ANSWERED, Desk
from activities.use_tool import ToolUsing, UseToolInput
from specs.dialogue import ON_DEVICE, Mode, Role, ToolCall
from specs.outcomes import Stage
from specs.schema import Language
from tests.activities.agents.calls import call, refused
from tests.desks import desk_at

MOST_BYTES = 8_000  # of all tools of an optimiser: they stand in front of every prompt
CONVERSATIONS = list(itertools.product(Role, Mode, Stage, Language))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return await desk_at(tmp_path_factory.mktemp("toolbox"), kernel="int x;\n")


def test_every_tool_that_is_offered_exists() -> None:
    """In sorted order, each once, and the same in both stages: a server keeps the prefix only then."""
    for role, mode, stage, language in CONVERSATIONS:
        names = offered(role, mode, stage, language)
        assert list(names) == sorted(set(names))
        assert set(TOOLS) >= set(names)
        assert names == offered(role, mode, Stage.REPRODUCE, language)


def test_each_tool_is_offered_to_somebody() -> None:
    """None is dead, and all that need the device exist."""
    everywhere = {name for conversation in CONVERSATIONS for name in offered(*conversation)}
    assert everywhere == set(TOOLS)
    assert everywhere >= ON_DEVICE


def test_who_researches_changes_nothing_and_hands_in_a_plan() -> None:
    """And who works hands in a kernel."""
    research = set(offered(Role.OPTIMIZER, Mode.RESEARCH, Stage.OPTIMIZE, Language.CUDA))
    work = set(offered(Role.OPTIMIZER, Mode.PIVOT, Stage.OPTIMIZE, Language.CUDA))
    assert work - research == {"check", "compile", "edit_kernel", "measure", "submit", "write_kernel"}
    assert research - work == {"submit_plan"}


def test_no_role_has_anothers_last_word() -> None:
    """An optimiser gives no verdict, a reviewer writes nothing, a gate writer sees no kernel."""
    by_role = {role: set(offered(role, Mode.IMPROVE, Stage.OPTIMIZE, Language.CPP)) for role in Role}
    assert by_role[Role.REVIEWER] == {"give_verdict", "read_doc", "read_kernel", "read_reference"}
    assert not by_role[Role.GATE_WRITER] & {"read_kernel", "submit", "give_verdict"}
    assert not by_role[Role.OPTIMIZER] & {"give_verdict", "admit_gate", "write_gate_file", "read_canonical"}


@pytest.mark.parametrize("language", Language)
def test_the_tools_of_an_optimiser_are_short(language: Language) -> None:
    """They are read again at every turn."""
    told = schemas(offered(Role.OPTIMIZER, Mode.IMPROVE, Stage.OPTIMIZE, language))
    assert len(json.dumps(told)) < MOST_BYTES
    assert all(20 <= len(tool["description"]) <= 400 for tool in told)


def test_schemas_stand_for_themselves() -> None:
    """No references, no titles, nothing unknown accepted; and the same bytes when asked again."""
    told = json.dumps(schemas(sorted(TOOLS)))
    assert "$ref" not in told
    assert "$defs" not in told
    assert told == json.dumps(schemas(sorted(TOOLS)))
    for tool in json.loads(told):
        assert tool["input_schema"]["type"] == "object"
        assert tool["input_schema"]["additionalProperties"] is False
        fields = tool["input_schema"].get("properties", {})
        assert all(field.get("description") for field in fields.values()), tool["name"]
    submit = schemas(["submit"])[0]["input_schema"]
    assert set(submit["properties"]) == {"title"}  # a field of that name is no title of a schema
    assert "title" not in submit["properties"]["title"]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("write_kernel", {}, ["source: missing; accepted: text"]),
        ("write_kernel", {"source": 3}, ["source: 3 (a number) given; accepted: text"]),
        ("write_kernel", {"source": "x", "path": "/etc"}, ["path: no such field; accepted: source"]),
        ("write_kernel", {"sorce": "x"}, ["source: missing", "sorce: no such field; did you mean 'source'?"]),
        ("write_kernel", "int x;", ["input: 'int x;' (text) given; accepted: an object with the fields source"]),
        ("write_kernel", None, ["input: nothing given; accepted: an object with the fields source"]),
        ("write_kernel", [1], ["input: [1] (a list) given; accepted: an object"]),
        ("note", {"section": "done", "text": "x"}, ["'done' (text) given; accepted: one of tried, untried_hard"]),
        ("note", {"section": "tried", "text": "x" * 301}, ["text: 'xxx", "accepted: text of 1 to 300 characters"]),
        ("read_kernel", {"first_line": 0}, ["first_line: 0 (a number) given; accepted: a whole number of at least 1"]),
        ("read_kernel", {"first_line": "two"}, ["first_line: 'two' (text) given"]),
        ("history", {"source": "perhaps"}, ["source: 'perhaps' (text) given; accepted: true or false"]),
    ],
)  # fmt: skip
async def test_a_wrong_input_is_told_field_by_field(desk: Desk, name: str, given: Any, told: list[str]) -> None:
    """What was given and what is accepted, so that the next call can be right."""
    called = await call(desk, name, given)
    assert called.outcome.error
    assert called.outcome.workspace is None
    for part in told:
        assert part in called.text


async def test_half_a_character_is_no_text(desk: Desk) -> None:
    """Wherever in the input it stands; it could not be stored."""
    for half in ("\ud800", "\udc80"):
        assert "lone surrogate" in await refused(desk, "write_kernel", source=f"int {half};")
        assert "lone surrogate" in await refused(desk, "write_kernel", **{half: "int x;"})


async def test_faults_without_end_are_cut(desk: Desk) -> None:
    """A hundred unknown fields do not fill the next prompt."""
    text = await refused(desk, "submit", title="x", **{f"field{number}" * 9: "y" * 500 for number in range(100)})
    assert "and 94 more" in text
    assert len(text) < 2_000


async def test_a_tool_that_is_not_there_is_named_with_those_that_are(desk: Desk) -> None:
    """Also one that exists, but not for this conversation."""
    assert "no tool 'bash' here; offered: assembly, check" in await refused(desk, "bash", command="ls")
    assert "did you mean 'edit_kernel'?" in await refused(desk, "edit_kernal")
    assert "no tool 'give_verdict' here" in await refused(desk, "give_verdict", approved=True)


async def test_a_call_too_many_is_answered_as_not_run(desk: Desk) -> None:
    """Every call of a message needs an answer, or the server refuses the next one."""
    called = await call(desk, "write_kernel", {"source": "int y;"}, run=False)
    assert called.outcome.error
    assert called.outcome.workspace is None
    assert called.text.startswith("Not run")


async def test_a_call_that_the_message_does_not_hold_is_our_fault(desk: Desk) -> None:
    """And no retry can mend it."""
    store = desk.workshop.store
    head = await transcript.append(store, None, {"role": "assistant", "content": [{"type": "text", "text": "x"}]})
    session = await store.put(desk.session.model_dump_json().encode())
    for at in (0, 1):
        asked = UseToolInput(session=session, head=head, call=ToolCall(at=at, name="x"), workspace=desk.workspace)
        with pytest.raises(ApplicationError, match="holds no tool call") as raised:
            await ActivityEnvironment().run(ToolUsing(desk.workshop).use_tool, asked)
        assert raised.value.non_retryable


async def test_a_retry_gives_the_same_answer(desk: Desk) -> None:
    """Tools change the workspace by value only."""
    first, second = [await call(desk, "edit_kernel", {"old": "x", "new": "y"}) for _ in range(2)]
    assert first.outcome.answer == second.outcome.answer
    assert first.outcome.workspace == second.outcome.workspace


async def test_no_answer_breaks_a_prompt(tmp_path: Path) -> None:
    """However long its subject, and whatever is in it: no zero byte, no half of a character."""
    kernel = "".join(f"float f{number}[] = {{{'1, ' * 300}}}; \0\n" for number in range(500))
    desk = await desk_at(tmp_path, kernel=kernel)
    source = await desk.workshop.store.put(b"\xff\xfe\0 \xed\xa0\x80\n" * 2_000)
    odd = await desk_at(tmp_path / "odd", start=desk.workspace.model_copy(update={"kernel": source}))
    for one, name, given in (
        (desk, "read_kernel", {}),
        (odd, "read_kernel", {}),
        (desk, "read_doc", {"page": "\0" * 30}),
        (desk, "history", {"version": "\0"}),
        (desk, "write_kernel", {"source": "\0"}),
        (desk, "write_kernel", {"source": "int \ud800;"}),
        (desk, "note", {"section": "tried", "text": "\ud800"}),
    ):
        called = await call(one, name, given)
        assert len(called.text) <= MOST_ANSWERED + 100
        assert "\0" not in called.text
        called.text.encode()
        called.outcome.said.encode()
