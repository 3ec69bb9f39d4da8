"""Peaks that the harness measures itself: real processes, kept once for each device."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernels.harness import calibrate, device
from kernels.harness.__main__ import app
from kernels.harness.build import compile_tool
from kernels.harness.calibrate import NAMES, ask, compile_cuda, merged, peaks
from kernels.harness.roofline import COPY, DRAM_READ, Peaks, Rate
from specs.errors import DeviceBusy, MachineError, UserError

Script = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def measured(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Peaks, Path]:
    """This machine's core, calibrated once for all tests of this file, and the folder it is kept in."""
    folder = tmp_path_factory.mktemp("peaks")
    return peaks("cpu", builds, folder, locked=True), folder


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A calibrator of a few lines of shell: `$@` are the names that it is asked for."""

    def write(body: str) -> list[str]:
        path = tmp_path / "calibrator"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return [str(path)]

    return write


SAY = """say() { echo "{\\"rate\\": \\"$1\\", \\"best\\": 2.0, \\"median\\": 1.0}"; }
"""


# ---------------------------------------------------------------- the core


def test_every_rate_of_the_core_is_measured_or_has_a_reason(measured: tuple[Peaks, Path]) -> None:
    """Memory and both floating formats exist on every machine; the rest is there, absent, or told why not."""
    found, _ = measured
    assert {DRAM_READ, COPY} == set(found.bandwidth)
    assert {"f64", "f32"} <= set(found.flops)
    assert {*found.bandwidth, *found.flops, *found.missing} <= set(NAMES["cpu"])
    assert not {*found.flops} & {*found.missing}
    assert all(rate.how for rate in {**found.bandwidth, **found.flops}.values())
    assert found.cache_bytes == device.cache_bytes(device.pick_cores().runner)[0]


def test_the_rates_are_of_the_right_order(measured: tuple[Peaks, Path]) -> None:
    """Loops that a compiler had emptied would report a hundred times more; how fast the machine is does not matter."""
    found, _ = measured
    assert 1e8 < found.bandwidth[DRAM_READ].best < 1e12
    assert 1e8 < found.flops["f64"].best <= found.flops["f32"].best * 1.5
    assert found.flops["f32"].best < 2e12


def test_peaks_are_measured_once(measured: tuple[Peaks, Path], builds: Path) -> None:
    """The second time they come from the file, to the last digit; nothing else lies in the folder."""
    found, folder = measured
    assert peaks("cpu", builds, folder) == found
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_measuring_again_only_raises_a_ceiling(measured: tuple[Peaks, Path], builds: Path, tmp_path: Path) -> None:
    """Planted rates that no machine reaches stay, and one that any machine beats is replaced."""
    found, _ = measured
    planted = found.model_copy(
        update={"flops": {**found.flops, "f32": Rate(best=1e18, median=1e18), "f64": Rate(best=1.0, median=1.0)}}
    )
    path = tmp_path / f"cpu-{found.key[:32]}.json"
    path.write_text(planted.model_dump_json())
    result = peaks("cpu", builds, tmp_path, again=True)
    assert result.flops["f32"].best == 1e18
    assert result.flops["f64"].best > 1e8
    assert result.runs == 2
    assert Peaks.model_validate_json(path.read_bytes()) == result


def test_a_damaged_file_is_measured_again(measured: tuple[Peaks, Path], builds: Path, tmp_path: Path) -> None:
    """Half a file is no reason to fail, and none to believe it."""
    found, _ = measured
    path = tmp_path / f"cpu-{found.key[:32]}.json"
    path.write_text(found.model_dump_json()[:200])
    assert peaks("cpu", builds, tmp_path).runs == 1
    assert Peaks.model_validate_json(path.read_bytes()).key == found.key


def test_another_devices_peaks_are_not_believed(measured: tuple[Peaks, Path], builds: Path, tmp_path: Path) -> None:
    """A file under the right name with the wrong key, as a copied folder could have it."""
    found, _ = measured
    path = tmp_path / f"cpu-{found.key[:32]}.json"
    path.write_text(found.model_copy(update={"key": "f" * 64, "device": "another"}).model_dump_json())
    assert peaks("cpu", builds, tmp_path).device == found.device


def test_the_key_changes_with_the_device_and_with_the_calibrator(tmp_path: Path) -> None:
    """Either makes older peaks those of something else."""
    source = tmp_path / "calibrate.cpp"
    source.write_text("one")
    key = calibrate._key({"core": "1"}, source)
    assert calibrate._key({"core": "2"}, source) != key
    source.write_text("another")
    assert calibrate._key({"core": "1"}, source) != key


def test_a_device_that_is_held_is_waited_for(builds: Path, tmp_path: Path) -> None:
    """Nobody calibrates beside a timing; who holds the lock already says so."""
    core = device.pick_cores().runner
    with device.lock(core, 0):
        with pytest.raises(DeviceBusy):
            peaks("cpu", builds, tmp_path / "a", wait_s=0)
        assert peaks("cpu", builds, tmp_path / "b", locked=True).runs == 1


def test_a_folder_that_cannot_be_written_is_the_machines_trouble(builds: Path, tmp_path: Path) -> None:
    """One line with the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="peaks cannot be kept"):
        peaks("cpu", builds, tmp_path / "file" / "peaks")


def test_the_calibrator_knows_what_it_does_not_know(builds: Path) -> None:
    """A name of a newer harness is answered with a reason."""
    program = compile_tool("calibrate", calibrate.CPU_SOURCE, calibrate.CPU_FLAGS, builds)
    answers, _ = ask([str(program)], ["f4096"])
    assert answers["f4096"]["missing"] == "this calibrator does not know the name"


# ---------------------------------------------------------------- merging


def some(missing: dict[str, str] | None = None, **flops: float) -> Peaks:
    rates = {name: Rate(best=value, median=value / 2, at_top_clock=value * 2) for name, value in flops.items()}
    return Peaks(kind="cuda", device="planted", key="0" * 64, flops=rates, missing=missing or {})


def test_of_two_calibrations_the_higher_rate_counts() -> None:
    """With the median that belongs to it, and the higher ceiling of the two."""
    both = merged(some(f32=4.0, f16=1.0), some(f32=3.0, f16=2.0, f8=1.0))
    assert {name: rate.best for name, rate in both.flops.items()} == {"f32": 4.0, "f16": 2.0, "f8": 1.0}
    assert both.flops["f32"].median == 2.0
    assert both.flops["f32"].ceiling == 8.0


def test_only_what_neither_could_measure_stays_missing() -> None:
    """In either order."""
    failed, fine = some({"f8": "hung", "f16": "hung"}, f32=1.0), some({"f16": "crashed"}, f8=1.0)
    assert merged(failed, fine).missing == {"f16": "crashed"}
    assert merged(fine, failed).missing == {"f16": "hung"}
    assert set(merged(failed, fine).flops) == {"f32", "f8"}


# ---------------------------------------------------------------- one rate fails


def test_a_crash_is_blamed_on_the_rate_that_was_being_measured(script: Script) -> None:
    """What came before is kept and what comes after is asked of a fresh process."""
    body = SAY + 'for name; do [ "$name" = two ] && kill -SEGV $$; say "$name"; done'
    answers, _ = ask(script(body), ["one", "two", "three"])
    assert answers["two"]["missing"] == "the calibrator was ended by SIGSEGV"
    assert answers["one"]["best"] == answers["three"]["best"] == 2.0
    assert list(answers) == ["one", "two", "three"]


def test_a_hang_is_stopped_and_the_rest_still_measured(script: Script) -> None:
    """By the limit of one process."""
    body = SAY + 'for name; do [ "$name" = one ] && exec sleep 1000; say "$name"; done'
    answers, seconds = ask(script(body), ["one", "two"], attempt_s=0.5)
    assert answers["one"]["missing"].startswith("no answer within")
    assert answers["two"]["best"] == 2.0
    assert seconds < 100


def test_a_lost_context_costs_the_next_rate_nothing(script: Script) -> None:
    """The rate that lost it has said why; the next one is measured by the next process."""
    body = (
        SAY
        + """[ "$1" = one ] && { echo '{"rate": "one", "missing": "illegal address"}'; exit 3; }
for name; do say "$name"; done"""
    )
    answers, _ = ask(script(body), ["one", "two"])
    assert answers["one"]["missing"] == "illegal address"
    assert answers["two"]["best"] == 2.0


def test_a_calibrator_that_always_fails_comes_to_an_end(script: Script) -> None:
    """One process a rate, and every rate has its reason."""
    answers, _ = ask(script("echo no luck >&2; exit 3"), ["one", "two"])
    assert all(answer["missing"] == "the calibrator ended with status 3: no luck" for answer in answers.values())


def test_silence_and_nonsense_are_no_rates(script: Script) -> None:
    """Lines that are no answers are passed over."""
    answers, _ = ask(script("echo '{\"rate\": 7}'; echo hello; echo '[1]'"), ["one", "two"])
    assert [answer["missing"] for answer in answers.values()] == ["no answer", "no answer"]


def test_no_time_left_is_said(script: Script) -> None:
    """A machine on which everything hangs is given up."""
    answers, _ = ask(script("exec sleep 1000"), ["one", "two", "three"], attempt_s=0.2, budget_s=0.3)
    assert answers["three"]["missing"] == "no time left of 0.3 s"


def test_no_device_is_the_machines_trouble(script: Script) -> None:
    """With the driver's own words."""
    with pytest.raises(MachineError, match="no usable GPU: no driver"):
        ask(script("echo no driver >&2; exit 4"), ["identity"])


def test_an_answer_that_is_no_rate_is_missing() -> None:
    """Infinite, negative and upside-down rates are not believed."""
    answers: dict[str, dict[str, Any]] = {
        "f32": {"rate": "f32", "best": float("inf"), "median": 1.0},
        "f16": {"rate": "f16", "best": 1.0, "median": 2.0},
        "f8": {"rate": "f8", "absent": "no such unit"},
        DRAM_READ: {"rate": DRAM_READ, "best": 2.0, "median": 1.0, "how": "loads"},
    }
    found = calibrate._peaks("cuda", "planted", "0" * 64, {}, answers, 0, 1.0)
    assert set(found.missing) == {"f32", "f16"}
    assert found.flops == {}
    assert found.bandwidth[DRAM_READ].how == "loads"


# ---------------------------------------------------------------- the GPU


def test_without_nvcc_a_gpu_cannot_be_calibrated(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what is needed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="nvcc is not on PATH"):
        peaks("cuda", builds, tmp_path)


@pytest.mark.timeout(600)
def test_the_calibrator_for_gpus_compiles_and_finds_out_where_it_is(builds: Path, tmp_path: Path) -> None:
    """Compiled once by the real compiler. Without a GPU it says so; on one, every rate is there or has its reason."""
    try:
        program = compile_cuda(builds)
    except UserError as error:
        pytest.skip(str(error))
    assert compile_cuda(builds) == program
    assert os.access(program, os.X_OK)
    try:
        found = peaks("cuda", builds, tmp_path)
    except MachineError as error:
        refused = str(error)
        found = None
    if found is None:
        assert refused.startswith("no usable GPU: ")
        return
    assert DRAM_READ in found.bandwidth
    told = {*found.bandwidth, *found.flops, *found.missing}
    assert told <= set(NAMES["cuda"])
    if found.identity["compute_capability"] == "9.0":
        assert found.missing == {}
        assert set(found.flops) == {"f64", "f32", "tf32", "f16", "bf16", "f8", "i8"}
        assert found.flops["f8"].ceiling > found.flops["bf16"].ceiling > found.flops["tf32"].ceiling
        assert found.flops["tf32"].ceiling > found.flops["f32"].ceiling


# ---------------------------------------------------------------- the command


def test_the_command_shows_a_line_for_each_rate(measured: tuple[Peaks, Path], builds: Path) -> None:
    """Best, median and how; the device comes last."""
    result = CliRunner().invoke(app, ["calibrate", "--builds", str(builds)])
    assert result.exit_code == 0, result.output
    for name in (DRAM_READ, COPY, "f32", "f64"):
        assert name in result.output
    assert measured[0].device in result.output


def test_the_command_prints_json(builds: Path) -> None:
    """One object on one line, the same that is kept."""
    result = CliRunner().invoke(app, ["calibrate", "--builds", str(builds), "--json"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if line.startswith('{"peaks"'))
    found = Peaks.model_validate(json.loads(line)["peaks"])
    kept = (builds / "peaks").glob("cpu-*.json")  # one for each core that a test has measured on
    assert found in [Peaks.model_validate_json(path.read_bytes()) for path in kept]
