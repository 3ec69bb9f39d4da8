"""A self-contained program is kept from doing harm, and what it says is taken down as its own words."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernels.harness import sandbox, self_contained
from kernels.harness.__main__ import app
from kernels.harness.build import build
from kernels.harness.requests import Build, Built, RunProgram, Sandbox
from kernels.harness.self_contained import OUTPUT_LIMIT, run_program
from kernels.harness.serve import answer
from specs.errors import UserError
from specs.outcomes import BuildStatus, SelfReported
from specs.schema import Task

EXAMPLE = Path(__file__).parents[2] / "self_contained" / "saxpy.cpp"
REPORT = r'std::puts("KERNEL_RESULT {\"a\": 3, \"b\": 4}\nKERNEL_RESULT_REFERENCE {\"a\": 2, \"b\": 2}");'
HEAD = "#include <cstdio>\n#include <cstdlib>\n"
walled = pytest.mark.skipif(sandbox.unusable() is not None, reason="bubblewrap cannot be used here")
POLICIES = [pytest.param("required", marks=walled), "off"]


def task_of(*configs: str, **changes: Any) -> Task:
    return Task.model_validate(
        {
            "name": "reports",
            "gpu": "CPU",
            "arch": "native",
            "precision": "f32",
            "harness": "self_contained",
            "problem": {"description": "whatever the program does"},
            "baseline": {"source": "its own"},
            "configs": [{"name": name, "args": {}} for name in configs],
            "build": {"flags": ["-std=c++17", "-O1"]},
            **changes,
        }
    )


TASK = task_of("a", "b")


def built(source: str, folder: Path, builds: Path, task: Task = TASK) -> Built:
    path = folder / f"program{task.language.suffix}"
    path.write_text(source)
    return build(Build(task=task, source=path, builds=builds))


Run = Callable[..., SelfReported]


@pytest.fixture
def run(tmp_path: Path, builds: Path) -> Run:
    """Build `main`'s body and run it."""

    def run_body(body: str, policy: Sandbox = "preferred", top: str = "", **changes: Any) -> SelfReported:
        made = built(f"{HEAD}{top}\nint main() {{ {body} }}\n", tmp_path, builds)
        assert made.library is not None, made.result.log_tail
        return run_program(RunProgram(task=TASK, program=made.library, sandbox=policy, **changes))

    return run_body


@pytest.mark.parametrize("policy", POLICIES)
def test_a_program_reports_on_itself(run: Run, policy: Sandbox) -> None:
    """With its label, the digest of what ran, and how it was isolated."""
    report = run(REPORT, policy)
    assert report.label == "self-reported"
    assert report.ratios() == {"a": 1.5, "b": 2.0}
    assert (report.score, report.refused, report.output_tail) == (1.5, "", "")
    assert report.geomean == pytest.approx(3**0.5)
    assert report.sandbox == ("bubblewrap" if policy == "required" else "process")
    assert report.machine


def test_the_example_is_one(tmp_path: Path, builds: Path) -> None:
    """It checks and times itself, and says so in the public form."""
    task = task_of("n4096", "n65536")
    made = built(EXAMPLE.read_text(), tmp_path, builds, task)
    assert made.library is not None, made.result.log_tail
    report = run_program(RunProgram(task=task, program=made.library))
    assert report.refused == ""
    assert all(one.ratio > 0 for one in report.configs)
    assert all(one.ours_tflops and one.reference_tflops for one in report.configs)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("return 3;", "the program ended with status 3"),
        ("std::abort();", "the program was ended by SIGABRT"),
        ("*static_cast<volatile int*>(nullptr) = 1;", "the program was ended by SIGSEGV"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_program_that_does_not_end_well_has_said_nothing(run: Run, policy: Sandbox, end: str, why: str) -> None:
    """However good its numbers were; the end of its output is kept for its author."""
    report = run(f'{REPORT} std::fflush(stdout); std::fputs("oh no", stderr); {end}', policy)
    assert (report.refused, report.score) == (why, 0.0)
    assert report.ratios() == {"a": 0.0, "b": 0.0}
    assert "KERNEL_RESULT" in report.output_tail
    assert "oh no" in report.output_tail


@pytest.mark.parametrize("policy", POLICIES)
def test_a_program_that_hangs_is_ended_with_its_children(run: Run, policy: Sandbox, tmp_path: Path) -> None:
    """Within its time limit, the whole group of it."""
    mark = f"ferret-{os.getpid()}-{tmp_path.name}"[:60]
    body = (
        f'{REPORT} std::fflush(stdout); if (fork() == 0) execl("/usr/bin/sleep", "{mark}", "1000", nullptr); pause();'
    )
    report = run(body, policy, "#include <unistd.h>", timeout_s=1.5)
    assert report.refused == "the program ran longer than 1.5 s"
    assert report.score == 0.0
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in content(path)] == []


def test_a_process_that_left_the_group_is_ended_too(run: Run, tmp_path: Path) -> None:
    """Without a sandbox as well, and after a program that ended by itself."""
    mark = f"ferret-{os.getpid()}-{tmp_path.name}"[:60]
    body = f'if (fork() == 0) {{ setsid(); if (fork() == 0) execl("/usr/bin/sleep", "{mark}", "1000", nullptr); }}'
    report = run(f"{body} {REPORT}", "off", "#include <unistd.h>")
    assert report.score > 0
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in content(path)] == []


@pytest.mark.parametrize(
    ("end", "refused"),
    [
        ("", ""),
        ("pause();", "the program ran longer than 2 s"),
        ("kill(getppid(), SIGSTOP); pause();", "the program ran longer than 2 s"),
    ],
)
def test_a_process_that_gave_up_all_it_had_of_us_is_ended_too(run: Run, tmp_path: Path, end: str, refused: str) -> None:
    """In a session of its own, its parent gone, every descriptor closed, every signal ignored that can be."""
    mark = f"ferret-{os.getpid()}-{tmp_path.name}"[-60:]
    body = f"""
        int up[2]; if (pipe(up)) return 9;
        for (int i = 0; i < 3; ++i) if (fork() == 0) {{
            setsid(); signal(SIGTERM, SIG_IGN); signal(SIGHUP, SIG_IGN);
            if (fork() == 0) {{
                for (int f = 0; f < 64; ++f) if (f != up[1]) close(f);
                fcntl(up[1], F_SETFD, FD_CLOEXEC);
                execl("/usr/bin/sleep", "{mark}", "1000", nullptr); _exit(1);
            }}
            _exit(0);
        }}
        close(up[1]); char c; if (read(up[0], &c, 1)) return 9;  // all three have become what they are
        {REPORT} std::fflush(stdout); {end}"""
    report = run(body, "off", "#include <csignal>\n#include <fcntl.h>\n#include <unistd.h>", timeout_s=2)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in content(path)]
    for path in left:
        os.kill(int(path.parent.name), signal.SIGKILL)
    assert left == []
    assert report.refused == refused


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [OUTPUT_LIMIT + 1, 64 * 2**20])
def test_a_flood_of_output_is_no_report(run: Run, policy: Sandbox, count: int) -> None:
    """It is bounded on the disk, and refused rather than read in part."""
    report = run(f"{REPORT} for (long i = 0; i < {count}; ++i) std::putchar('x');", policy)
    assert report.refused.startswith("the program printed ")
    assert report.score == 0.0
    assert len(report.output_tail) <= 1500


@walled
def test_a_walled_program_has_no_network_and_nothing_to_write_to(run: Run, tmp_path: Path) -> None:
    """Nor our environment; a private /tmp is all it has."""
    (tmp_path / "secret").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        top = "#include <arpa/inet.h>\n#include <sys/socket.h>\n#include <unistd.h>\nextern char** environ;"
        body = f"""
            sockaddr_in to{{}}; to.sin_family = AF_INET; to.sin_port = htons({port});
            to.sin_addr.s_addr = htonl(0x7f000001);
            int s = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return 11;
            if (std::fopen("{tmp_path}/secret", "r")) return 12;
            if (std::fopen("/usr/written", "w") || std::fopen("/written", "w")) return 13;
            if (!std::fopen("/tmp/mine", "w")) return 14;
            int variables = 0; while (environ[variables]) ++variables;
            if (variables > 3) return 15;  // PATH, LANG and bubblewrap's own PWD
            if (getppid() > 2) return 16;
            {REPORT}"""
        assert run(body, "required", top).refused == ""


def test_no_variable_of_ours_reaches_a_program(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sandbox neither."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    assert run(f'if (std::getenv("ANTHROPIC_API_KEY") || std::getenv("HOME")) return 9; {REPORT}', "off").refused == ""


def test_a_sandbox_that_is_required_and_missing_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything runs."""
    monkeypatch.setattr(sandbox, "unusable", lambda: "there is no bwrap on PATH")
    with pytest.raises(UserError, match="bubblewrap cannot be used here"):
        run(REPORT, "required")


def test_nothing_is_left_in_the_temporary_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that ran, its output and its scratch are gone."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    run(f'std::fopen("left", "w"); {REPORT}', "off")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_source_may_not_read_our_files_while_it_is_compiled(tmp_path: Path, builds: Path) -> None:
    """The rules of every candidate hold for a program too."""
    made = built('#include "/etc/passwd"\nint main() {}\n', tmp_path, builds)
    assert made.result.status is BuildStatus.REFUSED
    assert "an absolute path is not accepted" in made.result.log_tail


def test_a_source_without_a_main_does_not_build(tmp_path: Path, builds: Path) -> None:
    """The linker says so."""
    made = built("int kernel() { return 1; }\n", tmp_path, builds)
    assert made.result.status is BuildStatus.FAILED
    assert "main" in made.result.log_tail


def test_the_gate_process_answers_with_a_report(tmp_path: Path, builds: Path) -> None:
    """The request of an activity."""
    made = built(f"{HEAD}int main() {{ {REPORT} }}\n", tmp_path, builds)
    assert made.library is not None
    reply = answer(RunProgram(task=TASK, program=made.library))
    assert reply.result is not None
    assert reply.result.kind == "program_ran"
    assert reply.result.report.score == 1.5


# ---------------------------------------------------------------- CUDA

CUDA = r"""
#include <cstdio>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
int main() {
    float* x = nullptr;
    if (cudaMalloc(&x, 1024) != cudaSuccess) { std::puts("INVALID"); return 1; }
    twice<<<1, 256>>>(x);
    std::puts("KERNEL_RESULT {\"a\": 3}\nKERNEL_RESULT_REFERENCE {\"a\": 2}");
    return cudaDeviceSynchronize();
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_a_cuda_program_is_built_with_nvcc(tmp_path: Path, builds: Path) -> None:
    """As an executable, for the device that the task names."""
    task = task_of("a", gpu="H200", arch="sm_90a", language="cuda", build={})
    made = built(CUDA, tmp_path, builds, task)
    assert made.result.status is BuildStatus.BUILT, made.result.log_tail
    assert made.library is not None
    assert b"sm_90a" in made.library.read_bytes()


def test_without_a_gpu_a_cuda_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what is missing."""
    monkeypatch.setattr(self_contained, "gpus", list)
    task = task_of("a", gpu="H200", arch="sm_90a", language="cuda")
    with pytest.raises(UserError, match=r"task reports: a cuda program must run to report; this machine has no GPU"):
        run_program(RunProgram(task=task, program=tmp_path / "program"))


# ---------------------------------------------------------------- the command line


def written(folder: Path, body: str) -> list[str]:
    task = TASK.model_dump(mode="json", exclude_defaults=True, exclude={"harness"})
    (folder / "task.yaml").write_text(json.dumps(task))
    (folder / "program.cpp").write_text(f"{HEAD}int main() {{ {body} }}\n")
    return ["self-report", str(folder / "task.yaml"), str(folder / "program.cpp"), "--builds", str(folder / "builds")]


def test_the_table_is_headed_self_reported(tmp_path: Path) -> None:
    """Also for a task file that does not say that its programs are self-contained."""
    shown = CliRunner().invoke(app, written(tmp_path, REPORT))
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert "self-reported, nothing verified: reports against its own" in lines
    assert any("self-reported ratio" in line for line in lines)
    assert "self-reported score 1.500 (min_ratio), geomean 1.732" in lines


def test_a_report_that_is_refused_is_told_with_the_programs_words(tmp_path: Path) -> None:
    """Exit code 1, as for every kernel that is refused."""
    shown = CliRunner().invoke(app, written(tmp_path, f"{REPORT} return 4;"))
    assert shown.exit_code == 1
    assert "REFUSED: the program ended with status 4" in shown.output
    assert "KERNEL_RESULT {" in shown.output


def test_the_json_is_labelled_too(tmp_path: Path) -> None:
    """For programs that read it."""
    shown = CliRunner().invoke(app, [*written(tmp_path, REPORT), "--json"])
    told = json.loads(shown.stdout.splitlines()[-1])
    assert told["self_reported"]["label"] == "self-reported"
    assert told["build"]["status"] == "built"
