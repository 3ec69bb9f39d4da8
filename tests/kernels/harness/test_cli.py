"""`python -m kernels.harness` as a person meets it: exit codes, messages, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernels.harness.__main__ import app
from specs.errors import RunnerLost
from tests.kernels.harness.conftest import Bench, kernel

ROOT = Path(__file__).parents[3]


def run(bench: Bench, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        app, [command, str(bench.folder / "task.yaml"), *arguments, "--builds", str(bench.builds)]
    )


def started(bench: Bench, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    task = str(bench.folder / "task.yaml")
    return subprocess.run(
        [sys.executable, "-m", "kernels.harness", command, task, *arguments, "--builds", str(bench.builds)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def written(bench: Bench, source: str) -> str:
    path = bench.folder / "kernel.cpp"
    path.write_text(source)
    return str(path)


def test_a_right_kernel_exits_0(bench: Bench) -> None:
    """The verdict comes first, then each tensor's worst distance, then what it was judged by."""
    result = run(bench, "verify", written(bench, kernel()))
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.output
    assert "rstd: max_abs" in result.output
    assert f"gate {bench.lock().digest[:12]}" in result.output


def test_a_reference_that_exits_is_no_verdict(bench: Bench) -> None:
    """Whatever ends the reference, 0 is the status of a printed PASSED alone."""
    for ends in ("raise SystemExit(0)", "__import__('os')._exit(0)"):
        path = bench.gate / "reference.py"
        path.write_text(path.read_text().replace('    x = inputs["x"]', f'    {ends}\n    x = inputs["x"]'))
        result = started(bench, "verify", written(bench, kernel()))
        assert result.returncode == 2, result.stdout
        assert "error: reference.py" in result.stderr
        assert "PASSED" not in result.stdout


def test_a_wrong_kernel_exits_1(bench: Bench) -> None:
    """The kind, the stage, the tensor and the sentence that says where."""
    result = run(bench, "verify", written(bench, kernel(columns="N - 1")))
    assert result.exit_code == 1
    assert "REFUSED (not_written) in stage numerics, tensor y" in result.output
    assert "4 of 1024 elements" in result.output


def test_a_kernel_that_does_not_compile_exits_1(bench: Bench) -> None:
    """The compiler's words are shown."""
    result = run(bench, "verify", written(bench, "this is no C++"))
    assert result.exit_code == 1
    assert "FAILED: the kernel was not built" in result.output
    assert "error" in result.output


def test_a_missing_kernel_exits_2(bench: Bench) -> None:
    """One line with the path, no traceback."""
    result = run(bench, "verify", str(bench.folder / "gone.cpp"))
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines() == [
        f"error: kernel {bench.folder / 'gone.cpp'}: no such file; a source file is needed"
    ]


def test_a_gate_that_is_absent_exits_2(bench: Bench) -> None:
    """A task whose gate folder is not there says so."""
    (bench.folder / "gate").rename(bench.folder / "elsewhere")
    result = run(bench, "verify", written(bench, kernel()))
    assert result.exit_code == 2
    assert "gate" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_machine_in_trouble_exits_3(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls this from a script can tell a bad kernel from a bad moment."""
    from kernels.harness import judge

    def lost(request: object) -> None:
        raise RunnerLost("killed from outside")

    monkeypatch.setattr(judge, "judge", lost)
    result = run(bench, "verify", written(bench, kernel()))
    assert result.exit_code == 3
    assert result.stderr.strip() == "machine: killed from outside"


def test_json_is_one_object_on_stdout(bench: Bench) -> None:
    """Build and verdict, for programs to read."""
    content = json.loads(started(bench, "verify", written(bench, kernel()), "--json").stdout)
    assert content["build"]["status"] == "built"
    assert content["verdict"]["passed"] is True


LOUD = """
import atexit, os, subprocess, threading
print("from print")
os.write(1, b"from descriptor 1\\n")
subprocess.run(["echo", "from a child"])
atexit.register(lambda: os.write(1, b"from atexit"))
threading.Thread(target=threading.Event().wait).start()
"""


def test_json_is_all_there_is_on_stdout(bench: Bench) -> None:
    """Whatever the gate's code prints, by whatever way, is on standard error; its thread keeps nobody waiting."""
    path = bench.gate / "reference.py"
    path.write_text(path.read_text() + LOUD)
    done = started(bench, "verify", written(bench, kernel()), "--json")
    assert json.loads(done.stdout)["verdict"]["passed"] is True
    assert done.returncode == 0
    for words in ("from print", "from descriptor 1", "from a child"):
        assert words in done.stderr
    assert "from atexit" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E: it cannot be printed (line 3)"),
        (r"raise Exception('\x1b]0;owned\x07\nPASSED')", r"Exception: \x1b]0;owned\x07\nPASSED (line 1)"),
    ],
)
def test_a_reference_that_raises_exits_2_with_one_line(bench: Bench, statement: str, told: str) -> None:
    """Never a traceback, which would exit with the status of a kernel that was refused."""
    (bench.gate / "reference.py").write_text(statement)
    done = started(bench, "verify", written(bench, kernel()), "--json")
    message = f"reference.py cannot be loaded: {told}"
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
    assert json.loads(done.stdout) == {"error": {"kind": "GateError", "message": message}}


def test_an_error_nobody_thought_of_exits_3_with_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its place; the status of a refused kernel stays that of a verdict."""
    from kernels.harness import judge

    for raised in (ZeroDivisionError("a\nb"), SystemExit(0)):

        def broken(request: object, raised: BaseException = raised) -> None:
            raise raised

        monkeypatch.setattr(judge, "judge", broken)
        result = run(bench, "verify", written(bench, kernel()), "--json")
        assert result.exit_code == 3
        assert result.stderr.startswith(f"internal: {type(raised).__name__}: ")
        assert "(test_cli.py:" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert json.loads(result.stdout.splitlines()[-1])["error"]["kind"] == "InternalError"


def test_machine_trouble_is_json_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the outcome learns why there is none."""
    from kernels.harness import judge

    def lost(request: object) -> None:
        raise RunnerLost("killed from outside")

    monkeypatch.setattr(judge, "judge", lost)
    result = run(bench, "verify", written(bench, kernel()), "--json")
    told = json.loads(result.stdout.splitlines()[-1])
    assert told == {"error": {"kind": "RunnerLost", "message": "killed from outside"}}


def test_words_that_make_no_sense_are_told_as_json_too(bench: Bench) -> None:
    """Exit 2, as for every mistake of the caller."""
    done = started(bench, "verify", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "UsageError"


def test_two_kernels_that_fail_are_one_object(bench: Bench) -> None:
    """The first of them is told; the second is not looked at."""
    bad = written(bench, "this is no C++")
    done = started(bench, "bench", bad, "--champion", bad, "--json")
    assert (done.returncode, json.loads(done.stdout)["build"]["status"]) == (1, "failed")


def test_an_interrupt_exits_130(bench: Bench) -> None:
    """Also in the middle of the gate's code."""
    reading, writing = os.pipe()
    loop = f"import os\nos.write({writing}, b'x')\nwhile True: pass\n"
    (bench.gate / "reference.py").write_text(loop)
    command = [sys.executable, "-m", "kernels.harness", "lock", str(bench.folder / "task.yaml")]
    with subprocess.Popen(command, pass_fds=[writing], stdout=-1, stderr=-1, cwd=ROOT) as process:
        os.close(writing)
        started = os.read(reading, 1)
        process.send_signal(signal.SIGINT)
        said = process.communicate()
    os.close(reading)
    assert (started, process.returncode, said) == (b"x", 130, (b"", b""))


@pytest.mark.parametrize("where", [">/dev/full", ">&-", ">&3"])
@pytest.mark.parametrize("form", ["", "--json"])
def test_an_answer_that_nobody_received_exits_3(bench: Bench, where: str, form: str) -> None:
    """Neither the status of a verdict nor a traceback; descriptor 3 is a pipe that nobody reads."""
    call = f"{sys.executable} -m kernels.harness lock {bench.folder / 'task.yaml'} {form}"
    reading, writing = os.pipe()
    os.close(reading)
    command = ["bash", "-c", f"exec 3>&{writing}; exec {call} {where}"]
    done = subprocess.run(command, stderr=-1, text=True, check=False, cwd=ROOT, pass_fds=[writing])
    os.close(writing)
    assert done.returncode == 3
    assert done.stderr.startswith("machine: ")
    assert len(done.stderr.splitlines()) == 1


def test_what_is_no_file_is_named(bench: Bench) -> None:
    """A kernel that is a pipe, a device or a folder is there, but not what is needed."""
    pipe, dangling = bench.folder / "pipe.cpp", bench.folder / "link.cpp"
    os.mkfifo(pipe)
    dangling.symlink_to("nowhere")
    odd = {str(pipe): "is a named pipe", "/dev/null": "is a device", str(dangling): "is a link to nothing"}
    odd |= {str(bench.folder): "is a folder", str(bench.folder / ("x" * 300)): "File name too long"}
    for path, told in odd.items():
        result = run(bench, "verify", path)
        assert result.exit_code == 2
        assert result.stderr == f"error: kernel {path}: {told}; a source file is needed\n"


def test_held_out_cases_are_asked_for_by_an_option(bench: Bench) -> None:
    """The cases of the final acceptance are judged only with --held-out."""
    source = written(bench, kernel(after="if (M == 5) y[0] += 1;"))
    assert run(bench, "verify", source).exit_code == 0
    assert run(bench, "verify", source, "--held-out").exit_code == 1


def test_bench_shows_a_line_for_each_config(bench: Bench) -> None:
    """Times, ratio with its interval and spread, score, device: never a bare speed-up."""
    result = run(bench, "bench", written(bench, kernel()), "--max-seconds", "1")
    assert result.exit_code == 0, result.output
    for word in ("small", "wide", "baseline us", "95% interval", "spread", "score", "geomean", "runner on core"):
        assert word in result.output


def test_bench_verifies_first(bench: Bench) -> None:
    """A wrong kernel is never timed."""
    result = run(bench, "bench", written(bench, kernel(columns="N - 1")), "--max-seconds", "1")
    assert result.exit_code == 1
    assert "REFUSED" in result.output
    assert "baseline us" not in result.output


def test_bench_with_a_champion_shows_the_gain(bench: Bench) -> None:
    """A second kernel is timed in the same rounds, and every sample is kept where it was asked for."""
    source = written(bench, kernel())
    samples = bench.folder / "samples.json"
    result = run(bench, "bench", source, "--champion", source, "--max-seconds", "1", "--samples", str(samples))
    assert result.exit_code == 0, result.output
    assert "champion us" in result.output
    assert "gain over the champion" in result.output
    assert json.loads(samples.read_text())["rounds"]


def test_aa_counts_wins_of_a_kernel_over_itself(bench: Bench) -> None:
    """One line a trial and the count; the exit code says whether there was any."""
    source = written(bench, kernel())
    result = started(bench, "aa", "--kernel", source, "--trials", "2", "--max-seconds", "1", "--json")
    content = json.loads(result.stdout)
    assert content["trials"] == 2
    assert len(content["gains"]) == 2
    assert result.returncode == (0 if content["wins"] == 0 else 1)


def test_aa_without_a_kernel_needs_a_seed(bench: Bench) -> None:
    """What is missing is named, with the option that gives it."""
    result = run(bench, "aa")
    assert result.exit_code == 2
    assert "--kernel" in result.stderr


def test_lock_prints_the_digest_and_the_files(bench: Bench) -> None:
    """The digest that a verdict carries can be computed by hand."""
    result = run(bench, "lock")
    assert result.output.splitlines()[0] == bench.lock().digest
    assert "gate.yaml" in result.output


def test_a_process_of_its_own_says_one_line(bench: Bench) -> None:
    """Started as a module, with a task file that is not there: exit 2, one line, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "kernels.harness", "verify", str(bench.folder / "gone.yaml"), "kernel.cpp"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "gone.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_gate_process_keeps_numpy_on_one_thread() -> None:
    """BLAS threads of the gate would spin beside the kernel that is timed."""
    script = "import kernels.harness.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "8"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout.strip() == "1"


def admit(bench: Bench, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["admit", *arguments, "--builds", str(bench.builds)])


def test_admit_shows_every_mutant_and_judges_the_baseline(bench: Bench) -> None:
    """A gate folder is enough where one task names it; the last line says what came of it."""
    result = admit(bench, str(bench.gate))
    assert result.exit_code == 0, result.output
    for word in ("zeros(y)", "ignores_tail(x.1)", "reduced_precision(inputs.bf16)", "rstd: elementwise 1e-05"):
        assert word in result.output
    assert "baseline: passes" in result.output
    assert result.output.splitlines()[-1] == f"ADMITTED: gate {bench.lock().digest[:12]} of tiny-rmsnorm"


def test_admit_of_a_weak_gate_exits_1_and_names_the_mutants(make_bench: Callable[..., Bench]) -> None:
    """On the last line, whatever else is shown."""
    bench = make_bench(gate_yaml={"tensors": {"rstd": {"elementwise": 1e-5}, "y": {"cosine": 0.9}}})
    result = admit(bench, str(bench.folder / "task.yaml"))
    assert result.exit_code == 1
    assert "REFUSED: gate" in result.output.splitlines()[-1]
    assert "scaled(y)" in result.output.splitlines()[-1]


def test_admit_of_a_gate_that_nobody_names_exits_2(bench: Bench) -> None:
    """What is missing is named, with the option that gives it."""
    (bench.folder / "task.yaml").rename(bench.folder / "elsewhere.txt")
    result = admit(bench, str(bench.gate))
    assert result.exit_code == 2
    assert "--task" in result.stderr


def test_admit_prints_one_json_object(bench: Bench) -> None:
    """For programs: the verdict on the gate, every mutant's fate and the baseline's verdict."""
    result = admit(bench, str(bench.gate), "--task", str(bench.folder / "task.yaml"), "--json")
    content = json.loads(result.stdout.splitlines()[-1])
    assert content["admitted"] is True
    assert {one["fate"] for one in content["admission"]["mutants"]} == {"refused"}
    assert content["admission"]["baseline"]["passed"] is True


def test_a_calibrated_gate_is_locked_by_the_command_line_too(make_bench: Callable[..., Bench]) -> None:
    """The baseline runs first, and the digest is that of the limits it gave."""
    bench = make_bench(gate_yaml={"tensors": {"rstd": {"elementwise": 1e-5}, "y": {"calibrated": 4}}})
    result = run(bench, "verify", written(bench, kernel()))
    assert result.exit_code == 0, result.output
    assert f"gate {bench.lock().digest[:12]}" not in result.output
    assert "rel_l2" in admit(bench, str(bench.gate)).output


def test_verify_says_what_the_sanitizers_looked_at(bench: Bench) -> None:
    """A person sees whether memory was checked."""
    assert "memory passed: 4 calls" in run(bench, "verify", written(bench, kernel())).output


def test_audit_prints_the_findings_of_an_object(bench: Bench) -> None:
    """Exit 1 and a line for each; exit 0 for what holds nothing odd; exit 2 for what is not there."""
    odd = bench.library(kernel(top="#include <unistd.h>", after='if (M < 0) unlink("x");'))
    result = CliRunner().invoke(app, ["audit", str(odd)])
    assert result.exit_code == 1
    assert "unlink" in result.output
    clean = CliRunner().invoke(app, ["audit", str(bench.library(kernel())), "--json"])
    assert (clean.exit_code, json.loads(clean.stdout)) == (0, {"findings": []})
    assert CliRunner().invoke(app, ["audit", str(bench.folder / "gone.so")]).exit_code == 2
