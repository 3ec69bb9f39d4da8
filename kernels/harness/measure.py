"""Who is faster: contestants take turns on one core, on the same fresh inputs, and every timed answer is checked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics as plain
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import structlog

from kernels.harness import arena, device, gate, statistics, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.gate import Case, Gate
from kernels.harness.judge import read_library
from kernels.harness.requests import BaselineMeasured, Measure, Measured
from kernels.harness.runner import Runner, RunnerKilled, Tools
from kernels.harness.trial import Answered, Question
from specs.errors import GateError, RunnerLost
from specs.outcomes import (
    BaselineTimes,
    ConfigMeasurement,
    Failure,
    FailureKind,
    Measurement,
    MeasureOutcome,
    VerificationStage,
)

log = structlog.get_logger()

Name = Literal["baseline", "candidate", "champion"]

# Every so many rounds all runners are replaced: where a process happens to lie in memory makes one of two identical
# kernels faster for as long as it lives. The first round of a new set is checked, but its times are dropped.
ROUNDS_PER_PROCESS = 10
CALL_TIMEOUT_S = 20.0
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

# How exactly ratios have to be known: min_gain near the decision, less where the contestants are far apart.
SHARE_OF_DISTANCE = 0.25
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
        trial.tools(request.task, request.builds, request.sandbox) as tools,
        device.lock(tools.cores.runner, request.device_wait_s) as waited,
    ):
        contest = _Contest(request, loaded, tools)
        failure = None
        try:
            contest.run()
        except _CandidateFailed as failed:
            failure = failed.failure
        finally:
            contest.close()
        taken_on = device.describe(tools.cores)
    _write_samples(request, contest, tools, taken_on.model_dump(), waited, failure)
    if failure is not None:
        return Measured(outcome=MeasureOutcome(failure=failure), samples=request.samples)
    if request.candidate is None:
        timings = {name: statistics.summarise(times["baseline"]) for name, times in contest.times.items()}
        times = BaselineTimes(timings=timings, device=taken_on, description=contest.description)
        return BaselineMeasured(times=times, samples=request.samples)
    rounds = {name: _rounds(times) for name, times in contest.times.items()}
    scores = statistics.score_intervals(request.task, rounds)
    measurement = Measurement(
        library=contest.digests["candidate"],
        configs=tuple(_config_measurement(name, r) for name, r in rounds.items()),
        score=scores.score,
        geomean=scores.geomean,
        gain=scores.gain,
        device=taken_on,
        sandbox=tools.isolation,
        seconds=time.monotonic() - begin,
    )
    return Measured(outcome=MeasureOutcome(measurement=measurement), samples=request.samples)


def half_width(min_gain: float, rival_us: list[float], candidate_us: list[float]) -> float:
    """How exactly, relative, a ratio has to be known before sampling may stop."""
    distance = abs(plain.median(rival_us) / plain.median(candidate_us) - 1)
    return min(max(SHARE_OF_DISTANCE * distance, min_gain, FINEST), COARSEST)


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
    tools: Tools
    times: dict[str, dict[Name, list[float]]] = field(default_factory=dict)  # config -> contestant -> microseconds
    samples: list[dict[str, Any]] = field(default_factory=list)
    digests: dict[Name, str] = field(default_factory=dict)
    floors_us: list[float] = field(default_factory=list)  # one for each set of processes
    description: str = ""
    dropped: str | None = None  # why the champion left the contest

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
        self._runners: dict[Name, Runner] = {}
        # One for all contestants: they then read and write the very same pages, whose place in the machine's memory is
        # worth more than many an optimisation. It is safe because all but the one in its call stand still, and because
        # no system call that it may make reaches the pages behind a mapping.
        self._arena: arena.Arena | None = None
        self._kills: dict[Name, int] = {}
        self._voids: dict[tuple[Name, str], int] = {}
        self._disturbed: dict[str, int] = {}
        self._faults: dict[tuple[Name, str], list[int]] = {}
        self._rng = trial.secret_rng()
        # Goldens are made and compared on the runners' core while the next inputs are drawn on the gate's; nothing of
        # it overlaps with a timed call.
        self._checker = ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, {self.tools.cores.runner}))
        self._checking: Future[None] | None = None

    def close(self) -> None:
        self._checker.shutdown(cancel_futures=True)
        self._release()

    # ------------------------------------------------------------ the rounds

    def run(self) -> None:
        """Rounds until every config's ratios are known well enough or the time is up; raises _CandidateFailed."""
        stop_at = time.monotonic() + self.request.max_seconds
        index = 0
        waiting = list(self.configs)
        while waiting:
            fresh = not self._runners
            try:
                if fresh:
                    self._start()
                for place in self._rng.permutation(len(waiting)):
                    self._turns(index, waiting[place], keep=not fresh)
                self._join()
            except _Blame as blame:
                self._blame(blame)
                self._release()
                continue
            except _PlayAgain:
                self._release()
                continue
            if fresh:
                continue
            index += 1
            late = time.monotonic() > stop_at
            waiting = [case for case in waiting if not self._known(case, late)]
            if index % ROUNDS_PER_PROCESS == 0:
                self._release()

    def _known(self, case: Case, late: bool) -> bool:
        times = self.times[case.name]
        rounds = len(times["baseline"])
        if rounds < ROUNDS_AT_LEAST:
            return False
        if late:
            return True
        candidate = times.get("candidate", times["baseline"])
        rival = times.get("champion", times["baseline"])
        target = half_width(self.request.task.search.min_gain, rival, candidate)
        return statistics.enough(times["baseline"], candidate, times.get("champion"), target)

    def _turns(self, index: int, case: Case, *, keep: bool) -> None:
        """One round on one config: the same inputs at the same new addresses, one call each, in random order."""
        distribution = str(self._rng.choice(self.gate.distributions))
        question = trial.ask(self.gate, self.request.task, case, distribution, self._rng)
        self._join()
        offsets = arena.draw_layout(question.buffers, self._rng)
        order: list[Name] = [list(self._runners)[i] for i in self._rng.permutation(len(self._runners))]
        answers: dict[Name, Answered] = {}
        for name in order:
            try:
                answers[name] = trial.put(
                    self._runners[name], self.request.task, question, self._rng,
                    stages=False, flush=True, timeout_s=CALL_TIMEOUT_S, offsets=offsets,
                )  # fmt: skip
            except CandidateFault as fault:
                raise _Blame(name, question, fault) from None
            except RunnerKilled as killed:
                raise self._killed(name, question, killed) from None
        self._checking = self._checker.submit(self._check, question, answers)
        self._take(index, question, order, answers, keep=keep)

    def _take(
        self, index: int, question: Question, order: list[Name], answers: dict[Name, Answered], *, keep: bool
    ) -> None:
        us = {name: answers[name].microseconds for name in order}
        disturbed = [name for name in order if self.tools.cores.spin and answers[name].disturbed]
        disturbed += [name for name in order if name not in disturbed and self._robbed(name, question, answers[name])]
        key = question.case.name
        lost = self._disturbed.get(key, 0)
        left_out = bool(disturbed) and lost < len(self.times[key]["baseline"]) + DISTURBED_MORE
        self._disturbed[key] = lost + left_out
        under = [name for name in order if us[name] <= self.floors_us[-1]]
        self.samples.append(
            {
                "round": index,
                "config": question.case.name,
                "distribution": question.distribution,
                "order": order,
                "microseconds": us,
                "disturbed": disturbed,
                "used": keep and not under and not left_out,
            }
        )
        for name in sorted(under):  # the baseline first: where even it is too fast, the config is too small to time
            # A sample that ran no longer than a call that does nothing says nothing; the whole round is void.
            count = self._voids[name, key] = self._voids.get((name, key), 0) + 1
            if count >= VOID_LIMIT and count > len(self.times[key][name]):
                floor = self.floors_us[-1]
                calls = f"{count} calls"
                message = f"{calls} took no longer than an empty call ({floor:.3f} us), last {us[name]:.3f} us"
                raise _Blame(name, question, CandidateFault(FailureKind.TOO_FAST, message))
        if self.samples[-1]["used"]:
            for name, value in us.items():
                self.times[key][name].append(value)

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
        if self._arena is None:
            gate.check_memory(self.request.task, self.configs)
            self._arena = arena.Arena(trial.arena_bytes(self.request.task, self.configs))
        loading = Question(self.configs[0], "loading", {}, (), {}, {})
        for name in list(self._libraries):
            try:
                if name == "baseline":
                    runner = Runner(self.tools, self._arena, trusted=self.request.baseline)
                    self.description = runner.description
                else:
                    runner = Runner(self.tools, self._arena, candidate=self._libraries[name])
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
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def _rounds(times: dict[Name, list[float]]) -> statistics.Rounds:
    return statistics.Rounds(times["baseline"], times["candidate"], times.get("champion"))


def _config_measurement(name: str, rounds: statistics.Rounds) -> ConfigMeasurement:
    champion = statistics.summarise(rounds.champion_us) if rounds.champion_us is not None else None
    baseline = statistics.summarise(rounds.baseline_us)
    return ConfigMeasurement(
        config=name,
        baseline=baseline,
        candidate=statistics.summarise(rounds.candidate_us),
        champion=champion,
        ratio=statistics.ratio_interval(rounds.baseline_us, rounds.candidate_us),
        champion_ratio=baseline.median_us / champion.median_us if champion is not None else None,
    )


def _write_samples(
    request: Measure, contest: _Contest, tools: Tools, taken_on: dict[str, Any], waited: float, failure: Failure | None
) -> None:
    content = {
        "task": request.task.name,
        "gate": request.lock.digest,
        "libraries": contest.digests,
        "device": taken_on,
        "sandbox": tools.isolation,
        "waited_for_device_s": round(waited, 3),
        "empty_call_us": contest.floors_us,
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
