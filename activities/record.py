"""Record: one commit an iteration in an ordinary git repository, for people. The run never reads it back."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from git import Git, GitCommandError, Repo
from git.exc import BadName
from temporalio import activity

from activities.agents.pages import visible
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import BRIEF, Options
from activities.process import blanked
from activities.store import write_atomically
from activities.workshop import Workshop
from specs.errors import StoreError
from specs.outcomes import BlobRef, Ending, Iteration, Value, labelled
from specs.schema import Language

TRAILER = "Ferret-Iteration"

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # a commit of two small files; the rest is a slow disk
    heartbeat_timeout=HEARTBEAT,
    retry_policy=BRIEF,  # the run does not need the record: it must not wait for it
)


class RecordInput(Value):
    run_id: str
    task: str
    language: Language
    iteration: Iteration
    champion: BlobRef | None  # source of the champion after this iteration
    champion_version: str | None = None


class RecordResult(Value):
    commit: str
    tag: str | None
    repository: str


class Recording:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="record")
    async def record(self, given: RecordInput) -> RecordResult:
        async with at_work():
            store, iteration = self._workshop.store, given.iteration
            champion = None if given.champion is None else await store.get(given.champion)
            candidate = None if iteration.proposal is None else await store.get(iteration.proposal.source)
            folder = self._workshop.settings.run_folder(given.run_id) / "record"
            return await asyncio.to_thread(commit_iteration, folder, given, champion, candidate)


def commit_iteration(folder: Path, given: RecordInput, champion: bytes | None, candidate: bytes | None) -> RecordResult:
    """Commit and tag one iteration, or find that an earlier attempt already did. Raises StoreError."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "record.lock"):
        try:
            # Closed, for otherwise git processes that serve it wait until the garbage collector comes by.
            with _open(folder) as repo:
                commit = _find(repo, given.iteration.index) or _commit(repo, folder, given, champion, candidate)
                tag = _tag(repo, given, commit)
        except (GitCommandError, OSError, ValueError, BadName) as error:
            raise StoreError(f"cannot record iteration {given.iteration.index} in {folder}: {_reason(error)}") from None
        return RecordResult(commit=commit, tag=tag, repository=str(folder))


def _commit(repo: Repo, folder: Path, given: RecordInput, champion: bytes | None, candidate: bytes | None) -> str:
    _forget_half_done(repo, folder)
    suffix, place = given.language.suffix, folder / "iterations" / f"{given.iteration.index:03d}"
    if champion is not None:
        write_atomically(folder / f"kernel{suffix}", champion)
    if candidate is not None:
        write_atomically(place / f"candidate{suffix}", candidate)
    write_atomically(
        place / "outcome.json", given.iteration.model_dump_json(indent=2, exclude_none=True).encode() + b"\n"
    )
    repo.git.add("--all", "--force", ".")
    repo.git.commit("--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--message", message(given))
    return str(repo.head.commit.hexsha)


def message(given: RecordInput) -> str:
    """Outcome in the first line, figures below, the trailer that makes a retry find this commit."""
    iteration = given.iteration
    label = iteration.proposal.label if iteration.proposal else "no proposal"
    report = iteration.self_reported
    ending = labelled(iteration.ending.value.replace("_", " "), report.label if report else None)
    head = f"{iteration.version}: {ending}, {label}"
    lines = [" ".join(head.split())[:100], "", " ".join(iteration.reason.split()), ""]
    if iteration.measurement is not None:
        score = iteration.measurement.score
        lines += [f"score {score.value:.4f} ({score.low:.4f} to {score.high:.4f})"]
        lines += [
            f"  {' '.join(one.config.split())}: {one.ratio.value:.4f} ({one.ratio.low:.4f} to {one.ratio.high:.4f}), "
            f"{one.candidate.median_us:.2f} us against {one.baseline.median_us:.2f} us"
            for one in iteration.measurement.configs
        ]
        lines += [""]
    if report is not None:
        lines += [f"{report.label} score {report.score:.4f}; nothing of it was verified"]
        lines += [
            f"  {' '.join(one.config.split())}: {report.label} ratio {one.ratio:.4f}"
            + (f" ({' '.join(one.reason.split())})" if one.reason else "")
            for one in report.configs
        ]
        lines += [""]
    # Labels and reasons come from candidates, and git takes no zero byte.
    return visible("\n".join([*lines, f"{TRAILER}: {iteration.index}"])) + "\n"


def _tag(repo: Repo, given: RecordInput, commit: str) -> str | None:
    if given.iteration.ending is not Ending.WIN:
        return None
    version, report = given.iteration.version, given.iteration.self_reported
    name = f"{version}-{report.label}" if report else version
    repo.git.tag("--force", "--no-sign", name, commit)
    return name


def _find(repo: Repo, index: int) -> str | None:
    if not repo.head.is_valid():
        return None
    for line in repo.git.log(f"--format=%H %(trailers:key={TRAILER},valueonly,separator=%x2C)").splitlines():
        commit, _, recorded = line.partition(" ")
        if recorded == str(index):
            return str(commit)
    return None


def _forget_half_done(repo: Repo, folder: Path) -> None:
    """A killed attempt may have left a lock, staged or half-written files; we hold the run's own lock."""
    for lock in Path(repo.git_dir).rglob("*.lock"):
        lock.unlink(missing_ok=True)
    if repo.head.is_valid():
        repo.git.reset("--hard", "--quiet")
        repo.git.clean("-ffdxq")
    else:
        (Path(repo.git_dir) / "index").unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _open(folder: Path) -> Repo:
    """A repository that behaves the same whatever the user's git configuration, hooks and environment say."""
    # GIT_DIR and its like, when the worker inherited them, would send our commits to another repository.
    environment = {
        **blanked(),
        **_ENVIRONMENT,
        "GIT_DIR": str(folder / ".git"),
        "GIT_WORK_TREE": str(folder),
        "GIT_INDEX_FILE": str(folder / ".git" / "index"),
    }
    whole = (folder / ".git" / "HEAD").exists() and (folder / ".git" / "refs").is_dir()
    if not whole:
        shutil.rmtree(folder / ".git", ignore_errors=True)
        git = Git(folder)
        git.update_environment(**environment)
        git.init("--quiet", "--initial-branch=main", "--template=", str(folder))
    repo = Repo(folder / ".git", expand_vars=False)
    repo.git.update_environment(**environment)
    repo.git.set_persistent_git_options(c=list(_SETTINGS))
    return repo


_SETTINGS = ("core.hooksPath=/dev/null", "core.autocrlf=false", "core.bare=false", "gc.auto=0")
_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "ferret",
    "GIT_AUTHOR_EMAIL": "ferret@localhost",
    "GIT_COMMITTER_NAME": "ferret",
    "GIT_COMMITTER_EMAIL": "ferret@localhost",
    "GIT_TERMINAL_PROMPT": "0",
}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when the holder is killed
        yield


def _reason(error: Exception) -> str:
    text = str(error.stderr) if isinstance(error, GitCommandError) else str(error)
    return " ".join(text.split())[:300]
