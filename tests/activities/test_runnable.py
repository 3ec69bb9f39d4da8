"""What this version refuses to run, and in which words."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from activities import runnable
from activities.devices import LocalDevice
from activities.runnable import need_compiler, need_device, obstacles, refuse_unrunnable
from kernels.harness import toolchain
from specs.errors import UserError
from specs.loader import load_task
from specs.schema import Harness, Language
from tests.fakes import write_task


def found(folder: Path, **overrides: Any) -> list[tuple[str, str]]:
    task = write_task(folder, ["// one"], **overrides).task
    return [(".".join(map(str, at)), message) for at, message in obstacles(task)]


def test_a_complete_task_has_no_obstacle(tmp_path: Path) -> None:
    """A package that is installed is none."""
    assert found(tmp_path, build={"flags": ["-I{package:numpy}/include"]}) == []


@pytest.mark.parametrize(
    ("overrides", "field", "message"),
    [
        (
            {"gate": None},
            "gate",
            "none given; a gate folder is needed: this version does not write gates (a program with its own main and "
            "reference runs with harness: self_contained)",
        ),
        ({"interface": None}, "interface", "none given; the function that every candidate exports is needed"),
        ({"baseline": {"source": "memcpy"}}, "baseline.program", "none given; a source file to time against is needed"),
        (
            {"harness": "self_contained", "output": {"result_keys": ["small", "huge"]}},
            "output.result_keys",
            "'huge' is the name of no config; accepted: large, small",
        ),
        (
            {"harness": "self_contained", "language": "triton", "gpu": "H200"},
            "language",
            "'triton' given; a self_contained program is one with a main: cpp or cuda",
        ),
        (
            {"model": {"provider": "anthropic"}},
            "model.provider",
            "'anthropic' is not available in this version; accepted: scripted",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, overrides: dict[str, Any], field: str, message: str) -> None:
    """With the field, and with what is accepted there."""
    assert found(tmp_path, **overrides) == [(field, message)]


@pytest.mark.parametrize("field", ["build.flags", "build.production_flags", "baseline.flags"])
def test_a_package_that_is_not_installed_is_named(tmp_path: Path, field: str) -> None:
    """Wherever flags are given."""
    block, key = field.split(".")
    given: dict[str, Any] = {"build": {}, "baseline": {"source": "memcpy", "program": "baseline.cpp"}}
    given[block][key] = ["-L{package:no_such_package}/lib"]
    ((where, message),) = found(tmp_path, **given)
    assert where == field
    assert "package 'no_such_package' is not installed; accepted:" in message


def test_several_obstacles_are_told_together(tmp_path: Path) -> None:
    """Nobody has to start a run three times to learn three things."""
    assert [field for field, _ in found(tmp_path, gate=None, interface=None)] == ["gate", "interface"]


def test_a_language_that_cannot_be_built_is_told_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else would be about a build that cannot be."""
    monkeypatch.setattr(toolchain, "TOOLCHAINS", {Language.CPP: toolchain.Gxx()})
    assert found(tmp_path, language="cuda", gpu="H200", gate=None) == [
        ("language", "'cuda' cannot be built by this version; accepted: cpp")
    ]


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_a_self_contained_task_needs_nothing_of_ours(tmp_path: Path, language: str) -> None:
    """No gate, no interface and no baseline program: the program brings its own."""
    more = {"gate": None, "interface": None, "baseline": {"source": "its own"}, "language": language, "gpu": "H200"}
    assert found(tmp_path, harness="self_contained", **more) == []


PUBLIC = sorted((Path(__file__).parents[3] / "shared" / "ferret-tasks").glob("*.yaml"))


@pytest.mark.skipif(not PUBLIC, reason="the public task files are not beside this checkout")
def test_every_public_task_runs_with_one_more_line(tmp_path: Path) -> None:
    """And with an optimiser that this version has."""
    for path in PUBLIC:
        task = tmp_path / path.name
        task.write_text(f"{path.read_text()}\nharness: self_contained\n")
        assert {".".join(map(str, at)) for at, _ in obstacles(load_task(task).task)} <= {"model.provider"}, path.name


def has(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Let this machine have these devices."""
    found = tuple(LocalDevice(kind=kind, queue=f"ferret-host-{kind}", description="") for kind in kinds)
    monkeypatch.setattr(runnable, "detect", lambda: found)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"language": "cuda", "harness": "self_contained"}, "a cuda program must run to report"),
        ({"language": "cuda"}, "a cuda kernel must run to be judged and timed"),
        (
            {"language": "triton"},
            "a triton kernel can be judged without it (python -m kernels.harness verify) but not timed",
        ),
    ],
)
def test_a_task_is_refused_where_there_is_no_such_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], why: str
) -> None:
    """In one line that says what it is needed for and what this machine has."""
    has(monkeypatch, "cpu", "h200")
    task = write_task(tmp_path, ["// one"], gpu="B200", **overrides).task
    with pytest.raises(UserError) as refused:
        need_device(task)
    assert str(refused.value) == f"gpu: 'B200' is not in this machine, and {why}; this machine has: cpu, h200"


def test_a_kernel_on_the_processor_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged or on its own word; a processor that is called otherwise is told by the queue that nobody polls."""
    has(monkeypatch, "cpu")
    need_device(write_task(tmp_path, ["// one"]).task)
    need_device(write_task(tmp_path, ["// one"], harness="self_contained").task)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvcc that says its release, with the real g++ beside it."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    (nvcc.parent / "g++").symlink_to(shutil.which("g++") or "")
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent))
    return nvcc


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_a_gpu_of_the_kind_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, compiler: Path
) -> None:
    """Written as task files write it, and only with what the gate needs to judge on it."""
    has(monkeypatch, "cpu", "h200")
    task = write_task(tmp_path, ["// one"], gpu="H200 ", language=language).task
    monkeypatch.setattr(runnable, "_installed", lambda module: True)
    need_device(task)
    compiler.unlink()
    with pytest.raises(UserError, match="nvcc is not on PATH"):
        need_device(task)
    monkeypatch.setattr(runnable, "_installed", lambda module: False)
    with pytest.raises(UserError, match=r"the package cuda-bindings, .*: pip install 'ferret\[cuda\]'$"):
        need_device(task)
    need_device(write_task(tmp_path, ["// one"], gpu="H200", language="cuda", harness="self_contained").task)


def test_a_package_is_looked_for_without_its_parent() -> None:
    """A name whose parent is not there either is simply not installed."""
    assert runnable._installed("email.message")
    assert not runnable._installed("email.no_such_module")
    assert not runnable._installed("no_such_package.driver")


def test_the_worker_refuses_with_field_and_words(tmp_path: Path) -> None:
    """For a run that some other client has started."""
    task = write_task(tmp_path, ["// one"], gate=None).task
    with pytest.raises(UserError, match=r"^gate: none given; a gate folder is needed"):
        refuse_unrunnable(task)


def test_a_missing_compiler_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run on this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"nvcc is not on PATH; CUDA kernels need it: install the CUDA toolkit, 13\.0"):
        need_compiler(write_task(tmp_path, ["// one"], language="cuda", gpu="H200").task)
    with pytest.raises(UserError, match=r"g\+\+ is not on PATH; C\+\+ kernels need it"):
        need_compiler(write_task(tmp_path, ["// one"]).task)


def test_the_compiler_of_the_baseline_is_needed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Path
) -> None:
    """Where its suffix names another language than the task's; a program that reports on itself brings its own."""
    baseline = {"source": "torch", "program": "baseline.py"}
    task = write_task(tmp_path, ["// one"], language="cuda", gpu="H200", baseline=baseline).task
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="the package triton is not installed"):
        need_compiler(task)
    need_compiler(task.model_copy(update={"harness": Harness.SELF_CONTAINED}))
