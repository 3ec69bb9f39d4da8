"""What the harness is asked, and the process boundary it is asked across.

Activities never import the judge: they write a request, start `python -m kernels.harness serve REQUEST REPLY`
as a process of its own (the gate process) and read the reply. The command line builds the same requests, so
what a person runs by hand is what a run does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.outcomes import BaselineTimes, BuildResult, Device, Digest, MeasureOutcome, SelfReported, Value, Verdict
from specs.schema import Task

Sandbox = Literal["required", "preferred", "off"]


class GateLock(Value):
    """The content of a gate at the moment it was locked."""

    digest: Digest  # over every file below, the interface, tolerances and flags
    files: dict[str, Digest]  # path inside the gate folder -> sha256
    # Limits found from the baseline's own error, tensor -> metric -> limit; the digest covers them too.
    calibration: dict[str, dict[str, float]] = Field(default_factory=dict)


class LockGate(Value):
    """Hash a gate folder and check that it is usable for the task, and that no mutant gets through it.

    A gate with calibrated limits needs the built baseline for its numbers. Without one it is only rehearsed, and the
    reply names the tensors that are still to be calibrated.
    """

    kind: Literal["lock_gate"] = "lock_gate"
    task: Task
    gate: Path  # folder
    baseline: Path | None = None  # shared object of the vendor's baseline
    builds: Path | None = None  # needed with a baseline
    sandbox: Sandbox = "preferred"

    @model_validator(mode="after")
    def _a_baseline_is_run(self) -> Self:
        if self.baseline is not None and self.builds is None:
            raise ValueError("a baseline is run, which needs a folder of builds")
        return self


class Build(Value):
    """Compile one source into a shared object under `builds/<key>/`."""

    kind: Literal["build"] = "build"
    task: Task
    source: Path
    role: Literal["candidate", "baseline"] = "candidate"
    production: bool = False  # adds build.production_flags
    builds: Path  # folder of content-addressed builds
    timeout_s: float = Field(default=300, gt=0)


class Judge(Value):
    """Prove a shared object right or wrong against a locked gate."""

    kind: Literal["judge"] = "judge"
    task: Task
    gate: Path
    lock: GateLock
    library: Path
    source: Path | None = None  # what the library was built from: a C++ kernel is then checked with sanitizers too
    role: Literal["candidate", "baseline"] = "candidate"  # a baseline is ours: it may bring the vendor's libraries
    builds: Path
    held_out: bool = False  # also the gate's held-out cases: final acceptance only
    # public: a quick look at the configs alone, for an optimiser on its way. Its verdict says so and decides nothing.
    scope: Literal["full", "public"] = "full"
    sandbox: Sandbox = "preferred"
    call_timeout_s: float = Field(default=20, gt=0)  # for one call of the candidate

    @model_validator(mode="after")
    def _held_out_is_not_public(self) -> Self:
        if self.held_out and self.scope == "public":
            raise ValueError("held-out cases are none of the public ones; accepted: scope 'full' with held_out")
        return self


class Measure(Value):
    """Time a judged object against the baseline, and the champion if there is one, in the same rounds."""

    kind: Literal["measure"] = "measure"
    task: Task
    gate: Path
    lock: GateLock
    baseline: Path
    candidate: Path | None = None  # None: the baseline alone
    champion: Path | None = None
    builds: Path
    samples: Path  # where the raw samples go, as JSON
    sandbox: Sandbox = "preferred"
    max_seconds: float = Field(default=120, gt=0)  # sampling stops here at the latest
    device_wait_s: float = Field(default=600, ge=0)  # how long to wait for the device lock

    @model_validator(mode="after")
    def _champion_needs_a_challenger(self) -> Self:
        if self.champion is not None and self.candidate is None:
            raise ValueError("a champion is measured only beside a candidate")
        return self


class RunProgram(Value):
    """Run a self-contained program once and read what it reports of itself."""

    kind: Literal["run_program"] = "run_program"
    task: Task
    program: Path  # executable
    sandbox: Sandbox = "preferred"
    timeout_s: float = Field(default=600, gt=0)  # for the whole run: its own reference, baseline and every config
    device_wait_s: float = Field(default=600, ge=0)  # how long to wait for the device lock


class Inspect(Value):
    """Count what stands in the machine code of a built object; nothing of it runs but a Triton launcher, recorded."""

    kind: Literal["inspect"] = "inspect"
    task: Task
    library: Path
    sandbox: Sandbox = "preferred"


class Profile(Value):
    """Say what bounds a correct kernel on one config: a GPU's counters where they can be read, else the roofline."""

    kind: Literal["profile"] = "profile"
    task: Task
    gate: Path
    lock: GateLock
    library: Path
    config: str
    time_us: float = Field(gt=0, allow_inf_nan=False)  # as the measurement found it on that config
    builds: Path
    sandbox: Sandbox = "preferred"
    device_wait_s: float = Field(default=600, ge=0)


Request = Annotated[LockGate | Build | Judge | Measure | RunProgram | Inspect | Profile, Field(discriminator="kind")]


class Refusal(Value):
    """Why there is no outcome: our fault, the machine's or the gate's, never the candidate's."""

    error: str  # class name in specs.errors
    message: str
    retryable: bool


class Locked(Value):
    kind: Literal["locked"] = "locked"
    lock: GateLock
    uncalibrated: tuple[str, ...] = ()  # tensors whose limits still need the baseline; such a lock judges nothing


class Built(Value):
    kind: Literal["built"] = "built"
    result: BuildResult
    library: Path | None = None


class Judged(Value):
    kind: Literal["judged"] = "judged"
    verdict: Verdict


class Measured(Value):
    kind: Literal["measured"] = "measured"
    outcome: MeasureOutcome
    samples: Path | None = None


class BaselineMeasured(Value):
    kind: Literal["baseline_measured"] = "baseline_measured"
    times: BaselineTimes
    samples: Path | None = None


class ProgramRan(Value):
    kind: Literal["program_ran"] = "program_ran"
    report: SelfReported


class Inspected(Value):
    """A digest of machine code, or why there is none."""

    kind: Literal["inspected"] = "inspected"
    digest: str = Field(default="", max_length=2500)
    reason: str = ""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.digest) == bool(self.reason):
            raise ValueError("an inspection yields a digest or a reason, exactly one")
        return self


Bottleneck = Literal["memory", "compute", "latency", "balanced", "unknown"]


class Profiled(Value):
    kind: Literal["profiled"] = "profiled"
    bottleneck: Bottleneck
    source: Literal["counters", "roofline"]  # read from the device, or derived from the time and the task's `work`
    digest: str = Field(min_length=1, max_length=2000)


Result = Annotated[
    Locked | Built | Judged | Measured | BaselineMeasured | ProgramRan | Inspected | Profiled,
    Field(discriminator="kind"),
]


class Reply(Value):
    """What `serve` writes: a result or a refusal, exactly one."""

    result: Result | None = None
    refusal: Refusal | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.result is None) == (self.refusal is None):
            raise ValueError("a reply carries a result or a refusal, exactly one")
        return self


__all__ = [
    "BaselineMeasured",
    "Bottleneck",
    "Build",
    "Built",
    "Device",
    "GateLock",
    "Inspect",
    "Inspected",
    "Judge",
    "Judged",
    "LockGate",
    "Locked",
    "Measure",
    "Measured",
    "Profile",
    "Profiled",
    "ProgramRan",
    "Refusal",
    "Reply",
    "Request",
    "RunProgram",
    "Sandbox",
]
