"""The run's past in brief: what lists, reports and acceptance work from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specs.outcomes import BlobRef, Chapter, Charge, Ending, Origin, Stage, Value


class Champion(Value):
    version: str
    index: int
    source: BlobRef
    library: BlobRef
    score: float
    ratios: dict[str, float]
    searched: float | None = None  # the score that the search had seen, once acceptance has measured again
    standing: Literal["self-reported"] | None = None  # given when score and ratios are the program's own words


class HistoryLine(Value):
    """One iteration in brief: what lists, tables and continue-as-new carry. The whole is the child's result."""

    index: int
    version: str
    stage: Stage
    ending: Ending
    label: str
    origin: Origin | None = None
    reason: str = Field(max_length=400)
    source: BlobRef | None = None
    normal: str | None = None
    score: float | None = None
    gain: float | None = None
    ratios: dict[str, float] = Field(default_factory=dict)
    seconds: float = 0.0
    chapters: tuple[Chapter, ...] = ()  # every conversation of the iteration, to be read back
    charge: Charge | None = None  # what its models cost; None: no model was asked
    standing: Literal["self-reported"] | None = None  # given when score and ratios are the program's own words

    @property
    def is_win(self) -> bool:
        return self.ending is Ending.WIN


class Tried(Value):
    """One setting of a parameter search, and what came of it."""

    label: str  # `tune MR=6 NR=16`
    score: float | None = None  # ratio to the baseline; None: it has none
    gain: float | None = None  # over the champion of that moment
