"""A run of self-contained programs with nothing faked: it works, and no number of it passes for a verified one."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from git import Repo
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client

from activities.deliver import ResultFile
from specs.outcomes import Iteration
from tests.commands import Answer
from tests.real_run import Place, place
from workflows.console.lines import ratio_text
from workflows.state import RunResult

pytestmark = pytest.mark.timeout(900)

RUN = "reported"
EXAMPLE = (Path(__file__).parent / "self_contained" / "saxpy.cpp").read_text()
LABEL = "self-reported"
# Said of the run only where it says that there is none.
DENIED = re.compile(r"(?:none is|never|nothing(?: is| was| of it was)?) verified", re.IGNORECASE)


def program(body: str) -> str:
    return f"#include <cstdio>\n#include <cstdlib>\nint main() {{\n    {body}\n}}\n"


def says(
    small: str, large: str, reference: str = '{\\"n4096\\": 10, \\"n65536\\": 20}', after: str = "return 0;"
) -> str:
    """A program that prints these TFLOPS: what it computes is its own affair."""
    line = f'{{\\"n4096\\": {small}, \\"n65536\\": {large}}}'
    return program(
        f'std::puts("KERNEL_RESULT {line}");\n    std::puts("KERNEL_RESULT_REFERENCE {reference}");\n'
        f"    std::fflush(stdout);\n    {after}"
    )


SCRIPT = {
    "01-typo.cpp": says("5", "12") + "int oops",
    "02-half.cpp": says("5", "12"),
    "03-invalid.cpp": says("90", "INVALID"),
    "04-crashes.cpp": says("90", "90", after="std::abort();"),
    "05-two-answers.cpp": says("90", "90", after='std::puts("KERNEL_RESULT {\\"n4096\\": 91}");'),
    "06-hardly-better.cpp": says("5.04", "12"),
    "07-twice.cpp": says("11", "24"),
    "08-status.cpp": says("90", "90", after="return 3;"),
    # It really checks and times itself, against a baseline that is kept ten times slower: no clock decides this.
    "09-example.cpp": EXAMPLE,
}
STORY: dict[str, tuple[str, str, Any]] = {
    "01-typo.cpp": ("a001", "build_failed", None),
    "02-half.cpp": ("v001", "win", 0.5),
    "03-invalid.cpp": ("a002", "slower", 0.0),
    "04-crashes.cpp": ("a003", "refused", None),
    "05-two-answers.cpp": ("a004", "refused", None),
    "06-hardly-better.cpp": ("a005", "slower", 0.504),
    "07-twice.cpp": ("v002", "win", 1.1),
    "08-status.cpp": ("a006", "refused", None),
    "09-example.cpp": ("v003", "win", ...),
}


def write_task(folder: Path) -> Path:
    (folder / "programs").mkdir(parents=True)
    for name, source in SCRIPT.items():
        (folder / "programs" / name).write_text(source)
    task = {
        "name": "saxpy",
        "gpu": "CPU",
        "arch": "native",
        "precision": "FP32",
        "harness": "self_contained",
        "problem": {"description": "anything: the program checks and times itself"},
        "baseline": {"source": "the program's own"},
        "configs": [
            {"name": "n4096", "args": {"N": 4096}, "target_ratio": 1.0},
            {"name": "n65536", "args": {"N": 65536}, "target_ratio": 1.0},
        ],
        "search": {"stall_after": 50},
        "model": {"provider": "scripted", "script": "programs"},
        "output": {"result_keys": ["n4096", "n65536"]},
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    return folder / "task.yaml"


@dataclass
class Ended:
    place: Place
    answer: Answer  # of `client.py start`
    client: Client
    result: RunResult

    @property
    def delivered(self) -> Path:
        assert self.result.delivery is not None
        return Path(self.result.delivery.folder)

    @property
    def record(self) -> Path:
        assert self.result.delivery is not None
        return Path(self.result.delivery.record)

    async def out(self, *words: str) -> str:
        answer = await self.place.command(*words)
        assert answer.code == 0, answer.err
        return f"{answer.out}{answer.err}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ended(tmp_path_factory: Any) -> AsyncIterator[Ended]:
    """One run from start to end through the command line."""
    folder = tmp_path_factory.mktemp("reported")
    async with place(folder) as made:
        answer = await made.command("start", write_task(folder / "task"), "--local", "--follow", "--id", RUN)
        assert answer.code == 0, f"{answer.out}\n{answer.err}"
        client = await made.client()
        result = await client.get_workflow_handle(RUN, result_type=RunResult).result()
        yield Ended(made, answer, client, result)
        down = await made.command("down")
        assert down.out == "stopped: worker and server\n", down.err
        assert made.processes() == [], made.shown()


def result_score(ended: Ended) -> str:
    assert ended.result.champion is not None
    return f"score {ratio_text(ended.result.champion.score)} (min_ratio, {LABEL})"


def labelled(text: str) -> bool:
    """Says what it is worth, and nowhere that it is worth more."""
    return LABEL in text and "verified" not in DENIED.sub("", text)


async def test_each_program_gets_what_it_deserves(ended: Ended) -> None:
    """By its own words alone: the score must grow by min_gain, and a crash or a contradiction counts for nothing."""
    lines = json.loads(await ended.out("history", RUN, "--json"))
    found = {one["label"]: (one["version"], one["ending"], one["score"]) for one in lines}
    assert {name: (version, ending) for name, (version, ending, _) in found.items()} == {
        name: (version, ending) for name, (version, ending, _) in STORY.items()
    }
    for name, (_, _, score) in STORY.items():
        if score is not ...:
            assert found[name][2] == (score if score is None else pytest.approx(score)), name
    assert {one["standing"] for one in lines if one["version"] != "a001"} == {LABEL}


async def test_reasons_say_what_was_wrong(ended: Ended) -> None:
    """The program's end, its contradiction, its own INVALID, or the gain that was missing."""
    reasons = {one["label"]: one["reason"] for one in json.loads(await ended.out("history", RUN, "--json"))}
    assert "INVALID" in reasons["03-invalid.cpp"]
    assert reasons["04-crashes.cpp"] == "the program was ended by SIGABRT"
    assert "'n4096' was reported before, with other values" in reasons["05-two-answers.cpp"]
    assert reasons["06-hardly-better.cpp"] == (
        "self-reported score 0.504 against the champion's 0.500; more than 1.0% above it is needed"
    )
    assert reasons["08-status.cpp"] == "the program ended with status 3"


async def test_no_gate_is_locked_and_no_baseline_is_timed(ended: Ended) -> None:
    """Nor is there a verdict or a measurement anywhere."""
    result = ended.result
    assert (result.gate_digest, result.baseline) == (None, None)
    assert result.acceptance is not None
    assert (result.acceptance.verdict, result.acceptance.measurement) == (None, None)
    for path in ended.record.glob("iterations/*/outcome.json"):
        iteration = Iteration.model_validate_json(path.read_bytes())
        assert (iteration.verdict, iteration.measurement) == (None, None)
    done = [event async for event in ended.client.get_workflow_handle(RUN).fetch_history_events()]
    names = {
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in done
        if event.HasField("activity_task_scheduled_event_attributes")
    }
    assert names == {"claim_device", "record", "accept_program", "deliver", "release_device"}


async def test_the_result_is_accepted_as_what_it_is(ended: Ended) -> None:
    """Run once more, and still self-reported."""
    result = ended.result
    assert (result.outcome, result.standing) == (f"accepted ({LABEL})", LABEL)
    assert result.champion is not None
    assert (result.champion.version, result.champion.standing) == ("v003", LABEL)
    assert result.acceptance is not None
    assert result.acceptance.self_reported is not None
    assert result.acceptance.self_reported.label == LABEL


async def test_what_was_followed_is_labelled(ended: Ended) -> None:
    """The first line, every line of an iteration that has a report, the verdict and the table."""
    out = ended.answer.out
    assert labelled(out)
    assert re.search(rf"^{RUN}: saxpy against the program's own \({LABEL}\)$", out, re.MULTILINE)
    for label, (version, ending, _) in STORY.items():
        mark = "" if ending == "build_failed" else rf" \({LABEL}\)"
        assert re.search(rf"^{version} {ending.replace('_', ' ')}{mark} {re.escape(label)}: ", out, re.MULTILINE), out
    assert re.search(rf"^ACCEPTED \({LABEL}\) v003 after 9 iterations", out, re.MULTILINE)
    assert re.search(rf"^every number here is {LABEL}, none is verified$", out, re.MULTILINE)
    assert f"{LABEL} ratio" in out
    assert result_score(ended) in out


@pytest.mark.parametrize(
    "words",
    [
        ("status", RUN),
        ("status", RUN, "--json"),
        ("list",),
        ("list", "--json"),
        ("history", RUN),
        ("history", RUN, "--json"),
        ("best", RUN),
        ("best", RUN, "--json"),
        ("diff", RUN, "v001", "v002"),
        ("export", RUN, "-o", "taken"),
        ("watch", RUN),
    ],
    ids=" ".join,
)
async def test_every_command_labels_what_it_shows(ended: Ended, words: tuple[str, ...]) -> None:
    """For people and for programs."""
    assert labelled(await ended.out(*words))


async def test_the_delivered_files_are_labelled(ended: Ended) -> None:
    """The source is the champion's; result and report say what they are."""
    assert (ended.delivered / "kernel.cpp").read_text() == EXAMPLE
    text = (ended.delivered / "result.json").read_text()
    summary = ResultFile.model_validate_json(text).summary
    assert labelled(text)
    assert (summary.standing, summary.measurement, summary.gate_digest) == (LABEL, None, None)
    assert summary.self_reported is not None
    report = (ended.delivered / "report.html").read_text()
    assert labelled(report)
    assert f"<title>saxpy: accepted ({LABEL})</title>" in report
    assert report.count(LABEL) > 10


async def test_the_record_is_labelled(ended: Ended) -> None:
    """Every commit of a program that ran, and every tag."""
    with Repo(ended.record) as repo:
        assert sorted(tag.name for tag in repo.tags) == [f"{version}-{LABEL}" for version in ("v001", "v002", "v003")]
        messages = [str(commit.message) for commit in repo.iter_commits()]
    assert len(messages) == len(STORY)
    assert all(labelled(message) for message in messages if not message.startswith("a001"))


async def test_the_temporal_ui_is_labelled(ended: Ended) -> None:
    """Summary, details and memo of the run, the summaries of its steps, and the same of an iteration."""
    handle = ended.client.get_workflow_handle(RUN)
    described = await handle.describe()
    assert (await described.memo())["standing"] == LABEL
    assert labelled(await described.static_summary() or "")
    assert labelled(await described.static_details() or "")
    child = ended.client.get_workflow_handle(f"{RUN}/iter-006")
    assert labelled(await (await child.describe()).static_summary() or "")
    for one in (handle, child):
        metadata: WorkflowMetadata = await one.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        assert labelled(metadata.current_details), metadata.current_details
    events = [event for one in (handle, child) async for event in one.fetch_history_events()]
    summaries = [event.user_metadata.summary.data.decode() for event in events if event.user_metadata.summary.data]
    for beginning in ("run 07-twice.cpp", "commit v002: win", "build and run v003 once more", "write the best kernel"):
        (found,) = {text for text in summaries if text.strip('"').startswith(beginning)}
        assert LABEL in found
