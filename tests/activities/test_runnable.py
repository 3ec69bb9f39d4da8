"""What this version refuses to run, and in which words."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities import runnable
from activities.devices import LocalDevice
from activities.runnable import (
    need_compiler,
    need_device,
    need_model,
    obstacles,
    refuse_unpriced,
    refuse_unrunnable,
)
from kernels.harness import toolchain
from specs.errors import UserError
from specs.loader import load_task
from specs.schema import Harness, Language
from tests.fakes import settings_at, write_task

LOCAL = {"provider": "local", "base_url": "http://gpu-box:8000", "optimizer": "mine"}


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
            "none given; a gate folder is needed: provider 'scripted' writes none (a program with its own main and "
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
            {"gate": None, "model": {"provider": "anthropic"}},
            "gate",
            "none given; accepted: a gate folder, or canonical: the files that say what is right, from which a gate is "
            "written (a program with its own main and reference runs with harness: self_contained)",
        ),
        (
            {"model": {"provider": "anthropic", "base_url": "https://evil.example"}},
            "model.base_url",
            "'https://evil.example' may not get this worker's key; accepted: https://api.anthropic.com, or the address "
            "in ANTHROPIC_BASE_URL of the worker's environment (set it to this one to allow it), or provider: local",
        ),
        (
            {"model": {"provider": "scripted", "script": "script", "base_url": "http://127.0.0.1:1"}},
            "model.base_url",
            "provider 'scripted' finds its address by itself; leave base_url out",
        ),
        (
            {"model": {"provider": "anthropic", "optimizer": "mine", "gate_writer": "other"}, "budget": {"max_usd": 5}},
            "budget.max_usd",
            "5 USD cannot be kept: nobody knows the price of mine; accepted: max_tokens instead, or its prices in the "
            "file that FERRET_PRICES names, here and at the worker",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, overrides: dict[str, Any], field: str, message: str) -> None:
    """With the field, and with what is accepted there."""
    assert found(tmp_path, **overrides) == [(field, message)]


REPLAYED: dict[str, Any] = {"provider": "replay", "recording": "run.jsonl"}


@pytest.mark.parametrize("model", [{"provider": "anthropic"}, LOCAL, REPLAYED])
def test_a_gate_is_written_where_the_task_says_what_is_right(tmp_path: Path, model: dict[str, Any]) -> None:
    """By a model, or as a recorded one wrote it; no key is asked for yet."""
    assert found(tmp_path, gate=None, canonical=["torch.py"], model=model) == []


def test_a_limit_in_usd_can_be_kept_where_prices_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundled or given; what is free has one, and a script asks nobody."""
    budget, mine = {"max_usd": 5}, {"provider": "anthropic", "optimizer": "mine"}
    for model in ({"provider": "anthropic"}, LOCAL, {"provider": "scripted", "script": "script"}):
        assert found(tmp_path, model=model, budget=budget) == []
    assert [field for field, _ in found(tmp_path, model=mine, budget=budget)] == ["budget.max_usd"]
    prices = tmp_path / "prices.yaml"
    prices.write_text("mine: {input: 1, output: 1, cache_read: 1, cache_write_5m: 1, cache_write_1h: 1}\n")
    monkeypatch.setenv("FERRET_PRICES", str(prices))
    assert found(tmp_path, model=mine, budget=budget) == []


def test_a_limit_that_the_command_line_gives_is_looked_at_too(tmp_path: Path) -> None:
    """It need not stand in the task."""
    task = write_task(tmp_path, ["// one"], model={"provider": "anthropic", "optimizer": "mine"}).task
    refuse_unpriced(task)
    with pytest.raises(UserError, match=r"^budget\.max_usd: 5 USD cannot be kept: nobody knows the price of mine;"):
        refuse_unpriced(task.model_copy(update={"budget": task.budget.model_copy(update={"max_usd": 5.0})}))


@pytest.mark.parametrize(
    ("provider", "package"),
    [("bedrock", "boto3: pip install 'ferret[bedrock]'"), ("vertex", "google-auth: pip install 'ferret[vertex]'")],
)
def test_a_provider_whose_package_is_missing_is_told_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, package: str
) -> None:
    """And one that has it is not."""
    monkeypatch.setattr(runnable, "_installed", lambda module: False)
    told = [("model.provider", f"{provider!r} needs the package {package}")]
    assert found(tmp_path, model={"provider": provider}) == told
    monkeypatch.setattr(runnable, "_installed", lambda module: True)
    assert found(tmp_path, model={"provider": provider}) == []


def test_a_recording_is_read_before_the_run(tmp_path: Path) -> None:
    """Beside the task file or in a bundle; one that is not there is told with the other files."""
    task = write_task(tmp_path, ["// one"], model=REPLAYED).task
    assert list(obstacles(task, tmp_path)) == []
    (tmp_path / "run.jsonl").write_text("{}\n")
    ((at, told),) = obstacles(task, tmp_path)
    assert (at, told) == (
        ("model", "recording"),
        "run.jsonl: line 1: run: Field required; accepted: a line that `client.py recording` wrote",
    )
    path = tmp_path / "run.jsonl"
    placed = task.model_copy(update={"model": task.model.model_copy(update={"recording": str(path)})})
    assert [at for at, _ in obstacles(placed)] == [("model", "recording")]


def test_the_key_is_asked_for_where_the_worker_is(tmp_path: Path) -> None:
    """In one line; a script needs none."""
    settings = settings_at(tmp_path)
    task = write_task(tmp_path, ["// one"], model={"provider": "anthropic"}).task
    with pytest.raises(
        UserError, match=r"^model\.provider: 'anthropic' needs a key, and .* accepted: ANTHROPIC_API_KEY"
    ):
        need_model(task, settings, {})
    need_model(task, settings, {"ANTHROPIC_API_KEY": "sk-any"})
    need_model(write_task(tmp_path, ["// one"]).task, settings, {})


def test_a_price_file_is_read_where_the_worker_is(tmp_path: Path) -> None:
    """Before the first answer has to be priced by it."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("mine: 3\n")
    task = write_task(tmp_path, ["// one"], model={"provider": "anthropic"}).task
    with pytest.raises(UserError, match=r"prices\.yaml: mine: 3 \(a number\) given; accepted: a mapping"):
        need_model(task, replace(settings_at(tmp_path), prices=prices), {"ANTHROPIC_API_KEY": "sk-any"})


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
    """And nothing else."""
    for path in PUBLIC:
        task = tmp_path / path.name
        task.write_text(f"{path.read_text()}\nharness: self_contained\n")
        assert {".".join(map(str, at)) for at, _ in obstacles(load_task(task).task)} == set(), path.name


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
