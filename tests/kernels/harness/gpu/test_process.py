"""An executor from outside: what its answers and its ends come to. No device is needed: a stand-in answers."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.harness import sandbox
from kernels.harness.arena import CandidateFault
from kernels.harness.gpu import process
from kernels.harness.gpu.process import Executor, descendants
from specs.errors import GateError, MachineError, RunnerLost

Start = Callable[..., Executor]


@pytest.fixture(params=["bubblewrap", "process"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    if request.param == "bubblewrap" and sandbox.unusable() is not None:
        pytest.skip(f"no bubblewrap: {sandbox.unusable()}")
    monkeypatch.setattr(process, "PROGRAM", "tests.kernels.harness.gpu.fake_executor")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    started = []

    def begin(how: str = "well") -> Executor:
        told = tmp_path / "how"
        told.write_text(how)
        started.append(Executor(request.param, 0, told))
        return started[-1]

    yield begin
    for executor in started:
        executor.close()


def test_it_answers_and_sees_nothing_of_our_environment(start: Start) -> None:
    executor = start()
    executor.await_ready()
    head, body = executor.ask({"do": "echo"}, b"\0\1" * 100_000, timeout_s=20)
    assert body == b"\0\1" * 100_000
    assert "ANTHROPIC_API_KEY" not in head["environment"]
    assert "PYTHONPATH" in head["environment"]


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ("refuse", "launch_failed", "too many threads"),
        ("fault", "crashed", "ended by a misaligned access"),
        ("load", "crashed", "the driver died of SIGSEGV on its device code"),
        ("hang", "hung", "did not finish on the device within 0.5 s"),
    ],
)
def test_what_a_kernel_did_is_the_candidates_fault(start: Start, asked: str, kind: str, told: str) -> None:
    executor = start()
    executor.await_ready()
    with pytest.raises(CandidateFault, match=told) as caught:
        executor.ask({"do": asked}, timeout_s=0.5 if asked == "hang" else 20)
    assert caught.value.kind.value == kind


def test_a_broken_device_is_nobodys_fault(start: Start) -> None:
    executor = start()
    executor.await_ready()
    with pytest.raises(MachineError, match="ECC"):
        executor.ask({"do": "break"}, timeout_s=20)


def test_a_baseline_that_cannot_be_run_is_the_gates_fault(start: Start) -> None:
    executor = start()
    executor.await_ready()
    with pytest.raises(GateError, match="ImportError: no flashinfer"):
        executor.ask({"do": "open"}, timeout_s=20)


def test_a_device_without_room_is_nobodys_fault(start: Start) -> None:
    with pytest.raises(MachineError, match="OUT_OF_MEMORY"):
        start("no room").await_ready()


@pytest.mark.parametrize("asked", ["die", "babble"])
def test_an_executor_that_dies_or_babbles_is_lost(start: Start, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_TIMEOUT_S", 0.5)
    executor = start()
    executor.await_ready()
    with pytest.raises(RunnerLost, match="the executor is gone"):
        executor.ask({"do": asked}, timeout_s=20)


def test_one_that_is_killed_from_outside_is_lost(start: Start) -> None:
    executor = start()
    executor.await_ready()
    os.killpg(executor._process.pid, signal.SIGKILL)
    executor._process.wait()
    with pytest.raises(RunnerLost, match="the executor is gone"):
        executor.ask({"do": "echo"}, timeout_s=20)


def test_closing_leaves_no_process(start: Start) -> None:
    executor = start()
    executor.await_ready()
    family = [os.pidfd_open(pid) for pid in {executor._process.pid, *descendants(executor._process.pid)}]
    executor.close()
    executor.close()
    for pidfd in family:
        ended, _, _ = select.select([pidfd], [], [], 20)
        assert ended, "a process of it still runs"
        os.close(pidfd)
