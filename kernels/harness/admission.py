"""Whether a gate may judge at all: every mutant has to fail against it, and the vendor's baseline has to pass.

The mutants are tried on cases and distributions that the judge really runs. Seeds are fixed here, so that the same gate
is admitted or refused whenever it is asked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from kernels.harness import mutants
from kernels.harness.compare import Comparison, compare
from kernels.harness.gate import Case, Gate, elements
from kernels.harness.judge import judge
from kernels.harness.mutants import Mutant, Specimen, Tensors
from kernels.harness.requests import GateLock, Judge, Sandbox
from specs.errors import GateError, UserError
from specs.loader import load_task
from specs.outcomes import Digest, Value, Verdict
from specs.schema import Task

TASKS = Path(__file__).parents[2] / "specs" / "tasks"
SMALL_ELEMENTS = 2 << 20  # of all tensors of a config together, up to which its reference is evaluated again and again
LARGE_ELEMENTS = 16 << 20  # beyond these a config is left to the judge, unless there are no edge cases
SEED = 20_260_101
SHOWN = 6  # names in one line
DRAWS = 3  # of the same case, all of which have to refuse a mutant whose error depends on the numbers that were drawn

Fate = Literal["refused", "let_through", "admitted", "no_case"]


class Fared(Value):
    """What became of one mutant."""

    mutant: str
    family: str
    told: str  # one sentence: what such a kernel does
    fate: Fate  # admitted: gate.yaml admits it. no_case: it is the right answer, or cannot be made, in every case
    where: str = ""  # case and distribution that refused it, or the last that let it through
    by: str = ""  # tensor and limit
    reason: str = ""  # gate.yaml's own, when it admits the mutant


class Admission(Value):
    """What admission found out about a gate."""

    gate: Digest
    mutants: tuple[Fared, ...]
    faults: tuple[str, ...] = ()  # of inputs and reference: each one refuses the gate
    limits: dict[str, dict[str, float]] = Field(default_factory=dict)  # tensor -> metric -> limit
    cases: tuple[str, ...] = ()  # what the mutants were tried on, case and distribution
    baseline: Verdict | None = None  # None: not judged here
    seconds: float = Field(ge=0, default=0.0, allow_inf_nan=False)

    @property
    def let_through(self) -> tuple[str, ...]:
        return tuple(fared.mutant for fared in self.mutants if fared.fate == "let_through")

    @property
    def admitted(self) -> bool:
        return not self.why_not

    @property
    def why_not(self) -> str:
        """One line that names what refuses the gate; empty when it is admitted."""
        parts = list(self.faults)
        if names := self.let_through:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            told = {fared.mutant: fared.told for fared in self.mutants}
            parts.append(
                f"the gate lets {len(names)} mutant{'s' if len(names) > 1 else ''} through: "
                f"{', '.join(names[:SHOWN])}{more} ({names[0]}: {told[names[0]]}); tighten its limits, add a "
                "distribution or an edge case that shows the difference, or say why under `admits`"
            )
        if self.baseline is not None and self.baseline.failure is not None:
            failure = self.baseline.failure
            parts.append(f"the baseline does not pass the gate in case '{failure.case}': {failure.message}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A case and a distribution that the judge puts together."""

    case: Case
    distribution: str


class _Draws:
    """Inputs of one pair, drawn again and again; each draw is made when it is first asked for."""

    def __init__(self, gate: Gate, pair: _Pair) -> None:
        self._gate, self._pair = gate, pair
        self._made: dict[int, Specimen] = {}

    def __getitem__(self, index: int) -> Specimen:
        if index not in self._made:
            seed = _seed(self._pair) + index
            self._made[index] = mutants.specimen(self._gate, self._pair.case, self._pair.distribution, seed)
        return self._made[index]


def admit(gate: Gate, lock: GateLock) -> Admission:
    """Try every mutant, and the reference's own soundness, within seconds. The baseline is `judged_baseline`'s part.

    Raises GateError when the gate cannot be used at all, or `admits` names no mutant.
    """
    begin = time.monotonic()
    known = mutants.mutants_of(gate)
    _check_admits(gate, known)
    timed, edges = _pairs(gate)
    small = bool(timed) and elements(gate.task, timed[0].case) <= SMALL_ELEMENTS
    faults = [*_input_faults(gate, (edges or timed)[0].case)]
    fates: dict[str, Fared] = {}
    tried: dict[str, None] = {}
    varies = False

    def try_on(pairs: Sequence[_Pair], alive: list[Mutant]) -> list[Mutant]:
        """The mutants that are not refused on any of these."""
        nonlocal varies
        for pair in pairs:
            if not alive:
                break
            draws = _Draws(gate, pair)
            if draws[0].told not in tried:
                tried[draws[0].told] = None
                faults.extend(_reference_faults(draws))
                varies = varies or not _same_answer(draws)
            alive = [m for m in alive if not all(_refused(m, draws[i], fates) for i in range(DRAWS if m.costly else 1))]
        return alive

    # What is wrong in a small part has to be seen at the shape that is timed, where a kernel may have it and nowhere
    # else; edge cases speak only where it cannot be made there. What is wrong throughout is refused if it is anywhere.
    partial = [mutant for mutant in known if mutant.partial and (small or not mutant.costly)]
    left = try_on(timed, partial)
    try_on(edges, [mutant for mutant in left if mutant.name not in fates])
    others = [mutant for mutant in known if mutant not in partial]
    try_on([*timed, *edges] if small else [*edges, *timed], others)
    if not varies:
        faults.append("reference.py: reference gives the same golden for all inputs")
    return Admission(
        gate=lock.digest,
        mutants=tuple(_with_reason(gate, fates.get(mutant.name) or _no_case(mutant)) for mutant in known),
        faults=tuple(dict.fromkeys(faults)),
        limits={name: limits.model_dump(exclude_none=True) for name, limits in gate.limits.items()},
        cases=tuple(tried),
        seconds=time.monotonic() - begin,
    )


def refuse_weak(gate: Gate, lock: GateLock) -> None:
    """Raises GateError, in one line, for a gate that lets a mutant through."""
    if why := admit(gate, lock).why_not:
        raise GateError(why)


def judged_baseline(
    gate: Gate, lock: GateLock, folder: Path, library: Path, builds: Path, sandbox: Sandbox = "preferred"
) -> Verdict:
    """The judge's verdict on the built baseline, which has to pass, held-out cases included."""
    return judge(
        Judge(
            task=gate.task, gate=folder, lock=lock, library=library, role="baseline", builds=builds, held_out=True,
            sandbox=sandbox,
        )
    )  # fmt: skip


def task_of(folder: Path) -> Path:
    """The task file under specs/tasks, beside the gate or in the current folder that names this gate.

    Of several for one problem the one with the most configs, which asks the most of the gate. Raises UserError when
    there is none, or when they are for different problems.
    """
    places = (TASKS, Path.cwd(), folder.resolve().parent)
    found: dict[Path, Task] = {}
    for path in (path for place in places for path in sorted(place.glob("*.yaml"))):
        try:
            loaded = load_task(path)
        except UserError:
            continue  # not a task, or a broken one, which names nothing
        if loaded.task.gate is not None and loaded.resolve(loaded.task.gate).resolve() == folder.resolve():
            found[path.resolve()] = loaded.task
    first = next(iter(found.values()), None)
    if first is None or any((one.interface, one.problem) != (first.interface, first.problem) for one in found.values()):
        given = f"{len(found)} tasks name it ({', '.join(p.name for p in found)})" if found else "no task names it"
        raise UserError(f"gate {folder}: {given} in {', '.join(map(str, places))}; --task TASK says which is meant")
    return max(found, key=lambda path: len(found[path].configs))


# ---------------------------------------------------------------- one mutant on one case


def _refused(mutant: Mutant, specimen: Specimen, fates: dict[str, Fared]) -> bool:
    """Whether the gate refuses this mutant here; `fates` remembers the last word on it."""

    def fared(fate: Fate, by: str = "") -> Fared:
        return Fared(
            mutant=mutant.name, family=mutant.family, told=mutant.told, fate=fate, where=specimen.told, by=by
        )  # fmt: skip

    try:
        changed = mutant.make(specimen)
    except GateError:
        # A reference that cannot even answer to what the mutant makes of the inputs does look at them.
        fates[mutant.name] = fared("refused", "reference.py refuses such inputs")
        return True
    if changed is None:
        return False
    if all(mutants.same(changed[name], specimen.right[name]) for name in changed):
        if mutant.must_differ:
            fates[mutant.name] = fared("let_through")
        return False
    found = _first_failure(specimen, changed)
    if found is None:
        fates[mutant.name] = fared("let_through")
        return False
    fates[mutant.name] = fared("refused", f"{found.metrics.tensor}: {found.limit}")
    return True


def _first_failure(specimen: Specimen, tensors: Tensors) -> Comparison | None:
    golden = specimen.golden
    for name, limits in specimen.gate.limits.items():
        if name in tensors:
            found = compare(name, tensors[name], golden.tensors[name], limits, golden.scales.get(name))
            if not found.ok:
                return found
    return None


def _no_case(mutant: Mutant) -> Fared:
    return Fared(mutant=mutant.name, family=mutant.family, told=mutant.told, fate="no_case")


def _with_reason(gate: Gate, fared: Fared) -> Fared:
    reason = gate.admits.get(fared.mutant) or gate.admits.get(fared.family)
    if reason is None or fared.fate != "let_through":
        return fared
    return fared.model_copy(update={"fate": "admitted", "reason": reason})


def _check_admits(gate: Gate, known: Sequence[Mutant]) -> None:
    accepted = {mutant.name for mutant in known} | {mutant.family for mutant in known}
    for name in gate.admits:
        if name not in accepted:
            families = ", ".join(dict.fromkeys(mutant.family for mutant in known))
            raise GateError(
                f"gate.yaml: admits.{name}: no such mutant; accepted: a family ({families}) or one mutant, "
                f"e.g. {known[0].name}"
            )


# ---------------------------------------------------------------- inputs and reference themselves


def _input_faults(gate: Gate, case: Case) -> Iterator[str]:
    """Distributions that do not differ, inputs that are always zero, inputs that cannot be drawn again."""
    drawn = {name: gate.inputs(np.random.default_rng(SEED), case.args, name) for name in gate.distributions}
    again = gate.inputs(np.random.default_rng(SEED), case.args, gate.distributions[0])
    first = drawn[gate.distributions[0]]
    if any(not mutants.same(first[name], again[name]) for name in first):
        yield "reference.py: make_inputs gives other inputs to the same rng: draw from rng alone"
    for a, b in itertools.combinations(gate.distributions, 2):
        if drawn[a] and all(mutants.same(drawn[a][name], drawn[b][name]) for name in drawn[a]):
            yield f"reference.py: make_inputs gives the same inputs for distributions {a!r} and {b!r}"
    other = gate.inputs(np.random.default_rng(SEED + 1), case.args, gate.distributions[0])
    if first and all(mutants.same(first[name], other[name]) for name in first):
        yield "reference.py: make_inputs gives the same inputs whatever the rng: a kernel could know them by heart"
    for name in first:
        if first[name].dtype.kind not in "iu" and not first[name].astype(np.float64).any():
            yield (
                f"reference.py: make_inputs gives only zeros for {name} in {gate.distributions[0]!r}, the distribution "
                "that configs and edge cases are judged on"
            )


def _reference_faults(draws: _Draws) -> Iterator[str]:
    """A golden that changes by itself, or that no kernel could meet."""
    specimen = draws[0]
    again = specimen.gate.golden(specimen.inputs, specimen.case.args)
    for name, golden in specimen.golden.tensors.items():
        if not mutants.same(golden, again.tensors[name]):
            yield f"reference.py: reference gives two different {name} for the same inputs"
    if (found := _first_failure(specimen, dict(specimen.right))) is not None:
        assert found.failure is not None
        yield (
            f"no kernel can pass {specimen.told}: the golden itself, rounded to the tensor's dtype, is refused: "
            f"{found.failure[1]}"
        )


def _same_answer(draws: _Draws) -> bool:
    return all(mutants.same(right, draws[1].right[name]) for name, right in draws[0].right.items())


# ---------------------------------------------------------------- what is tried


def _pairs(gate: Gate) -> tuple[list[_Pair], list[_Pair]]:
    """The cheapest config with every distribution, as in the judge's ranges, and the edge cases, largest first.

    A config that is too large is tried only when there is nothing else.
    """
    edges = [
        _Pair(case, gate.distributions[0])
        for case in sorted(gate.edges, key=lambda c: elements(gate.task, c), reverse=True)
    ]
    configs = [Case(name=config.name, args=config.args) for config in gate.task.configs]
    cheapest = min(configs, key=lambda case: elements(gate.task, case))
    if elements(gate.task, cheapest) > LARGE_ELEMENTS and edges:
        return [], edges
    return [_Pair(cheapest, distribution) for distribution in gate.distributions], edges


def _seed(pair: _Pair) -> int:
    """Its own for every pair, the same in every process."""
    return SEED + sum(ord(letter) * (i + 1) for i, letter in enumerate(f"{pair.case.name}/{pair.distribution}"))
