"""The part of a task that workflow code decides with: small enough to stand in every history."""

from __future__ import annotations

from typing import Literal

from specs.outcomes import SELF_REPORTED, Digest, Value
from specs.schema import Budget, Harness, Language, Model, Provider, Scoring, Search, StageGate, Task


class ConfigTarget(Value):
    name: str
    target_ratio: float
    weight: float


class Plan(Value):
    task: str
    digest: Digest  # sha256 of the task file's bytes: the spec is immutable
    gpu: str
    language: Language
    baseline: str
    scoring: Scoring
    focus_config: str | None
    configs: tuple[ConfigTarget, ...]
    stage_gate: StageGate
    search: Search
    model: Model
    budget: Budget
    seeded: bool  # the task ships a seed, which is the run's first candidate
    harness: Harness = Harness.GATE
    gated: bool = True  # False: a gate is written first
    approve_gate: bool = False  # by a person, before it is locked

    @classmethod
    def of(cls, task: Task, digest: str) -> Plan:
        return cls(
            task=task.name,
            digest=digest,
            gpu=task.gpu,
            language=task.language,
            baseline=task.baseline.source[:200],
            scoring=task.scoring,
            focus_config=task.focus_config,
            configs=tuple(
                ConfigTarget(name=config.name, target_ratio=config.target_ratio, weight=config.weight)
                for config in task.configs
            ),
            stage_gate=task.stage_gate,
            search=task.search,
            model=task.model,
            budget=task.budget,
            seeded=task.seed is not None,
            harness=task.harness,
            gated=task.gate is not None or task.harness is Harness.SELF_CONTAINED,
            approve_gate=task.approve_gate,
        )

    @property
    def queue(self) -> str:
        """Task queue of the machines that have this device: `ferret-cpu`, `ferret-h200`."""
        return f"ferret-{self.gpu.strip().lower()}"

    @property
    def thinks(self) -> bool:
        """Whether an optimiser is asked that learns from what was tried: a model, or the recording of one."""
        return self.model.provider.is_model or self.model.provider is Provider.REPLAY

    @property
    def reviewed(self) -> bool:
        """Whether a win needs a reviewer's verdict."""
        return self.thinks and self.model.reviewer is not None

    @property
    def self_contained(self) -> bool:
        """Nothing of such a run is judged or timed by us."""
        return self.harness is Harness.SELF_CONTAINED

    @property
    def standing(self) -> Literal["self-reported"] | None:
        """The label of everything that such a run yields."""
        return SELF_REPORTED if self.self_contained else None
