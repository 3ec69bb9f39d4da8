"""The judge, against real kernels in real runners: the honest pass, every other one is refused for what it did."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kernels.harness import runner as runner_module
from kernels.harness import sandbox, trial
from kernels.harness.judge import judge
from kernels.harness.requests import Sandbox
from specs.errors import GateTampered, RunnerLost, UserError
from specs.outcomes import FailureKind, Verdict, VerificationStage
from tests.kernels.harness.conftest import Bench, kernel

bubblewrap = pytest.mark.skipif(sandbox.unusable() is not None, reason="bubblewrap cannot be used here")
BOTH = [pytest.param("required", marks=bubblewrap), "off"]

INCLUDES = """
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
"""
# Apart from the others, since they take a compiler far longer.
THREADS = "#include <thread>\n" + INCLUDES
EXCEPTIONS = "#include <stdexcept>\n"
LATE = """
    std::thread([=] {
        for (int i = 0; i < M; ++i) {
            double sum = 0;
            for (int j = 0; j < N; ++j) sum += double(x[i * N + j]) * x[i * N + j];
            const float r = 1 / __builtin_sqrtf(float(sum / N) + eps);
            if (rstd) rstd[i] = r;
            for (int j = 0; j < N; ++j) y[i * N + j] = x[i * N + j] * r * g[j];
        }
        for (;;) pause();
    }).detach();
    return;
"""

# name -> (source, failure kinds that say what it did)
CHEATS: dict[str, tuple[str, set[FailureKind]]] = {
    "returns_at_once": (kernel(before="return;"), {FailureKind.NOT_WRITTEN}),
    "drops_the_last_row": (kernel(rows="M - 1"), {FailureKind.NOT_WRITTEN}),
    "drops_the_last_column": (kernel(columns="N - 1"), {FailureKind.NOT_WRITTEN}),
    "answers_zeros": (kernel(after="for (int i = 0; i < M * N; ++i) y[i] = 0;"), {FailureKind.WRONG}),
    "answers_nan": (
        kernel(after='for (int i = 0; i < M * N; ++i) y[i] = __builtin_nanf("");'),
        {FailureKind.NON_FINITE},
    ),
    "answers_inf": (kernel(after="y[M * N - 1] = __builtin_inff();"), {FailureKind.NON_FINITE}),
    "copies_its_input": (kernel(after="for (int i = 0; i < M * N; ++i) y[i] = x[i];"), {FailureKind.WRONG}),
    "one_element_is_off": (kernel(after="y[M * N / 2] += 0.01f;"), {FailureKind.WRONG}),
    "writes_past_the_end": (kernel(after="y[M * N] = 1;"), {FailureKind.GUARD_OVERWRITTEN}),
    "writes_before_the_start": (kernel(after="y[-1] = 1;"), {FailureKind.GUARD_OVERWRITTEN}),
    "overruns_its_workspace": (
        kernel(after="static_cast<char*>(scratch)[4 * M] ^= 1;"),
        {FailureKind.GUARD_OVERWRITTEN},
    ),
    "changes_an_input": (kernel(after="const_cast<float*>(g)[0] += 1;"), {FailureKind.INPUT_CHANGED}),
    "segfaults": (kernel(before="*reinterpret_cast<volatile int*>(8) = 1;"), {FailureKind.CRASHED}),
    "aborts": (kernel(before="std::abort();", top=INCLUDES), {FailureKind.CRASHED}),
    "throws": (kernel(before='throw std::runtime_error("no");', top=EXCEPTIONS), {FailureKind.CRASHED}),
    "exits_with_success": (kernel(after="_exit(0);", top=INCLUDES), {FailureKind.EXITED}),
    "exits_from_a_constructor": (
        kernel(top=INCLUDES + "__attribute__((constructor)) static void first() { _exit(0); }\n"),
        {FailureKind.EXITED},
    ),
    "starts_a_process": (kernel(before="if (fork() == 0) for (;;) fork();", top=INCLUDES), {FailureKind.THREADS}),
    # std::system begins with a change of signal handlers, which is refused before it gets to the process.
    "runs_a_program": (kernel(before='std::system("true");', top=INCLUDES), {FailureKind.CRASHED}),
    "leaves_a_thread_behind": (
        kernel(
            before="static bool once = (std::thread([] { for (;;) pause(); }).detach(), true); (void)once;",
            top=THREADS,
        ),
        {FailureKind.THREADS},
    ),
    "lets_a_thread_finish_later": (
        kernel(before=LATE, top=THREADS),
        {FailureKind.THREADS},
    ),
    "runs_on_a_timer": (
        kernel(before="itimerval t{{0, 1000}, {0, 1000}}; setitimer(ITIMER_REAL, &t, nullptr);", top=INCLUDES),
        {FailureKind.CRASHED},
    ),
    "opens_a_socket": (kernel(before="socket(AF_INET, SOCK_STREAM, 0);", top=INCLUDES), {FailureKind.CRASHED}),
    "signals_another_process": (kernel(before="kill(getppid(), SIGTERM);", top=INCLUDES), {FailureKind.CRASHED}),
    "kills_itself": (kernel(before="raise(SIGKILL);", top=INCLUDES), {FailureKind.CRASHED}),
    "writes_a_file": (
        kernel(
            before='if (FILE* f = std::fopen("/tmp/ferret-test-note", "w")) { std::fputs("x", f); std::fclose(f); }',
            top=INCLUDES,
        ),
        {FailureKind.CRASHED},
    ),
    "drops_the_stage": (kernel(stage="0"), {FailureKind.WRONG}),
    "is_right_only_without_stages": (
        kernel(after="if (rstd) y[0] += 1;"),
        {FailureKind.WRONG},
    ),
    "is_right_only_with_stages": (
        kernel(after="if (!rstd) y[0] += 1;"),
        {FailureKind.WRONG},
    ),
    "replays_its_first_answer": (
        kernel(
            top=INCLUDES + "static float kept[1 << 20]; static int n = 0;\n",
            after="if (n != M * N) { n = M * N; std::memcpy(kept, y, 4 * n); } else std::memcpy(y, kept, 4 * n);",
        ),
        {FailureKind.WRONG},
    ),
    "drifts_after_thirty_calls": (
        kernel(top="static int calls = 0;\n", after="if (++calls > 30) y[0] += 1;"),
        {FailureKind.WRONG},
    ),
    "sniffs_the_magnitude": (
        kernel(after="if (x[0] > 4 && x[1] > 4) y[0] += 1; if (x[0] + x[1] + x[2] + x[3] > 10) y[1] += 1;"),
        {FailureKind.WRONG},
    ),
    "answers_differently_each_time": (
        kernel(top="static int calls = 0;\n", after="if (++calls & 1) y[0] = __builtin_nextafterf(y[0], 1e9f);"),
        {FailureKind.STAGE_DISAGREES, FailureKind.NOT_DETERMINISTIC},
    ),
    "depends_on_its_address": (
        kernel(after="for (auto i = uintptr_t(y) >> 6 & 15; i; --i) y[0] = __builtin_nextafterf(y[0], 1e9f);"),
        {FailureKind.STAGE_DISAGREES, FailureKind.NOT_DETERMINISTIC},
    ),
}


@pytest.mark.parametrize("policy", BOTH)
def test_an_honest_kernel_passes(bench: Bench, policy: Sandbox) -> None:
    """A right kernel is passed, with every call counted and the worst distance of every tensor."""
    verdict = bench.judge(kernel(), sandbox=policy)
    assert verdict.failure is None
    assert verdict.passed
    assert verdict.cases >= 18 + 48  # both configs, two distributions, an edge, repeats, and the many calls at the end
    assert [metrics.tensor for metrics in verdict.worst] == ["rstd", "y"]
    assert verdict.sandbox == ("process" if policy == "off" else "bubblewrap")


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused_for_what_it_did(bench: Bench, name: str) -> None:
    """Every kernel that is wrong, or right by a trick, is refused, and the kind names the trick."""
    source, kinds = CHEATS[name]
    verdict = bench.judge(source)
    assert verdict.failure is not None, "it passed"
    assert verdict.failure.kind in kinds, verdict.failure.message


@pytest.mark.parametrize(
    "name", ["segfaults", "exits_with_success", "starts_a_process", "lets_a_thread_finish_later", "kills_itself"]
)
def test_a_bare_process_holds_the_same_cheats(bench: Bench, name: str) -> None:
    """Without bubblewrap the verdict on what a candidate does to its process is the same."""
    source, kinds = CHEATS[name]
    verdict = bench.judge(source, sandbox="off")
    assert verdict.failure is not None, "it passed"
    assert verdict.failure.kind in kinds, verdict.failure.message


@pytest.mark.parametrize("policy", BOTH)
def test_an_endless_loop_is_ended_at_the_deadline(bench: Bench, policy: Sandbox) -> None:
    """A call that does not come back is HUNG, and the message gives the time it had."""
    verdict = bench.judge(kernel(before="for (volatile int i = 0;; i = i + 1) {}"), sandbox=policy, call_timeout_s=0.3)
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.HUNG
    assert "0.3 s" in verdict.failure.message


def test_a_sleeping_kernel_is_refused(bench: Bench) -> None:
    """Sleep is charged to nobody, so a kernel may not: the refusal names the system call."""
    failure = bench.judge(kernel(before="usleep(500);", top=INCLUDES)).failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert "made system call clock_nanosleep in the call" in failure.message


def test_an_uncaught_exception_is_called_that(bench: Bench) -> None:
    """An abort for want of a catch says so, with the type."""
    failure = bench.judge(kernel(before='throw std::runtime_error("no");', top=EXCEPTIONS)).failure
    assert failure is not None
    assert "ended by an uncaught exception (std::runtime_error) in the call" in failure.message


def test_the_message_names_case_tensor_and_place(bench: Bench) -> None:
    """A kernel author reads which case, which tensor and which element was wrong."""
    failure = bench.judge(kernel(columns="N - 1")).failure
    assert failure is not None
    assert failure.case == "small"
    assert failure.first_failing_stage == "y"
    assert failure.message.startswith("small (normal): y was not written everywhere: 4 of 1024 elements")
    assert "[0, 255]" in failure.message


def test_the_first_tensor_that_diverges_is_named(bench: Bench) -> None:
    """Stage tensors come first, so a mistake is named where it began."""
    failure = bench.judge(kernel(before="eps = 1;")).failure
    assert failure is not None
    assert failure.first_failing_stage == "rstd"
    assert failure.verification is VerificationStage.NUMERICS


def test_an_edge_case_alone_can_refuse(bench: Bench) -> None:
    """A kernel that is right on every config and wrong on a shape of the gate is refused there."""
    failure = bench.judge(kernel(after="if (M == 1) y[0] += 1;")).failure
    assert failure is not None
    assert (failure.verification, failure.case) == (VerificationStage.EDGES, "one_row")


def test_a_distribution_alone_can_refuse(bench: Bench) -> None:
    """A kernel that is wrong only on shifted data is refused in the stage of ranges, with the distribution named."""
    failure = bench.judge(kernel(after="if (x[0] + x[1] + x[2] + x[3] + x[4] + x[5] > 16) y[0] += 1;")).failure
    assert failure is not None
    assert failure.verification is VerificationStage.RANGES
    assert "(shifted)" in failure.message


def test_held_out_cases_are_judged_only_when_asked(bench: Bench) -> None:
    """A kernel that is wrong on a held-out shape passes until the final acceptance asks for it."""
    source = kernel(after="if (M == 5) y[0] += 1;")
    assert bench.judge(source).passed
    failure = bench.judge(source, held_out=True).failure
    assert failure is not None
    assert failure.case == "odd"


def test_the_public_cases_are_the_configs_alone(bench: Bench) -> None:
    """A kernel that is wrong on an edge passes them, and its verdict says what it is worth."""
    quick = bench.judge(kernel(after="if (M == 1) y[0] += 1;"), scope="public")
    assert quick.passed
    assert (quick.scope, quick.memory_check) == ("public", "")
    wrong = bench.judge(kernel(columns="N - 1"), scope="public")
    assert wrong.failure is not None
    assert wrong.failure.verification is VerificationStage.NUMERICS


def test_held_out_cases_are_never_public(bench: Bench, tmp_path: Path) -> None:
    """They would tell an optimiser what acceptance looks at."""
    with pytest.raises(ValidationError, match="held-out cases are none of the public ones"):
        bench.judge_request(tmp_path / "kernel.so", held_out=True, scope="public")


def test_atomics_may_be_allowed(make_bench: Callable[..., Bench]) -> None:
    """With `deterministic: false` a last bit that differs between calls is no failure."""
    source, _ = CHEATS["answers_differently_each_time"]
    assert make_bench(gate_yaml={"deterministic": False}).judge(source).passed


def test_an_interface_without_stages_is_judged_too(make_bench: Callable[..., Bench]) -> None:
    """A task with one output and nothing else to check needs no special care."""
    reference = (
        "import numpy as np\n"
        "def make_inputs(rng, args, distribution):\n"
        "    return {'x': rng.integers(-100, 100, args['N']).astype(np.int8)}\n"
        "def reference(inputs, args):\n"
        "    return {'y': inputs['x'].astype(np.int64) * 3}\n"
    )
    arguments = [
        {"name": "x", "kind": "input", "dtype": "i8", "shape": ["N"]},
        {"name": "y", "kind": "output", "dtype": "i32", "shape": ["N"]},
        {"name": "N", "kind": "scalar", "dtype": "i64"},
    ]
    bench = make_bench(
        task={
            "interface": {"entry": "triple", "arguments": arguments},
            "configs": [{"name": "one", "args": {"N": 1000}}],
        },
        gate_yaml={"tensors": {"y": {}}, "edges": [], "held_out": []},
        reference=reference,
    )
    head = '#include <cstdint>\nextern "C" void triple(const int8_t* x, int32_t* y, int64_t n) '
    assert bench.judge(head + "{ for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 3; }").passed
    short = bench.judge(head + "{ for (int64_t i = 0; i < n - 100; ++i) y[i] = x[i] * 3; }").failure
    assert short is not None
    assert short.kind is FailureKind.NOT_WRITTEN
    wrong = bench.judge(head + "{ for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 2; }").failure
    assert wrong is not None
    assert wrong.kind is FailureKind.WRONG


def test_a_missing_entry_is_not_loaded(bench: Bench, tmp_path: Path) -> None:
    """An object without the entry is NOT_LOADED, with the loader's words."""
    verdict = judge(bench.judge_request(_compiled(tmp_path, "int unrelated;")))
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.NOT_LOADED
    assert "rmsnorm" in verdict.failure.message


def test_bytes_that_are_no_object_are_not_loaded(bench: Bench, tmp_path: Path) -> None:
    """A file that is not a shared object is NOT_LOADED, not a crash of ours."""
    path = tmp_path / "kernel.so"
    path.write_bytes(b"not an object")
    verdict = judge(bench.judge_request(path))
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.NOT_LOADED
    assert verdict.library == hashlib.sha256(b"not an object").hexdigest()


def test_a_missing_library_is_the_callers_mistake(bench: Bench, tmp_path: Path) -> None:
    """No file, no verdict: the path is named."""
    with pytest.raises(UserError, match=r"gone\.so"):
        judge(bench.judge_request(tmp_path / "gone.so"))


def test_a_gate_changed_after_the_lock_judges_nothing(bench: Bench) -> None:
    """Content that is not what was locked ends the judgement before anything runs."""
    request = bench.judge_request(bench.library(kernel()))
    path = bench.gate / "gate.yaml"
    path.write_text(path.read_text().replace("1.0e-05", "1.0e+05"))
    with pytest.raises(GateTampered, match=r"gate\.yaml"):
        judge(request)


# ---------------------------------------------------------------- killed from outside


def _kill_before(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Kill the runner, really and from outside, right before the given calls (counted from 1)."""
    real = trial.put
    count = 0

    def put(runner: runner_module.Runner, *args: Any, **kwargs: Any) -> trial.Answered:
        nonlocal count
        count += 1
        if count in calls:
            os.kill(runner.pid, signal.SIGKILL)
        return real(runner, *args, **kwargs)

    monkeypatch.setattr(trial, "put", put)


def test_one_kill_from_outside_is_forgiven(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner killed once is replaced, and the kernel is still judged."""
    _kill_before(monkeypatch, {1})
    assert bench.judge(kernel()).passed


def test_kills_in_different_cases_are_the_machines_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second kill elsewhere is no verdict on the kernel but a reason to try again later."""
    _kill_before(monkeypatch, {1, 4})
    with pytest.raises(RunnerLost, match="killed in 2 different cases"):
        bench.judge(kernel())


def test_two_kills_in_one_case_are_the_candidates_doing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies the same death twice in a fresh process brought it on itself."""
    _kill_before(monkeypatch, {1, 2})
    failure = bench.judge(kernel()).failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED


def _compiled(folder: Path, source: str) -> Path:
    (folder / "odd.cpp").write_text(source)
    library = folder / "odd.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, folder / "odd.cpp"], check=True)
    return library


def _with_source(bench: Bench, source: str, **changes: object) -> Verdict:
    path = bench.folder / "kernel.cpp"
    path.write_text(source)
    return judge(bench.judge_request(bench.library(source), source=path, **changes))


def test_a_kernel_that_reads_past_its_input_is_refused_last(bench: Bench) -> None:
    """Every answer is right, so only the memory check finds it: in the stress stage, with the kernel's own line."""
    source = kernel(before="volatile float past = x[M * N];")
    failure = _with_source(bench, source).failure
    assert failure is not None
    assert (failure.kind, failure.verification) == (FailureKind.MEMORY_ERROR, VerificationStage.STRESS)
    assert failure.case == "one_row"
    assert re.search(r"READ of size 4 at kernel\.cpp:\d+, 0 bytes past the end of x$", failure.message)
    assert bench.judge(source).passed


def test_the_verdict_says_what_was_checked(bench: Bench) -> None:
    """Passed and not checked are two things, and neither is silent."""
    assert _with_source(bench, kernel()).memory_check.startswith("passed: 4 calls")
    assert bench.judge(kernel()).memory_check == "not checked: the source is not at hand"
    assert _with_source(bench, kernel(), role="baseline").memory_check == ""


def test_a_wrong_kernel_is_not_built_once_more(bench: Bench) -> None:
    """The memory check comes last and costs nothing where there is a reason already."""
    source = kernel(columns="N - 1", before="volatile float past = x[M * N];")
    verdict = _with_source(bench, source)
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.NOT_WRITTEN
    assert verdict.memory_check == ""
