"""gate.yaml as types: what is compared, how closely, and on which shapes beyond the task's configs."""

from __future__ import annotations

from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from kernels.harness.compare import Limits
from kernels.harness.wording import given, one_line
from specs.errors import GateError
from specs.schema import Name, Scalar

ACCEPTED = {
    "GateYaml": "contract, deterministic, distributions, tensors, edges, held_out, admits",
    "Case": "name, args",
    "Limits": ", ".join(Limits.model_fields),
}
MAX_BYTES = 1 << 20  # pure Python reads this in seconds; a gate has a few thousand
MAX_TOLD = 20  # problems of one file that are told

Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=10)]


class Case(BaseModel):
    """One set of shape arguments beyond the task's configs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    args: dict[str, Scalar]


class GateYaml(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    contract: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    deterministic: bool
    distributions: tuple[Name, ...] = Field(min_length=1)
    tensors: dict[str, Limits] = Field(min_length=1)  # in checking order
    edges: tuple[Case, ...] = ()
    held_out: tuple[Case, ...] = ()
    admits: dict[str, Reason] = Field(default_factory=dict)  # mutants let through on purpose, by name or by family

    @model_validator(mode="before")
    @classmethod
    def _an_empty_entry_is_no_limit(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("tensors"), dict):
            tensors = {name: {} if limits is None else limits for name, limits in data["tensors"].items()}
            data = {**data, "tensors": tensors}
        return data

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for what, names in (
            ("distributions", list(self.distributions)),
            ("edges and held_out", [case.name for case in (*self.edges, *self.held_out)]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what}: names must differ, given twice: {', '.join(twice)}")
        return self


class _Loader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, whose second would silently replace the first one's limits.

    And aliases: a few lines of them stand for more values than any memory holds.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack its types
            problem = f"alias *{one_line(event.anchor, 40)} given; aliases are not accepted, write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {given(key)} is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def parse(content: bytes) -> GateYaml:
    """Raises GateError naming the field, what was given and what is accepted."""
    if len(content) > MAX_BYTES:
        raise GateError(f"gate.yaml: {len(content)} bytes; at most {MAX_BYTES} are accepted")
    try:
        data = yaml.load(content, Loader=_Loader)  # noqa: S506  # derives from SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise GateError(f"gate.yaml{line}: {one_line(error.problem or error.context or '')}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise GateError(f"gate.yaml: not YAML: {one_line(' '.join(str(error).split()))}") from None
    if not isinstance(data, dict):
        raise GateError(f"gate.yaml: a mapping with {ACCEPTED['GateYaml']} is needed, {type(data).__name__} given")
    try:
        return GateYaml.model_validate(data)
    except ValidationError as error:
        details = error.errors()
        more = [f"and {len(details) - MAX_TOLD} more"] if len(details) > MAX_TOLD else []
        raise GateError("; ".join([*(_problem(dict(detail)) for detail in details[:MAX_TOLD]), *more])) from None


def _problem(detail: dict[str, Any]) -> str:
    parts = [part for part in detail["loc"] if part not in ("bool", "int", "float", "str")]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    where = f"gate.yaml: {one_line(field)}: " if field else "gate.yaml: "
    if detail["type"] == "missing":
        return f"{where}missing"
    if detail["type"] == "extra_forbidden":
        model = {1: "GateYaml", 3: "Limits" if parts[0] == "tensors" else "Case"}.get(len(parts), "GateYaml")
        return f"{where}unknown; accepted: {ACCEPTED[model]}"
    told = "" if isinstance(detail["input"], dict) else f", {given(detail['input'])} given"
    return f"{where}{one_line(detail['msg'].removeprefix('Value error, '))}{told}"
