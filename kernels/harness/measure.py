"""Who is faster: contestants take turns on one core, on the same fresh inputs, and every timed answer is checked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics as plain
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import structlog

from kernels.harness import gate, gpu_state, machine, roofline, statistics, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.gate import Case, Gate
from kernels.harness.gpu_state import State
from kernels.harness.judge import read_library
from kernels.harness.machine import Contestant, Machine, Memory
from kernels.harness.requests import BaselineMeasured, Measure, Measured
from kernels.harness.runner import RunnerKilled
from kernels.harness.trial import Answered, Question
from specs.errors import GateError, MachineError, RunnerLost
from specs.outcomes import (
    BaselineTimes,
    ConfigMeasurement,
    Failure,
    FailureKind,
    Measurement,
    MeasureOutcome,
    VerificationStage,
)
from specs.schema import Language

log = structlog.get_logger()

Name = Literal["baseline", "candidate", "champion"]

# Every so many rounds all runners are replaced (Machine.rounds_per_process). The first round of a new set is checked,
# but its times are dropped.
CALL_TIMEOUT_S = 20.0
HOST_CALLS = 5
TURNS_AT_MOST = 4  # of one config, before all others have had one
EMPTY_CALLS = 12  # of the baseline's runner; the fastest is the floor: no call that does anything can be shorter
# Calls at or under the floor, on one config, that cannot be bad luck any more: so many, and more than were kept.
# The honest call of a tiny kernel costs little more than nothing, and now and then measures as less.
VOID_LIMIT = 3
ROUNDS_AT_LEAST = 5  # even when the time is up: an interval over fewer rounds would look sure of itself for no reason

# Page faults of a rival beyond twice what it usually has, and this many, mean that somebody took pages away from it.
FAULTS_MORE = 16

# Rounds in which the system gave a core to somebody else are left out, but no more than this many beyond those kept: a
# machine that is always busy has no better rounds to offer.
DISTURBED_MORE = 10

# How exactly ratios have to be known: half of the way to the decision, within bounds.
SHARE_OF_DISTANCE = 0.5
FINEST = 0.005
COARSEST = 0.05


def measure(request: Measure) -> Measured | BaselineMeasured:
    """Time candidate and champion against the baseline, or the baseline alone.

    Raises GateError when the baseline breaks the gate's own rules, RunnerLost when runners are killed from outside, and
    DeviceBusy when the device stays held. A candidate that fails while it is timed is an outcome.
    """
    begin = time.monotonic()
    loaded = gate.load(request.task, request.gate, request.lock)
    with (
        machine.opened(request.task, request.builds, request.sandbox) as where,
        where.lock(request.device_wait_s) as waited,
    ):
        contest = _Contest(request, loaded, where)
        if request.task.work.flops is not None or request.task.work.bytes is not None:
            contest.know_physics()
        failure = None
        try:
            contest.run()
        except _CandidateFailed as failed:
            failure = failed.failure
        finally:
            contest.close()
        taken_on = where.describe()
    _write_samples(request, contest, where, taken_on.model_dump(), waited, failure)
    if failure is not None:
        return Measured(outcome=MeasureOutcome(failure=failure), samples=request.samples)
    if request.candidate is None:
        timings = {name: statistics.summarise(times["baseline"]) for name, times in contest.times.items()}
        times = BaselineTimes(timings=timings, device=taken_on, description=contest.description)
        return BaselineMeasured(times=times, samples=request.samples)
    rounds = {case.name: contest.rounds(case.name) for case in contest.configs}
    scores = statistics.score_intervals(request.task, rounds)
    measurement = Measurement(
        library=contest.digests["candidate"],
        configs=tuple(_config_measurement(name, r, contest.host_us.get(name, {})) for name, r in rounds.items()),
        score=scores.score,
        geomean=scores.geomean,
        gain=scores.gain,
        device=taken_on,
        sandbox=where.isolation,
        seconds=time.monotonic() - begin,
    )
    return Measured(outcome=MeasureOutcome(measurement=measurement), samples=request.samples)


def half_width(
    gain_needed: float, rival_us: Sequence[float], candidate_us: Sequence[float], finest: float = FINEST
) -> float:
    """How exactly, relative, a ratio has to be known before sampling may stop.

    What has to be decided is whether rival over candidate is above `gain_needed` (1 + min_gain against a champion, 1
    against the baseline): the nearer it is, the closer one has to look.
    """
    distance = abs(plain.median(rival_us) / plain.median(candidate_us) / gain_needed - 1)
    return min(max(SHARE_OF_DISTANCE * distance, finest), COARSEST)


class _CandidateFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Blame(Exception):
    def __init__(self, name: Name, question: Question, fault: CandidateFault) -> None:
        super().__init__(fault.message)
        self.name = name
        self.question = question
        self.fault = fault


class _PlayAgain(Exception):
    pass


@dataclass
class _Contest:
    request: Measure
    gate: Gate
    machine: Machine
    times: dict[str, dict[Name, list[float]]] = field(default_factory=dict)  # config -> contestant -> microseconds
    processes: dict[str, list[int]] = field(default_factory=dict)  # config -> the set of processes of each round
    samples: list[dict[str, Any]] = field(default_factory=list)
    digests: dict[Name, str] = field(default_factory=dict)
    floors_us: list[float] = field(default_factory=list)  # one for each set of processes
    physics_us: dict[str, float] = field(default_factory=dict)  # config -> what no call can be shorter than
    description: str = ""
    dropped: str | None = None  # why the champion left the contest
    host_us: dict[str, dict[Name, float]] = field(default_factory=dict)  # config -> contestant, launches included

    def __post_init__(self) -> None:
        request = self.request
        self._libraries: dict[Name, bytes] = {"baseline": read_library(request.baseline)}
        if request.candidate is not None:
            self._libraries["candidate"] = read_library(request.candidate)
        if request.champion is not None:
            self._libraries["champion"] = read_library(request.champion)
        self.digests = {name: hashlib.sha256(content).hexdigest() for name, content in self._libraries.items()}
        self.configs = [Case(name=c.name, args=c.args) for c in request.task.configs]
        self.times = {case.name: {name: [] for name in self._libraries} for case in self.configs}
        self.processes = {case.name: [] for case in self.configs}
        self._runners: dict[Name, Contestant] = {}
        self._set = 0  # of processes, counted
        # One for all contestants: they then read and write the very same pages, whose place in the machine's memory is
        # worth more than many an optimisation. It is safe because all but the one in its call stand still, and because
        # no system call that it may make reaches the pages behind a mapping.
        self._memory: Memory | None = None
        self._kills: dict[Name, int] = {}
        self._voids: dict[tuple[Name, str], int] = {}
        self._disturbed: dict[str, int] = {}
        self._faults: dict[tuple[Name, str], list[int]] = {}
        self._states: dict[tuple[Name, str], list[State]] = {}
        self.throttled: dict[str, int] = {}
        self._calibrated_again = False
        self._turn_s: dict[str, float] = {}  # seconds of the last round of each config
        self._rng = trial.secret_rng()
        # Goldens are made and compared on the runners' core while the next inputs are drawn on the gate's; nothing of
        # it overlaps with a timed call.
        self._checker = ThreadPoolExecutor(1, initializer=self._step_aside)
        self._checking: Future[None] | None = None

    def _step_aside(self) -> None:
        if self.machine.checker_core is not None:
            os.sched_setaffinity(0, {self.machine.checker_core})

    def close(self) -> None:
        self._checker.shutdown(cancel_futures=True)
        self._release()

    def know_physics(self, *, again: bool = False) -> None:
        """Find what no call can be shorter than, from the device's measured peaks."""
        task = self.request.task
        self.physics_us = roofline.floors_us(task, task.configs, self.machine.peaks(again=again))

    # ------------------------------------------------------------ the rounds

    def run(self) -> None:
        """Rounds until every config's ratios are known well enough or the time is up; raises _CandidateFailed."""
        stop_at = time.monotonic() + self.request.max_seconds
        index = in_set = 0
        set_since = 0.0
        waiting = list(self.configs)
        while waiting:
            fresh = not self._runners
            try:
                if fresh:
                    self._start()
                for case in self._in_random_order(waiting):
                    self._turns(index, case, keep=not fresh)
                self._join()
            except _Blame as blame:
                self._blame(blame)
                self._release()
                continue
            except _PlayAgain:
                self._release()
                continue
            if fresh:
                in_set, set_since = 0, time.monotonic()
                continue
            index += 1
            in_set += 1
            late = time.monotonic() > stop_at
            waiting = [case for case in waiting if not self._known(case, late)]
            if not waiting:
                self._drop_throttled()
                self._host_times()
            if in_set >= self.machine.rounds_per_process or (not late and self._set_is_old(set_since)):
                self._release()

    def rounds(self, config: str) -> statistics.Rounds:
        """The times of a config so far. Without a candidate the baseline stands in its place."""
        times = self.times[config]
        candidate = times.get("candidate", times["baseline"])
        processes = self.processes[config] if self.machine.processes_differ else None
        return statistics.Rounds(times["baseline"], candidate, times.get("champion"), processes)

    def _set_is_old(self, since: float) -> bool:
        """Whether a set of processes has had its share: slow rounds must leave time for as many as a title takes."""
        if not self.machine.processes_differ or "champion" not in self._libraries:
            return False
        return time.monotonic() - since > self.request.max_seconds / (2 * statistics.MIN_SETS)

    def _drop_throttled(self) -> None:
        """Leave out rounds in which the device was held down. Raises MachineError when those are too many."""
        for config, times in self.times.items():
            bad: set[int] = set()
            for name in times:
                states = self._states.get((name, config), [])
                bad.update(gpu_state.judge_samples([s.sm_mhz for s in states], [s.throttle for s in states]))
            if bad and len(next(iter(times.values()))) - len(bad) < ROUNDS_AT_LEAST:
                raise MachineError(f"the device was throttled in {len(bad)} rounds of {config}, and too few are left")
            for name, values in times.items():
                times[name] = [us for index, us in enumerate(values) if index not in bad]
            self.processes[config] = [n for index, n in enumerate(self.processes[config]) if index not in bad]
            self.throttled[config] = len(bad)

    def _host_times(self) -> None:
        """A few calls as their caller waits for them: a column of its own, beside the times that decide."""
        for case in self.configs:
            question = trial.ask(self.gate, self.request.task, case, self.gate.distributions[0], self._rng)
            for name, runner in self._runners.items():
                times = []
                for _ in range(HOST_CALLS):
                    filled, slots = trial.prepare(runner, self.request.task, question, self._rng, stages=False)
                    times.append(self.machine.host_us(runner, filled, slots, CALL_TIMEOUT_S))
                known = [us for us in times if us is not None]
                if known:
                    self.host_us.setdefault(case.name, {})[name] = plain.median(known)

    def _in_random_order(self, waiting: list[Case]) -> list[Case]:
        """Every config once, and the quick ones as often as the slowest leaves time for."""
        slowest = max(self._turn_s.values(), default=0.0)
        often = []
        for case in waiting:
            own = self._turn_s.get(case.name, 0.0)
            often += [case] * (min(int(slowest / own), TURNS_AT_MOST) if 0 < own < slowest else 1)
        return [often[place] for place in self._rng.permutation(len(often))]

    def _known(self, case: Case, late: bool) -> bool:
        rounds = self.rounds(case.name)
        champion, candidate = rounds.champion_us, rounds.candidate_us
        # Of a handful of rounds an interval looks surer than it is, and a title hangs on this one.
        if len(candidate) < (statistics.MIN_ROUNDS if champion is not None else ROUNDS_AT_LEAST):
            return False
        if late:
            return True
        min_gain = self.request.task.search.min_gain
        if champion is not None:
            # A CPU is too noisy to know a near tie any better within minutes.
            finest = max(min_gain, FINEST) if self.request.task.language is Language.CPP else FINEST
            target = half_width(1 + min_gain, champion, candidate, finest)
        else:
            target = max(half_width(1, rounds.baseline_us, candidate), min_gain)  # nothing is decided by it yet
        return statistics.enough(rounds, target)

    def _turns(self, index: int, case: Case, *, keep: bool) -> None:
        """One round on one config: the same inputs at the same new addresses, one call each, in random order."""
        begin = time.monotonic()
        distribution = str(self._rng.choice(self.gate.distributions))
        question = trial.ask(self.gate, self.request.task, case, distribution, self._rng)
        self._join()
        assert self._memory is not None
        offsets = self._memory.layout(question.buffers, self._rng)
        order: list[Name] = [list(self._runners)[i] for i in self._rng.permutation(len(self._runners))]
        answers: dict[Name, Answered] = {}
        for name in order:
            try:
                answered = trial.put(
                    self._runners[name], self.request.task, question, self._rng,
                    stages=False, flush=True, timeout_s=CALL_TIMEOUT_S, offsets=offsets,
                )  # fmt: skip
                answers[name] = replace(answered, state=self.machine.state())
            except CandidateFault as fault:
                raise _Blame(name, question, fault) from None
            except RunnerKilled as killed:
                raise self._killed(name, question, killed) from None
        self._checking = self._checker.submit(self._check, question, answers)
        self._turn_s[case.name] = time.monotonic() - begin
        self._take(index, question, order, answers, keep=keep)

    def _take(
        self, index: int, question: Question, order: list[Name], answers: dict[Name, Answered], *, keep: bool
    ) -> None:
        us = {name: answers[name].microseconds for name in order}
        disturbed = [name for name in order if self.machine.watched and answers[name].disturbed]
        disturbed += [name for name in order if name not in disturbed and self._robbed(name, question, answers[name])]
        key = question.case.name
        lost = self._disturbed.get(key, 0)
        left_out = bool(disturbed) and lost < len(self.times[key]["baseline"]) + DISTURBED_MORE
        self._disturbed[key] = lost + left_out
        floor = max(self.floors_us[-1], self.physics_us.get(key, 0.0))
        under = [name for name in order if us[name] <= floor]
        self.samples.append(
            {
                "round": index,
                "processes": self._set,
                "config": question.case.name,
                "distribution": question.distribution,
                "order": order,
                "microseconds": us,
                "sm_mhz": {name: mhz for name in order if (mhz := answers[name].state.sm_mhz) is not None},
                "disturbed": disturbed,
                "used": keep and not under and not left_out,
            }
        )
        for name in sorted(under):  # the baseline first: where even it is too fast, the config is too small to time
            # A sample that ran no longer than a call that does nothing says nothing; the whole round is void.
            count = self._voids[name, key] = self._voids.get((name, key), 0) + 1
            if count >= VOID_LIMIT and count > len(self.times[key][name]):
                if floor > self.floors_us[-1] and not self._calibrated_again:
                    # Peaks that were measured beside a busy neighbour are too low, and floors of them too high.
                    self._calibrated_again = True
                    self.know_physics(again=True)
                    self._voids[name, key] = 0
                    continue
                least = "an empty call" if floor == self.floors_us[-1] else "moving and computing what work: says takes"
                message = f"{count} calls took no longer than {least} ({floor:.3f} us), last {us[name]:.3f} us"
                raise _Blame(name, question, CandidateFault(FailureKind.TOO_FAST, message))
        if self.samples[-1]["used"]:
            self.processes[key].append(self._set)
            for name, value in us.items():
                self.times[key][name].append(value)
                self._states.setdefault((name, key), []).append(answers[name].state)

    def _robbed(self, name: Name, question: Question, answered: Answered) -> bool:
        """Whether a rival had to fetch pages that it normally has: its time is too long through no fault of its own.

        A candidate's own faults are its own affair, and never make a round count less.
        """
        usual = self._faults.setdefault((name, question.case.name), [])
        known = plain.median(usual) if usual else answered.faults
        usual.append(answered.faults)
        return name != "candidate" and answered.faults > 2 * known + FAULTS_MORE

    # ------------------------------------------------------------ checking

    def _check(self, question: Question, answers: dict[Name, Answered]) -> None:
        golden = self.gate.golden(question.inputs, question.case.args)
        for name, answered in answers.items():
            try:
                trial.check(self.gate, answered, golden)
            except CandidateFault as fault:
                message = f"passed the judge, but an answer of a timed call is wrong: {fault.message}"
                wrong = CandidateFault(FailureKind.TIMED_WRONG, message, fault.tensor, fault.metrics)
                raise _Blame(name, question, wrong) from None

    def _join(self) -> None:
        if self._checking is not None:
            checking, self._checking = self._checking, None
            checking.result()

    def _killed(self, name: Name, question: Question, killed: RunnerKilled) -> Exception:
        """Once may be the machine, and the round is played again; a second time is the candidate's doing."""
        self._kills[name] = self._kills.get(name, 0) + 1
        log.warning("runner_killed", contestant=name, times=self._kills[name], reason=str(killed))
        if self._kills[name] == 1:
            return _PlayAgain()
        if name != "candidate":
            return RunnerLost(f"the runner of the {name} was killed {self._kills[name]} times: {killed}")
        return _Blame(name, question, CandidateFault(FailureKind.CRASHED, "ended by SIGKILL in two fresh processes"))

    def _blame(self, blame: _Blame) -> None:
        """Turn a fault into what it means for the measurement; returns when the contest may go on."""
        name, fault, told = blame.name, blame.fault, blame.question.told
        if name == "baseline":
            source = self.request.task.baseline.source
            raise GateError(f"the baseline ({source}) fails its own gate on {told}: {fault.message}")
        if name == "champion":
            # It passed the judge and is wrong all the same: it can hold no title against a kernel that is right.
            self.dropped = f"{told}: {fault.message}"
            log.error("champion_disproved", case=told, reason=fault.message)
            self._libraries.pop("champion")
            for times in self.times.values():
                times.pop("champion")
            return
        raise _CandidateFailed(
            Failure(
                kind=fault.kind,
                verification=VerificationStage.STRESS,
                case=blame.question.case.name,
                first_failing_stage=fault.tensor,
                message=f"{told}: {fault.message}",
                metrics=fault.metrics,
            )
        )

    # ------------------------------------------------------------ the runners

    def _start(self) -> None:
        if self._memory is None:
            gate.check_memory(self.request.task, self.configs)
            self._memory = self.machine.memory(trial.shapes(self.request.task, self.configs))
        self._set += 1
        loading = Question(self.configs[0], "loading", {}, (), {}, {})
        self.machine.expect(self._memory, len(self._libraries), self.request.baseline)
        for name in list(self._libraries):
            try:
                if name == "baseline":
                    runner = self.machine.contestant(self._memory, trusted=self.request.baseline)
                    self.description = runner.description
                else:
                    runner = self.machine.contestant(self._memory, candidate=self._libraries[name])
                self._runners[name] = runner
                if name == "baseline":  # the only runner whose word on doing nothing can be trusted
                    self.floors_us.append(min(runner.empty(self._rng) for _ in range(EMPTY_CALLS)))
            except CandidateFault as fault:
                raise _Blame(name, loading, fault) from None
            except RunnerKilled as killed:
                raise self._killed(name, loading, killed) from None

    def _release(self) -> None:
        if self._checking is not None:
            with contextlib.suppress(Exception):  # an answer of a round that is already void
                self._checking.result()
            self._checking = None
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _config_measurement(name: str, rounds: statistics.Rounds, host_us: dict[Name, float]) -> ConfigMeasurement:
    champion = statistics.summarise(rounds.champion_us) if rounds.champion_us is not None else None
    baseline = statistics.summarise(rounds.baseline_us)
    return ConfigMeasurement(
        config=name,
        baseline=baseline,
        candidate=statistics.summarise(rounds.candidate_us),
        champion=champion,
        ratio=statistics.ratio_interval(rounds),
        champion_ratio=baseline.median_us / champion.median_us if champion is not None else None,
        baseline_host_us=host_us.get("baseline"),
        candidate_host_us=host_us.get("candidate"),
    )


def _write_samples(
    request: Measure,
    contest: _Contest,
    where: Machine,
    taken_on: dict[str, Any],
    waited: float,
    failure: Failure | None,
) -> None:
    content = {
        "task": request.task.name,
        "gate": request.lock.digest,
        "libraries": contest.digests,
        "device": taken_on,
        "sandbox": where.isolation,
        "waited_for_device_s": round(waited, 3),
        "empty_call_us": contest.floors_us,
        "physics_floor_us": contest.physics_us,
        "throttled_rounds": contest.throttled,
        "champion_dropped": contest.dropped,
        "failure": failure.model_dump(mode="json") if failure is not None else None,
        "rounds": contest.samples,
    }
    write_atomically(request.samples, json.dumps(content, separators=(",", ":")))


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name in the same folder, then rename: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
