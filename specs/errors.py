"""Every error that ferret raises on purpose.

FerretError
├── UserError            the user's mistake: one line, exit code 2
│   └── SpecError        a task file with one or more problems
├── GateError            the gate cannot be used: never retried
│   └── GateTampered     a gate file no longer has the content that was locked
├── ModelError           a model's server gave no finished message; says itself whether a retry can help
└── MachineError         a machine or a service failed, not the candidate: worth retrying
    ├── DeviceBusy       another process holds the device
    ├── RunnerLost       the runner or the gate process was killed from outside
    └── StoreError       the blob store is full, unreachable or damaged

A candidate that does not compile, is wrong, slow, hangs or crashes is not an error:
it is an outcome (see specs.outcomes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class FerretError(Exception):
    """Root of every error raised on purpose."""


class UserError(FerretError):
    """The user's mistake. The message is one line: the thing, what was given, what is accepted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong (or merely odd) with a task file."""

    file: str
    line: int | None  # 1-based; None when the problem belongs to no line, e.g. a missing file
    field: str  # dotted, e.g. "configs[2].target_ratio"; "" for the whole file
    message: str  # what was given and what is accepted
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f" {self.field}:" if self.field else ""
        return f"{where}:{field} {self.message}"


class SpecError(UserError):
    """A task file that cannot be used; carries every problem found, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class GateError(FerretError):
    """The gate itself is unusable (missing file, broken reference, a baseline that fails it)."""


class GateTampered(GateError):
    """A gate file changed after the lock. Ends the run: nothing judged by it can be trusted."""


class MachineError(FerretError):
    """A machine or a service failed; the same request may well succeed later or elsewhere."""


class DeviceBusy(MachineError):
    """Another process holds the device that this measurement needs for itself."""


class RunnerLost(MachineError):
    """The runner or gate process ended for a reason that is not the candidate's."""


class StoreError(MachineError):
    """The blob store refused a read or a write (disk full, unreachable, content not matching its digest)."""


class ModelFault(StrEnum):
    """Why a model's server gave no finished message."""

    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_RESPONSE = "bad_response"  # it said that all is well, but what came is no finished message
    SPEND_LIMIT = "spend_limit"  # looks like a rate limit, and no waiting helps
    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"  # the transcript does not fit: a conversation can begin anew
    AUTH = "auth"
    BILLING = "billing"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    CONFIG = "config"  # an address, a header or credentials that no request can be made with
    BUG = "bug"  # ours: no request was made


class ModelError(FerretError):
    """A model's server gave no finished message."""

    def __init__(
        self,
        kind: ModelFault,
        message: str,
        *,
        retryable: bool,
        delay: float | None = None,  # seconds, where the server has named them
        attempt_cap: int | None = None,  # retryable, but no more often than this
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.delay = delay
        self.attempt_cap = attempt_cap

    @property
    def name(self) -> str:
        """What Temporal, and so the workflow, knows it by."""
        return f"Model.{self.kind.value}"
