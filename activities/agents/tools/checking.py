"""Check the kernel: a quick judgement on the gate's public cases, told in words that a kernel author can act on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from activities.agents.tools.compiling import compiled
from activities.agents.tools.tool import Answer, Arguments, Desk, NoArguments, Tool, clipped
from activities.judge import judge_library
from kernels.harness.requests import GateLock
from specs.dialogue import Workspace
from specs.outcomes import Failure, FailureKind, Metrics, Verdict

if TYPE_CHECKING:
    from kernels.harness.compare import Limits

NO_GATE = "this task has no locked gate, so nothing can be judged; compile and submit"

_HINTS = {
    FailureKind.CRASHED: "look for an index outside of a buffer, misalignment, a system call or a trap on that shape",
    FailureKind.HUNG: "look for a loop that does not end on that shape, or threads that wait for each other",
    FailureKind.EXITED: "return from the entry; nothing may end the process",
    FailureKind.NOT_LOADED: "export the entry exactly as the interface says, with nothing to resolve but its own code",
    FailureKind.NOT_WRITTEN: "write every element of every output: look at the ends of rows and at the last tile",
    FailureKind.GUARD_OVERWRITTEN: "an index runs past a buffer: bound the stores of the last tile",
    FailureKind.INPUT_CHANGED: "inputs are read only: use the workspace",
    FailureKind.NON_FINITE: "look for an overflow, a division by zero, or NaN and inf handled otherwise than asked",
    FailureKind.WRONG: "compare the formula, the order and the precision of sums with the contract, term by term",
    FailureKind.LATE_WRITE: "all work must have ended when the call ends",
    FailureKind.THREADS: "start no threads and no processes",
    FailureKind.NOT_DETERMINISTIC: "look for atomics, races or an order of sums that changes between calls",
    FailureKind.STAGE_DISAGREES: "compute the output the same way whether or not stage tensors are asked for",
    FailureKind.TIMED_WRONG: "it is right once and wrong later: keep nothing between calls",
    FailureKind.LEFT_STATE: "put rounding and flush-to-zero modes back before returning",
    FailureKind.LEAK: "give back what a call takes, or use the workspace",
    FailureKind.MEMORY_ERROR: "an access outside of a buffer, a race or undefined behaviour: mend that line first",
    FailureKind.TOO_FAST: "so little time cannot hold the work: something is left out",
    FailureKind.LAUNCH_FAILED: "look at block size, shared memory (opt in above 48 KiB), cluster and grid limits",
    FailureKind.WRONG_STREAM: "put all work on the stream that the entry is given",
}


class Check(Tool[NoArguments]):
    name: ClassVar[str] = "check"
    description: ClassVar[str] = (
        "Compile the kernel and judge it on the gate's public cases: every config, its value ranges, determinism. "
        "Tells the first failure, with metrics. Quick; a pass is no verdict yet: edge shapes and stress come later."
    )
    arguments: ClassVar[type[Arguments]] = NoArguments

    async def use(self, desk: Desk, given: NoArguments) -> Answer:
        lock = desk.session.lock
        if lock is None:
            return Answer(NO_GATE, error=True)
        made = await compiled(desk)
        if isinstance(made, Answer):
            return made
        verdict = await judge_library(
            desk.workshop, desk.bundle, lock, made.library, desk.session.sandbox, scope="public"
        )
        if verdict.failure is not None:
            return failed(verdict.failure, made.workspace)
        limits = await limits_of(desk, lock)
        text = (
            f"passed the public cases, {verdict.cases} calls, worst of each tensor:\n{worst(verdict, limits)}\n"
            "Not looked at yet: edge shapes, many calls in a row, memory accesses. measure and submit judge these too."
        )
        return Answer(clipped(text), workspace=made.workspace, said=f"passed {verdict.cases} public calls")


def failed(failure: Failure, workspace: Workspace) -> Answer:
    """The first thing that was wrong; of the golden result no more than how far the kernel is from it."""
    tensor = f", tensor {failure.first_failing_stage}" if failure.first_failing_stage else ""
    lines = [
        f"FAILED in {failure.verification.value} on {failure.case}{tensor}: {failure.kind.value}",
        without_golden(failure),
    ]
    if failure.metrics is not None and (told := table(failure.metrics)):
        lines.append(told)
    lines.append(f"Next: {_HINTS[failure.kind]}.")
    said = f"{failure.kind.value} on {failure.case}"
    return Answer(clipped("\n".join(lines)), error=True, workspace=workspace, said=said[:300])


def without_golden(failure: Failure) -> str:
    """A failure's message, the right value taken out of it."""
    if failure.metrics is None or not failure.metrics.worst_want:
        return failure.message
    return failure.message.replace(f", want {failure.metrics.worst_want}", "")


def table(metrics: Metrics) -> str:
    """Every metric that is a number, in one line, and where the worst element is."""
    names = ("max_abs", "max_rel", "mean_abs", "rel_l2", "cosine", "worst_row_cosine", "mismatch_fraction")
    values = {name: getattr(metrics, name) for name in names}
    told = ", ".join(f"{name} {value:.6g}" for name, value in values.items() if value is not None)
    at = f"; worst at {list(metrics.worst_index)}, where it gives {metrics.worst_got}" if metrics.worst_index else ""
    return f"{metrics.tensor}: {told or 'nothing finite to compare'}{at}"


def worst(verdict: Verdict, limits: Mapping[str, Limits]) -> str:
    """Each tensor's worst metrics against the limits that the gate sets."""
    lines = []
    for metrics in verdict.worst:
        known = limits.get(metrics.tensor)
        lines.append(f"  {metrics.tensor}: {against(metrics, known) if known else 'equal, as it has to be'}")
    return "\n".join(lines) or "  nothing was compared"


def against(metrics: Metrics, limits: Limits) -> str:
    parts = []
    if limits.elementwise is not None:
        share, allowed = metrics.mismatch_fraction, limits.mismatch_fraction or 0.0
        parts.append(f"elements outside {limits.elementwise:g} of their scale {share or 0:.3g} (allowed {allowed:g})")
    for name in ("max_abs", "max_rel", "mean_abs", "rel_l2"):
        parts += [f"{name} {_number(getattr(metrics, name))} (at most {bound:g})" for bound in _given(limits, name)]
    for name in ("cosine", "worst_row_cosine"):
        parts += [f"{name} {_number(getattr(metrics, name))} (at least {bound:g})" for bound in _given(limits, name)]
    return ", ".join(parts) or "equal, as it has to be"


async def limits_of(desk: Desk, lock: GateLock) -> dict[str, Limits]:
    """The gate's limits, with what was calibrated at the lock."""

    def read() -> dict[str, Limits]:
        # Only the gate's list of limits; nothing of its reference is run here.
        from kernels.harness import gate_yaml

        parsed = gate_yaml.parse((desk.bundle.gate / "gate.yaml").read_bytes())
        return {
            name: limits.model_copy(update={**lock.calibration.get(name, {}), "calibrated": None})
            for name, limits in parsed.tensors.items()
        }

    return await asyncio.to_thread(read)


def _given(limits: Limits, name: str) -> list[float]:
    bound = getattr(limits, name)
    return [] if bound is None else [bound]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"
