"""What can come of a candidate, as values that cannot be nonsense.

A failed build cannot carry a binary, an unjudged kernel cannot carry a ratio, and only a finite
positive time is a time. Times are microseconds (`_us`), sizes bytes, ratios baseline / candidate.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PositiveTime = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Value(BaseModel):
    """A frozen value; unknown fields are refused so that a misspelt one cannot be lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BlobRef(Value):
    """Where a large value lives in the store: never the value itself."""

    sha256: Digest
    size: int = Field(ge=0)  # bytes


class Interval(Value):
    """A point estimate with the ends of its 95% bootstrap interval."""

    value: Ratio
    low: Ratio
    high: Ratio

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval out of order: low {self.low}, value {self.value}, high {self.high}")
        return self


# ---------------------------------------------------------------- build


class BuildStatus(StrEnum):
    BUILT = "built"  # a shared object exists
    FAILED = "failed"  # the compiler or linker said no
    TIMED_OUT = "timed_out"  # the compiler ran past its limit
    REFUSED = "refused"  # the source or the built object holds something that is not allowed


class BuildResult(Value):
    """One source carried through the compiler."""

    status: BuildStatus
    key: Digest  # source, flags, compiler identity, interface: the same key is the same build
    library: BlobRef | None = None  # the shared object, only when built
    log_tail: str = Field(default="", max_length=4096)  # the end of what the compiler said
    compiler: str = ""  # first line of `g++ --version`
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    cached: bool = False

    @model_validator(mode="after")
    def _binary_means_built(self) -> Self:
        if (self.status is BuildStatus.BUILT) != (self.library is not None):
            must = "must not" if self.library else "must"
            raise ValueError(f"a build that is {self.status.value} {must} carry a library")
        return self

    @property
    def ok(self) -> bool:
        return self.status is BuildStatus.BUILT


# ---------------------------------------------------------------- judge


class FailureKind(StrEnum):
    """Why the judge refused; each has its own sentence in docs/architecture.md."""

    CRASHED = "crashed"  # a signal or an exit inside the candidate
    HUNG = "hung"  # no answer within its time limit
    EXITED = "exited"  # the candidate ended the process before the call returned
    NOT_LOADED = "not_loaded"  # the shared object or its entry could not be loaded
    NOT_WRITTEN = "not_written"  # the poison pattern is still in the output
    GUARD_OVERWRITTEN = "guard_overwritten"  # wrote outside its buffers
    INPUT_CHANGED = "input_changed"  # wrote to an input
    NON_FINITE = "non_finite"  # NaN or inf where the golden is finite, or the other way round
    WRONG = "wrong"  # outside the tolerances
    LATE_WRITE = "late_write"  # the output changed after the call had returned
    THREADS = "threads"  # started threads or processes that the contract does not allow
    NOT_DETERMINISTIC = "not_deterministic"  # two calls on the same input differ
    STAGE_DISAGREES = "stage_disagrees"  # the output differs with and without stage tensors
    TIMED_WRONG = "timed_wrong"  # passed the checks, but an output of a timed call was wrong
    LEFT_STATE = "left_state"  # rounding, flush-to-zero or direction flag not put back
    LEAK = "leak"  # memory held after the calls grows, or is more than any kernel needs
    MEMORY_ERROR = "memory_error"  # AddressSanitizer or UBSan found something
    TOO_FAST = "too_fast"  # below what the machine can do: the sample is void
    LAUNCH_FAILED = "launch_failed"  # the driver refused a launch: a block too large, more shared memory than there is
    WRONG_STREAM = "wrong_stream"  # launched on another stream than the one it was given


class VerificationStage(StrEnum):
    """The stages of verification, in the order they run."""

    NUMERICS = "numerics"  # every config at its timed shape
    RANGES = "ranges"  # value distributions of the gate
    EDGES = "edges"  # ragged, tiny and boundary shapes that the gate lists
    DETERMINISM = "determinism"
    STRESS = "stress"


class Metrics(Value):
    """Distance of one tensor from its float64 golden. None: not finite, so not a number worth showing."""

    tensor: str
    max_abs: float | None = None
    max_rel: float | None = None
    mean_abs: float | None = None
    rel_l2: float | None = None  # ||c - g|| / ||g||
    cosine: float | None = None  # over the whole tensor
    worst_row_cosine: float | None = None  # rows are the last axis
    mismatch_fraction: float | None = None  # share of elements outside the element-wise tolerance
    worst_index: tuple[int, ...] = ()
    worst_got: str = ""  # text, since it may be nan
    worst_want: str = ""


class Failure(Value):
    """The first thing that was wrong, in words a kernel author can act on."""

    kind: FailureKind
    verification: VerificationStage
    case: str  # config or edge case by name
    first_failing_stage: str | None = None  # the first stage tensor or output that diverges
    message: str
    metrics: Metrics | None = None

    @property
    def told(self) -> str:
        """Kind, case, tensor and what the judge says, in one sentence; what it says itself is not said twice."""
        kind, tensor = self.kind.value.replace("_", " "), self.first_failing_stage
        where = f" at {tensor}" if tensor and not re.search(rf"\b{re.escape(tensor)}\b", self.message) else ""
        case, colon, said = self.message.partition(": ")
        # The judge puts the case and the distribution of its inputs in front: `n1024 (normal): c differs ...`.
        if colon and (case == self.case or case.startswith(f"{self.case} (")):
            return f"{kind} in case {case}{where}: {said}"
        return f"{kind} in case '{self.case}'{where}: {self.message}"


class Verdict(Value):
    """What the gate process decided. Only a passed verdict may be followed by a measurement."""

    passed: bool
    failure: Failure | None = None
    library: Digest  # sha256 of the shared object that was judged
    gate: Digest  # gate digest it was judged by
    cases: int = Field(ge=0)  # calls checked
    worst: tuple[Metrics, ...] = ()  # per tensor, the worst of all cases
    sandbox: str = "off"  # what isolation really held: "bubblewrap", "process" or "off"
    memory_check: str = ""  # what the sanitizers looked at, or why they did not: "passed: ...", "not checked: ..."
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    scope: Literal["full", "public"] = "full"  # public: a quick look for an optimiser, on which nothing may be built

    @model_validator(mode="after")
    def _failure_means_refused(self) -> Self:
        if self.passed == (self.failure is not None):
            raise ValueError("a verdict either passes or carries a failure")
        return self


# ---------------------------------------------------------------- measure


class Timing(Value):
    """One contestant on one config."""

    median_us: PositiveTime
    q1_us: PositiveTime
    q3_us: PositiveTime
    samples: int = Field(gt=0)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: how far to trust this number."""
        return (self.q3_us - self.q1_us) / self.median_us


class ConfigMeasurement(Value):
    """Paired, interleaved timings on one config; every ratio is against the baseline of the same rounds."""

    config: str
    baseline: Timing
    candidate: Timing
    champion: Timing | None = None
    ratio: Interval
    champion_ratio: Ratio | None = None
    # As their callers wait for them, launches included; None where the kernel runs on the host itself.
    baseline_host_us: PositiveTime | None = None
    candidate_host_us: PositiveTime | None = None


class Device(Value):
    """The thing the times were taken on."""

    name: str
    detail: str = ""  # cores pinned, driver, clocks: one line
    toolkit: str = ""


class Measurement(Value):
    """Times of a kernel that has passed the judge."""

    library: Digest  # the same object that was judged
    configs: tuple[ConfigMeasurement, ...] = Field(min_length=1)
    score: Interval  # the ratios folded by the task's scoring
    geomean: Ratio
    gain: Interval | None = None  # score over the champion's score, same rounds; None without a champion
    device: Device
    samples: BlobRef | None = None  # every raw sample, for anyone who doubts the summary
    sandbox: str = "off"
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)

    def ratios(self) -> dict[str, float]:
        return {c.config: c.ratio.value for c in self.configs}


class MeasureOutcome(Value):
    """Measuring can still refuse a kernel: every timed output is checked."""

    measurement: Measurement | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.measurement is None) == (self.failure is None):
            raise ValueError("measuring yields a measurement or a failure, exactly one")
        return self


class BaselineTimes(Value):
    """The vendor's times per config, taken before the first candidate."""

    timings: dict[str, Timing] = Field(min_length=1)
    device: Device
    description: str = ""  # what the baseline says it is, e.g. "OpenBLAS 0.3.30 SkylakeX, 1 thread"


# ---------------------------------------------------------------- self-reported

SELF_REPORTED: Literal["self-reported"] = "self-reported"  # the one spelling of the label, wherever it is shown


def labelled(text: str, standing: str | None) -> str:
    """`text (self-reported)` where that is the standing of what it tells, else the text itself."""
    return f"{text} ({standing})" if standing else text


class SelfReportedConfig(Value):
    """What a program says of itself on one config. None of its numbers was measured by us."""

    config: str
    ratio: Ratio  # 0 when there is nothing usable, and then `reason` says why
    ours_us: PositiveTime | None = None
    reference_us: PositiveTime | None = None
    ours_tflops: PositiveTime | None = None
    reference_tflops: PositiveTime | None = None
    reason: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _nothing_has_a_reason(self) -> Self:
        if (self.ratio == 0) != bool(self.reason):
            raise ValueError("a ratio of 0 needs a reason, and no other ratio has one")
        return self


class SelfReported(Value):
    """The report of one run of a self-contained program. No Verdict and no Measurement can be made of it."""

    label: Literal["self-reported"] = SELF_REPORTED
    program: Digest  # sha256 of the executable that ran
    configs: tuple[SelfReportedConfig, ...] = Field(min_length=1)
    score: Ratio  # the ratios folded by the task's scoring
    geomean: Ratio
    refused: str = Field(default="", max_length=400)  # why nothing of the report counts: a crash, two answers, ...
    machine: str = ""  # where it ran, in one line
    output_tail: str = Field(default="", max_length=1500)  # the end of what it printed, only when something is wrong
    sandbox: str = "process"  # what isolation really held: "bubblewrap" or "process"
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _refused_means_zero(self) -> Self:
        if self.refused and (self.score or self.geomean or any(one.ratio for one in self.configs)):
            raise ValueError("a refused report carries no ratio but 0")
        return self

    def ratios(self) -> dict[str, float]:
        return {one.config: one.ratio for one in self.configs}


# ---------------------------------------------------------------- models


class Role(StrEnum):
    """Who the model is; each has a prompt of its own and none judges itself."""

    OPTIMIZER = "optimizer"
    REVIEWER = "reviewer"
    GATE_WRITER = "gate_writer"


class Question(StrEnum):
    """What a reviewer is asked."""

    INTEGRITY = "integrity"  # does this candidate still do the contract's real maths, on the real interface?
    PLAN = "plan"  # is the next lever sound?
    GATE = "gate"  # does this gate say what its canonical source says?


class Quote(Value):
    """Evidence: words that stand in what was reviewed, and what they show."""

    quote: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    why: Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Review(Value):
    """A reviewer's verdict. It can veto; it can never bless what a gate has refused."""

    question: Question
    approved: bool
    summary: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    evidence: tuple[Quote, ...] = Field(default=(), max_length=4)


class Chapter(Value):
    """Where one stretch of a conversation can be read back: the chain's last node and what answered it."""

    role: Role
    head: BlobRef
    answers: tuple[BlobRef, ...] = ()


class Charge(Value):
    """What something cost. USD is None when the price is unknown, never 0."""

    input_tokens: int = Field(ge=0, default=0)  # read afresh
    cache_read_tokens: int = Field(ge=0, default=0)
    cache_write_tokens: int = Field(ge=0, default=0)
    output_tokens: int = Field(ge=0, default=0)
    calls: int = Field(ge=0, default=0)
    usd: float | None = Field(ge=0, default=0.0, allow_inf_nan=False)

    @property
    def tokens(self) -> int:
        """All of them, however cheap: what `budget.max_tokens` counts."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens + self.output_tokens

    def __add__(self, other: Charge) -> Charge:
        known = self.usd is not None and other.usd is not None
        return Charge(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            calls=self.calls + other.calls,
            usd=(self.usd or 0.0) + (other.usd or 0.0) if known else None,
        )


# ---------------------------------------------------------------- iteration


class Origin(StrEnum):
    SEED = "seed"
    OPTIMIZER = "optimizer"
    PERSON = "person"


class Stage(StrEnum):
    REPRODUCE = "REPRODUCE"
    OPTIMIZE = "OPTIMIZE"


class Proposal(Value):
    """One candidate source, stored under its digest."""

    source: BlobRef
    normal: Digest  # of the source with comments and white space folded: finds the same idea tried twice
    origin: Origin
    label: str  # file name of a script's step, a model's title, "submitted by ..."


class Ending(StrEnum):
    """How an iteration ended."""

    WIN = "win"  # became the champion
    SLOWER = "slower"  # correct, but not faster than the champion by the required margin
    REGRESSED = "regressed"  # faster by score, but a guardrail config fell below its target
    BUILD_FAILED = "build_failed"
    REFUSED = "refused"  # the judge said no
    VETOED = "vetoed"  # the reviewer said no
    UNREVIEWED = "unreviewed"  # it would have won, but the reviewer gave no verdict: the champion stays
    RESEARCHED = "researched"  # no kernel was asked for: the notes and a plan are what came of it
    DUPLICATE = "duplicate"  # the same source was tried before
    NO_PROPOSAL = "no_proposal"  # the optimiser had nothing (more) to say
    STOPPED = "stopped"  # a person stopped the run in the middle of it


class Iteration(Value):
    """One proposal carried to a verdict: a line of the run's history."""

    index: int = Field(ge=0)
    version: str = Field(pattern=r"^[va]\d{3,}$")  # v001... for wins, a001... for attempts
    stage: Stage
    ending: Ending
    reason: str  # one sentence
    proposal: Proposal | None = None
    build: BuildResult | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    self_reported: SelfReported | None = None  # instead of verdict and measurement, never beside them
    review: Review | None = None
    chapters: tuple[Chapter, ...] = ()  # every conversation of the iteration, to be read back
    notes: BlobRef | None = None  # specs.notes.Notes as the iteration left them
    charge: Charge | None = None  # what its models cost; None: no model was asked

    @model_validator(mode="after")
    def _the_walk_has_no_gaps(self) -> Self:
        if self.self_reported is not None and (self.verdict is not None or self.measurement is not None):
            raise ValueError("what a program reports of itself stands beside no verdict and no measurement")
        if self.self_reported is not None and (self.build is None or not self.build.ok):
            raise ValueError("a program that was not built cannot report")
        if self.verdict is not None and self.verdict.scope != "full":
            raise ValueError("a judgement on the public cases alone is no verdict of an iteration")
        if self.measurement is not None and (self.verdict is None or not self.verdict.passed):
            raise ValueError("a kernel that has not passed the judge cannot carry a measurement")
        if self.verdict is not None and (self.build is None or not self.build.ok):
            raise ValueError("a kernel that was not built cannot carry a verdict")
        if self.build is not None and self.proposal is None:
            raise ValueError("a build needs a proposal")
        if (self.ending is Ending.WIN) != self.version.startswith("v"):
            raise ValueError(f"version {self.version} does not fit ending {self.ending.value}")
        if (
            self.ending is Ending.WIN
            and self.measurement is None
            and not (self.self_reported and self.self_reported.score)
        ):
            raise ValueError("a win needs a measurement, or a score that the program reports of itself")
        return self


class Acceptance(Value):
    """The champion judged once more: fresh processes, secret seeds, held-out shapes, production flags."""

    version: str
    accepted: bool
    reason: str
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    self_reported: SelfReported | None = None  # a self-contained program, run once more
    command: Literal["none", "passed", "failed"] = "none"

    @model_validator(mode="after")
    def _one_kind_of_evidence(self) -> Self:
        if self.self_reported is not None and (self.verdict is not None or self.measurement is not None):
            raise ValueError("what a program reports of itself stands beside no verdict and no measurement")
        if self.verdict is not None and self.verdict.scope != "full":
            raise ValueError("a judgement on the public cases alone accepts nothing")
        return self
