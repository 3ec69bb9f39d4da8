"""The command line as a person or a script meets it: a process with words, output and an exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

import client
from activities.agents import transcript
from activities.agents.draft import Draft
from activities.devices import Claims, LocalDevice
from activities.devserver import living_server
from activities.settings import Settings
from activities.store import Store
from activities.workshop import Workshop
from specs.outcomes import Chapter, Charge, Ending, Role
from tests.commands import CLIENT, Answer, command
from tests.fakes import (
    GATE,
    PATIENCE_S,
    REFERENCE,
    FakeHarness,
    Running,
    is_alive,
    kernel,
    running,
    settings_at,
    until,
    write_task,
)
from tests.run_values import make_line, make_status
from worker import WORKFLOWS, device_activities, plan_activities
from workflows.console.local import living_worker
from workflows.state import WORKFLOW_QUEUE, GateApproval, HistoryLine, Phase, Status, WrittenGate

ROOT = Path(__file__).parents[1]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
STORY = [kernel("ratio 0.5", "slow"), kernel("fails", "typo"), kernel("wrong", "tail"), kernel("ratio 1.2", "best")]


def environment(home: Path, server: Client | None = None, **more: str) -> dict[str, str]:
    """This process's environment with no Temporal, ferret or terminal setting of the person who runs the tests."""
    personal = ("TEMPORAL_", "FERRET_", "COLUMNS", "LINES")  # xdist sets the last two in its processes
    plain = {name: value for name, value in os.environ.items() if not name.startswith(personal)}
    address = {"TEMPORAL_ADDRESS": server.service_client.config.target_host} if server else {}
    nowhere = {"HOME": str(home.parent), "XDG_CONFIG_HOME": str(home.parent)}
    return {**plain, **nowhere, "FERRET_HOME": str(home), "FERRET_SANDBOX": "off", **address, **more}


async def started(*words: str | Path, env: Mapping[str, str], cwd: Path) -> asyncio.subprocess.Process:
    """What has to be a process from its start on: one that is signalled, or whose exit code is what is told."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(CLIENT),
        *map(str, words),
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


class Shell:
    """Types commands for one run under test."""

    def __init__(self, run: Running, cwd: Path) -> None:
        self.run = run
        self.cwd = cwd
        self.env = environment(run.settings.home, run.client)

    @property
    def id(self) -> str:
        return self.run.handle.id

    async def __call__(self, *words: str | Path) -> Answer:
        return await command(*words, env=self.env, cwd=self.cwd)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ended(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A run that has ended with an accepted kernel, its workers still there."""
    folder = tmp_path_factory.mktemp("ended")
    async with running(temporal, folder, STORY) as run:
        await run.result()
        yield Shell(run, folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def unserved(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A run at work that no worker serves any more."""
    folder = tmp_path_factory.mktemp("unserved")
    run_id = f"unserved-{uuid.uuid4().hex[:8]}"
    with suppress(RunLeft):
        async with running(temporal, folder, STORY, before=lambda harness: harness.hold("build"), run_id=run_id) as run:
            await run.held("build")
            raise RunLeft
    yield Shell(run, folder)
    await run.handle.terminate()


def again(shell: Shell, *words: str) -> str:
    """The line that a command typed there names for calling it again."""
    python = Path(sys.executable)
    shown = python.relative_to(shell.cwd) if python.is_relative_to(shell.cwd) else python
    return f"{shown} {CLIENT} {' '.join(words)}"


class RunLeft(Exception):
    """Leaves the block of a run under test without ending the run."""


@asynccontextmanager
async def held(temporal: Client, folder: Path, kind: str = "build") -> AsyncIterator[Shell]:
    """A run that stands still in the middle of a step until the test lets it go on."""
    async with running(temporal, folder, STORY[-1:], before=lambda harness: harness.hold(kind)) as run:
        await run.held(kind)
        try:
            yield Shell(run, folder)
        finally:
            run.harness.release(kind)


@asynccontextmanager
async def serving(temporal: Client, folder: Path) -> AsyncIterator[tuple[FakeHarness, dict[str, Any]]]:
    """Workers as worker.py would run them, with a scripted harness; gives it and what a task for them must say."""
    device_kind = f"cpu{uuid.uuid4().hex[:8]}"
    settings = settings_at(folder / "home")
    harness = FakeHarness(folder / "control")
    devices = (LocalDevice(kind=device_kind, queue=f"device-{device_kind}", description="fake device"),)
    workshop, claims = Workshop(settings, harness=harness.command), Claims(settings, devices)
    async with AsyncExitStack() as stack:
        for worker in (
            Worker(temporal, task_queue=WORKFLOW_QUEUE, workflows=WORKFLOWS),
            Worker(temporal, task_queue=devices[0].plan_queue, activities=plan_activities(workshop, claims)),
            Worker(temporal, task_queue=devices[0].queue, activities=device_activities(workshop, claims)),
        ):
            await stack.enter_async_context(worker)
        yield harness, {"gpu": device_kind}


# ---------------------------------------------------------------- before any server


@pytest.mark.parametrize("words", [["--help"], ["start", "--help"], ["validate", "task.yaml"]])
async def test_help_and_validate_load_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    """Neither needs the Temporal SDK, numpy or the model's SDK, so both answer at once."""
    write_task(tmp_path, [kernel("ratio 1")])
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import client; code = client.main({words!r}); "
        "heavy = {'temporalio', 'numpy', 'anthropic'} & set(sys.modules); sys.exit(code or (9 if heavy else 0))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=tmp_path, stdout=asyncio.subprocess.DEVNULL
    )

    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["start"], "Missing argument 'TASK'"),
        (["start", "absent.yaml"], "absent.yaml: no such file"),
        (["start", "."], "is a folder; a task is one YAML file"),
        (["start", "task.yaml", "--follow", "--detach"], "exclude each other"),
        (["start", "task.yaml", "--id", "a/b"], "--id 'a/b' is no run id; accepted:"),
        (["start", "task.yaml", "--max-iterations", "0"], "--max-iterations is 0; accepted: 1 to 10000000"),
        (["start", "task.yaml", "--max-usd", "nan"], "--max-usd is nan; accepted: a number above 0"),
        (
            ["start", "task.yaml", "--max-wall-minutes", "1e400"],
            "--max-wall-minutes is inf; accepted: a number above 0",
        ),
        (["start", "task.yaml", "--sandbox", "maybe"], "accepted: required, preferred, off"),
        (["start", "task.yaml", "--model", "../x"], "--model '../x' is no model's id; accepted: letters, digits"),
        (["submit", "absent.cpp"], "absent.cpp cannot be read (no such file or directory)"),
        (["submit", "latin1.cpp"], "latin1.cpp is no source (byte 3 is not UTF-8)"),
        (["submit", "."], "cannot be read (is a directory)"),
        (["best", "-o", "."], "-o . is a folder"),
        (["hint", "one", "two", "three"], "hint takes [RUN] TEXT; 3 words given"),
        (["diff", "v001"], "diff takes [RUN] A B; 1 words given"),
        (["transcript", "run", "a001", "more"], "transcript takes [RUN] [ITERATION]; 3 words given"),
        (["recording", "run"], "Missing option '-o'"),
        (["recording", "-o", "."], "-o . is a folder"),
        (["approve-gate", "--refuse"], "approve-gate --refuse needs --reason TEXT"),
        (["refs", "absent.yaml"], "absent.yaml: no such file"),
        (["extend"], "extend needs what to add"),
        (["extend", "--minutes", "nan"], "extend: --minutes is nan; accepted: a number above 0, up to"),
        (["extend", "--minutes", "1e400"], "extend: --minutes is inf; accepted: a number above 0, up to"),
        (["extend", "--iterations", "99999999999999999999"], "accepted: 1 to 10000000"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """A mistake that needs no server to be seen is told in one line, with exit code 2 and no output."""
    write_task(tmp_path, [kernel("ratio 1")])
    (tmp_path / "latin1.cpp").write_bytes("// \N{LATIN SMALL LETTER E WITH ACUTE}".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    code = client.main(words)
    printed = capsys.readouterr()

    assert said in Answer(code, printed.out, printed.err).complaint
    assert printed.out == ""


async def test_a_mistake_ends_the_process_with_code_2(tmp_path: Path) -> None:
    """What `main` gives is what a script sees, and no traceback beside it."""
    process = await started("start", "absent.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (2, b"", b"error: absent.yaml: no such file\n")


@pytest.mark.parametrize("words", [["list"], ["watch"], ["hint", "x"], ["start", "task.yaml"]])
async def test_without_a_server_two_ways_to_get_one_are_named(tmp_path: Path, words: list[str]) -> None:
    """Whoever has no server is told how to start one and how to name one, with exit code 2."""
    write_task(tmp_path, [kernel("ratio 1")])
    env = environment(tmp_path / "home", TEMPORAL_ADDRESS="127.0.0.1:1")
    complaint = (await command(*words, env=env, cwd=tmp_path)).complaint

    assert "no Temporal server answers at 127.0.0.1:1" in complaint
    assert "worker.py --dev" in complaint
    assert 0 < complaint.index("client.py up`") < complaint.index("--local") < complaint.index("worker.py --dev")
    assert "TEMPORAL_ADDRESS" in complaint


async def test_an_optimiser_that_cannot_propose_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """A task with a recording that is none does not even look for a server."""
    write_task(tmp_path, [kernel("ratio 1")], model={"provider": "replay", "recording": "baseline.cpp"})
    answer = await command("start", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)

    assert re.match(r"error: task\.yaml:\d+: model\.recording: baseline\.cpp: ", answer.complaint)


async def test_a_task_with_missing_files_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """All missing files are named, each with its field, and nothing is stored."""
    write_task(tmp_path, [kernel("ratio 1")], gate="no-gate", seed="no-seed.cpp")
    answer = await command("start", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)

    assert answer.code == 2
    assert re.search(r"^error: .*task\.yaml:\d+: gate: 'no-gate'", answer.err, re.MULTILINE)
    assert re.search(r"^error: .*task\.yaml:\d+: seed: 'no-seed\.cpp'", answer.err, re.MULTILINE)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"gate": None}, "gate: none given; a gate folder is needed: provider 'scripted' writes none"),
        ({"interface": None}, "interface: none given; the function that every candidate exports is needed"),
        ({"baseline": {"source": "x"}}, "baseline.program: none given; a source file to time against is needed"),
        (
            {"harness": "self_contained", "output": {"result_keys": ["huge"]}},
            "output.result_keys: 'huge' is the name of no config; accepted: large, small",
        ),
        (
            {"build": {"flags": ["-I{package:nosuch}"]}},
            "build.flags: build flag '-I{package:nosuch}': package 'nosuch'",
        ),
    ],
)
async def test_a_task_that_cannot_be_run_is_refused_before_anything_runs(
    tmp_path: Path, overrides: dict[str, Any], said: str
) -> None:
    """One line with file and field, and what is accepted; no server is looked for."""
    write_task(tmp_path, [kernel("ratio 1")], **overrides)
    answer = await command("start", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)

    assert re.match(rf"error: task\.yaml(:\d+)?: {re.escape(said)}", answer.complaint)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("gate.yaml", "contract: [", "gate.yaml"),
        ("gate.yaml", GATE.replace("y:", "z:"), "gate.yaml: tensors.z: not a stage tensor or output"),
        ("reference.py", None, "has no reference.py"),
        ("reference.py", "def make_inputs(:", "reference.py cannot be loaded: SyntaxError"),
        ("reference.py", REFERENCE.replace("float64", "float32"), "y has dtype float32; float64 is needed"),
        ("reference.py", "import os; os._exit(0)", "reference.py"),
    ],
)
async def test_a_gate_that_does_not_work_is_refused_before_anything_runs(
    tmp_path: Path, file: str, content: str | None, said: str
) -> None:
    """The gate is tried as the run would try it, and spoken of by the path that the task gives it."""
    write_task(tmp_path, [kernel("ratio 1")])
    (tmp_path / "gate" / file).unlink()
    if content is not None:
        (tmp_path / "gate" / file).write_text(content)
    complaint = (await command("start", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)).complaint

    assert re.match(r"error: task\.yaml:\d+: gate: .*gate", complaint)
    assert said in complaint
    assert str(tmp_path) not in complaint


async def test_a_cuda_program_needs_a_gpu_for_a_local_run(tmp_path: Path) -> None:
    """One line, before a server is started; nobody finds out from a run that waits."""
    write_task(tmp_path, [kernel("ratio 1")], harness="self_contained", language="cuda", gpu="B200", arch="sm_100a")
    (tmp_path / "script" / "01.cu").write_text("int main() {}")
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "g++"):  # asked for by name only
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho V13.0.1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = environment(tmp_path / "home", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    complaint = (await command("start", "task.yaml", "--local", env=env, cwd=tmp_path)).complaint

    assert complaint.startswith("error: gpu: 'B200' is not in this machine, and a cuda program must run to report; ")
    assert not (tmp_path / "home" / "temporal.db").exists()


async def test_a_machine_without_a_compiler_is_told_before_a_local_run(tmp_path: Path) -> None:
    """Only then: elsewhere it is the worker that builds."""
    write_task(tmp_path, [kernel("ratio 1")])
    (tmp_path / "bin").mkdir()
    env = environment(tmp_path / "home", PATH=str(tmp_path / "bin"))
    local = await command("start", "task.yaml", "--local", env=env, cwd=tmp_path)
    remote = await command("start", "task.yaml", env=env | {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, cwd=tmp_path)

    assert "g++ is not on PATH" in local.complaint
    assert "no Temporal server answers" in remote.complaint


@pytest.mark.parametrize("words", [["up"], ["start", "task.yaml", "--local"], ["start", "task.yaml"]])
async def test_a_home_that_cannot_be_written_is_named_by_its_variable(
    temporal: Client, tmp_path: Path, words: list[str]
) -> None:
    """Whichever file in it was tried first."""
    write_task(tmp_path, [kernel("ratio 1")])
    (tmp_path / "file").touch()
    env = environment(tmp_path / "file" / "home", temporal if words[-1] == "task.yaml" else None)
    complaint = (await command(*words, env=env, cwd=tmp_path)).complaint

    assert complaint.startswith(f"error: FERRET_HOME is {tmp_path / 'file' / 'home'}, but ")


# ---------------------------------------------------------------- validate


async def test_validate_prints_the_parsed_task(tmp_path: Path) -> None:
    """A good file is shown with its defaults, with exit code 0 and nothing to complain about."""
    write_task(tmp_path, [kernel("ratio 1")])
    answer = await command("validate", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)

    assert (answer.code, answer.err) == (0, "")
    assert "copy-f32  task.yaml" in answer.out
    assert "min_ratio; stage gate at 0.9" in answer.out
    assert CONTROL.search(answer.out) is None


async def test_validate_warns_of_what_start_would_refuse(tmp_path: Path) -> None:
    """The file is good, so the exit code is 0; that this version cannot run it is said."""
    write_task(tmp_path, [kernel("ratio 1")], gate=None)
    answer = await command("validate", "task.yaml", env=environment(tmp_path / "home"), cwd=tmp_path)

    assert answer.code == 0
    assert re.fullmatch(r"warning: task\.yaml(:\d+)?: gate: none given; a gate folder is needed: .*\n", answer.err)


async def test_validate_prints_every_problem_of_every_file(tmp_path: Path) -> None:
    """Errors, warnings and missing files of several files come together; one bad file makes the exit code 2."""
    write_task(tmp_path, [kernel("ratio 1")])
    text = (tmp_path / "task.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("gpu:", "gpuu:") + "scoring: best\nsurprise: 1\n")
    words = ["validate", "task.yaml", "bad.yaml", "absent.yaml", "."]
    answer = await command(*words, env=environment(tmp_path / "home"), cwd=tmp_path)

    assert answer.code == 2
    assert "copy-f32  task.yaml" in answer.out
    assert re.search(r"^error: bad\.yaml:\d+: gpuu: ", answer.err, re.MULTILINE)
    assert re.search(r"^error: bad\.yaml:\d+: scoring: ", answer.err, re.MULTILINE)
    assert re.search(r"^warning: bad\.yaml:\d+: surprise: ", answer.err, re.MULTILINE)
    assert "error: absent.yaml: no such file" in answer.err
    assert "error: .: is a folder" in answer.err
    assert "3 of 4 task files have errors" in answer.err


# ---------------------------------------------------------------- references


def test_every_reference_of_the_shipped_tasks_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted by source; nothing to complain about."""
    assert client.main(["refs"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    together = re.search(r"^together +(\d+)$", printed.out, re.MULTILINE)
    assert together is not None
    assert int(together[1]) >= 8


def test_a_missing_reference_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named with its task and line; those that are there are counted all the same."""
    write_task(tmp_path, [kernel("ratio 1")], references=["baseline.cpp", "resources/nobody-has-this"])
    monkeypatch.chdir(tmp_path)
    assert client.main(["refs", "task.yaml"]) == 1
    printed = capsys.readouterr()
    assert re.search(r"^task folder +1$", printed.out, re.MULTILINE)
    assert re.match(r"error: task\.yaml:\d+: references\[1\]: 'resources/nobody-has-this' is neither", printed.err)
    assert printed.err.endswith("1 of 2 references are not there\n")


def test_validate_warns_of_a_missing_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The optimiser can do without, so the file is good."""
    write_task(tmp_path, [kernel("ratio 1")], references=["resources/nobody-has-this"])
    monkeypatch.chdir(tmp_path)
    assert client.main(["validate", "task.yaml"]) == 0
    assert re.match(r"warning: task\.yaml:\d+: references\[0\]: ", capsys.readouterr().err)


# ---------------------------------------------------------------- what models said


@workflow.defn(name="OptimizationWorkflow", sandboxed=False)
class Told:
    """Answers as a run does that waits with a written gate and has talked to a model."""

    @workflow.init
    def __init__(self, status: Status, lines: list[HistoryLine]) -> None:
        self._status, self._lines = status, lines
        self._approval: GateApproval | None = None

    @workflow.run
    async def run(self, status: Status, lines: list[HistoryLine]) -> str:
        await workflow.wait_condition(lambda: self._approval is not None)
        assert self._approval is not None
        return self._approval.reason

    @workflow.query
    def status(self) -> Status:
        return self._status

    @workflow.query
    def history(self) -> list[HistoryLine]:
        return self._lines

    @workflow.update
    def approve_gate(self, given: GateApproval) -> Status:
        self._approval = given
        return self._status


async def test_what_was_said_and_written_can_be_read_and_answered(temporal: Client, tmp_path: Path) -> None:
    """The conversation from the store, the gate before it is locked, and a person's word on it."""
    store, run_id = Store.of(settings_at(tmp_path / "home")), f"told-{uuid.uuid4().hex[:8]}"
    head = await transcript.append(store, None, {"role": "user", "content": "make it faster"})
    chapter = Chapter(role=Role.OPTIMIZER, head=head)
    draft = Draft(files={"gate.yaml": await store.put(b"contract: c\n")})
    blob = await store.put(draft.model_dump_json().encode())
    gate = WrittenGate(bundle=blob, gate=blob, review=None, rounds=1)
    charge = Charge(input_tokens=300, output_tokens=20, calls=2, usd=0.5)
    line = make_line(4, "a003", Ending.SLOWER, "tiles", "slower", chapters=(chapter,), charge=charge)
    status = make_status(run_id=run_id, phase=Phase.AWAITING_APPROVAL, written_gate=gate, charge=charge)
    env = environment(tmp_path / "home", temporal, FERRET_STORE=store.url)
    async with Worker(temporal, task_queue=run_id, workflows=[Told]):
        handle = await temporal.start_workflow(
            "OptimizationWorkflow", args=[status, [line]], id=run_id, task_queue=run_id
        )
        words = (
            ["transcript", run_id],
            ["transcript", run_id, "4", "--json"],
            ["gate", run_id],
            ["status", run_id],
            ["recording", run_id, "-o", "run.jsonl"],
        )
        said, raw, written, stands, unrecorded = await asyncio.gather(
            *(command(*one, env=env, cwd=tmp_path) for one in words)
        )
        refused = await command("approve-gate", run_id, "--refuse", "--reason", "eps", env=env, cwd=tmp_path)

    assert said.out == "optimizer: 1 messages\n\n[1] user\n    make it faster\n\n", said.err
    assert json.loads(raw.out) == [{"role": "optimizer", "messages": [{"role": "user", "content": "make it faster"}]}]
    assert written.out == "# ---------------- gate.yaml\ncontract: c\n", written.err
    assert "300 in, 0 cached, 20 out, 2 calls" in stands.out
    # A recording is looked for under the run's first execution, and no file is left where there is none.
    assert f"run {handle.first_execution_run_id} has no answer of a model" in unrecorded.complaint
    assert not (tmp_path / "run.jsonl").exists()
    assert refused.out == f"{run_id}: gate refused; it is written anew\n", refused.err
    assert await handle.result() == "eps"


# ---------------------------------------------------------------- start and watch


async def test_start_and_follow_a_run_to_its_kernel(temporal: Client, tmp_path: Path) -> None:
    """In a pipe every event is one plain line, the result ends it, and an accepted kernel is exit code 0."""
    async with serving(temporal, tmp_path) as (_, task):
        write_task(tmp_path, STORY, **task)
        env = environment(tmp_path / "home", temporal)
        answer = await command("start", "task.yaml", "--follow", env=env, cwd=tmp_path)

    assert answer.code == 0, answer.err
    assert CONTROL.search(answer.out) is None
    assert not any(line.endswith(" ") for line in answer.out.splitlines())
    assert re.search(r"^a001 build failed 01.cpp: .*the fake compiler says no", answer.out, re.MULTILINE)
    assert re.search(r"^a002 refused 02.cpp: wrong in case 'small' at y", answer.out, re.MULTILINE)
    assert re.search(r"^ACCEPTED v002 after 4 iterations \(2 wins, 2 attempts\)", answer.out, re.MULTILINE)
    assert re.search(r"^large +100\.0 +83\.3 +1\.200 +1\.199 to 1\.201 ", answer.out, re.MULTILINE)
    assert re.search(rf"^delivered +{re.escape(str(tmp_path))}/home/runs/", answer.out, re.MULTILINE)
    assert re.search(r"^run +copy-f32-[0-9a-f]{6}-\d{4}-\d{4}", answer.err, re.MULTILINE)


async def test_a_run_without_a_kernel_is_exit_code_1(temporal: Client, tmp_path: Path) -> None:
    """A script can tell that nothing was found."""
    async with serving(temporal, tmp_path) as (_, task):
        write_task(tmp_path, [kernel("fails"), kernel("wrong")], **task)
        env = environment(tmp_path / "home", temporal)
        answer = await command("start", "task.yaml", "--follow", env=env, cwd=tmp_path)

    assert answer.code == 1, answer.err
    assert "NO KERNEL after 2 iterations" in answer.out


async def test_options_override_the_task(temporal: Client, tmp_path: Path) -> None:
    """A budget on the command line ends the run, and the given id is the run's."""
    run_id = f"mine-{uuid.uuid4().hex[:8]}"
    async with serving(temporal, tmp_path) as (_, task):
        write_task(tmp_path, STORY, **task)
        env = environment(tmp_path / "home", temporal)
        words = ["start", "task.yaml", "--follow", "--id", run_id, "--max-iterations", "1"]
        answer = await command(*words, env=env, cwd=tmp_path)

    assert "after 1 iteration (1 win, 0 attempts)" in answer.out
    assert "the budget of 1 iteration is used up" in answer.out
    assert answer.out.startswith(f"{run_id}: copy-f32 against memcpy")


async def test_start_returns_at_once_and_names_a_missing_worker(temporal: Client, tmp_path: Path) -> None:
    """Without a worker the run is there and waits; the person is told which queue nobody serves."""
    gpu = f"cpu{uuid.uuid4().hex[:8]}"
    write_task(tmp_path, STORY, gpu=gpu)
    run_id = f"mine-{uuid.uuid4().hex[:8]}"
    words = ["start", "task.yaml", "--id", run_id]
    answer = await command(*words, env=environment(tmp_path / "home", temporal), cwd=tmp_path)

    assert answer.code == 0
    assert re.search(
        rf"^warning: no worker is polling .*ferret-{gpu}; start one: .*python\S* .*worker\.py$", answer.err, re.M
    )
    handle = temporal.get_workflow_handle(run_id)
    assert await (await handle.describe()).memo_value("task") == "copy-f32"
    await handle.terminate()


async def test_an_id_is_used_once(ended: Shell) -> None:
    """A second run under a known id would share its folder, so it is refused in one line."""
    write_task(ended.cwd / "again", STORY)

    assert "is taken by another run" in (await ended("start", "again/task.yaml", "--id", ended.id)).complaint


async def test_an_interrupt_ends_the_watching_not_the_run(temporal: Client, tmp_path: Path) -> None:
    """Ctrl-C says that the run goes on and how to come back; the run indeed goes on."""
    async with held(temporal, tmp_path) as shell:
        process = await started("watch", shell.id, env=shell.env, cwd=tmp_path)
        assert process.stdout is not None
        assert await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()

        assert process.returncode == 130
        assert f"stopped watching; the run goes on. Watch it again: {again(shell, 'watch', shell.id)}" in err.decode()
        shell.run.harness.release("build")
        assert (await shell.run.result()).outcome == "accepted"


async def test_watching_a_run_that_is_cancelled_is_exit_code_130(temporal: Client, tmp_path: Path) -> None:
    """Cancel ends a run in the middle of a step, and whoever watches is told why."""
    async with held(temporal, tmp_path) as shell:
        process = await started("watch", shell.id, env=shell.env, cwd=tmp_path)
        cancelled = await shell("cancel", shell.id, "--reason", "wrong task")
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await process.communicate()

    assert (cancelled.code, cancelled.out) == (0, f"{shell.id}: cancelling\n")
    assert process.returncode == 130
    assert "CANCELLED after 0 iterations (0 wins, 0 attempts)" in out.decode()
    assert "wrong task" in out.decode()


async def test_watching_on_a_terminal_draws_and_leaves_the_result(ended: Shell) -> None:
    """On a terminal there are colours and a live picture; the result stays on the screen."""
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), "watch", ended.id,
        env={**ended.env, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}, cwd=ended.cwd,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    drawn = await asyncio.to_thread(read_all, ours)

    assert await process.wait() == 0
    assert "\x1b[" in drawn
    assert "ACCEPTED" in drawn
    assert drawn.rstrip().splitlines()[-1].startswith("\x1b[2mTemporal UI")


def read_all(terminal: int) -> str:
    """Everything written to a terminal until its last user has gone."""
    content = b""
    with open(terminal, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(65536)
            except OSError:  # how Linux says that nobody holds the other end
                break
            if not part:
                break
            content += part
    return content.decode()


# ---------------------------------------------------------------- looking


async def test_list_shows_ended_runs(ended: Shell) -> None:
    """State, stage, champion and score of an ended run come from the server alone."""
    row = next(line for line in (await ended("list")).out.splitlines() if line.startswith(ended.id))

    assert row.split()[:7] == [ended.id, "copy-f32", "completed", "done", "OPTIMIZE", "v002", "1.200"]


async def test_list_as_json(ended: Shell) -> None:
    """Scripts get the same rows as data."""
    rows = {row["id"]: row for row in json.loads((await ended("list", "--json")).out)}

    assert rows[ended.id]["champion"] == "v002"
    assert rows[ended.id]["score"] == pytest.approx(1.2)


async def test_status_of_an_ended_run_is_its_result(ended: Shell) -> None:
    """Whoever comes late sees how it ended."""
    answer = await ended("status", ended.id)

    assert answer.code == 0
    assert "ACCEPTED v002" in answer.out


async def test_status_as_json(ended: Shell) -> None:
    """Scripts get the whole status."""
    status = json.loads((await ended("status", ended.id, "--json")).out)

    assert (status["run_id"], status["phase"], status["wins"]) == (ended.id, "done", 2)


async def test_history_is_one_line_an_iteration(ended: Shell) -> None:
    """Every iteration is there, in order, with its outcome."""
    lines = (await ended("history", ended.id)).out.splitlines()

    assert [line.split(":")[0] for line in lines] == [
        "v001 win 00.cpp",
        "a001 build failed 01.cpp",
        "a002 refused 02.cpp",
        "v002 win 03.cpp",
    ]


async def test_best_prints_the_very_source(ended: Shell) -> None:
    """What comes out of the pipe is the kernel, byte for byte."""
    assert (await ended("best", ended.id)).out == STORY[-1]


async def test_best_writes_a_file(ended: Shell, tmp_path: Path) -> None:
    """With -o the source lands in the file and nothing on standard output."""
    answer = await ended("best", ended.id, "-o", tmp_path / "kernel.cpp")

    assert (answer.code, answer.out) == (0, "")
    assert (tmp_path / "kernel.cpp").read_text() == STORY[-1]


async def test_diff_of_two_versions(ended: Shell) -> None:
    """Versions are named as in the history; the best by that word."""
    lines = (await ended("diff", ended.id, "v001", "best")).out.splitlines()

    assert lines[:2] == ["--- v001", "+++ best"]
    assert any(line.startswith("-") and "slow" in line for line in lines)
    assert any(line.startswith("+") and "best" in line for line in lines[2:])


async def test_an_unknown_version_is_a_mistake(ended: Shell) -> None:
    """The versions that there are get named."""
    complaint = (await ended("diff", ended.id, "v001", "v009")).complaint

    assert complaint == "error: no source of 'v009' in this run; accepted: v001, a001, a002, v002, best"


async def test_export_takes_everything_home(ended: Shell, tmp_path: Path) -> None:
    """Delivered files, history, status and sources of an ended run are in the folder."""
    answer = await ended("export", ended.id, "-o", tmp_path / "out")

    assert answer.code == 0
    assert (tmp_path / "out/kernel.cpp").read_text() == STORY[-1]
    assert (tmp_path / "out/iterations/a002.cpp").read_text() == STORY[2]
    assert len(json.loads((tmp_path / "out/history.json").read_text())) == 4
    assert (tmp_path / "out/result.json").is_file()


async def test_ui_prints_an_address(ended: Shell) -> None:
    """The address ends in the run's id."""
    answer = await ended("ui", ended.id, "--open")

    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/namespaces/default/workflows/{ended.id}\n", answer.out)
    assert answer.err == "not opened: this is no terminal on a desktop\n"


async def test_a_closed_pipe_is_no_error(ended: Shell) -> None:
    """`history | head -1` ends quietly, without a crash."""
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), "history", ended.id, env=ended.env, stdout=write, stderr=asyncio.subprocess.PIPE
    )
    os.close(write)
    _, err = await process.communicate()

    assert process.returncode is not None
    assert process.returncode >= 0
    assert err == b""


# ---------------------------------------------------------------- which run


async def test_a_unique_beginning_names_a_run(ended: Shell) -> None:
    """An id need not be typed to its end."""
    assert (await ended("ui", ended.id[:-2])).out.endswith(f"/{ended.id}\n")


async def test_an_unknown_run_is_a_mistake(ended: Shell) -> None:
    """The message names the run and how to list those there are."""
    listing = again(ended, "list")
    assert (await ended("status", "nosuch")).complaint == f"error: no run 'nosuch'; list the runs: {listing}"


async def test_what_is_no_id_is_an_unknown_run(ended: Shell) -> None:
    """Words with quotes in them are looked for nowhere and found nowhere."""
    assert "no run \"x' OR" in (await ended("status", "x' OR 'a' = 'a")).complaint


async def test_a_beginning_of_several_runs_is_a_mistake(temporal: Client, tmp_path: Path) -> None:
    """Two runs that begin alike are both named; the person says which."""
    common = f"twin-{uuid.uuid4().hex[:6]}"
    for number in (1, 2):
        await temporal.start_workflow(
            "OptimizationWorkflow", {}, id=f"{common}-{number}", task_queue=f"nobody-{common}"
        )
    answer = await command("ui", common, env=environment(tmp_path / "home", temporal), cwd=tmp_path)

    assert f"is the beginning of 2 runs ({common}-2, {common}-1)" in answer.complaint
    for number in (1, 2):
        await temporal.get_workflow_handle(f"{common}-{number}").terminate()


async def test_an_iteration_is_not_a_run(ended: Shell) -> None:
    """The id of a child workflow names no run."""
    assert "no run" in (await ended("status", f"{ended.id}/iter-000")).complaint


async def test_without_an_id_the_run_that_is_meant_is_named(temporal: Client, tmp_path: Path) -> None:
    """The command says which run it took; the newest one is what one has just started."""
    async with held(temporal, tmp_path) as shell:
        answer = await shell("ui")

    assert answer.out.endswith(f"/{shell.id}\n")
    assert answer.err.startswith(f"run {shell.id} (the ")


# ---------------------------------------------------------------- steering


async def test_steering_never_guesses_among_several_runs(tmp_path: Path, unserved: Shell, temporal: Client) -> None:
    """With two runs at work each is named and the person says which; looking still takes the newest."""
    name = f"other-{uuid.uuid4().hex[:6]}"
    other = await temporal.start_workflow("OptimizationWorkflow", {}, id=name, task_queue=f"nobody-{name}")
    (tmp_path / "own.cpp").write_text(kernel("ratio 3.0", "mine"))
    await listed_as_running(temporal, name)
    words = (["pause"], ["stop"], ["cancel"], ["hint", "x"], ["extend", "--iterations", "1"])
    for steering in (*words, ["submit", str(tmp_path / "own.cpp")]):
        complaint = (await unserved(*steering)).complaint
        assert re.fullmatch(rf"error: \d+ runs are at work \(.*{name}.*{unserved.id}.*\); say which", complaint)
    looked = await unserved("ui")
    await other.terminate()

    assert looked.out.endswith(f"/{name}\n")
    assert looked.err == f"run {name} (the most recent one)\n"


async def test_a_second_cancel_says_so(temporal: Client, unserved: Shell) -> None:
    """A run that has not yet got round to its cancellation is told once."""
    name = f"twice-{uuid.uuid4().hex[:6]}"
    handle = await temporal.start_workflow("OptimizationWorkflow", {}, id=name, task_queue=f"nobody-{name}")
    answers = [await unserved("cancel", name) for _ in range(2)]
    await handle.terminate()

    assert [answer.out for answer in answers] == [f"{name}: cancelling\n", f"{name}: is being cancelled already\n"]


async def listed_as_running(temporal: Client, run_id: str) -> None:
    """What is listed follows what has happened by a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while not [one async for one in temporal.list_workflows(f"WorkflowId = '{run_id}'")]:
            await asyncio.sleep(0.02)


async def test_pause_and_resume(temporal: Client, tmp_path: Path) -> None:
    """A paused run stands still at the next step and goes on when told."""
    async with held(temporal, tmp_path) as shell:
        assert (await shell("pause", shell.id)).out.startswith(f"{shell.id}: pausing after the step at work")
        shell.run.harness.release("build")
        assert (await shell.run.status()).phase is Phase.PAUSED
        assert (await shell("resume", shell.id)).out == f"{shell.id}: resumed\n"
        assert (await shell.run.result()).outcome == "accepted"


async def test_an_update_that_the_run_refuses_is_a_mistake(temporal: Client, tmp_path: Path) -> None:
    """The validator's own sentence is what the person reads."""
    async with held(temporal, tmp_path) as shell:
        assert (await shell("resume", shell.id)).complaint.startswith("error: resume: the run is not paused")


async def test_an_ended_run_cannot_be_steered(ended: Shell) -> None:
    """Updates and cancel say that it is over."""
    assert "has ended (completed); pause needs a running one" in (await ended("pause", ended.id)).complaint
    assert "has ended (completed); cancel needs a running one" in (await ended("cancel", ended.id)).complaint


async def test_hints_reach_the_run(temporal: Client, tmp_path: Path) -> None:
    """A hint is in the status of the run it was given to."""
    async with held(temporal, tmp_path) as shell:
        unread = "the scripted optimiser reads no hints"
        assert (await shell("hint", shell.id, "use 6x16 tiles")).out == f"{shell.id}: hint 1 noted; {unread}\n"
        assert (await shell.run.status()).hints == ["use 6x16 tiles"]


async def test_a_budget_can_be_extended(temporal: Client, tmp_path: Path) -> None:
    """What is given is added; the answer is the new budget."""
    async with held(temporal, tmp_path) as shell:
        answer = await shell("extend", shell.id, "--iterations", "5", "--minutes", "2.5")

        assert answer.out == f"{shell.id}: budget now 25 iterations, 12.5 minutes\n"


async def test_a_submitted_kernel_is_judged_like_any_other(temporal: Client, tmp_path: Path) -> None:
    """A person's kernel becomes the champion when it is the best."""
    (tmp_path / "own.cpp").write_text(kernel("ratio 3.0", "mine"))
    (tmp_path / "own.txt").write_text(kernel("ratio 3.0", "mine"))
    async with held(temporal, tmp_path) as shell:
        assert "accepted: a file ending in .cpp" in (await shell("submit", shell.id, "own.txt")).complaint
        answer = await shell("submit", shell.id, "own.cpp")
        shell.run.harness.release("build")
        result = await shell.run.result()

    assert answer.out == f"{shell.id}: own.cpp handed in (1 waiting)\n"
    assert result.champion is not None
    assert result.champion.score == pytest.approx(3.0)


async def test_stop_keeps_the_best(temporal: Client, tmp_path: Path) -> None:
    """A stopped run accepts and delivers what it has; the reason is in the result."""
    async with running(temporal, tmp_path, STORY) as run:
        shell = Shell(run, tmp_path)
        async with asyncio.timeout(PATIENCE_S):
            while (await run.status()).wins == 0:
                await asyncio.sleep(0.02)
        run.harness.hold("build")
        await run.held("build")
        answer = await shell("stop", shell.id, "--reason", "good enough")
        assert (await run.status()).phase is Phase.STOPPING
        listed = json.loads((await shell("list", "--json")).out)
        run.harness.release("build")
        result = await run.result()

    assert answer.out == (
        f"{shell.id}: stopping (good enough); the measurement or other step at work is finished first, "
        f"and {again(shell, 'cancel', shell.id)} ends it now\n"
    )
    assert [row["phase"] for row in listed if row["id"] == shell.id] == ["stopping"]
    assert result.acceptance is not None
    assert result.acceptance.accepted
    assert "good enough" in result.reason


async def test_the_best_so_far_can_be_exported_while_a_run_works(temporal: Client, tmp_path: Path) -> None:
    """Nobody has to wait for the end to use a kernel."""
    async with running(temporal, tmp_path, STORY) as run:
        async with asyncio.timeout(PATIENCE_S):
            while (await run.status()).wins == 0:
                await asyncio.sleep(0.02)
        run.harness.hold("build")
        answer = await Shell(run, tmp_path)("export", run.handle.id, "-o", tmp_path / "out")
        run.harness.release("build")
        await run.result()

    assert answer.code == 0, answer.err
    assert (tmp_path / "out/kernel.cpp").is_file()


# ---------------------------------------------------------------- trouble

FULL = "no space left on device: /data/store"


async def test_status_says_why_a_step_is_tried_again(temporal: Client, tmp_path: Path) -> None:
    """A run that waits for a disk does not look like one that works."""

    def trouble(harness: FakeHarness) -> None:
        harness.refuse("measure", "MachineError", FULL, retryable=True, times=100)

    async with running(temporal, tmp_path, STORY, before=trouble) as run:
        while run.harness.asked("measure") < 3:
            await asyncio.sleep(0.02)
        answer = await Shell(run, tmp_path)("status", run.handle.id)
        await run.handle.cancel()

    assert re.search(
        rf"waiting: measure baseline: {FULL} \(attempt \d+, (next try in \d+ s|about to be tried|at work now)\)",
        answer.out,
    )


async def test_watching_tells_a_new_trouble_once(temporal: Client, tmp_path: Path) -> None:
    """In an iteration too; the attempts that follow are no news in a log."""

    def trouble(harness: FakeHarness) -> None:
        harness.refuse("judge", "MachineError", FULL, retryable=True, times=4)
        harness.hold("judge", "slow")

    async with running(temporal, tmp_path, STORY[:1], before=trouble) as run:
        shell = Shell(run, tmp_path)
        run.harness.release("judge")
        answer = await shell("watch", shell.id)

    assert answer.code == 0, answer.err
    assert answer.out.count(FULL) == 1
    assert f"waiting: judge: {FULL} (attempt " in answer.out or f"waiting: measure baseline: {FULL} (" in answer.out


# ---------------------------------------------------------------- workers come and go


@pytest.mark.parametrize("words", [["status"], ["history"], ["best"], ["diff", "seed", "best"], ["export"], ["pause"]])
async def test_without_a_worker_every_question_is_answered_in_one_line(unserved: Shell, words: list[str]) -> None:
    """A run at work whose workers are gone cannot answer; the person is told so, not left waiting."""
    complaint = (await unserved(words[0], unserved.id, *words[1:])).complaint

    assert "no worker is polling" in complaint
    assert complaint.endswith("worker.py")


async def test_an_ended_run_can_be_read_without_a_worker(temporal: Client, tmp_path: Path) -> None:
    """The result is on the server; the best kernel is in the store."""
    async with running(temporal, tmp_path, STORY) as run:
        await run.result()
        shell = Shell(run, tmp_path)
    answer = await shell("status", shell.id, "--json")

    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["champion"]["version"] == "v002"


async def test_what_was_delivered_can_be_exported_without_a_worker(temporal: Client, tmp_path: Path) -> None:
    """The files come from the store; that the history is missing is said."""
    async with running(temporal, tmp_path, STORY[-1:]) as run:
        await run.result()
        shell = Shell(run, tmp_path)
    answer = await shell("export", shell.id, "-o", "out")

    assert answer.code == 0, answer.err
    assert (tmp_path / "out/kernel.cpp").read_text() == STORY[-1]
    assert "warning: only what was delivered: " in answer.err


async def test_up_and_down(tmp_path: Path) -> None:
    """Server and worker start once, serve commands that name no address, and leave no process behind."""
    settings = Settings(home=tmp_path / "home", store="")
    env = environment(settings.home)
    try:
        first = await command("up", env=env, cwd=tmp_path)
        server, worker = living_server(settings), living_worker(settings)
        again = await command("up", env=env, cwd=tmp_path)
        listed = await command("list", env=env, cwd=tmp_path)
    finally:
        down = await command("down", env=env, cwd=tmp_path)

    assert first.code == 0, first.err
    assert server is not None
    assert worker is not None
    assert first.out == again.out
    assert server.ui in first.out
    assert (listed.code, listed.out) == (0, "")
    assert down.out == "stopped: worker and server\n"
    await until(lambda: not is_alive(server.pid) and not is_alive(worker), "both have ended")
    assert (await command("down", env=env, cwd=tmp_path)).out == f"nothing is running for {settings.home}\n"


async def test_a_worker_that_does_not_start_shows_its_last_lines(tmp_path: Path) -> None:
    """The reason stands in the worker's log, so the log's end is part of the message."""
    env = environment(tmp_path / "home", FERRET_STORE="nosuch://store")
    try:
        answer = await command("up", env=env, cwd=tmp_path)
    finally:
        await command("down", env=env, cwd=tmp_path)

    assert answer.code == 2
    assert answer.err.startswith("error: the worker ended with status 2; its last lines:\n")
    assert "FERRET_STORE is 'nosuch://store'" in answer.err


async def test_the_embedded_server_and_another_address_exclude_each_other(tmp_path: Path) -> None:
    """An address in the environment would lead the run elsewhere, so nothing is started."""
    env = environment(tmp_path / "home", TEMPORAL_ADDRESS="127.0.0.1:1")
    complaint = (await command("up", env=env, cwd=tmp_path)).complaint

    assert "says 127.0.0.1:1; unset that" in complaint
    assert living_server(Settings(home=tmp_path / "home", store="")) is None
