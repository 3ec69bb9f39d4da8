"""One conversation's frame, kept in the store: all that its turns and tool calls have in common."""

from __future__ import annotations

from kernels.harness.requests import GateLock, Sandbox
from specs.dialogue import Mode, Question, Role, Workspace
from specs.history import Champion
from specs.outcomes import BlobRef, Stage, Value
from specs.schema import Language, Model


class Subject(Value):
    """What a reviewer looks at."""

    question: Question
    kernel: BlobRef | None = None
    plan: BlobRef | None = None
    gate: BlobRef | None = None  # a draft
    figures: str = ""  # what the judge and the clock have said, in a few lines


class Session(Value):
    """Turns and tool calls carry its digest only, so that their histories stay small."""

    run: str  # id of the run's first execution: the journal's outermost name
    place: str  # `iter-007/optimizer/0`: iteration, role, epoch
    role: Role
    mode: Mode
    stage: Stage
    language: Language
    model: Model
    system: str  # the same for all conversations of a role in a run, so that a server can keep it
    tools: tuple[str, ...]  # names, in the order in which they are told
    bundle: BlobRef
    sandbox: Sandbox
    lock: GateLock | None = None
    baseline_library: BlobRef | None = None
    champion: Champion | None = None
    logbook: BlobRef | None = None
    start: Workspace = Workspace()  # as the conversation began
    subject: Subject | None = None
    script_position: int = 0
