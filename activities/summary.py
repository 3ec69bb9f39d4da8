"""The end of a run as one value: what result.json holds and report.html draws."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from specs.history import Champion, HistoryLine
from specs.outcomes import Acceptance, BaselineTimes, Charge, Digest, Measurement, SelfReported, Value


class RunSummary(Value):
    run_id: str
    task: str
    task_digest: Digest
    scoring: str
    baseline_name: str
    targets: dict[str, float]  # config -> target_ratio
    outcome: str  # accepted, best effort, no kernel, cancelled; may end in "(self-reported)"
    standing: Literal["self-reported"] | None = None  # given when no number below was measured by us
    reason: str
    stage: str
    started: datetime
    ended: datetime
    gate_digest: str | None
    device: str
    champion: Champion | None
    measurement: Measurement | None  # at acceptance if it came to that, else as the champion won
    self_reported: SelfReported | None = None  # instead of a measurement
    acceptance: Acceptance | None
    baseline: BaselineTimes | None
    history: tuple[HistoryLine, ...]
    wins: int
    attempts: int
    charge: Charge
    charged_minutes: float
