"""The task file as types. Reading YAML, line numbers and near misses are specs.loader's business."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from specs.expressions import Expression

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def check_model(name: str) -> str:
    """Raises ValueError for what is no model's id: it stands in addresses of some servers, in prices and in tables."""
    if not re.fullmatch(r"[\w.:@/+ -]+", name, re.ASCII) or ".." in name:
        raise ValueError(f"{name!r} is no model's id; accepted: letters, digits, blanks and . : @ / + - _")
    return name


ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(check_model)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
# Numbers are strict: YAML has already told 1 from "1" from true, so a mix-up is a mistake worth naming.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Truth = Annotated[bool, Field(strict=True)]
Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str

MAX_CONFIGS = 500
MAX_ARGUMENTS = 64
MAX_AXES = 8


class Block(BaseModel):
    """A mapping of the task file. Keys that nobody knows are lifted out by the loader before this sees them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Scoring(StrEnum):
    MIN_RATIO = "min_ratio"  # the worst config counts
    WEIGHTED_AVG = "weighted_avg"  # sum(weight * ratio) / sum(weight)
    FOCUS = "focus"  # focus_config counts; the others are guardrails


class Language(StrEnum):
    CPP = "cpp"
    CUDA = "cuda"
    TRITON = "triton"

    @property
    def suffix(self) -> str:
        return {"cpp": ".cpp", "cuda": ".cu", "triton": ".py"}[self.value]


class DType(StrEnum):
    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"

    @property
    def bytes(self) -> int:
        return {"f8e4m3": 1, "f8e5m2": 1, "bf16": 2}.get(self.value) or int(self.value.lstrip("fiu")) // 8


class ArgumentKind(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    STAGE = "stage"  # an intermediate the gate also checks; a null pointer unless the gate asks for it
    SCALAR = "scalar"
    WORKSPACE = "workspace"  # scratch memory the harness provides, content undefined
    STREAM = "stream"  # GPU only


class Problem(Block):
    description: str
    shapes: dict[str, Any] = Field(default_factory=dict)


class Baseline(Block):
    source: str  # what it is, for people: "cuBLAS 13"
    program: str | None = None  # source file behind the task's interface, relative to the task file
    flags: tuple[str, ...] = ()
    reference_commit: str | None = None


class Config(Block):
    name: Name
    args: dict[str, Scalar]
    target_ratio: Positive = 0.95
    weight: NonNegative = 1.0


class StageGate(Block):
    ratio: Positive = 0.9
    strict: Truth = False  # strict: every config must also clear its own target_ratio


class Budget(Block):
    max_iterations: Count = 100
    max_wall_minutes: Positive = 120.0  # paused time and queue waiting are not charged
    max_tokens: Count | None = None
    max_usd: Positive | None = None


class Search(Block):
    width: int = Field(default=1, ge=1, le=64, strict=True)
    stall_after: Count = 4
    min_gain: float = Field(default=0.01, ge=0, lt=1, strict=True)
    max_steps: int = Field(default=40, ge=1, le=300, strict=True)  # an iteration is one history


class Provider(StrEnum):
    ANTHROPIC = "anthropic"
    LOCAL = "local"
    SCRIPTED = "scripted"
    REPLAY = "replay"
    TUNE = "tune"
    BEDROCK = "bedrock"
    VERTEX = "vertex"
    FOUNDRY = "foundry"

    @property
    def is_model(self) -> bool:
        """Whether tokens are paid for, or could be: a script, a recording and a parameter search think nothing."""
        return self not in (Provider.SCRIPTED, Provider.REPLAY, Provider.TUNE)


class Model(Block):
    provider: Provider = Provider.ANTHROPIC
    optimizer: ModelName = "claude-opus-5-5"
    reviewer: ModelName | None = "claude-sonnet-5-5"  # null: wins are not reviewed
    gate_writer: ModelName = "claude-opus-5-5"
    effort: Literal["low", "medium", "high", "xhigh", "max"] = "high"
    base_url: str | None = None  # of a compatible server; without it the provider's own
    max_tokens: int = Field(default=32_000, ge=1_024, le=128_000, strict=True)  # of one answer
    context_tokens: int = Field(default=100_000, ge=8_000, strict=True)  # beyond these a conversation begins anew
    cache_ttl: Literal["5m", "1h"] = "1h"
    script: str | None = None  # provider scripted: a folder of candidates, played in name order
    recording: str | None = None  # provider replay: a file that `client.py recording` wrote
    on_drift: Literal["report", "stop"] = "report"  # provider replay: when a prompt is not the one that was recorded

    @model_validator(mode="after")
    def _fed(self) -> Self:
        if self.provider is Provider.SCRIPTED and not self.script:
            raise ValueError("provider 'scripted' needs 'script', a folder of candidate sources")
        if self.provider is Provider.REPLAY and not self.recording:
            raise ValueError("provider 'replay' needs 'recording', a file that `client.py recording` wrote")
        if self.provider is Provider.LOCAL and not self.base_url:
            raise ValueError("provider 'local' needs 'base_url', the address of a server without /v1")
        if self.base_url is not None and not re.match(r"https?://[^/\s]+", self.base_url):
            raise ValueError(f"base_url {self.base_url!r} is no address; accepted: http:// or https:// and a host")
        if self.base_url is not None and self.base_url.rstrip("/").endswith("/v1"):
            raise ValueError(f"base_url {self.base_url!r} ends in /v1, which the client adds by itself; leave it out")
        return self


class Argument(Block):
    kind: ArgumentKind
    name: Identifier | None = None
    dtype: DType | None = None
    # Each axis an expression over the config's args and problem.shapes.
    shape: Annotated[tuple[Expression, ...], Field(max_length=MAX_AXES)] | None = None
    value: Scalar | None = None  # scalar: a constant; absent: the config's argument of that name
    bytes: Expression | None = None  # workspace

    @field_validator("shape", mode="before")
    @classmethod
    def _dimensions_as_text(cls, shape: Any) -> Any:
        if not isinstance(shape, list | tuple):
            return shape
        return tuple(str(dim) if isinstance(dim, int) and not isinstance(dim, bool) else dim for dim in shape)

    @field_validator("bytes", mode="before")
    @classmethod
    def _bytes_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        needs: dict[ArgumentKind, set[str]] = {
            ArgumentKind.INPUT: {"name", "dtype", "shape"},
            ArgumentKind.OUTPUT: {"name", "dtype", "shape"},
            ArgumentKind.STAGE: {"name", "dtype", "shape"},
            ArgumentKind.SCALAR: {"name", "dtype"},
            ArgumentKind.WORKSPACE: {"name", "bytes"},
            ArgumentKind.STREAM: set(),
        }
        optional = {ArgumentKind.SCALAR: {"value"}, ArgumentKind.STREAM: {"name"}}.get(self.kind, set())
        given = {field for field in ("name", "dtype", "shape", "value", "bytes") if getattr(self, field) is not None}
        if missing := needs[self.kind] - given:
            raise ValueError(f"an argument of kind '{self.kind.value}' needs {', '.join(sorted(missing))}")
        if surplus := given - needs[self.kind] - optional:
            raise ValueError(f"an argument of kind '{self.kind.value}' takes no {', '.join(sorted(surplus))}")
        return self


class Interface(Block):
    """The C function that every candidate exports with extern "C", its arguments in order."""

    entry: Identifier
    arguments: tuple[Argument, ...] = Field(min_length=1, max_length=MAX_ARGUMENTS)

    @model_validator(mode="after")
    def _usable(self) -> Self:
        names = [argument.name for argument in self.arguments if argument.name]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"argument names must differ, given twice: {', '.join(twice)}")
        if not any(argument.kind is ArgumentKind.OUTPUT for argument in self.arguments):
            raise ValueError("an interface needs at least one argument of kind 'output'")
        return self

    def of(self, *kinds: ArgumentKind) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.kind in kinds)


class Work(Block):
    """Work of one call, for the roofline floor."""

    flops: Expression | None = None
    bytes: Expression | None = None

    @field_validator("flops", "bytes", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Build(Block):
    flags: tuple[str, ...] = ()
    production_flags: tuple[str, ...] = ()  # added for the final acceptance


class AcceptanceCommand(Block):
    command: tuple[str, ...] = Field(min_length=1)


class Output(Block):
    """The self-reported form's own result line; only `harness: self_contained` reads it."""

    result_format: str = "kernel_result_json"
    result_keys: tuple[str, ...] = ()


class Harness(StrEnum):
    GATE = "gate"  # judged and timed by kernels.harness
    SELF_CONTAINED = "self_contained"  # the original ferret's form: everything it yields is self-reported


class Task(Block):
    """One task file. Paths in it are relative to the file."""

    name: Name
    gpu: Name
    arch: Name
    precision: Name
    problem: Problem
    baseline: Baseline
    configs: tuple[Config, ...] = Field(min_length=1, max_length=MAX_CONFIGS)
    references: tuple[str, ...] = ()
    scoring: Scoring = Scoring.MIN_RATIO
    focus_config: str | None = None
    stage_gate: StageGate = StageGate()
    constraints: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    budget: Budget = Budget()
    output: Output = Output()
    # ferret's own additions
    harness: Harness = Harness.GATE
    language: Language
    interface: Interface | None = None
    work: Work = Work()
    gate: str | None = None  # folder; without it a gate is written first, from `canonical`
    canonical: tuple[str, ...] = ()  # files that say what is right: what a gate writer works from
    approve_gate: Truth = False  # a written gate waits for a person's approval before it is locked
    seed: str | None = None  # a correct slow start: the run's first candidate
    build: Build = Build()
    acceptance: AcceptanceCommand | None = None
    search: Search = Search()
    model: Model = Model()
    notes: dict[str, Any] = Field(default_factory=dict)  # unknown keys, kept for the optimiser

    @model_validator(mode="before")
    @classmethod
    def _default_language(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("language") is None:
            cpu = isinstance(data.get("gpu"), str) and data["gpu"].strip().upper() == "CPU"
            data = {**data, "language": Language.CPP if cpu else Language.CUDA}
        return data

    def config(self, name: str) -> Config:
        return next(config for config in self.configs if config.name == name)

    def variables(self, args: dict[str, Scalar]) -> dict[str, Scalar]:
        """What expressions may name: problem.shapes, overlaid with a config's (or an edge case's) own args."""
        scalar = (bool, int, float, str)
        shapes = {key: value for key, value in self.problem.shapes.items() if isinstance(value, scalar)}
        return {**shapes, **args}
