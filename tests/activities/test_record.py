"""The record: one commit an iteration, whatever happened to an earlier attempt at it."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from git import Repo

from activities import record
from activities.guard import descendants
from activities.record import RecordInput, commit_iteration
from specs.errors import StoreError
from specs.outcomes import Iteration
from specs.schema import Language
from tests.fakes import is_alive

SHA = "ab" * 32


def iteration(index: int, version: str) -> Iteration:
    win = version.startswith("v")
    source = {"sha256": SHA, "size": 1}
    timing = {"median_us": 10.0, "q1_us": 9.0, "q3_us": 11.0, "samples": 5}
    one = {"value": 1.1, "low": 1.0, "high": 1.2}
    config = {"config": "small", "baseline": timing, "candidate": timing, "ratio": one}
    walk: dict[str, Any] = {
        "build": {"status": "built", "key": SHA, "library": source},
        "verdict": {"passed": True, "library": SHA, "gate": SHA, "cases": 3},
        "measurement": {
            "library": SHA, "configs": [config], "score": one, "geomean": 1.1, "device": {"name": "cpu"},
        },
    }  # fmt: skip
    return Iteration.model_validate(
        {
            "index": index, "version": version, "stage": "OPTIMIZE", "ending": "win" if win else "refused",
            "reason": "faster" if win else "wrong in case 'small'",
            "proposal": {"source": source, "normal": SHA, "origin": "optimizer", "label": f"step {index}"},
        }
        | (walk if win else {})
    )  # fmt: skip


def given(index: int, version: str, run_id: str = "run") -> RecordInput:
    return RecordInput(
        run_id=run_id, task="t", language=Language.CPP, iteration=iteration(index, version), champion=None
    )


def commit(folder: Path, index: int, version: str) -> record.RecordResult:
    return commit_iteration(folder, given(index, version), b"// champion\n", f"// candidate {index}\n".encode())


def subjects(folder: Path) -> list[str]:
    return [str(one.summary).split(":")[0] for one in Repo(folder).iter_commits(reverse=True)]


def committed(folder: Path) -> list[str]:
    return sorted(Repo(folder).git.ls_tree("-r", "--name-only", "HEAD").splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "record"


def test_a_commit_holds_champion_candidate_and_outcome(folder: Path) -> None:
    """The outcome stands in the message, with the trailer that finds it again."""
    result = commit(folder, 0, "v001")
    head = Repo(folder).head.commit
    assert (str(head.hexsha), result.tag) == (result.commit, "v001")
    assert committed(folder) == [
        "iterations/000/candidate.cpp",
        "iterations/000/outcome.json",
        "kernel.cpp",
    ]
    message = str(head.message)
    assert message.startswith("v001: win, step 0\n\nfaster\n")
    assert "small: 1.1000 (1.0000 to 1.2000), 10.00 us against 10.00 us" in message
    assert message.endswith("\nFerret-Iteration: 0\n")
    assert head.author.name == "ferret"
    assert json.loads((folder / "iterations" / "000" / "outcome.json").read_text())["ending"] == "win"


def test_wins_are_tagged_and_attempts_are_not(folder: Path) -> None:
    """Tags lead from win to win."""
    commit(folder, 0, "v001")
    assert commit(folder, 1, "a001").tag is None
    assert [tag.name for tag in Repo(folder).tags] == ["v001"]


def test_a_retry_adds_nothing(folder: Path) -> None:
    """The second attempt finds the first one's commit."""
    first = commit(folder, 0, "v001")
    commit(folder, 1, "a001")
    assert commit(folder, 0, "v001") == first
    assert subjects(folder) == ["v001", "a001"]


def test_iteration_one_is_not_taken_for_ten(folder: Path) -> None:
    """Nor is a number that merely stands in a reason."""
    commit(folder, 10, "v001")
    assert subjects(folder) == ["v001"]
    commit(folder, 1, "a001")
    assert subjects(folder) == ["v001", "a001"]


@pytest.mark.parametrize("first", [True, False])
def test_a_killed_attempt_leaves_no_trace_in_the_next(folder: Path, first: bool) -> None:
    """A stale lock, staged files, half-written files: the retry commits what it was given, no more."""
    folder.mkdir(parents=True)
    if first:
        record._open(folder)
    else:
        commit(folder, 0, "v001")
    repo = Repo(folder)
    (folder / "iterations" / "009").mkdir(parents=True)
    (folder / "iterations" / "009" / "candidate.cpp").write_text("half")
    (folder / "kernel.cpp").write_text("half")
    repo.git.add("--all")
    (folder / ".leftover.tmp").write_text("half")
    (folder / ".git" / "index.lock").touch()
    (folder / ".git" / "HEAD.lock").touch()
    commit(folder, 1, "a001")
    names = committed(folder)
    assert "iterations/009/candidate.cpp" not in names
    assert ".leftover.tmp" not in names
    assert (folder / "kernel.cpp").read_text() == "// champion\n"
    assert not (folder / ".git" / "index.lock").exists()


def test_a_commit_without_its_tag_is_tagged_by_the_retry(folder: Path) -> None:
    """Killed between the two."""
    commit(folder, 0, "v001")
    Repo(folder).git.tag("--delete", "v001")
    commit(folder, 0, "v001")
    assert [tag.name for tag in Repo(folder).tags] == ["v001"]
    assert subjects(folder) == ["v001"]


def test_a_half_made_repository_is_made_again(folder: Path) -> None:
    """Killed inside `git init`."""
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("[core")
    commit(folder, 0, "v001")
    assert subjects(folder) == ["v001"]


def test_the_users_git_does_not_matter(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither signing, hooks, templates and ignore files of theirs, nor GIT_* variables of the worker."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / "ignore").write_text("*.cpp\n")
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[commit]\n gpgSign = true\n[tag]\n gpgSign = true\n[core]\n hooksPath = {hooks}\n"
        f" excludesFile = {tmp_path / 'ignore'}\n[user]\n name = somebody\n useConfigOnly = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere.index"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    commit(folder, 0, "v001")
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    head = Repo(folder).head.commit
    assert (head.author.name, head.committer.name) == ("ferret", "ferret")
    assert "kernel.cpp" in committed(folder)


def test_a_disk_that_refuses_is_a_store_error(tmp_path: Path) -> None:
    """So that the activity is tried again."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record").mkdir()
    (tmp_path / "run" / "record" / "iterations").write_text("a file in the way")
    (tmp_path / "run" / "record" / ".git").write_text("gitdir: nowhere")
    with pytest.raises(StoreError, match="cannot record iteration 0"):
        commit(tmp_path / "run" / "record", 0, "v001")


def test_no_git_process_stays_behind(folder: Path) -> None:
    """Not even until the garbage collector comes by."""
    before = set(descendants(os.getpid()))
    gc.disable()
    try:
        for index, version in enumerate(["v001", "a001", "v002"]):
            commit(folder, index, version)
        assert [pid for pid in descendants(os.getpid()) if pid not in before and is_alive(pid)] == []
    finally:
        gc.enable()


def test_what_a_program_reports_of_itself_is_labelled(tmp_path: Path) -> None:
    """In the subject, in every line of figures and in the tag."""
    source = {"sha256": SHA, "size": 1}
    configs = [{"config": "small", "ratio": 1.2}, {"config": "large", "ratio": 0.0, "reason": "INVALID"}]
    reported = Iteration.model_validate(
        {
            "index": 0, "version": "v001", "stage": "OPTIMIZE", "ending": "win", "reason": "by its own words",
            "proposal": {"source": source, "normal": SHA, "origin": "optimizer", "label": "step 0"},
            "build": {"status": "built", "key": SHA, "library": source},
            "self_reported": {"program": SHA, "configs": configs, "score": 0.6, "geomean": 0.0},
        }
    )  # fmt: skip
    asked = given(0, "v001").model_copy(update={"iteration": reported})
    done = commit_iteration(tmp_path / "record", asked, b"// champion\n", b"// candidate\n")
    with Repo(tmp_path / "record") as repo:
        lines = str(repo.head.commit.message).splitlines()
        assert [tag.name for tag in repo.tags] == ["v001-self-reported"]
    assert done.tag == "v001-self-reported"
    assert lines[0] == "v001: win (self-reported), step 0"
    assert "self-reported score 0.6000; nothing of it was verified" in lines
    assert "  small: self-reported ratio 1.2000" in lines
    assert "  large: self-reported ratio 0.0000 (INVALID)" in lines


def test_a_label_that_no_command_takes_is_recorded_all_the_same(tmp_path: Path) -> None:
    """Git takes no zero byte, and nobody wants a commit that draws in a terminal."""
    odd = given(1, "a001")
    assert odd.iteration.proposal is not None
    proposal = odd.iteration.proposal.model_copy(update={"label": "a\0b\x1b[2J\u202e"})
    odd = odd.model_copy(
        update={"iteration": odd.iteration.model_copy(update={"proposal": proposal, "reason": "x\0\x1b"})}
    )
    commit_iteration(tmp_path / "record", odd, None, b"// candidate\n")
    message = str(Repo(tmp_path / "record").head.commit.message)
    assert message.startswith("a001: refused, a")
    assert all(line.isprintable() for line in message.splitlines())
