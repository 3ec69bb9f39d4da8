"""nvcc: kernels for the task's device, with everything that it read and wrote looked at."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import source_rules, toolchain
from kernels.harness.build import build
from kernels.harness.requests import Build
from kernels.harness.toolchain import Nvcc
from specs.errors import UserError
from specs.outcomes import BuildResult, BuildStatus
from specs.schema import Language
from tests.kernels.harness.tasks import task

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

KERNEL = """
__global__ void twice(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" void kernel(const float* x, float* top, float* y, int M, int N) {
    BEFORE
    twice<<<(M * N + 255) / 256, 256>>>(x, y, M * N);
}
"""


def built(folder: Path, source: str, **changes: Any) -> tuple[BuildResult, Path | None]:
    path = folder / "candidate.cu"
    path.write_text(source)
    cuda = {"language": "cuda", "gpu": "H200", "arch": "sm_90a", **changes}
    done = build(Build(task=task(**cuda), source=path, builds=folder / "builds"))
    return done.result, done.library


@needs_nvcc
def test_a_kernel_is_built_for_its_device_and_no_other(tmp_path: Path) -> None:
    """The candidate passes every look, and what made it is on record."""
    result, library = built(tmp_path, KERNEL.replace("BEFORE", ""))
    assert library is not None, result.log_tail
    assert result.compiler.startswith("nvcc ")
    assert "g++" in result.compiler
    record = json.loads((library.parent / "build.json").read_text())
    assert "-gencode=arch=compute_90a,code=sm_90a" in record["commands"][0]
    assert sorted(path.name for path in library.parent.iterdir()) == ["build.json", "kernel.so", "log.txt"]


@needs_nvcc
def test_an_assembler_directive_that_reads_a_file_is_refused(tmp_path: Path) -> None:
    """Put together from pieces, as only the assembly of the host's half shows."""
    result, _ = built(tmp_path, KERNEL.replace("BEFORE", r'asm volatile(".inc" "bin \"/etc/hostname\"");'))
    assert result.status is BuildStatus.REFUSED
    assert "kernel.cu: asm statement: .incbin reads a file while assembling; it is not accepted" in result.log_tail


@needs_nvcc
def test_a_source_that_does_not_compile_says_where(tmp_path: Path) -> None:
    """In nvcc's own words, with the candidate's line."""
    result, _ = built(tmp_path, KERNEL.replace("BEFORE", "int unfinished"))
    assert result.status is BuildStatus.FAILED
    assert "kernel.cu(8): error" in result.log_tail


@needs_nvcc
def test_a_source_that_reads_other_files_is_refused_unread(tmp_path: Path) -> None:
    """Also when only the pass for the device would read them."""
    for include in ('#include "/etc/hostname"', "#include <../gate/reference.py>", "#define F <x>\n#include F"):
        result, _ = built(tmp_path, f"#ifdef __CUDA_ARCH__\n{include}\n#endif\n")
        assert result.status is BuildStatus.REFUSED
        assert "kernel.cu:" in result.log_tail


def test_files_that_a_preprocessed_text_came_from_are_looked_at(tmp_path: Path) -> None:
    """Whatever name they go by; the compiler's own pseudo files are none."""
    text = f'# 1 "kernel.cu"\n# 1 "<built-in>"\n# 1 "/usr/include/c++/12/cmath" 1 3\n#line 7 "{tmp_path}/own.h"\n'
    assert source_rules.in_line_markers(text, tmp_path, [Path("/usr/include")]) == []
    stolen = text + '# 1 "/usr/include/../../etc/\\"secret" 1\nint x;\n'
    (finding,) = source_rules.in_line_markers(stolen, tmp_path, [Path("/usr/include")])
    assert finding.startswith('reads /usr/include/../../etc/"secret, which is not a header of the compiler')


@needs_nvcc
def test_a_program_starts_without_being_told_where_the_toolkit_is(tmp_path: Path) -> None:
    """A program with a main of its own links to the runtime and finds it."""
    tools = Nvcc()
    (tmp_path / "kernel.cu").write_text(
        '#include <cstdio>\nint main() { int v = 0; cudaRuntimeGetVersion(&v); std::printf("%d", v / 1000); }\n'
    )
    flags = ["-std=c++17", "-O1", "-gencode=arch=compute_90a,code=sm_90a"]
    for step in tools.steps(tools.find(), "kernel.cu", flags, "program", shared=False):
        subprocess.run(step.argv, cwd=tmp_path, check=True, capture_output=True)
        assert step.look is None or step.look(tmp_path) == []
    told = subprocess.run([tmp_path / "program"], env={}, capture_output=True, text=True, check=True)
    assert int(told.stdout) >= 13


@pytest.mark.parametrize(
    ("gpu", "arch", "code"),
    [
        ("H200", "sm_90a", "90a"),
        ("H100", "sm_90", "90"),
        ("H100 SXM", "Hopper", "90a"),
        ("B200", "blackwell", "100a"),
        ("B200", "sm_100a", "100a"),
        ("GB300", "any", "103a"),
        ("A100", "ampere", "80"),
        ("anything", "8.9", "89"),
        ("anything", "compute_120a", "120a"),
    ],
)
def test_the_device_is_taken_from_the_task(gpu: str, arch: str, code: str) -> None:
    """From its arch where that is a name of CUDA's, else from its gpu."""
    flags = Nvcc().target_flags(task(language="cuda", gpu=gpu, arch=arch), ["-O3"])
    assert flags == [f"-gencode=arch=compute_{code},code=sm_{code}"]


def test_a_task_may_choose_the_device_itself() -> None:
    """Any of nvcc's flags for it stands; without one, and without a known device, the task is refused."""
    strange = task(language="cuda", gpu="Quantum", arch="weird")
    for flag in ("-arch=sm_90", "-gencode", "--generate-code=arch=compute_90,code=sm_90"):
        assert Nvcc().target_flags(strange, [flag]) == []
    with pytest.raises(UserError, match="neither arch 'weird' nor gpu 'Quantum' tells what to compile for; accepted:"):
        Nvcc().target_flags(strange, ["-O3"])


@needs_nvcc
def test_flags_go_to_the_tool_that_they_are_for(tmp_path: Path) -> None:
    """nvcc, the host's compiler, the linker."""
    given = [
        "-std=c++17",
        "-O2",
        "-lineinfo",
        "--use_fast_math",
        "-Xcompiler",
        "-Wall,-fopenmp",
        "-lcublas",
        "-L/opt/x",
    ]
    tools = Nvcc()
    device, host, _, link = (step.argv for step in tools.steps(tools.find(), "kernel.cu", given, "out", shared=True))
    assert {"-std=c++17", "-O2", "-lineinfo", "--use_fast_math", "-Wall,-fopenmp"} <= set(device)
    assert {"-std=c++17", "-O2", "-Wall", "-fopenmp"} <= set(host)
    assert {"-lcublas", "-L/opt/x", "-shared", "-lcudart"} <= set(link)
    assert not {"-lcublas", "-L/opt/x"} & {*device, *host}
    assert not {"-lineinfo", "--use_fast_math"} & {*host, *link}


@needs_nvcc
@pytest.mark.parametrize("flag", ["-rdc=true", "--relocatable-device-code=true", "-dc", "-dlto"])
def test_device_code_in_parts_is_refused(flag: str) -> None:
    """A kernel is one file."""
    tools = Nvcc()
    with pytest.raises(UserError, match=f"build flag {flag}: a kernel is one file"):
        tools.steps(tools.find(), "kernel.cu", [flag], "out", shared=True)


def test_a_machine_without_nvcc_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, with the toolkit's version."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^nvcc is not on PATH; CUDA kernels need it: install the CUDA toolkit, 13\.0"):
        toolchain.toolchain_for(Language.CUDA).find()
