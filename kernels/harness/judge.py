"""Right or wrong: the stages of verification, one call after the other, each on inputs nobody has seen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import structlog

from kernels.harness import gate, machine, sanitize, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.gate import Case, Gate
from kernels.harness.machine import Contestant, Machine, Memory
from kernels.harness.requests import Judge
from kernels.harness.runner import RunnerKilled
from kernels.harness.trial import Answered, Question
from specs.errors import RunnerLost, UserError
from specs.outcomes import Failure, FailureKind, Metrics, Verdict, VerificationStage
from specs.schema import ArgumentKind, Task

log = structlog.get_logger()

CHEAP_BYTES = 4 << 20  # configs up to this size meet every distribution, larger ones only when they are the cheapest
STRESS_CALLS = (48, 96)  # on the gate's edge cases; how many is drawn, so that a counter cannot wait for the end
STRESS_CALLS_LARGE = (8, 16)  # on the cheapest config, when the gate lists no edge cases
DEVICE_WAIT_S = 600.0  # as long as a measurement may wait for us


Examine = Callable[[Contestant, Question, np.random.Generator], None]


class _Refused(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def judge(request: Judge) -> Verdict:
    """Prove an object right, or say the first thing that is wrong with it.

    Raises GateError (GateTampered) when the gate cannot be used, RunnerLost when runners are killed from outside,
    DeviceBusy when a measurement holds the device for too long.
    """
    begin = time.monotonic()
    loaded = gate.load(request.task, request.gate, request.lock)
    library = read_library(request.library)
    failure, memory_check = None, ""
    with (
        machine.opened(request.task, request.builds, request.sandbox) as where,
        where.lock(DEVICE_WAIT_S, shared=True),
    ):
        trusted = request.library if request.role == "baseline" else None
        court = _Court(request.task, loaded, where, library, trusted, request.held_out, request.call_timeout_s)
        try:
            court.hear(public=request.scope == "public")
            if request.role == "candidate" and request.scope == "full":
                memory_check = _check_memory(request, loaded, library, where)
        except _Refused as refused:
            failure = refused.failure
        finally:
            court.close()
    return Verdict(
        passed=failure is None,
        failure=failure,
        library=hashlib.sha256(library).hexdigest(),
        gate=request.lock.digest,
        cases=court.calls,
        worst=tuple(court.worst[name] for name in loaded.limits if name in court.worst),
        sandbox=where.isolation,
        memory_check=memory_check,
        seconds=time.monotonic() - begin,
        scope=request.scope,
    )


def _check_memory(request: Judge, loaded: Gate, library: bytes, where: Machine) -> str:
    """The last part of the stress stage: code at work under a checker of memory. A sentence, or _Refused."""
    try:
        return where.check_memory(loaded, library, request.source)
    except CandidateFault as fault:
        case = fault.case if isinstance(fault, sanitize.MemoryFault) else "memory check"
        found = Failure(kind=fault.kind, verification=VerificationStage.STRESS, case=case, message=fault.message)
        raise _Refused(found) from None


def read_library(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"library {path}: {error.strerror}; a shared object made by the build is needed") from None


@dataclass
class _Court:
    """One judgement: the runner, its case list, and what has been seen so far."""

    task: Task
    gate: Gate
    machine: Machine
    library: bytes
    trusted: Path | None  # where the vendor's object lies, when it is that which is judged
    held_out: bool
    timeout_s: float
    calls: int = 0
    worst: dict[str, Metrics] = field(default_factory=dict)
    _runner: Contestant | None = None
    _memory: Memory | None = None
    _lost: int = 0

    def __post_init__(self) -> None:
        self.configs = [Case(name=c.name, args=c.args) for c in self.task.configs]
        self.edges = [*self.gate.edges, *(self.gate.held_out if self.held_out else ())]
        self.has_stages = bool(trial.interface_of(self.task).of(ArgumentKind.STAGE))

    def hear(self, *, public: bool) -> None:
        """All stages in order, or those that look at the configs alone; raises _Refused at the first failure."""
        common = self.gate.distributions[0]
        for case in self.configs:
            self._try(VerificationStage.NUMERICS, case, common, self._right)
        for case in self._cheap():
            for distribution in self.gate.distributions:
                self._try(VerificationStage.RANGES, case, distribution, self._right)
        for case in () if public else self.edges:
            self._try(VerificationStage.EDGES, case, common, self._right)
        if self.gate.deterministic:
            for case in self._cheap():
                self._try(VerificationStage.DETERMINISM, case, common, self._repeatable)
        if not public:
            self._stress()

    def close(self) -> None:
        self._release()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _release(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _stress(self) -> None:
        """Many calls of one process, cases and distributions mixed."""
        rng = trial.secret_rng()
        cases, (low, high) = (self.edges, STRESS_CALLS) if self.edges else (self._cheap()[:1], STRESS_CALLS_LARGE)
        for _ in range(int(rng.integers(low, high))):
            case = cases[int(rng.integers(len(cases)))]
            distribution = str(rng.choice(self.gate.distributions))
            self._try(VerificationStage.STRESS, case, distribution, self._right_once)

    def _cheap(self) -> list[Case]:
        by_size = sorted(self.configs, key=lambda case: trial.case_bytes(self.task, case))
        return [case for i, case in enumerate(by_size) if i == 0 or trial.case_bytes(self.task, case) <= CHEAP_BYTES]

    # ------------------------------------------------------------ one case

    def _try(self, stage: VerificationStage, case: Case, distribution: str, examine: Examine) -> None:
        told = case.name
        for attempt in (1, 2):
            try:
                runner = self._loaded()
                rng = trial.secret_rng()  # drawn after the object was loaded, anew for every case
                question = trial.ask(self.gate, self.task, case, distribution, rng)
                told = question.told
                examine(runner, question, rng)
            except CandidateFault as fault:
                raise _Refused(_failure(stage, case, told, fault)) from None
            except RunnerKilled as killed:
                self._release()
                self._lost += 1
                log.warning("runner_killed", case=case.name, attempt=attempt, reason=str(killed))
                if attempt == 2:
                    # Once can be the machine. Twice in one case and in no other is the candidate's doing.
                    again = CandidateFault(FailureKind.CRASHED, "ended by SIGKILL in two fresh processes")
                    raise _Refused(_failure(stage, case, told, again)) from None
                if self._lost > 1:
                    told = f"runners were killed in {self._lost} different cases, last in {case.name}"
                    raise RunnerLost(f"{told}: {killed}") from killed
            else:
                return

    def _loaded(self) -> Contestant:
        if self._runner is None:
            if self._memory is None:
                gate.check_memory(self.task, [*self.configs, *self.edges])
                self._memory = self.machine.memory(trial.shapes(self.task, [*self.configs, *self.edges]))
            if self.trusted is not None:
                self._runner = self.machine.contestant(self._memory, trusted=self.trusted)
            else:
                self._runner = self.machine.contestant(self._memory, candidate=self.library)
        return self._runner

    def _right(self, runner: Contestant, question: Question, rng: np.random.Generator) -> None:
        """With the stage tensors asked for, then without; the golden is made only when the outputs are in."""
        asked = (True, False) if self.has_stages else (False,)
        answers = [self._put(runner, question, rng, stages=stages) for stages in asked]
        golden = self.gate.golden(question.inputs, question.case.args)
        for answered in answers:
            for metrics in trial.check(self.gate, answered, golden):
                self._remember(metrics)
        if len(answers) == 2 and self.gate.deterministic:
            self._same_without_stages(runner, question, rng, *answers)

    def _same_without_stages(
        self, runner: Contestant, question: Question, rng: np.random.Generator, with_stages: Answered, without: Answered
    ) -> None:
        try:
            trial.check_same(with_stages, without, FailureKind.STAGE_DISAGREES, "with and without the stage tensors")
        except CandidateFault:
            # A kernel that never answers twice alike differs here too, for no reason of the stage tensors'.
            again = self._put(runner, question, rng, stages=False)
            trial.check_same(without, again, FailureKind.NOT_DETERMINISTIC, "between two calls on the same input")
            raise

    def _right_once(self, runner: Contestant, question: Question, rng: np.random.Generator) -> None:
        answered = self._put(runner, question, rng, stages=False)
        for metrics in trial.check(self.gate, answered, self.gate.golden(question.inputs, question.case.args)):
            self._remember(metrics)

    def _repeatable(self, runner: Contestant, question: Question, rng: np.random.Generator) -> None:
        first, second = (self._put(runner, question, rng, stages=False) for _ in range(2))
        golden = self.gate.golden(question.inputs, question.case.args)
        trial.check_same(first, second, FailureKind.NOT_DETERMINISTIC, "between two calls on the same input")
        trial.check(self.gate, first, golden)

    def _put(self, runner: Contestant, question: Question, rng: np.random.Generator, *, stages: bool) -> trial.Answered:
        answered = trial.put(runner, self.task, question, rng, stages=stages, flush=False, timeout_s=self.timeout_s)
        self.calls += 1
        return answered

    def _remember(self, metrics: Metrics) -> None:
        known = self.worst.get(metrics.tensor)
        if known is None or _badness(metrics) > _badness(known):
            self.worst[metrics.tensor] = metrics


def _badness(metrics: Metrics) -> tuple[float, float]:
    return metrics.mismatch_fraction or 0.0, metrics.rel_l2 or 0.0


def _failure(stage: VerificationStage, case: Case, told: str, fault: CandidateFault) -> Failure:
    return Failure(
        kind=fault.kind,
        verification=stage,
        case=case.name,
        first_failing_stage=fault.tensor,
        message=f"{told}: {fault.message}",
        metrics=fault.metrics,
    )
