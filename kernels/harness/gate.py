"""The gate at work: lock it, load it from the very bytes that were hashed, make inputs and golden results.

Everything a reference gives back is checked here, once, so that the judge never meets a malformed golden.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from kernels.harness import gate_files, gate_yaml
from kernels.harness.compare import Limits
from kernels.harness.dtypes import is_integer, numpy_dtype
from kernels.harness.gate_yaml import Case
from kernels.harness.requests import GateLock
from kernels.harness.wording import Interrupted, described, one_line
from specs import expressions
from specs.errors import GateError
from specs.schema import Argument, ArgumentKind, Interface, Scalar, Task

__all__ = ["Case", "Gate", "Golden", "load", "lock", "numpy_dtype", "rehearse"]

_REAL_EXIT = os._exit
_reference_lock = threading.Lock()
_references_running = 0
_streams = (sys.stdout, sys.stderr)

MEMORY_CAP = 1 << 40  # bytes; no case of a sane gate comes near
CGROUP = Path("/sys/fs/cgroup")
SCALE = ".scale"  # reference.py gives `<tensor>.scale` for the tensors whose error grows with what was summed


@dataclass(frozen=True, slots=True)
class Golden:
    """What the reference says: float64 arrays by tensor; a tensor of integer dtype may be an integer array."""

    tensors: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]  # float64, of the tensor's shape; only for tensors whose reference gives one


@dataclass(frozen=True, slots=True)
class Gate:
    """A loaded gate. `args` below are a config's or a case's own; problem.shapes lie under them."""

    contract: str
    deterministic: bool
    distributions: tuple[str, ...]
    limits: dict[str, Limits]  # every stage tensor, then every output, in checking order
    edges: tuple[Case, ...]
    held_out: tuple[Case, ...]  # judged only at final acceptance
    task: Task
    make_inputs: Callable[..., Any]
    reference: Callable[..., Any]
    admits: Mapping[str, str] = dataclasses.field(default_factory=dict)  # mutant or family -> the reason

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """Tensors whose limits still have to be found from the baseline; nothing can be judged by them."""
        return tuple(name for name, limits in self.limits.items() if limits.calibrated is not None)

    def inputs(self, rng: np.random.Generator, args: Mapping[str, Scalar], distribution: str) -> dict[str, np.ndarray]:
        """Read-only C-ordered arrays, one an input argument, of its dtype and shape. Raises GateError."""
        variables = self.task.variables(dict(args))
        where = f"make_inputs for {_told(args)}, distribution {distribution!r}"
        given = _call(where, self.make_inputs, rng, dict(variables), distribution)
        arguments = _interface(self.task).of(ArgumentKind.INPUT)
        _same_names(where, given, {_name(argument) for argument in arguments}, set())
        made: dict[str, np.ndarray] = {}
        for argument in arguments:
            name = _name(argument)
            array = _array(where, name, given[name], shape_of(argument, variables))
            wanted = numpy_dtype(_dtype(argument))
            if array.dtype != wanted:
                raise GateError(
                    f"reference.py: {where}: {name} has dtype {one_line(str(array.dtype))}; {wanted} is needed"
                )
            made[name] = np.array(array, order="C")
            made[name].setflags(write=False)  # a reference that changes its inputs is then an error, not a wrong golden
        return made

    def golden(self, inputs: Mapping[str, np.ndarray], args: Mapping[str, Scalar]) -> Golden:
        """The reference's results for these inputs, every one checked. Raises GateError."""
        variables = self.task.variables(dict(args))
        where = f"reference for {_told(args)}"
        with np.errstate(all="ignore"):  # inf and NaN on purpose are part of some contracts
            given = _call(where, self.reference, dict(inputs), dict(variables))
        arguments = {_name(a): a for a in _interface(self.task).of(ArgumentKind.STAGE, ArgumentKind.OUTPUT)}
        _same_names(where, given, set(arguments), {name + SCALE for name in arguments})
        tensors: dict[str, np.ndarray] = {}
        scales: dict[str, np.ndarray] = {}
        for name, argument in arguments.items():
            shape = shape_of(argument, variables)
            tensors[name] = _array(where, name, given[name], shape)
            whole = is_integer(_dtype(argument))
            if tensors[name].dtype != np.float64 and not (whole and tensors[name].dtype.kind in "iu"):
                needed = "float64 or an integer dtype" if whole else "float64"
                got = one_line(str(tensors[name].dtype))
                raise GateError(f"reference.py: {where}: {name} has dtype {got}; {needed} is needed")
            if name + SCALE in given:
                scales[name] = _scale(where, name + SCALE, given[name + SCALE], tensors[name])
        return Golden(tensors, scales)


def lock(task: Task, folder: Path, calibration: dict[str, dict[str, float]] | None = None) -> GateLock:
    """Hash the gate folder together with the task's interface, configs and flags, and the limits found by calibration.

    Raises GateError.
    """
    return gate_files.lock_of(task, gate_files.read(folder), calibration)


def load(task: Task, folder: Path, lock: GateLock) -> Gate:
    """The gate, made from bytes that were read once and are those that were locked.

    Raises GateTampered when they are not, GateError when they cannot judge this task.
    """
    contents = gate_files.read(folder)
    gate_files.verify(task, contents, lock)
    parsed = gate_yaml.parse(contents["gate.yaml"])
    _fit(task, parsed)
    module = _execute(contents["reference.py"])
    return Gate(
        contract=parsed.contract,
        deterministic=parsed.deterministic,
        distributions=parsed.distributions,
        limits={name: _calibrated(limits, lock.calibration.get(name)) for name, limits in parsed.tensors.items()},
        edges=parsed.edges,
        held_out=parsed.held_out,
        task=task,
        make_inputs=_function(module, "make_inputs"),
        reference=_function(module, "reference"),
        admits=dict(parsed.admits),
    )


def _calibrated(limits: Limits, found: Mapping[str, float] | None) -> Limits:
    if limits.calibrated is None or not found:
        return limits
    return Limits.model_validate({**limits.model_dump(exclude={"calibrated"}), **found})


def rehearse(loaded: Gate) -> None:
    """Make inputs and golden once per distribution, on the smallest case: a broken reference.py shows at the lock.

    Raises GateError.
    """
    task = loaded.task
    cases = [Case(name=config.name, args=config.args) for config in task.configs] + list(loaded.edges)
    check_memory(task, [*cases, *loaded.held_out])
    smallest = min(cases, key=lambda case: elements(task, case))
    for distribution in loaded.distributions:
        inputs = loaded.inputs(np.random.default_rng(0), smallest.args, distribution)
        golden = loaded.golden(inputs, smallest.args)
        where = f"{_told(smallest.args)}, distribution {distribution!r}"
        for what, arrays in (("make_inputs", inputs), ("reference", golden.tensors)):
            for name, array in arrays.items():
                if array.size and _all_nan(array):
                    raise GateError(f"reference.py: {what} for {where}: {name} is NaN everywhere, so nothing is judged")


def elements(task: Task, case: Case) -> int:
    """Elements of all tensors of a case together: what it costs to look at it."""
    variables = task.variables(case.args)
    kinds = (ArgumentKind.INPUT, ArgumentKind.STAGE, ArgumentKind.OUTPUT)
    return sum(math.prod(shape_of(argument, variables)) for argument in _interface(task).of(*kinds))


def _all_nan(array: np.ndarray) -> bool:
    # NaN is all that differs from itself, in every dtype that has it.
    return bool((array != array).all())


def check_memory(task: Task, cases: Sequence[Case]) -> None:
    """Raise GateError when a case needs more memory than there is: for buffers, the gate's copies and the golden."""
    cap = min(available_bytes(), MEMORY_CAP)
    for case in cases:
        needed = memory_needed(task, case)
        if needed > cap:
            told = f"{needed} bytes are needed and {cap} are available"
            raise GateError(f"case {case.name!r} ({_told(case.args)}) is too large for this machine: {told}")


def memory_needed(task: Task, case: Case) -> int:
    """Bytes that one question about a case takes at its height, by estimate."""
    variables = task.variables(case.args)
    total = 0
    for argument in _interface(task).of(ArgumentKind.WORKSPACE):
        assert argument.bytes is not None
        try:
            total += expressions.evaluate(argument.bytes, variables)
        except ValueError as error:
            raise GateError(f"interface: bytes of {argument.name}: {error}") from None
    for argument in _interface(task).of(ArgumentKind.INPUT, ArgumentKind.STAGE, ArgumentKind.OUTPUT):
        elements = math.prod(shape_of(argument, variables))
        # In the arena, in the gate's copy and as float64 with one temporary: in the reference or in the comparison.
        total += elements * (2 * numpy_dtype(_dtype(argument)).itemsize + 2 * 8)
    return total


def available_bytes() -> int:
    """What the system says can be had without swapping; no limit where it does not say."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return min(int(match[1]) << 10 if match else MEMORY_CAP, _container_bytes())


def _container_bytes() -> int:
    """What a container leaves of its own limit; in one, the figures of the whole machine promise too much."""
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # none, or "max"
        return MEMORY_CAP


def shape_of(argument: Argument, variables: Mapping[str, object]) -> tuple[int, ...]:
    """An argument's dimensions for these arguments. Raises GateError when an expression cannot be evaluated."""
    try:
        return tuple(expressions.evaluate(dimension, variables) for dimension in argument.shape or ())
    except ValueError as error:
        raise GateError(f"interface: shape of {argument.name}: {error}") from None


def _fit(task: Task, parsed: gate_yaml.GateYaml) -> None:
    """Whether gate.yaml judges every tensor of the task's interface, on cases that give all it needs."""
    interface = _interface(task)
    stages = {_name(a) for a in interface.of(ArgumentKind.STAGE)}
    checked = {_name(a): a for a in interface.of(ArgumentKind.STAGE, ArgumentKind.OUTPUT)}
    accepted = f"accepted: {', '.join(checked)}"
    for name in parsed.tensors:
        if name not in checked:
            raise GateError(f"gate.yaml: tensors.{name}: not a stage tensor or output of the interface; {accepted}")
    for name, argument in checked.items():
        if name not in parsed.tensors:
            raise GateError(f"gate.yaml: tensors.{name}: missing; every stage tensor and output needs limits")
        if not parsed.tensors[name].given and not is_integer(_dtype(argument)):
            raise GateError(f"gate.yaml: tensors.{name}: no limit given; accepted: {gate_yaml.ACCEPTED['Limits']}")
        if parsed.tensors[name].calibrated is not None and is_integer(_dtype(argument)):
            raise GateError(f"gate.yaml: tensors.{name}.calibrated: {_dtype(argument).value} has no rounding error")
    order = list(parsed.tensors)
    for earlier, later in itertools.pairwise(order):
        if later in stages and earlier not in stages:
            raise GateError(
                f"gate.yaml: tensors.{later}: a stage tensor comes before the outputs, here after {earlier}"
            )

    taken = {config.name for config in task.configs}
    for field, cases in (("edges", parsed.edges), ("held_out", parsed.held_out)):
        for index, case in enumerate(cases):
            if case.name in taken:
                raise GateError(f"gate.yaml: {field}[{index}].name: {case.name!r} is also the name of a config")
            _covers(interface, task.variables(case.args), f"gate.yaml: {field}[{index}].args")
    for config in task.configs:
        _covers(interface, task.variables(config.args), f"task {task.name}: config {config.name!r}")


def _covers(interface: Interface, variables: Mapping[str, object], where: str) -> None:
    """Raises GateError when the interface names something that these arguments do not give."""
    for argument in interface.arguments:
        if argument.kind is ArgumentKind.SCALAR and argument.value is None and argument.name not in variables:
            raise GateError(f"{where}: the interface's scalar {argument.name} is not given")
        for expression in (*(argument.shape or ()), *([argument.bytes] if argument.bytes else [])):
            try:
                expressions.evaluate(expression, variables)
            except ValueError as error:
                raise GateError(f"{where}: {argument.name}: {error}") from None


@contextlib.contextmanager
def _kept_alive() -> Iterator[None]:
    """While a reference runs it cannot end the gate: that would be an exit status without a verdict.

    Nor can it take away where the verdict is printed.
    """

    def refuse(status: int = 0) -> NoReturn:
        raise SystemExit(status)

    global _references_running, _streams
    with _reference_lock:  # inputs and goldens are made in two threads
        if _references_running == 0:
            _streams = (sys.stdout, sys.stderr)
        _references_running += 1
        os._exit = refuse
    try:
        yield
    finally:
        with _reference_lock:
            _references_running -= 1
            if _references_running == 0:
                os._exit = _REAL_EXIT
                sys.stdout, sys.stderr = _streams


def _execute(source: bytes) -> ModuleType:
    module = ModuleType("gate_reference")
    try:
        # The text was hashed against the lock a moment ago; importing it from the folder would read the file again.
        with _kept_alive():
            exec(compile(source, "reference.py", "exec"), module.__dict__)  # noqa: S102
    except Interrupted:
        raise
    except BaseException as error:  # SystemExit too: it would end the gate in silence, and with status 0
        raise GateError(f"reference.py cannot be loaded: {_described(error)}") from error
    return module


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise GateError(f"reference.py defines no function {name}")
    return function  # type: ignore[no-any-return]


def _call(where: str, function: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    try:
        with _kept_alive():
            given = function(*arguments)
            # A plain dict from here on, whose keys are plain text: the judge asks nothing of a class made in there.
            known = {one_line(str(name)): value for name, value in given.items()} if isinstance(given, dict) else None
    except Interrupted:
        raise
    except BaseException as error:
        raise GateError(f"reference.py: {where}: {_described(error)}") from error
    if known is None:
        raise GateError(f"reference.py: {where}: a dict of arrays is needed, {_class(given)} given")
    return known


def _described(error: BaseException) -> str:
    """In one line, with the line of reference.py; an exception made in there is asked for its words with care."""
    lines: list[int | None] = []
    with contextlib.suppress(Exception):
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == "reference.py"]
        if isinstance(error, SyntaxError):
            lines = [error.lineno] if error.lineno else []
    return described(error) + (f" (line {lines[-1]})" if lines else "")


def _class(given: object) -> str:
    return one_line(str(type(given).__name__), 100)


def _same_names(where: str, given: Mapping[str, Any], needed: set[str], optional: set[str]) -> None:
    if missing := sorted(needed - given.keys()):
        raise GateError(f"reference.py: {where}: gives no {', '.join(missing)}")
    if surplus := sorted(str(name) for name in given.keys() - needed - optional):
        accepted = ", ".join(sorted(needed | optional))
        raise GateError(f"reference.py: {where}: gives {', '.join(surplus)}; accepted: {accepted}")


def _array(where: str, name: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(given, np.ndarray | np.generic):
        raise GateError(f"reference.py: {where}: {name} is a {_class(given)}; a numpy array is needed")
    array = np.asarray(given)
    if array.shape != shape:
        raise GateError(f"reference.py: {where}: {name} has shape {list(array.shape)}; {list(shape)} is needed")
    return array


def _scale(where: str, name: str, given: object, golden: np.ndarray) -> np.ndarray:
    scale = _array(where, name, given, golden.shape)
    if scale.dtype != np.float64:
        raise GateError(f"reference.py: {where}: {name} has dtype {one_line(str(scale.dtype))}; float64 is needed")
    usable = (scale >= 0) & np.isfinite(scale)
    if not (usable | ~np.isfinite(golden)).all():
        raise GateError(f"reference.py: {where}: {name} must be finite and not negative wherever the golden is finite")
    return scale


def _interface(task: Task) -> Interface:
    if task.interface is None:
        raise GateError(f"task {task.name} has no interface; a gate judges the function it describes")
    return task.interface


def _name(argument: Argument) -> str:
    assert argument.name is not None
    return argument.name


def _dtype(argument: Argument) -> Any:
    assert argument.dtype is not None
    return argument.dtype


def _told(args: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name}={value}" for name, value in args.items()) or "no arguments"
