"""The runner alone: what it can see and do, how it ends, what it leaves behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.harness import arena, gate, sandbox, trial
from kernels.harness.arena import Arena, CandidateFault
from kernels.harness.gate import Case
from kernels.harness.judge import judge
from kernels.harness.requests import Sandbox
from kernels.harness.runner import Runner, Tools
from specs.errors import UserError
from specs.outcomes import FailureKind
from tests.kernels.harness.conftest import Bench, kernel

bubblewrap = pytest.mark.skipif(sandbox.unusable() is not None, reason="bubblewrap cannot be used here")
BOTH = [pytest.param("required", marks=bubblewrap), "off"]

PROBES = """
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <csignal>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
extern char** environ;
// Ends the process, so that a verdict of "passed" means that every probe held.
static void need(bool holds) { if (!holds) std::abort(); }
"""


def at_load(check: str) -> str:
    """A kernel that looks while it is loaded, when files may still be read."""
    return kernel(top=PROBES + "__attribute__((constructor)) static void look() {" + check + "}\n")


def in_call(call: str) -> str:
    return kernel(top=PROBES, before=call)


@pytest.fixture(params=BOTH)
def policy(request: pytest.FixtureRequest) -> Sandbox:
    chosen: Sandbox = request.param
    return chosen


@pytest.fixture
def tools(bench: Bench) -> Iterator[Tools]:
    with trial.tools(bench.task, bench.builds, "preferred") as made:
        yield made


def start(bench: Bench, tools: Tools, source: str) -> Runner:
    return Runner(tools, Arena(1 << 20), candidate=bench.library(source).read_bytes())


# ---------------------------------------------------------------- what a candidate finds


def test_the_environment_is_bare_and_the_same_for_all(
    bench: Bench, policy: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key of ours reaches a candidate: PATH and LANG are all there is (and PWD, which bubblewrap sets)."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    check = (
        'need(std::getenv("ANTHROPIC_API_KEY") == nullptr);'
        'for (char** e = environ; *e; ++e) need(!std::strncmp(*e, "PATH=", 5) || !std::strncmp(*e, "LANG=", 5)'
        ' || !std::strncmp(*e, "PWD=", 4));'
    )
    assert bench.judge(kernel(top=PROBES, before=check), sandbox=policy).failure is None


def test_no_descriptor_but_dev_null_is_open(bench: Bench, policy: Sandbox) -> None:
    """There is no channel to write a verdict into: 0, 1 and 2 are /dev/null and nothing else is open."""
    with trial.tools(bench.task, bench.builds, policy) as made, start(bench, made, kernel()) as runner:
        open_now = {p.name: str(p.readlink()) for p in Path(f"/proc/{runner.pid}/fd").iterdir()}
    assert open_now == dict.fromkeys("012", "/dev/null")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ('open("/tmp/x", O_CREAT | O_WRONLY, 0600);', "openat"),
        ('open("/etc/passwd", O_RDONLY);', "openat"),
        ('unlink("/tmp/x");', "unlink"),
        ("getppid();", "getppid"),
        ("prctl(PR_SET_PDEATHSIG, 0);", "prctl"),
        ("rlimit l{1, 1}; setrlimit(RLIMIT_FSIZE, &l);", "prlimit64"),
        ("struct sigaction a {}; sigaction(SIGCONT, &a, nullptr);", "rt_sigaction"),
        ("usleep(1);", "clock_nanosleep"),
        ("mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);", "mmap"),
        ("mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, 0, 0);", "mmap"),
        ("madvise(y, 4096, MADV_REMOVE);", "madvise"),
        ("syscall(SYS_futex, y, FUTEX_WAIT, 0, nullptr, nullptr, 0);", "futex"),
        ("syscall(SYS_memfd_create, nullptr, 0);", "memfd_create"),
    ],
)
def test_a_call_may_ask_the_system_for_memory_and_little_else(bench: Bench, call: str, name: str) -> None:
    """Whatever is not on the list ends the runner, and the refusal names the system call."""
    failure = bench.judge(in_call(call), sandbox="off").failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert f"made system call {name} in the call" in failure.message


def test_nothing_can_be_written_while_loading(bench: Bench, policy: Sandbox) -> None:
    """The loader may read; a constructor that makes a file is ended all the same."""
    source = at_load('open("/tmp/ferret-test-note", O_CREAT | O_WRONLY, 0600);')
    failure = bench.judge(source, sandbox=policy).failure
    assert failure is not None
    assert "made system call openat while it was being loaded" in failure.message
    assert not Path("/tmp/ferret-test-note").exists()


def test_a_candidate_stays_on_its_one_core(bench: Bench, policy: Sandbox) -> None:
    """It starts pinned, and asking for more cores is denied."""
    check = (
        "cpu_set_t s; need(sched_getaffinity(0, sizeof s, &s) == 0 && CPU_COUNT(&s) == 1);"
        "for (int c = 0; c < 64; ++c) CPU_SET(c, &s); need(sched_setaffinity(0, sizeof s, &s) == -1 && errno == EPERM);"
    )
    assert bench.judge(in_call(check), sandbox=policy).failure is None


@bubblewrap
def test_the_gate_folder_does_not_exist_for_a_candidate(bench: Bench) -> None:
    """Inside bubblewrap neither the gate nor the builds can be opened, and /proc is empty."""
    paths = [
        str(bench.gate / "reference.py"),
        str(bench.gate),
        str(bench.builds),
        "/proc/self/maps",
        "/etc/passwd",
        "/root",
    ]
    check = "".join(f'need(open("{path}", O_RDONLY) == -1);' for path in paths)
    assert bench.judge(at_load(check), sandbox="required").failure is None


def test_memory_has_a_limit(bench: Bench, policy: Sandbox) -> None:
    """A candidate that asks for a terabyte gets a null pointer, not the machine."""
    check = "void* p = std::malloc(std::size_t{1} << 40); need(p == nullptr);"
    assert bench.judge(kernel(top=PROBES, before=check), sandbox=policy).failure is None


def test_arguments_arrive_as_they_were_given(make_bench: Callable[..., Bench]) -> None:
    """Scalars of every width keep their value, pointers are aligned, a stage that is not asked for is null."""
    arguments = [
        {"name": "d", "kind": "scalar", "dtype": "f64", "value": -0.1},
        {"name": "x", "kind": "input", "dtype": "u8", "shape": ["N"]},
        {"name": "i8", "kind": "scalar", "dtype": "i8", "value": -5},
        {"name": "s", "kind": "stage", "dtype": "f32", "shape": [1]},
        {"name": "u64", "kind": "scalar", "dtype": "u64", "value": 2**63},
        {"name": "f", "kind": "scalar", "dtype": "f32", "value": 1.5},
        {"name": "flag", "kind": "scalar", "dtype": "i32", "value": True},
        {"name": "y", "kind": "output", "dtype": "i64", "shape": [1]},
        {"name": "N", "kind": "scalar", "dtype": "i64"},
    ]
    reference = (
        "import numpy as np\n"
        "def make_inputs(rng, args, distribution):\n"
        "    return {'x': rng.integers(0, 256, args['N']).astype(np.uint8)}\n"
        "def reference(inputs, args):\n"
        "    return {'s': np.array([2.0]), 'y': np.array([inputs['x'].astype(np.int64).sum()])}\n"
    )
    bench = make_bench(
        task={"interface": {"entry": "all", "arguments": arguments}, "configs": [{"name": "one", "args": {"N": 100}}]},
        gate_yaml={"tensors": {"s": {"max_abs": 0.0}, "y": {}}, "edges": [], "held_out": []},
        reference=reference,
    )
    source = (
        PROBES
        + """
        #include <cstdint>
        extern "C" void all(double d, const uint8_t* x, int8_t i, float* s, uint64_t u, float f, int32_t flag,
                            int64_t* y, int64_t n) {
            need(d == -0.1 && i == -5 && u == 1ull << 63 && f == 1.5f && flag == 1 && n == 100);
            need(reinterpret_cast<uintptr_t>(x) % 64 == 0 && reinterpret_cast<uintptr_t>(y) % 64 == 0);
            if (s) *s = 2;
            *y = 0;
            for (int64_t k = 0; k < n; ++k) *y += x[k];
        }
    """
    )
    assert bench.judge(source).failure is None


# ---------------------------------------------------------------- how it ends


def test_nothing_is_left_behind(bench: Bench, policy: Sandbox) -> None:
    """After judging a kernel that hangs there is no process, no descriptor and no file that was not there before."""
    bench.library(kernel())
    library = bench.library(kernel(before="for (volatile int i = 0;; i = i + 1) {}"))
    bench.judge(kernel(), sandbox=policy)
    before = _state(bench.folder)
    verdict = judge(bench.judge_request(library, sandbox=policy, call_timeout_s=0.2))
    assert verdict.failure is not None
    assert _state(bench.folder) == before


def _state(folder: Path) -> tuple[set[str], set[str], set[str]]:
    me = str(os.getpid())
    children = {p.name for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == me}
    descriptors = {p.name for p in Path("/proc/self/fd").iterdir()}
    shared = {p.name for p in Path("/dev/shm").iterdir() if "ferret" in p.name}
    return children, descriptors, shared


def _parent(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def test_a_runner_dies_with_its_gate(bench: Bench, policy: Sandbox) -> None:
    """When the gate process is killed outright, its runner goes with it, in either isolation."""
    library = bench.library(kernel())
    script = f"""
import sys
from pathlib import Path
from kernels.harness import trial
from kernels.harness.arena import Arena
from kernels.harness.runner import Runner
from specs.schema import Task
task = Task.model_validate_json(Path({str(bench.folder / "task.json")!r}).read_text())
with trial.tools(task, Path({str(bench.builds)!r}), {policy!r}) as tools:
    runner = Runner(tools, Arena(1 << 20), candidate=Path({str(library)!r}).read_bytes())
    print(runner.pid, flush=True)
    sys.stdin.read()
"""
    (bench.folder / "task.json").write_text(bench.task.model_dump_json())
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        runner = os.pidfd_open(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()
    try:
        assert select.select([runner], [], [], 20)[0], "the runner outlived its gate"
    finally:
        os.close(runner)


def test_an_idle_runner_stands_still(bench: Bench, tools: Tools) -> None:
    """Between calls a runner sleeps in a wait without end: nothing in it can work on what the gate lays out for it."""
    with start(bench, tools, kernel()) as runner:
        stat = Path(f"/proc/{runner.pid}/stat").read_text().rpartition(")")[2].split()
        assert stat[0] == "S"
        assert Path(f"/proc/{runner.pid}/wchan").read_text().startswith("futex")


def test_an_empty_call_takes_some_time_but_not_much(bench: Bench, tools: Tools) -> None:
    """The floor of the clock is a positive time."""
    with start(bench, tools, kernel()) as runner:
        assert 0 < runner.empty(np.random.default_rng(1)) < 1e6


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("#include <unistd.h>\n__attribute__((constructor)) static void f() { _exit(3); }\n", FailureKind.EXITED),
        ("__attribute__((constructor)) static void f() { __builtin_trap(); }\n", FailureKind.CRASHED),
    ],
    ids=["exit", "trap"],
)
def test_a_constructor_that_ends_the_process_is_the_candidates_doing(
    bench: Bench, tools: Tools, source: str, kind: FailureKind
) -> None:
    """Code that runs while the object is loaded is already the candidate's."""
    with pytest.raises(CandidateFault, match="while it was being loaded") as caught:
        start(bench, tools, kernel(top=source))
    assert caught.value.kind is kind


def test_a_baseline_may_say_what_it_is(bench: Bench, tools: Tools) -> None:
    """`ferret_describe` is asked of the trusted object, and of no other."""
    library = bench.library(kernel(top='extern "C" const char* ferret_describe() { return "loops 1.0"; }\n'))
    with Runner(tools, Arena(1 << 20), trusted=library) as runner:
        assert runner.description == "loops 1.0"
    with Runner(tools, Arena(1 << 20), candidate=library.read_bytes()) as runner:
        assert runner.description == ""


def test_what_runs_is_what_was_hashed(bench: Bench, tools: Tools) -> None:
    """A candidate's file may change or go after it was read: the runner holds the bytes."""
    library = bench.library(kernel())
    content = library.read_bytes()
    case = Case(name="small", args={"M": 4, "N": 256})
    rng = np.random.default_rng(1)
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    question = trial.ask(loaded, bench.task, case, "normal", rng)
    with Runner(tools, Arena(arena.bytes_needed([question.buffers])), candidate=content) as runner:
        answered = trial.put(runner, bench.task, question, rng, stages=True, flush=True, timeout_s=5)
    assert trial.check(loaded, answered, loaded.golden(question.inputs, case.args))
    assert answered.microseconds > 0


# ---------------------------------------------------------------- which isolation


def test_a_required_sandbox_that_cannot_be_had_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bubblewrap `required` is the user's mistake, and the message says how to get it."""
    monkeypatch.setattr(sandbox, "unusable", lambda: "there is no bwrap on PATH")
    with pytest.raises(UserError, match=r"no bwrap on PATH; install it \(apt-get install bubblewrap\)"):
        bench.judge(kernel(), sandbox="required")


def test_a_preferred_sandbox_that_cannot_be_had_is_recorded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """`preferred` goes on without, and the verdict says what isolation really held."""
    monkeypatch.setattr(sandbox, "unusable", lambda: "there is no bwrap on PATH")
    assert bench.judge(kernel(), sandbox="preferred").sandbox == "process"


def test_a_bwrap_that_does_not_run_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bwrap on PATH that fails (no user namespaces, say) counts as none, with its own words as the reason."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sandbox.unusable.__wrapped__() == "No permissions to create new namespace"


def test_a_single_core_is_enough(bench: Bench) -> None:
    """With one usable core nobody spins, and the same kernels get the same verdicts."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert bench.judge(kernel()).passed
        failure = bench.judge(kernel(columns="N - 1")).failure
    finally:
        os.sched_setaffinity(0, cores)
    assert failure is not None
    assert failure.kind is FailureKind.NOT_WRITTEN


def test_a_signal_from_outside_is_told_from_a_crash(bench: Bench, tools: Tools) -> None:
    """A runner that is gone by SIGSEGV is the candidate's; the case is not blamed on the machine."""
    case = Case(name="small", args={"M": 4, "N": 256})
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    rng = np.random.default_rng(1)
    question = trial.ask(loaded, bench.task, case, "normal", rng)
    content = bench.library(kernel()).read_bytes()
    with Runner(tools, Arena(arena.bytes_needed([question.buffers])), candidate=content) as runner:
        os.kill(runner.pid, signal.SIGSEGV)
        with pytest.raises(CandidateFault, match="SIGSEGV") as caught:
            trial.put(runner, bench.task, question, rng, stages=True, flush=False, timeout_s=5)
    assert caught.value.kind is FailureKind.CRASHED
