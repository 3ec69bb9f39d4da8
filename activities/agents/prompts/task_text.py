"""A task in words: its function, its shapes, its score and its gate's contract, the same for every role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from activities.agents.prompts.blocks import bullets, number, one_line, plural, table
from activities.agents.prompts.stub import launcher
from kernels.harness.compare import Limits
from kernels.harness.gate_yaml import GateYaml
from kernels.harness.interface import prototype
from specs import expressions
from specs.schema import Argument, ArgumentKind, Config, DType, Harness, Language, Scalar, Scoring, Task

MOST_CONFIGS = 48  # rows; of more only the ranges of their arguments are told
MOST_CASES = 24
MOST_FREE = 3_000  # characters of free-form values of a task file

Calibration = Mapping[str, Mapping[str, float]]  # tensor -> metric -> limit, as a lock has it


def arguments(args: Mapping[str, Scalar]) -> str:
    """`M=16 N=4096`"""
    return " ".join(f"{name}={_plain(value)}" for name, value in args.items())


def problem(task: Task) -> str:
    """What is to be computed, in the words of the task's author."""
    shapes = f"Shared by all configs: `{_free(task.problem.shapes)}`" if task.problem.shapes else ""
    notes = f"Further notes of the task: `{_free(task.notes)}`" if task.notes else ""
    return "\n\n".join(part for part in (task.problem.description.strip(), shapes, notes) if part)


def interface(task: Task) -> str:
    """The entry that a candidate exports, and what each argument is."""
    if task.interface is None:
        return ""
    if task.language is Language.TRITON:
        declared = f"```python\n{launcher(task.interface)}\n```"
        said = (
            "This plain function is the launcher. It launches `@triton.jit` kernels of the same file and gets tensors "
            "without data."
        )
    else:
        declared = f'```cpp\nextern "C" {prototype(task.interface, cuda=task.language is Language.CUDA)};\n```'
        said = "Exactly this function, exported by one source file."
    aligned = 64 if task.language is Language.CPP else 256
    narrow = {DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2}
    is_raw = task.language is Language.CPP and any(one.dtype in narrow for one in task.interface.arguments)
    return "\n\n".join(
        [
            f"{declared}\n{said}",
            bullets(_argument(task, argument) for argument in task.interface.arguments),
            f"All tensors are dense and row-major. A tensor begins at a multiple of {aligned} bytes, its rows need not."
            + (" Floats of 16 and 8 bits come as their raw bits." if is_raw else ""),
        ]
    )


def configs(task: Task) -> str:
    """The shapes that are timed, with what each must do at the least."""
    shown = task.configs[:MOST_CONFIGS]
    rows = [
        [
            config.name,
            arguments(config.args),
            number(config.target_ratio),
            number(config.weight),
            "" if flops is None else amount(flops, "flop"),
            "" if moved is None else amount(moved, "B"),
        ]
        for config in shown
        for flops, moved in [work(task, config)]
    ]
    told = table(["config", "arguments", "target ratio", "weight", "work", "bytes to move"], rows)
    if len(task.configs) > len(shown):
        more = len(task.configs) - len(shown)
        told += f"\n\n... and {plural(more, 'config')} more. Over all of them: {_ranges(task)}."
    return told


def work(task: Task, config: Config) -> tuple[int | None, int | None]:
    """Operations and bytes of one call, where the task says so."""
    variables = task.variables(config.args)
    flops, moved = (
        expressions.evaluate(expression, variables) if expression is not None else None
        for expression in (task.work.flops, task.work.bytes)
    )
    return flops, moved


def amount(value: float, unit: str) -> str:
    """`4.19 MB`"""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def scoring(task: Task) -> str:
    """How ratios become a score, and what a win needs."""
    how = {
        Scoring.MIN_RATIO: "The score is the lowest ratio of all configs: only the worst config counts.",
        Scoring.WEIGHTED_AVG: (
            "The score is the weighted mean of the ratios. A config that falls from its target to below it makes the "
            "kernel a regression, however good the mean is."
        ),
        Scoring.FOCUS: (
            f"The score is the ratio of `{task.focus_config}`. Any other config that is below its target, and was not "
            "or has lost ground against the champion, makes the kernel a regression."
        ),
    }[task.scoring]
    strict = ", and every config at its own target" if task.stage_gate.strict else ""
    needed = (
        f"a score more than {task.search.min_gain:.1%} above the champion's"
        if task.harness is Harness.SELF_CONTAINED
        else f"the low end of the 95% interval of the gain over the champion above {1 + task.search.min_gain:g}"
    )
    return (
        f"A ratio is baseline time / your time: 1.10 is 10% faster than the baseline. {how} A config without a time "
        f"counts as 0. The first correct kernel becomes the champion; after it a win needs {needed}. REPRODUCE ends at "
        f"a score of {task.stage_gate.ratio:g}{strict}; then OPTIMIZE begins."
    )


def contract(gate: GateYaml, calibration: Calibration) -> str:
    """What the judge compares and how closely. Held-out cases are not told to anybody who writes kernels."""
    limits = bullets(f"`{name}`: {_limits(one, calibration.get(name, {}))}" for name, one in gate.tensors.items())
    cases = [f"{case.name} ({arguments(case.args)})" for case in gate.edges]
    more = f", and {len(cases) - MOST_CASES} more" if len(cases) > MOST_CASES else ""
    return "\n\n".join(
        part
        for part in (
            gate.contract,
            f"Compared with a float64 reference, in this order; the first that is off is what you are told:\n{limits}",
            f"Inputs are drawn from: {', '.join(gate.distributions)}.",
            f"Edge shapes: {', '.join(cases[:MOST_CASES])}{more}." if cases else "",
        )
        if part
    )


def built_with(task: Task) -> str:
    """Compiler flags, for candidates and for the final acceptance."""
    if task.language is Language.TRITON:
        return f"Triton for {task.arch}; options such as num_warps stand in the launch."
    flags = f"flags: `{' '.join(task.build.flags)}`" if task.build.flags else "with the harness's own flags"
    production = " ".join(task.build.production_flags)
    more = f" For the final acceptance also: `{production}`." if production else ""
    return f"For {task.arch}, {flags}.{more}"


def _argument(task: Task, argument: Argument) -> str:
    name, dtype = argument.name or "stream", argument.dtype.value if argument.dtype else ""
    shape = f"[{', '.join(argument.shape)}]" if argument.shape is not None else ""
    match argument.kind:
        case ArgumentKind.INPUT:
            return f"`{name}`: input, {dtype} {shape}; only read"
        case ArgumentKind.OUTPUT:
            return f"`{name}`: output, {dtype} {shape}; every element is to be written"
        case ArgumentKind.STAGE:
            null = "None" if task.language is Language.TRITON else "null"
            return f"`{name}`: intermediate, {dtype} {shape}; {null} unless the judge asks for it, then store it too"
        case ArgumentKind.WORKSPACE:
            return f"`{name}`: scratch memory of `{argument.bytes}` bytes; holds anything before the call"
        case ArgumentKind.STREAM:
            return f"`{name}`: where all launches go"
    known = argument.value if argument.value is not None else task.problem.shapes.get(name)
    told = "given by each config" if known is None else f"{_plain(known)} unless a config gives another"
    return f"`{name}`: {dtype} value, {told}"


def _limits(limits: Limits, calibrated: Mapping[str, float]) -> str:
    values = {name: value for name in Limits.model_fields if (value := getattr(limits, name)) is not None}
    times = values.pop("calibrated", None)
    words = [
        _LIMITS[name].format(value=f"{value:g}") for name, value in {**values, **calibrated}.items() if name in _LIMITS
    ]
    if times is not None and not calibrated:
        words.append(f"at most {times:g} times the baseline's own error")
    return "; ".join(words) or "equal to the reference, bit by bit"


_LIMITS = {
    "elementwise": "each |got - want| <= {value} * scale, the scale being the reference's own, else |want| + rms(want)",
    "max_abs": "largest |got - want| <= {value}",
    "max_rel": "largest |got - want| / |want| <= {value}",
    "mean_abs": "mean |got - want| <= {value}",
    "rel_l2": "||got - want|| / ||want|| <= {value}",
    "mismatch_fraction": "a share of {value} of the elements may miss the element-wise limit",
    "cosine": "cosine of the whole tensor >= {value}",
    "worst_row_cosine": "cosine of every row >= {value}",
}


def _ranges(task: Task) -> str:
    """`M 1 to 4096, N 128 to 8192`"""
    values: dict[str, set[Scalar]] = {}
    for config in task.configs:
        for name, value in config.args.items():
            values.setdefault(name, set()).add(value)
    told = []
    for name, found in values.items():
        numbers = sorted(value for value in found if isinstance(value, int | float))
        told.append(
            f"{name} {_plain(numbers[0])} to {_plain(numbers[-1])}"
            if numbers
            else f"{name} of {plural(len(found), 'value')}"
        )
    return one_line(", ".join(told), 600)


def _plain(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _free(value: dict[str, Any]) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str), MOST_FREE)
