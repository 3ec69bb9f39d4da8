"""A small task made of the shipped kernels, and a home of its own in which real parts run it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from git import Repo
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import ports
from activities.devserver import living_server, stop_server
from activities.guard import PR_SET_CHILD_SUBREAPER, descendants
from activities.settings import Settings
from tests.commands import NEEDS_A_START, Answer, command, parent
from tests.fakes import is_alive
from workflows.optimization import OptimizationWorkflow
from workflows.state import HistoryLine

ROOT = Path(__file__).parents[1]
KERNEL = "skinny_gemm_f32"
TASK = "specs/tasks/skinny-gemm-f32-cpu.yaml"
TYPO = "01-vector-type-typo.cpp"
SWEEPS = "02-row-sweeps.cpp"  # about twice as fast as the seed
TAIL = "03-register-tile-drops-k-tail.cpp"
REPLAY = "05-replays-its-answer.cpp"
FASTEST = "09-prefetch-to-l2.cpp"  # about twice as fast as the sweeps

CONFIGS = {"n1024_k384": {"N": 1024, "K": 384}, "n768_k512": {"N": 768, "K": 512}}

PATIENCE_S = 600  # for a condition that real compilers and clocks bring about, on a machine that is busy otherwise
SAMPLING_S = "4"  # seconds of a measurement: tests share their machine, and near ties would take two minutes each
GONE_S = 10.0  # for a process whose parent was killed

# A few hundred thousand steps of compile-time arithmetic hold g++ up for a few seconds and leave nothing in the object.
SLOW_MARK = "slow_to_compile"
SLOW = f"""
namespace {SLOW_MARK} {{
constexpr unsigned spin() {{
    unsigned x = 1;
    for (int i = 0; i < 800; ++i)
        for (int j = 0; j < 1000; ++j) x = x * 1664525u + 1013904223u;
    return x;
}}
static_assert(spin() != 1u);
}}
"""


async def until(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Poll for what another process brings about; gives the condition's value, fails with `what` when time is up."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, f"within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)
    return value


# ---------------------------------------------------------------- the task


def shipped(candidate: str) -> str:
    return (ROOT / "kernels" / KERNEL / "candidates" / candidate).read_text()


def make_task(folder: Path, script: Mapping[str, str], *, configs: int = len(CONFIGS), **overrides: Any) -> Path:
    """The shipped task with its real gate, seed and OpenBLAS, on few small shapes; `script` is name -> source."""
    kernel = folder / "kernels" / KERNEL
    shutil.copytree(ROOT / "kernels" / KERNEL, kernel, ignore=shutil.ignore_patterns("candidates", "__pycache__"))
    (kernel / "candidates").mkdir()
    for name, source in script.items():
        (kernel / "candidates" / name).write_text(source)
    task = yaml.safe_load((ROOT / TASK).read_text())
    # Low targets: what is promised here must not hang on how fast this machine's OpenBLAS is.
    task["configs"] = [
        {"name": name, "args": args, "target_ratio": 0.1} for name, args in list(CONFIGS.items())[:configs]
    ]
    path = folder / TASK
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(task | overrides, sort_keys=False))
    return path


# ---------------------------------------------------------------- processes


@contextlib.contextmanager
def adopting_orphans() -> Iterator[set[int]]:
    """Make every orphan of the block a child of this process; whatever is left at the end is killed.

    Gives the processes that are none of the block's. With it `descendants` misses nobody, whatever became of the
    process that started it and whatever session, namespace or environment it lives in.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    strangers = set(descendants(os.getpid()))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield strangers
    finally:
        while left := [pid for pid in descendants(os.getpid()) if pid not in strangers and is_alive(pid)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # they end when the kernel gets to it
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in set(descendants(os.getpid())) - strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def compiles(pid: int, mark: str) -> bool:
    """Whether this is g++'s own compiler at work on a source that holds `mark`."""
    words = command_line(pid).split()
    if not words or Path(words[0]).name != "cc1plus":
        return False
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
        return any(mark in (folder / word).read_text() for word in words[1:] if word.endswith(".cpp"))
    except OSError:  # it has just ended
        return False


def is_runner(pid: int) -> bool:
    """The process that holds a candidate, not the bubblewrap in front of it."""
    return Path((command_line(pid).split() or [""])[0]).name == "runner"


# ---------------------------------------------------------------- a home with real parts


@dataclass
class Place:
    """A home and temporary folder of its own, what runs there, and what can be seen of it."""

    folder: Path
    strangers: set[int]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        home = self.folder / "home"
        return Settings(home=home, store=(home / "store").as_uri())

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def env(self) -> dict[str, str]:
        """No setting of the person who runs the tests. The device lock, too, is the test's own: it waits
        for nobody."""
        personal = ("TEMPORAL_", "FERRET_", *NEEDS_A_START)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(personal)}
        own = {"HOME": self.folder, "XDG_CONFIG_HOME": self.folder}
        own |= {"TMPDIR": self.temporary, "FERRET_LOCKS": self.temporary}
        chosen = {"FERRET_HOME": str(self.settings.home), "FERRET_SAMPLING_S": SAMPLING_S}
        return {**plain, **{name: str(path) for name, path in own.items()}, **chosen}

    def processes(self) -> list[int]:
        """Everything alive that was started for this home, by whomever."""
        return [pid for pid in descendants(os.getpid()) if pid not in self.strangers and is_alive(pid)]

    def shown(self) -> list[str]:
        return [f"{pid} {command_line(pid)[:150]}" for pid in self.processes()]

    async def command(self, *words: str | Path) -> Answer:
        """`python client.py WORDS...` in this home."""
        return await command(*words, env=self.env, cwd=self.folder, patience_s=PATIENCE_S)

    async def start_worker(self, port: int, ui_port: int) -> subprocess.Popen[bytes]:
        """`python worker.py --dev`, which starts or finds the embedded server; returns once the server answers."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        with log.open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, ROOT / "worker.py", "--dev", "--port", str(port), "--ui-port", str(ui_port)],
                env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.workers.append(worker)

        def ready() -> bool:
            assert worker.poll() is None, log.read_text()[-2000:]
            return "worker ready" in log.read_text()

        await until(ready, "the worker polls")
        return worker

    async def client(self) -> Client:
        server = living_server(self.settings)
        assert server is not None
        return await Client.connect(server.address, data_converter=pydantic_data_converter)

    def leftovers(self) -> list[str]:
        """Temporary folders, half-made builds, claims and held locks that an ended run has no business leaving."""
        home = self.settings.home
        left = [*home.glob("work/*"), *home.glob("builds/.*"), *home.glob("bundles/.*"), *home.glob("claims/*/*")]
        left += [*home.rglob("*.tmp"), *home.glob("runs/*/record/.git/**/*.lock")]
        left += [path for path in self.temporary.iterdir() if path.suffix != ".lock"]
        for path in (*self.temporary.glob("*.lock"), *home.glob("*.lock"), *home.glob("runs/*/record.lock")):
            with path.open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    left.append(path)
        return [str(path.relative_to(self.folder)) for path in left]


@contextlib.asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    """Whatever was started in the block has ended after it, however the block ends."""
    parent()  # which stays for the next block
    with adopting_orphans() as strangers:
        made = Place(folder, strangers)
        made.temporary.mkdir(parents=True)
        try:
            yield made
        finally:
            for worker in made.workers:
                worker.kill()
                worker.wait()
            await stop_server(made.settings)


def own_ports() -> tuple[int, int]:
    """A port for the server and one for its UI, far from those that people use."""
    first = ports.choose(None, 28_000 + os.getpid() % 1_000 * 4, "--port", avoid=None)
    return first, ports.choose(None, first + 1, "--ui-port", avoid=first)


# ---------------------------------------------------------------- what a run left behind


async def history_of(handle: WorkflowHandle[Any, Any]) -> list[HistoryLine]:
    return await handle.query(OptimizationWorkflow.history)


async def size_of(client: Client, workflow_id: str) -> tuple[int, int]:
    """Events and bytes of a workflow's history."""
    described = await client.get_workflow_handle(workflow_id).describe()
    return described.history_length, described.raw_description.workflow_execution_info.history_size_bytes


def recorded(record: Path) -> tuple[list[str], dict[str, str]]:
    """Versions in the order of their commits, and tag -> the version whose commit it names."""
    with Repo(record) as repo:
        version = {one.hexsha: str(one.summary).split(":")[0] for one in repo.iter_commits(reverse=True)}
        return list(version.values()), {tag.name: version[tag.commit.hexsha] for tag in repo.tags}
