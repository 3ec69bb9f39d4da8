"""The gate process: a request in a file, a reply in a file, and which refusals are worth another try."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import device
from kernels.harness import serve as serve_module
from kernels.harness.requests import (
    Build,
    Inspect,
    Inspected,
    Judge,
    Judged,
    LockGate,
    Measure,
    Measured,
    Profile,
    Profiled,
    Reply,
    Request,
)
from kernels.harness.serve import serve
from specs.errors import GateError, RunnerLost, UserError
from tests.kernels.harness.conftest import REFERENCE, Bench, kernel


def ask(folder: Path, request: Request) -> Reply:
    (folder / "request.json").write_text(request.model_dump_json())
    serve(folder / "request.json", folder / "reply.json")
    return Reply.model_validate_json((folder / "reply.json").read_text())


def refusal(folder: Path, request: Request) -> tuple[str, bool]:
    reply = ask(folder, request)
    assert reply.refusal is not None
    assert reply.refusal.message
    return reply.refusal.error, reply.refusal.retryable


def test_each_kind_of_request_has_its_answer(bench: Bench, tmp_path: Path) -> None:
    """Lock, build, judge, measure and what looks at them, across the file boundary, each building on those before."""
    locked = ask(tmp_path, LockGate(task=bench.task, gate=bench.gate)).result
    assert locked is not None
    assert locked.kind == "locked"
    source = tmp_path / "kernel.cpp"
    source.write_text(kernel())
    built = ask(tmp_path, Build(task=bench.task, source=source, builds=bench.builds)).result
    assert built is not None
    assert built.kind == "built"
    assert built.library is not None
    judged = ask(tmp_path, bench.judge_request(built.library)).result
    assert isinstance(judged, Judged)
    assert judged.verdict.passed
    assert judged.verdict.gate == locked.lock.digest
    seen = ask(tmp_path, Inspect(task=bench.task, library=built.library)).result
    assert isinstance(seen, Inspected)
    measured = ask(tmp_path, _measure(bench, built.library, tmp_path)).result
    assert isinstance(measured, Measured)
    assert measured.outcome.measurement is not None
    times = {one.config: one.candidate.median_us for one in measured.outcome.measurement.configs}
    asked = Profile(
        task=bench.task, gate=bench.gate, lock=bench.lock(), library=built.library, config="wide",
        time_us=times["wide"], builds=bench.builds,
    )  # fmt: skip
    profiled = ask(tmp_path, asked).result
    assert isinstance(profiled, Profiled)
    assert profiled.source == "roofline"


def test_a_wrong_kernel_is_a_result(bench: Bench, tmp_path: Path) -> None:
    """A failed verdict is an answer, not a refusal to answer."""
    reply = ask(tmp_path, bench.judge_request(bench.library(kernel(columns="N - 1"))))
    assert isinstance(reply.result, Judged)
    assert not reply.result.verdict.passed


def test_a_reference_that_cannot_judge_is_refused_at_the_lock(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    """Not at the first judgement, when the run has already begun."""
    broken = make_bench(reference=REFERENCE + "\n\ndef reference(inputs, args):\n    return {}\n")
    assert refusal(tmp_path, LockGate(task=broken.task, gate=broken.gate)) == ("GateError", False)


def test_a_tampered_gate_is_final(bench: Bench, tmp_path: Path) -> None:
    """No retry can make it whole again."""
    request = bench.judge_request(bench.library(kernel()))
    (bench.gate / "reference.py").write_text("raise SystemExit")
    assert refusal(tmp_path, request) == ("GateTampered", False)


def test_a_busy_device_is_worth_another_try(bench: Bench, tmp_path: Path) -> None:
    """Somebody else's measurement ends some day."""
    request = _measure(bench, bench.library(kernel()), tmp_path, device_wait_s=0)
    with device.lock(device.pick_cores().runner, 0):
        assert refusal(tmp_path, request) == ("DeviceBusy", True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UserError("no"), ("UserError", False)),
        (GateError("no"), ("GateError", False)),
        (RunnerLost("no"), ("RunnerLost", True)),
        (OSError(errno.ENOSPC, "No space left on device"), ("MachineError", True)),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ("MachineError", True)),
        (MemoryError(), ("MachineError", True)),
        (OSError(errno.EACCES, "Permission denied"), ("InternalError", False)),
        (ZeroDivisionError("ours"), ("InternalError", False)),
    ],
)
def test_what_is_worth_another_try_is_decided_here(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: tuple[str, bool]
) -> None:
    """The machine's troubles are retried; the user's, the gate's and our own are not."""

    def fail(request: Judge) -> Any:
        raise error

    monkeypatch.setattr(serve_module, "judge", fail)
    request = Judge(task=bench.task, gate=bench.gate, lock=bench.lock(), library=Path("x.so"), builds=bench.builds)
    assert refusal(tmp_path, request) == expected


def test_our_own_fault_leaves_its_traceback_on_stderr(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to guess where a bug of ours was."""

    def fail(request: Judge) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(serve_module, "judge", fail)
    request = Judge(task=bench.task, gate=bench.gate, lock=bench.lock(), library=Path("x.so"), builds=bench.builds)
    ask(tmp_path, request)
    assert "ZeroDivisionError: ours" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "told"), [(None, "No such file"), ("{}", "kind"), ("[", "JSON")])
def test_a_request_that_cannot_be_read_is_the_callers_mistake(tmp_path: Path, content: str | None, told: str) -> None:
    """One line with the file and what is wrong; no reply is written."""
    path = tmp_path / "request.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=f"(?s)request .*request.json.*{told}"):
        serve(path, tmp_path / "reply.json")
    assert not (tmp_path / "reply.json").exists()


def _measure(bench: Bench, library: Path, folder: Path, **changes: Any) -> Measure:
    return Measure(
        task=bench.task, gate=bench.gate, lock=bench.lock(), baseline=library, candidate=library, builds=bench.builds,
        samples=folder / "samples.json", **{"max_seconds": 0.1, **changes},
    )  # fmt: skip
