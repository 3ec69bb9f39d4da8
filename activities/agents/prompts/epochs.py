"""What a conversation that has to begin anew is told of itself: made by code from the transcript, never by a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from activities.agents.prompts.blocks import bullets, one_line, plural

MOST_CALLS = 40  # the newest ones
MOST_ANSWER = 160  # characters of each answer's first line

LEGITIMATE = """\
To be plain about what this is: performance engineering of a numerical kernel, for the owner of this machine, on public
mathematics. Nothing is attacked or evaded. A judge tests the kernel in a sandbox because any optimiser makes
mistakes."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call and the first line of what came of it."""

    name: str
    answer: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """The stretch of this conversation that could not go on."""

    calls: Sequence[Call]
    because: str

    @property
    def refused(self) -> bool:
        return "refused" in self.because


def told(before: Before) -> str:
    """One line a call, and why all of it begins anew."""
    shown = before.calls[-MOST_CALLS:]
    hidden = len(before.calls) - len(shown)
    why = one_line(before.because, 300).rstrip(".") or "it could not go on"
    parts = [f"It begins anew here: {why}. Work goes on from the state below, and your notes are kept."]
    if before.refused:
        parts.append(LEGITIMATE)
    if shown:
        earlier = f" ({plural(hidden, 'call')} before them left out)" if hidden else ""
        parts.append(f"Your calls so far{earlier}:\n{bullets(map(_line, shown))}")
    return "\n\n".join(parts)


def _line(call: Call) -> str:
    answer = one_line(call.answer, MOST_ANSWER) or "no answer"
    return f"`{call.name}`: {'error: ' if call.error else ''}{answer}"
