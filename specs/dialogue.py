"""What a conversation with a model is made of, as far as it crosses Temporal: names and digests, never texts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from specs.outcomes import BlobRef, Charge, Digest, Value
from specs.outcomes import Chapter as Chapter
from specs.outcomes import Question as Question
from specs.outcomes import Quote as Quote
from specs.outcomes import Review as Review
from specs.outcomes import Role as Role

Brief = Annotated[str, StringConstraints(max_length=300)]


class Mode(StrEnum):
    """What an iteration asks of the optimiser."""

    IMPROVE = "improve"
    RESEARCH = "research"  # after a stall: no edit, but notes and a plan
    PIVOT = "pivot"  # after the research: the hard rewrite, not another tweak


class Stop(StrEnum):
    """Why a model's turn ended."""

    TOOLS = "tools"  # a finished message with calls to run
    SPOKE = "spoke"  # a finished message without one
    PAUSED = "paused"  # the server wants the same transcript once more
    TRUNCATED = "truncated"  # max_tokens: whatever calls it holds may be halves
    REFUSED = "refused"
    TOO_LONG = "too_long"  # the transcript no longer fits the model's context
    UNKNOWN = "unknown"  # a stop reason that this version does not know: no call of it is run
    UNAFFORDABLE = "unaffordable"  # no call was made: it could have broken the budget


class ToolCall(Value):
    """A call of a finished message; its input stays in the transcript."""

    at: int = Field(ge=0)  # position among the message's blocks
    name: Annotated[str, StringConstraints(max_length=64)]


class ModelTurn(Value):
    """One answer of a model."""

    head: BlobRef  # the transcript's last node, which is this answer
    stop: Stop
    detail: Brief = ""  # what a person should know of the stop, or the beginning of what was said
    calls: tuple[ToolCall, ...] = ()
    charge: Charge = Charge()
    context_tokens: int = 0  # what the model has read for it
    waited_s: float = 0.0  # in the queue and for a server that asked for patience: not charged to the run's wall budget


class Workspace(Value):
    """What a model works on: each tool that changes it gives a new one."""

    kernel: BlobRef | None = None  # the optimiser's source
    compiled: BlobRef | None = None  # the last source of this conversation that the compiler took
    notes: BlobRef | None = None  # specs.notes.Notes
    profile: BlobRef | None = None  # the last profile that was taken: activities.agents.profiles.Profile
    gate: BlobRef | None = None  # the gate writer's draft: activities.agents.draft.Draft
    admitted: BlobRef | None = None  # the last draft that let no mutant through and that the baseline passed


class Submitted(Value):
    """The optimiser hands its kernel in."""

    kind: Literal["submitted"] = "submitted"
    title: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    normal: Digest  # of the source with comments and white space folded


class Planned(Value):
    """A research iteration ends with the next lever."""

    kind: Literal["planned"] = "planned"
    plan: BlobRef
    title: Annotated[str, StringConstraints(min_length=1, max_length=120)]


class Reviewed(Value):
    kind: Literal["reviewed"] = "reviewed"
    review: Review


class GateHandedIn(Value):
    """The gate writer hands in a draft that has passed admission."""

    kind: Literal["gate_handed_in"] = "gate_handed_in"
    gate: BlobRef


Final = Annotated[Submitted | Planned | Reviewed | GateHandedIn, Field(discriminator="kind")]


# Tools that need the claimed device for themselves; all others run wherever there is a slot.
ON_DEVICE = frozenset({"check", "measure", "profile"})
