"""The shape of a tool: a name, a description, a validated input, and an answer that fits a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from activities.agents.pages import visible
from activities.agents.session import Session
from activities.bundle import Bundle
from activities.workshop import Workshop
from specs.dialogue import Final, Workspace

MOST_ANSWERED = 6_000  # characters of one answer: about 1,500 tokens


class Arguments(BaseModel):
    """What a model gives a tool. Field descriptions are what it reads; nothing unknown is swallowed."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


def _on_one_line(text: str) -> str:
    if not (told := " ".join(visible(text).split())):
        raise ValueError("nothing but white space")
    return told


# Of a text that people see in histories, commits and terminals: nothing in it breaks a line or cannot be seen.
OnOneLine = AfterValidator(_on_one_line)


class NoArguments(Arguments):
    """Of a tool that takes nothing."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a call works with: the conversation's frame, the task on this disk, and the work so far."""

    workshop: Workshop
    session: Session
    bundle: Bundle
    workspace: Workspace


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of a call. A wrong call or a kernel that fails is an answer, never an exception."""

    text: str  # for the model; bounded by `clipped`
    error: bool = False  # the model has to do something differently
    workspace: Workspace | None = None  # when the call has changed it
    final: Final | None = None  # this call ends the conversation
    said: str = ""  # a few words for people, in the Temporal UI


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


class Tool(Generic[ArgumentsT]):
    """One tool. `use` raises only for machines and for faults of ours (specs.errors), as any activity."""

    name: ClassVar[str]
    description: ClassVar[str]
    arguments: ClassVar[type[Arguments]]

    async def use(self, desk: Desk, given: ArgumentsT) -> Answer:
        raise NotImplementedError


def clipped(text: str, most: int = MOST_ANSWERED) -> str:
    """Head and tail of a text that is too long, with what was left out between them."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[-tail:]}"
