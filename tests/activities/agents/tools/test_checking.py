"""The check tool: the public cases alone, the first failure in words, and never a right answer."""

from __future__ import annotations

from typing import Any

import pytest

from activities.agents.tools import checking
from activities.agents.tools.checking import Check
from activities.agents.tools.tool import Desk, NoArguments
from activities.judge import judge_library
from kernels.harness import requests
from specs.dialogue import Workspace
from specs.errors import RunnerLost
from specs.outcomes import Failure, FailureKind, Metrics, Verdict, VerificationStage
from tests.activities.agents.tools.bench import COPY, HALVES, TYPO, in_session, working_on


async def test_a_right_kernel_passes_with_its_metrics_beside_the_limits(desk: Desk) -> None:
    there = await working_on(desk, COPY)
    answer = await Check().use(there, NoArguments())
    assert not answer.error, answer.text
    assert "passed the public cases" in answer.text
    assert "y: elements outside 1e-06 of their scale 0 (allowed 0)" in answer.text
    assert "Not looked at yet: edge shapes" in answer.text
    assert answer.workspace is not None
    assert answer.workspace.compiled == there.workspace.kernel


async def test_a_wrong_kernel_is_told_where_and_how_far_but_not_what_is_right(desk: Desk) -> None:
    answer = await Check().use(await working_on(desk, HALVES), NoArguments())
    assert answer.error
    assert answer.text.startswith("FAILED in numerics on small, tensor y: wrong")
    assert "rel_l2 0.5" in answer.text
    assert "Next: " in answer.text
    assert "want" not in answer.text
    assert str(desk.bundle.gate) not in answer.text


async def test_a_kernel_that_does_not_build_is_not_judged(desk: Desk) -> None:
    answer = await Check().use(await working_on(desk, TYPO), NoArguments())
    assert answer.error
    assert answer.text.startswith("the compiler says no")


async def test_without_a_lock_there_is_no_judge(desk: Desk) -> None:
    answer = await Check().use(in_session(await working_on(desk, COPY), lock=None), NoArguments())
    assert answer.error
    assert answer.text == checking.NO_GATE


def test_every_kind_of_failure_has_a_next_step() -> None:
    for kind in FailureKind:
        failure = Failure(kind=kind, verification=VerificationStage.NUMERICS, case="small", message="it is so")
        assert "\nNext: " in checking.failed(failure, Workspace()).text


def test_the_right_value_is_taken_out_of_a_message() -> None:
    metrics = Metrics(tensor="y", max_abs=1.0, worst_index=(3,), worst_got="1", worst_want="2")
    failure = Failure(
        kind=FailureKind.WRONG, verification=VerificationStage.NUMERICS, case="small", metrics=metrics,
        message="y[3]: got 1, want 2; error 1 is over the limit 1e-06",
    )  # fmt: skip
    text = checking.failed(failure, Workspace()).text
    assert "y[3]: got 1; error 1 is over the limit" in text
    assert "want" not in text


async def test_a_verdict_of_another_scope_is_not_taken(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public pass in the place of a full one would let a kernel win that nobody has judged."""
    made = await working_on(desk, COPY)
    library = await made.workshop.store.put(b"some object")
    assert desk.session.lock is not None
    verdict = Verdict(passed=True, library=library.sha256, gate=desk.session.lock.digest, cases=3, scope="public")

    async def answered(*given: Any) -> requests.Judged:
        return requests.Judged(verdict=verdict)

    monkeypatch.setattr(made.workshop.harness, "ask", answered)
    with pytest.raises(RunnerLost, match="the full ones were asked for"):
        await judge_library(made.workshop, made.bundle, desk.session.lock, library, "off")
