"""Timing: who won, what was checked meanwhile, and what a measurement leaves behind. No absolute time decides."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import calibrate, device, statistics, trial
from kernels.harness import measure as measure_module
from kernels.harness.machine import Cpu
from kernels.harness.measure import half_width, measure
from kernels.harness.requests import BaselineMeasured, Measure, Measured
from kernels.harness.roofline import Peaks, Rate
from kernels.harness.runner import Runner
from specs.errors import DeviceBusy, GateError, RunnerLost
from specs.outcomes import Failure, FailureKind, Measurement
from tests.kernels.harness.conftest import Bench, kernel

# Sixty times the work of the honest kernel, and nothing that a compiler could drop.
SLOW = kernel(
    before="""
    volatile double sink = 0;
    for (int k = 0; k < 60; ++k)
        for (int i = 0; i < M * N; ++i) sink = sink + x[i] * x[i];
    """
)
FAST = kernel()


def request(
    bench: Bench, candidate: str | None, champion: str | None = None, baseline: str = FAST, **changes: Any
) -> Measure:
    return Measure(
        task=bench.task,
        gate=bench.gate,
        lock=bench.lock(),
        baseline=bench.library(baseline),
        candidate=bench.library(candidate) if candidate is not None else None,
        champion=bench.library(champion) if champion is not None else None,
        builds=bench.builds,
        samples=bench.folder / "out" / "samples.json",
        **{"max_seconds": 1, **changes},
    )


def measured(asked: Measure) -> Measurement:
    answer = measure(asked)
    assert isinstance(answer, Measured)
    assert answer.outcome.failure is None, answer.outcome.failure
    assert answer.outcome.measurement is not None
    return answer.outcome.measurement


def refused(asked: Measure) -> Failure:
    answer = measure(asked)
    assert isinstance(answer, Measured)
    assert answer.outcome.failure is not None, "it was measured"
    return answer.outcome.failure


def test_a_measurement_is_whole(bench: Bench) -> None:
    """Three contestants on every config, in paired rounds, with score, gain, device and isolation."""
    result = measured(request(bench, FAST, champion=FAST))
    assert [config.config for config in result.configs] == ["small", "wide"]
    for config in result.configs:
        assert config.champion is not None
        assert config.baseline.samples == config.candidate.samples == config.champion.samples >= 5
    assert result.gain is not None
    assert result.device.name
    assert "runner on core" in result.device.detail
    assert result.sandbox in {"bubblewrap", "process"}


def test_sixty_times_the_work_loses(bench: Bench) -> None:
    """A kernel that does far more work has a ratio far below 1, whatever the noise."""
    result = measured(request(bench, SLOW))
    assert all(config.ratio.high < 0.5 for config in result.configs)
    assert result.gain is None


def test_a_faster_kernel_gains_on_its_champion(bench: Bench) -> None:
    """Against a champion with sixty times the work the gain clears any margin, and the slow one's own gain does not."""
    faster = measured(request(bench, FAST, champion=SLOW))
    assert faster.gain is not None
    assert faster.gain.low > 1.5
    slower = measured(request(bench, SLOW, champion=FAST))
    assert slower.gain is not None
    assert slower.gain.high < 1


def test_the_baseline_alone_is_described_and_timed(bench: Bench) -> None:
    """Without a candidate the answer is the baseline's times, with what it says it is."""
    source = kernel(top='extern "C" const char* ferret_describe() { return "loops 1.0"; }\n')
    answer = measure(request(bench, None, baseline=source))
    assert isinstance(answer, BaselineMeasured)
    assert answer.times.timings.keys() == {"small", "wide"}
    assert answer.times.description == "loops 1.0"


def test_every_raw_sample_is_written(bench: Bench) -> None:
    """Whoever doubts the summary finds each round with its order, its inputs and its times."""
    asked = request(bench, FAST)
    result = measured(asked)
    content = json.loads(asked.samples.read_text())
    used = [r for r in content["rounds"] if r["used"] and r["config"] == "small"]
    assert len(used) == result.configs[0].candidate.samples
    assert all(sorted(r["order"]) == ["baseline", "candidate"] for r in used)
    assert {r["distribution"] for r in content["rounds"]} == {"normal", "shifted"}
    assert {tuple(r["order"]) for r in content["rounds"]} == {("baseline", "candidate"), ("candidate", "baseline")}
    assert content["libraries"]["candidate"] == result.library
    assert [p.name for p in asked.samples.parent.iterdir()] == ["samples.json"]


# ---------------------------------------------------------------- checked while timed


def test_a_kernel_that_turns_wrong_while_timed_is_refused(bench: Bench) -> None:
    """A counter that waits until the judge is done is caught, since every timed answer is checked."""
    source = kernel(top="static int wide = 0;\n", after="if (N == 1024 && ++wide > 9) y[0] += 1;")
    assert bench.judge(source).passed
    failure = refused(request(bench, source, max_seconds=10))  # a busy machine needs its time for ten rounds
    assert failure.kind is FailureKind.TIMED_WRONG
    assert failure.case == "wide"
    assert failure.first_failing_stage == "y"


def test_a_replay_of_an_earlier_answer_is_refused(bench: Bench) -> None:
    """Each timed call has inputs that were never seen before."""
    source = kernel(
        top="#include <cstring>\nstatic float kept[1 << 16]; static int n = 0;\n",
        before="if (n == M * N) { std::memcpy(y, kept, 4 * n); return; }",
        after="n = M * N; std::memcpy(kept, y, 4 * n);",
    )
    assert refused(request(bench, source)).kind is FailureKind.TIMED_WRONG


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (kernel(after="y[M * N] = 0;"), FailureKind.GUARD_OVERWRITTEN),
        (kernel(after="const_cast<float*>(x)[0] = 0;"), FailureKind.INPUT_CHANGED),
        (kernel(before="__builtin_trap();"), FailureKind.CRASHED),
        (kernel(top="#include <unistd.h>\n", before="_exit(0);"), FailureKind.EXITED),
    ],
    ids=["guard", "input", "trap", "exit"],
)
def test_a_rule_broken_while_timed_keeps_its_name(bench: Bench, source: str, kind: FailureKind) -> None:
    """What is forbidden in the judge's calls is forbidden in timed ones, under the same name."""
    assert refused(request(bench, source)).kind is kind


def test_a_wrong_baseline_is_the_gates_fault(bench: Bench) -> None:
    """A baseline that fails its own gate makes no ratio at all."""
    with pytest.raises(GateError, match=r"the baseline \(plain loops\) fails its own gate"):
        measure(request(bench, FAST, baseline=kernel(columns="N - 1")))


def test_a_champion_that_turns_out_wrong_loses_its_title(bench: Bench) -> None:
    """The candidate is then measured without one, and the samples say why."""
    asked = request(bench, FAST, champion=kernel(after="y[0] += 1;"))
    assert measured(asked).gain is None
    assert "y[0, 0]" in json.loads(asked.samples.read_text())["champion_dropped"]


def _floor(monkeypatch: pytest.MonkeyPatch, floor: float) -> None:
    monkeypatch.setattr(Runner, "empty", lambda self, rng: floor)


def test_a_call_no_longer_than_an_empty_one_is_too_fast(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate whose calls persistently take no longer than calling nothing is refused."""
    real = trial.put

    def put(runner: Runner, *args: Any, **kwargs: Any) -> trial.Answered:
        answered = real(runner, *args, **kwargs)
        return answered if runner.description else dataclasses.replace(answered, microseconds=1e-3)

    monkeypatch.setattr(trial, "put", put)
    _floor(monkeypatch, 1e-2)
    named = kernel(top='extern "C" const char* ferret_describe() { return "loops 1.0"; }\n')
    failure = refused(request(bench, FAST, baseline=named))
    assert failure.kind is FailureKind.TOO_FAST
    assert "no longer than an empty call" in failure.message


def test_a_round_in_which_a_rival_lost_its_pages_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page faults that the baseline does not usually have make its time no yardstick; a candidate's own are its own."""
    real = trial.put
    calls: dict[int, int] = {}

    def put(runner: Runner, *args: Any, **kwargs: Any) -> trial.Answered:
        count = calls[id(runner)] = calls.get(id(runner), 0) + 1
        answered = dataclasses.replace(real(runner, *args, **kwargs), disturbed=False)
        return dataclasses.replace(answered, faults=1000 if count % 4 == 0 else 0)

    monkeypatch.setattr(trial, "put", put)
    asked = request(bench, FAST)
    measured(asked)
    left_out = [r["disturbed"] for r in json.loads(asked.samples.read_text())["rounds"] if r["disturbed"]]
    assert left_out
    assert all(names == ["baseline"] for names in left_out)


def test_a_config_too_small_to_time_is_the_gates_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When even the baseline is under the floor, no ratio means anything."""
    _floor(monkeypatch, 1e9)
    with pytest.raises(GateError, match="no longer than an empty call"):
        measure(request(bench, FAST))


# ---------------------------------------------------------------- the machine


def test_a_round_in_which_a_core_was_taken_away_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preempted rounds are in the samples and not in the result, unless the machine has no others to offer."""
    real = trial.put
    count = 0

    def put(*args: Any, **kwargs: Any) -> trial.Answered:
        nonlocal count
        count += 1
        return dataclasses.replace(real(*args, **kwargs), disturbed=count % 5 == 0)

    monkeypatch.setattr(trial, "put", put)
    asked = request(bench, FAST)
    result = measured(asked)
    rounds = [r for r in json.loads(asked.samples.read_text())["rounds"] if r["config"] == "small"]
    assert any(r["disturbed"] for r in rounds)
    assert not any(r["used"] and r["disturbed"] for r in rounds)
    assert sum(r["used"] for r in rounds) == result.configs[0].candidate.samples


def test_a_machine_that_is_always_busy_is_measured_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving rounds out has a limit: an answer with wide intervals beats none."""
    real = trial.put
    monkeypatch.setattr(trial, "put", lambda *a, **k: dataclasses.replace(real(*a, **k), disturbed=True))
    result = measured(request(bench, FAST))
    assert all(config.candidate.samples >= measure_module.ROUNDS_AT_LEAST for config in result.configs)


def _kill_before(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    real = trial.put
    count = 0

    def put(runner: Runner, *args: Any, **kwargs: Any) -> trial.Answered:
        nonlocal count
        count += 1
        if count in calls:
            os.kill(runner.pid, signal.SIGKILL)
        return real(runner, *args, **kwargs)

    monkeypatch.setattr(trial, "put", put)


def test_one_kill_from_outside_is_played_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """New runners, the round once more, and a measurement at the end."""
    _kill_before(monkeypatch, {7})
    assert measured(request(bench, FAST)).configs


def test_a_baseline_killed_again_and_again_is_no_verdict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is in trouble: worth another try elsewhere, and nothing is said about the candidate."""
    _kill_before(monkeypatch, set(range(1, 50)))
    with pytest.raises(RunnerLost, match="runner of the baseline was killed 2 times"):
        measure(request(bench, None))


def test_a_held_device_is_said_to_be_busy(bench: Bench) -> None:
    """Two measurements never share a core: the second waits, and gives up after its time."""
    core = device.pick_cores().runner
    with device.lock(core, 0), pytest.raises(DeviceBusy, match=f"core {core} is held"):
        measure(request(bench, FAST, device_wait_s=0))


def test_judges_share_the_device_and_keep_timing_out() -> None:
    """Shared holders get on with each other, and none of them with a measurement."""
    core = device.pick_cores().runner
    with device.lock(core, 0, shared=True), device.lock(core, 0, shared=True), pytest.raises(DeviceBusy):
        device.lock(core, 0).__enter__()
    with device.lock(core, 0) as waited:
        assert waited >= 0


def test_time_that_is_up_still_leaves_enough_rounds(bench: Bench) -> None:
    """However short the time, no interval is drawn over fewer rounds than can show their spread."""
    result = measured(request(bench, FAST, max_seconds=0.001))
    assert all(config.candidate.samples == measure_module.ROUNDS_AT_LEAST for config in result.configs)


def test_rounds_that_shared_their_processes_are_told_apart(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes differ and time is up before enough of them were seen, there is a gain and no title."""
    monkeypatch.setattr(Cpu, "processes_differ", True)
    asked = request(bench, FAST, champion=SLOW, max_seconds=0.001)
    result = measured(asked)
    rounds = [one for one in json.loads(asked.samples.read_text())["rounds"] if one["used"]]
    assert len({one["processes"] for one in rounds}) < statistics.MIN_SETS
    assert result.gain is not None
    assert (result.gain.low, result.gain.value > 1) == (0, True)


def test_the_timed_kernel_runs_on_a_single_core_too(bench: Bench) -> None:
    """With one usable core the clock sleeps instead of spinning, and the result has the same shape."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        result = measured(request(bench, SLOW, max_seconds=1))
    finally:
        os.sched_setaffinity(0, cores)
    assert "the same core" in result.device.detail
    assert all(config.ratio.high < 1 for config in result.configs)


@pytest.mark.parametrize(
    ("rival", "candidate", "expected"),
    [
        (100.0, 100.0, 0.00495),  # a tie: half of the way to 1.01
        (101.0, 100.0, 0.005),
        (102.0, 100.0, 0.005),
        (112.0, 100.0, 0.0545),
        (107.06, 100.0, 0.03),
        (300.0, 100.0, 0.05),
        (50.0, 100.0, 0.05),
    ],
)
def test_the_nearer_to_the_decision_the_closer_the_look(rival: float, candidate: float, expected: float) -> None:
    """The interval wanted is half of the distance to what a win needs, within bounds."""
    wanted = min(max(expected, 0.005), 0.05)
    assert half_width(1.01, [rival] * 5, [candidate] * 5) == pytest.approx(wanted)


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file as it was, and no temporary one."""
    target = tmp_path / "samples.json"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        measure_module.write_atomically(target, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("samples.json", "old")]


def test_a_task_of_one_tiny_config_is_measured(make_bench: Callable[..., Bench]) -> None:
    """Not even a microsecond of work confuses the clock."""
    bench = make_bench(task={"configs": [{"name": "dot", "args": {"M": 1, "N": 64}}]})
    assert measured(request(bench, FAST, max_seconds=1)).configs[0].candidate.median_us > 0


def test_two_folders_for_temporary_files_are_still_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock's place depends on FERRET_LOCKS alone, and on nothing that differs between two workers by accident."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "one"))
    first = device.lock_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "two"))
    assert device.lock_folder() == first == tmp_path
    monkeypatch.delenv("FERRET_LOCKS")
    assert device.lock_folder() == device.LOCKS


def test_a_lock_made_by_another_user_can_be_taken(tmp_path: Path) -> None:
    """Whoever came first made the file; the others need no right to write it."""
    core = device.pick_cores().runner
    with device.lock(core, 0):
        path = tmp_path / f"ferret-cpu{core}.lock"
        assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o444)
    with device.lock(core, 0):
        pass


def test_a_call_quicker_than_the_device_allows_is_too_fast(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peaks are measured once more before anybody is blamed by them."""
    asked_again = []
    slow = Peaks(
        kind="cpu", device="planted", key="0" * 64, bandwidth={"dram_read": Rate(best=1e3, median=1e3, how="planted")}
    )

    def planted(kind: str, builds: Path, *, again: bool = False, **_: Any) -> Peaks:
        asked_again.append(again)
        return slow

    monkeypatch.setattr(calibrate, "peaks", planted)
    bench = make_bench(task={"work": {"bytes": "8 * M * N"}})
    with contextlib.suppress(GateError):  # when the baseline is the first to have been too quick
        failure = refused(request(bench, FAST))
        assert failure.kind is FailureKind.TOO_FAST
        assert "what work: says" in failure.message
    assert asked_again == [False, True]
