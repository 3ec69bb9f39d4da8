"""What a run is given, what it remembers and what it tells: the types of OptimizationWorkflow's messages."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from kernels.harness.requests import GateLock, Sandbox
from specs.dialogue import Mode
from specs.history import Champion as Champion
from specs.history import HistoryLine as HistoryLine
from specs.history import Tried
from specs.outcomes import (
    Acceptance,
    BaselineTimes,
    BlobRef,
    BuildResult,
    Chapter,
    Charge,
    Ending,
    Iteration,
    Measurement,
    Proposal,
    Review,
    SelfReported,
    Stage,
    Value,
)
from specs.plan import Plan
from specs.schema import Budget

WORKFLOW_QUEUE = "ferret"


class Phase(StrEnum):
    """Where the run is in its story."""

    STARTING = "starting"
    WRITING_GATE = "writing the gate"
    AWAITING_APPROVAL = "waiting for approval of the gate"
    LOCKING_GATE = "locking the gate"
    MEASURING_BASELINE = "measuring the baseline"
    CLAIMING_DEVICE = "claiming a device"  # all there is to do before a self-contained program runs
    ITERATING = "iterating"
    PAUSED = "paused"
    STOPPING = "stopping"
    ACCEPTING = "accepting"
    DELIVERING = "delivering"
    DONE = "done"
    CANCELLED = "cancelled"


class Submission(Value):
    """A person's kernel, waiting for its turn."""

    source: BlobRef
    label: str


class DeviceClaim(Value):
    """One device of one worker, kept for the whole run so that baseline and candidates share it."""

    queue: str  # ferret-<host>-<device>
    description: str


class Delivery(Value):
    folder: str  # on the machine that delivered
    files: dict[str, BlobRef]  # kernel.cpp, result.json, report.html, ... from anywhere, by digest
    record: str  # the run's git repository


class Allowance(Value):
    """What a conversation may still use; None: no limit."""

    tokens: int | None = None
    usd: float | None = None


class WrittenGate(Value):
    """A gate that a model wrote and that has passed admission and review."""

    bundle: BlobRef  # the task with this gate in it
    gate: BlobRef  # the draft itself
    review: Review | None  # None: this run has no reviewer
    rounds: int


class GateApproval(Value):
    """A person's word on a written gate."""

    approved: bool
    reason: str = ""


class RunState(BaseModel):
    """Everything that survives continue-as-new."""

    phase: Phase = Phase.STARTING
    started: datetime | None = None  # of the whole run, kept across continue-as-new
    stage: Stage = Stage.REPRODUCE
    budget: Budget
    next_index: int = 0
    wins: int = 0
    attempts: int = 0
    since_win: int = 0  # iterations without a win: what a stall is counted in
    stalls: int = 0
    script_position: int = 0  # how many of the optimiser's own proposals were played
    bundle: BlobRef | None = None  # instead of the one that was given: with a gate that this run has written
    written_gate: WrittenGate | None = None
    gate_chapters: tuple[Chapter, ...] = ()  # the conversations that it came of
    gate_approval: GateApproval | None = None  # a person's
    logbook: BlobRef | None = None  # what prompts are made of
    notes: BlobRef | None = None
    profile: BlobRef | None = None
    lever: BlobRef | None = None  # the plan of the last research turn, until a win
    objections: str = ""  # what a reviewer has against it
    researched: int = 0  # stalls after which research has been done; back to 0 with a win
    mode: Mode = Mode.IMPROVE  # of the next round
    pause_reason: str | None = None  # why the run has paused itself
    champion: Champion | None = None
    measurement: Measurement | None = None  # the champion's, as it won
    self_reported: SelfReported | None = None  # instead of it in a self-contained run
    champions: list[Champion] = Field(default_factory=list)  # every win in order: acceptance falls back along it
    history: list[HistoryLine] = Field(default_factory=list)
    lock: GateLock | None = None
    device: DeviceClaim | None = None
    baseline_library: BlobRef | None = None
    baseline: BaselineTimes | None = None
    hints: list[str] = Field(default_factory=list)
    submissions: list[Submission] = Field(default_factory=list)
    exhausted: bool = False  # the optimiser has no more to propose
    paused: bool = False
    stop_reason: str | None = None  # why the search ended or is about to
    charged_s: float = 0.0  # wall time charged to max_wall_minutes
    charge: Charge = Charge()
    acceptance: Acceptance | None = None
    delivery: Delivery | None = None


class RunInput(BaseModel):
    plan: Plan
    bundle: BlobRef  # the task and every file it names, by digest
    sandbox: Sandbox = "preferred"
    state: RunState | None = None
    history_events_limit: int | None = None  # continue as new after this many events; None: when the server suggests it
    device_patience_s: float = Field(default=900, gt=0)  # a step that waits longer for its device calls the device lost


class GateInput(Value):
    plan: Plan
    bundle: BlobRef
    sandbox: Sandbox
    run: str  # id of the run's first execution
    attempt: int = 1  # a person may refuse what was written
    draft: BlobRef | None = None  # what there is already
    feedback: str = ""  # why that is not good enough
    hints: tuple[str, ...] = ()
    allowance: Allowance = Allowance()


class GateResult(Value):
    written: WrittenGate | None
    reason: str = ""  # why there is none
    charge: Charge = Charge()
    chapters: tuple[Chapter, ...] = ()
    queue_wait_s: float = 0.0
    paused_s: float = 0.0


class IterationInput(Value):
    plan: Plan
    bundle: BlobRef
    index: int
    stage: Stage
    lock: GateLock | None  # None: a self-contained program, which nobody judges
    device: DeviceClaim
    baseline_library: BlobRef | None
    champion: Champion | None
    submission: Submission | None  # judge this instead of asking the optimiser
    script_position: int
    use_seed: bool
    tried: dict[str, str]  # start of the normalised digest (TRIED_LENGTH) -> version
    hints: tuple[str, ...]
    sandbox: Sandbox
    device_patience_s: float = 900
    run: str = ""  # id of the run's first execution: what an answer's journal is found by
    mode: Mode = Mode.IMPROVE
    baseline: BaselineTimes | None = None
    logbook: BlobRef | None = None
    notes: BlobRef | None = None
    profile: BlobRef | None = None
    lever: BlobRef | None = None
    objections: str = ""
    allowance: Allowance = Allowance()
    past: tuple[Tried, ...] = ()  # of a parameter search: what has come of the settings so far
    ahead: int = 0  # and how many of this round's proposals come before this one


class IterationResult(Value):
    """What the child found; the parent gives it its number, since a sibling may have won by more."""

    index: int
    ending: Ending
    reason: str
    label: str
    iteration: Iteration | None = None  # version still provisional: "v000" for a win, "a000" otherwise
    proposal: Proposal | None = None
    build: BuildResult | None = None
    charge: Charge = Charge()
    queue_wait_s: float = 0.0  # time spent waiting for a device slot, its lock or a server: not charged
    paused_s: float = 0.0
    exhausted: bool = False  # the optimiser has nothing more to propose
    over_budget: str = ""  # why the next call of a model was not made
    gave_up: str = ""  # why no further iteration can come to anything
    notes: BlobRef | None = None
    profile: BlobRef | None = None
    lever: BlobRef | None = None
    objections: str = ""


class Status(BaseModel):
    """Answer of the `status` query: enough for `client.py status` and `watch` to draw everything."""

    run_id: str
    plan: Plan
    phase: Phase
    stage: Stage
    iteration: int  # index of the iteration at work, or of the next one
    activity: str  # "measuring a003", one phrase
    champion: Champion | None
    last: HistoryLine | None
    baseline: BaselineTimes | None
    budget: Budget
    charged_minutes: float
    charge: Charge
    wins: int
    attempts: int
    since_win: int
    hints: list[str]
    waiting_submissions: int
    paused: bool
    pause_reason: str | None = None  # why the run has paused itself
    stop_reason: str | None
    device: str
    gate_digest: str | None
    acceptance: Acceptance | None
    delivery: Delivery | None
    written_gate: WrittenGate | None = None
    gate_chapters: tuple[Chapter, ...] = ()
    measurement: Measurement | None = None  # the champion's, with intervals
    self_reported: SelfReported | None = None  # instead of it in a self-contained run
    standing: Literal["self-reported"] | None = None  # given when no number of the run was measured by us


class Best(BaseModel):
    """Answer of the `best` query."""

    champion: Champion | None
    acceptance: Acceptance | None


class RunResult(BaseModel):
    """Result of the workflow."""

    outcome: str  # "accepted", "best effort" (champion below its targets), "no kernel"; may end in "(self-reported)"
    reason: str
    champion: Champion | None
    acceptance: Acceptance | None
    delivery: Delivery | None
    baseline: BaselineTimes | None
    gate_digest: str | None
    iterations: int
    wins: int
    attempts: int
    charge: Charge
    charged_minutes: float
    standing: Literal["self-reported"] | None = None  # given when no number of the run was measured by us


# ---------------------------------------------------------------- arguments of updates and signals


class Hint(Value):
    text: str


class BudgetExtension(Value):
    """Added to the budget; None leaves that limit alone."""

    iterations: int | None = None
    wall_minutes: float | None = None
    tokens: int | None = None
    usd: float | None = None


class CandidateSubmission(Value):
    source: BlobRef
    label: str


class Parked(Value):
    """A child cannot go on until a person has put something right."""

    reason: str


class StopRequest(Value):
    reason: str = "stopped by a person"
