"""The main job with nothing faked: a task file in, a proven and faster kernel out, by the command a stranger types."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.deliver import ResultFile
from activities.devserver import living_server
from activities.store import digest_of
from activities.summary import RunSummary
from specs.outcomes import FailureKind, Iteration, VerificationStage
from tests.commands import Answer
from tests.real_run import (
    CONFIGS,
    FASTEST,
    KERNEL,
    REPLAY,
    ROOT,
    SWEEPS,
    TAIL,
    TYPO,
    Place,
    history_of,
    make_task,
    place,
    recorded,
    shipped,
    size_of,
)
from workflows.optimization import OptimizationWorkflow
from workflows.state import RunResult

# Compilers and clocks take several times as long on a machine that somebody else uses too.
pytestmark = pytest.mark.timeout(900)

RUN, LARGE = "whole", "large"
PLAYED = [TYPO, SWEEPS, TAIL, REPLAY, FASTEST]
# The seed is played first. Each win is about twice as fast as the one before it, so the clock decides nothing here.
STORY = {
    "seed": ("v001", "win"),
    TYPO: ("a001", "build_failed"),
    SWEEPS: ("v002", "win"),
    TAIL: ("a002", "refused"),
    REPLAY: ("a003", "refused"),
    FASTEST: ("v003", "win"),
}
CHILD_EVENTS, CHILD_BYTES, PARENT_EVENTS_PER_ITERATION = 60, 40_000, 20
FIRST_AND_LAST_EVENTS = 60  # of a run: gate, baseline, device, acceptance, delivery
PADDING = "// padding\n" * (300_000 // 11 + 1)


@dataclass
class Ended:
    """A run that has ended, and everything it can be asked by."""

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

    def summary(self) -> RunSummary:
        return ResultFile.model_validate_json((self.delivered / "result.json").read_bytes()).summary

    def iteration(self, label: str) -> Iteration:
        """What the record says of the candidate with this label."""
        found = [Iteration.model_validate_json(p.read_bytes()) for p in self.record.glob("iterations/*/outcome.json")]
        (named,) = [one for one in found if one.proposal is not None and one.proposal.label == label]
        return named

    async def json(self, *words: str) -> Any:
        answer = await self.place.command(*words, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ended(tmp_path_factory: Any) -> AsyncIterator[Ended]:
    """One run from start to end through the command line; `down` after the last test leaves nothing behind."""
    folder = tmp_path_factory.mktemp("main")
    async with place(folder) as made:
        task = make_task(folder / "task", {name: shipped(name) for name in PLAYED})
        answer = await made.command("start", task, "--local", "--follow", "--id", RUN)
        assert answer.code == 0, f"{answer.out}\n{answer.err}"
        client = await made.client()
        result = await client.get_workflow_handle(RUN, result_type=RunResult).result()
        yield Ended(made, answer, client, result)
        down = await made.command("down")
        assert down.out == "stopped: worker and server\n", down.err
        assert made.processes() == [], made.shown()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        assert response.status == 200
        content: bytes = response.read()
        return content


# ---------------------------------------------------------------- what the command printed


async def test_every_event_is_one_line_in_order(ended: Ended) -> None:
    """A pipe gets the gate, the baseline, each iteration once with its outcome, acceptance and delivery."""
    lines = ended.answer.out.splitlines()
    expected = [
        rf"{RUN}: skinny-gemm-f32-cpu against OpenBLAS .+",
        r"gate locked: [0-9a-f]{12}",
        r"baseline OpenBLAS .+: n1024_k384 [\d.,]+ us, n768_k512 [\d.,]+ us",
        *(
            rf"{version} {ending.replace('_', ' ')} {re.escape(label)}: .+"
            for label, (version, ending) in STORY.items()
        ),
        rf"ACCEPTED v003 after {len(STORY)} iterations \(3 wins, 3 attempts\)",
    ]
    places = [[number for number, line in enumerate(lines) if re.fullmatch(one, line)] for one in expected]
    assert [len(found) for found in places] == [1] * len(expected), ended.answer.out
    assert places == sorted(places), ended.answer.out
    assert lines[0].startswith(f"{RUN}: ")


async def test_the_table_shows_what_was_delivered(ended: Ended) -> None:
    """For every config the ratio and its interval, digit for digit those of result.json."""
    accepted = ended.summary().measurement
    assert accepted is not None
    assert [one.config for one in accepted.configs] == list(CONFIGS)
    for one in accepted.configs:
        ratio = f"{one.ratio.value:.3f} +{one.ratio.low:.3f} to {one.ratio.high:.3f}"
        assert re.search(rf"^{one.config} +[\d.,]+ +[\d.,]+ +{ratio} ", ended.answer.out, re.MULTILINE), (
            ended.answer.out
        )


async def test_the_run_can_be_seen_in_the_ui(ended: Ended) -> None:
    """The printed address answers with the UI's page, and what that page asks for is there."""
    server = living_server(ended.place.settings)
    assert server is not None
    address = f"{server.ui}/namespaces/default/workflows/{RUN}"
    assert re.search(rf"^Temporal UI +{re.escape(address)}$", ended.answer.out, re.MULTILINE)
    assert (await ended.place.command("ui", RUN)).out == f"{address}\n"
    assert b"<html" in get(address).lower()
    seen = json.loads(get(f"{server.ui}/api/v1/namespaces/default/workflows/{RUN}"))
    assert seen["workflowExecutionInfo"]["status"] == "WORKFLOW_EXECUTION_STATUS_COMPLETED"
    assert seen["workflowExecutionInfo"]["type"]["name"] == "OptimizationWorkflow"


# ---------------------------------------------------------------- what came of each candidate


async def test_the_story_is_what_the_candidates_deserve(ended: Ended) -> None:
    """The run's history: wins and attempts numbered apart, every iteration once and in order."""
    lines = await history_of(ended.client.get_workflow_handle(RUN))
    assert {line.label: (line.version, line.ending.value) for line in lines} == STORY
    assert [line.index for line in lines] == list(range(len(STORY)))
    assert [line.label for line in lines] == list(STORY)


async def test_a_typo_gets_the_compilers_words(ended: Ended) -> None:
    """A failed build carries no library, no verdict and no time."""
    typo = ended.iteration(TYPO)
    assert typo.build is not None
    assert typo.build.library is None
    assert "error:" in typo.build.log_tail
    assert (typo.verdict, typo.measurement) == (None, None)


async def test_a_dropped_tail_is_found_by_the_edge_cases(ended: Ended) -> None:
    """No timed shape shows it; it is refused with the tensor and the metrics, and never timed."""
    tail = ended.iteration(TAIL)
    assert tail.verdict is not None
    failure = tail.verdict.failure
    assert failure is not None
    assert (failure.kind, failure.verification) == (FailureKind.WRONG, VerificationStage.EDGES)
    assert failure.first_failing_stage == "c"
    assert failure.metrics is not None
    assert tail.measurement is None


async def test_a_replayed_answer_is_refused(ended: Ended) -> None:
    """Every call of the judge asks something else, so an answer of an earlier call is a wrong one."""
    replay = ended.iteration(REPLAY)
    assert replay.verdict is not None
    assert replay.verdict.failure is not None
    assert replay.verdict.failure.kind is FailureKind.WRONG
    assert replay.measurement is None


async def test_each_win_is_faster_than_the_champion_before_it(ended: Ended) -> None:
    """From the second win on, the interval of the gain lies wholly above the required margin."""
    gains = [ended.iteration(label).measurement for label, (_, ending) in STORY.items() if ending == "win"]
    assert [measured is not None for measured in gains] == [True] * 3
    first, *later = [measured.gain for measured in gains if measured is not None]
    assert first is None
    assert all(gain is not None and gain.low > 1.01 for gain in later)


# ---------------------------------------------------------------- what was left behind


async def test_the_delivered_files_agree(ended: Ended) -> None:
    """The kernel is the champion's source byte for byte; result.json and report.html tell of the same one."""
    source = (ended.delivered / "kernel.cpp").read_bytes()
    summary = ended.summary()
    assert source.decode() == shipped(FASTEST)
    assert summary.champion is not None
    assert summary.champion.source.sha256 == digest_of(source)
    assert summary.champion == ended.result.champion
    assert summary.acceptance is not None
    assert summary.acceptance.accepted
    assert summary.measurement == summary.acceptance.measurement
    assert summary.gate_digest == ended.result.gate_digest
    report = (ended.delivered / "report.html").read_text()
    assert digest_of(source) in report
    assert all(version in report for version, _ in STORY.values())
    assert ended.result.delivery is not None
    for name, blob in ended.result.delivery.files.items():
        assert digest_of((ended.delivered / name).read_bytes()) == blob.sha256, name


async def test_the_record_has_a_commit_an_iteration_and_a_tag_a_win(ended: Ended) -> None:
    """In order, each tag on the commit of its version."""
    versions, tags = recorded(ended.record)
    assert versions == [version for version, _ in STORY.values()]
    assert tags == {version: version for version, ending in STORY.values() if ending == "win"}


async def test_an_ended_run_leaves_no_temporary_file_and_no_lock(ended: Ended) -> None:
    """Server and worker are there for the next run, and nothing else."""
    assert ended.place.leftovers() == []
    assert len(ended.place.processes()) == 2, ended.place.shown()


# ---------------------------------------------------------------- the commands on an ended run


async def test_list_and_status_know_the_run(ended: Ended) -> None:
    """Task, state, champion and score as the run itself has them."""
    champion = ended.result.champion
    assert champion is not None
    (row,) = [row for row in await ended.json("list") if row["id"] == RUN]
    assert (row["task"], row["state"], row["champion"]) == ("skinny-gemm-f32-cpu", "completed", "v003")
    assert row["score"] == champion.score
    status = await ended.json("status", RUN)
    assert (status["phase"], status["wins"], status["attempts"]) == ("done", 3, 3)
    assert status["champion"]["source"]["sha256"] == champion.source.sha256


async def test_history_prints_the_lines_that_were_followed(ended: Ended) -> None:
    """Afterwards as during the run."""
    printed = (await ended.place.command("history", RUN)).out.splitlines()
    assert len(printed) == len(STORY)
    assert set(printed) <= set(ended.answer.out.splitlines())


async def test_best_writes_the_champion(ended: Ended) -> None:
    """Byte for byte."""
    answer = await ended.place.command("best", RUN, "-o", "mine.cpp")
    assert answer.code == 0, answer.err
    assert (ended.place.folder / "mine.cpp").read_text() == shipped(FASTEST)


async def test_diff_leads_from_the_seed_to_the_best(ended: Ended) -> None:
    """What goes is the seed's, what comes is the champion's."""
    answer = await ended.place.command("diff", RUN, "seed", "best")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    seed = (ROOT / "kernels" / KERNEL / "seed.cpp").read_text().splitlines()
    best = shipped(FASTEST).splitlines()
    assert {line[1:] for line in lines if re.match(r"-(?!-)", line)} <= set(seed)
    assert {line[1:] for line in lines if re.match(r"\+(?!\+)", line)} <= set(best)
    assert "+// Prefetch into the second level, across the end of a block." in lines


async def test_export_takes_everything_home(ended: Ended) -> None:
    """The delivered files, the history and every source that was played."""
    answer = await ended.place.command("export", RUN, "-o", "home-with-me")
    assert answer.code == 0, answer.err
    folder = ended.place.folder / "home-with-me"
    for name in ("kernel.cpp", "result.json", "report.html"):
        assert (folder / name).read_bytes() == (ended.delivered / name).read_bytes()
    for label, (version, _) in STORY.items():
        if label != "seed":
            assert (folder / f"iterations/{version}.cpp").read_text() == shipped(label)
    assert len(json.loads((folder / "history.json").read_text())) == len(STORY)


# ---------------------------------------------------------------- histories stay small


async def test_histories_stay_within_their_budget(ended: Ended) -> None:
    """Events and bytes of every iteration, events of the run."""
    for index in range(len(STORY)):
        events, size = await size_of(ended.client, f"{RUN}/iter-{index:03d}")
        assert events <= CHILD_EVENTS
        assert size <= CHILD_BYTES
    events, _ = await size_of(ended.client, RUN)
    assert events <= FIRST_AND_LAST_EVENTS + PARENT_EVENTS_PER_ITERATION * len(STORY)


async def test_a_large_kernel_handed_in_by_a_person_is_carried_by_digest(ended: Ended) -> None:
    """300 kB through `submit`: built, judged, timed and delivered, and in no history."""
    folder = ended.place.folder
    large = shipped(FASTEST) + PADDING
    (folder / "large.cpp").write_text(large)
    task = make_task(folder / "large-task", {TYPO: shipped(TYPO)}, configs=1)
    command = ended.place.command
    begun = await command("start", task, "--id", LARGE)
    assert begun.code == 0, begun.err
    # Held at once, so that the kernel comes in time however slowly the next command starts.
    await ended.client.get_workflow_handle(LARGE).execute_update(OptimizationWorkflow.pause)
    submitted = await command("submit", LARGE, "large.cpp")
    assert submitted.out == f"{LARGE}: large.cpp handed in (1 waiting)\n", submitted.err
    assert (await command("resume", LARGE)).out == f"{LARGE}: resumed\n"
    watched = await command("watch", LARGE)

    assert watched.code == 0, f"{watched.out}\n{watched.err}"
    lines = await history_of(ended.client.get_workflow_handle(LARGE))
    (own,) = [line for line in lines if line.label.startswith("large.cpp (submitted by ")]
    assert own.ending.value == "win"
    assert (ended.place.settings.run_folder(LARGE) / "delivered/kernel.cpp").read_text() == large
    for line in lines:
        events, size = await size_of(ended.client, f"{LARGE}/iter-{line.index:03d}")
        assert events <= CHILD_EVENTS
        assert size <= CHILD_BYTES
    _, size = await size_of(ended.client, LARGE)
    assert size < len(large)
