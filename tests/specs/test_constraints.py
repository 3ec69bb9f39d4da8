"""What the constraint rules see in a source, and what they leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from specs.constraints import MOST_TOLD, Flag, Setting, flagged, flagged_in, told
from specs.loader import load_task
from specs.schema import Language
from tests.fakes import SELF_CONTAINED, write_task

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "ferret-tasks"
LANGUAGES = {language.suffix: language for language in Language}
HONEST = sorted(
    path
    for pattern in ("kernels/*/candidates/*", "kernels/*/seed.*", "kernels/*/tunable.*", "tests/exploits/honest*/*")
    for path in ROOT.glob(pattern)
    if path.suffix in LANGUAGES
)
GATED, PROGRAM = Setting(), Setting(self_contained=True)


def lines_of(
    source: str, language: Language = Language.CUDA, constraints: Sequence[str] = (), setting: Setting = GATED
) -> list[int]:
    return [flag.line for flag in flagged(source, language, constraints, setting)]


def test_no_honest_source_that_we_ship_is_flagged() -> None:
    """Under the constraints of its own task, too."""
    assert len(HONEST) > 70
    prose = [text for path in (ROOT / "specs" / "tasks").glob("*.yaml") for text in load_task(path).task.constraints]
    for path in HONEST:
        assert flagged(path.read_text(), LANGUAGES[path.suffix], prose) == [], path


@pytest.mark.parametrize(
    ("language", "line"),
    [
        (Language.CUDA, "cublasGemmEx(handle, 0);"),
        (Language.CUDA, "#include <cublas_v2.h>"),
        (Language.CUDA, "#include <thrust/sort.h>"),
        (Language.CUDA, "cub::DeviceReduce::Sum(a, b, c);"),
        (Language.CUDA, "using Gemm = cutlass::gemm::device::Gemm<float>;"),
        (Language.CUDA, '#include "cutlass/gemm/device/gemm.h"'),
        (Language.CUDA, "cudaStream_t own; cudaStreamCreateWithFlags(&own, 1);"),
        (Language.CUDA, "f<<<1, 32, 0, cudaStreamPerThread>>>(x);"),
        (Language.CUDA, "f<<<1, 32>>>(x);"),
        (Language.CUDA, "f<<<dim3(1, 2, 3), 32, sizeof(float[2]), 0>>>(x);"),
        (Language.CUDA, "cudaEventRecord(event, stream);"),
        (Language.CUDA, "cudaGraphLaunch(graph, stream);"),
        (Language.CUDA, "cudaStreamBeginCapture(stream, mode);"),
        (Language.CUDA, "cudaLaunchHostFunc(stream, f, nullptr);"),
        (Language.CUDA, "cudaMallocManaged(&p, 4);"),
        (Language.CUDA, "__managed__ float kept;"),
        (Language.CUDA, 'printf("%d", 3);'),
        (Language.CPP, "cblas_sgemm(1, 2, 3);"),
        (Language.CPP, "#include <mkl.h>"),
        (Language.CPP, "#include <Eigen/Dense>"),
        (Language.CPP, "#include <thread>"),
        (Language.CPP, '#include "other.h"'),
        (Language.CPP, '#include "../gate/reference.py"'),
        (Language.CPP, "#include </etc/passwd>"),
        (Language.CPP, "#include HEADER"),
        (Language.CPP, "std::thread t(f);"),
        (Language.CPP, "pthread_create(&t, 0, f, 0);"),
        (Language.CPP, "#pragma omp parallel for"),
        (Language.CPP, 'if (getenv("X")) return;'),
        (Language.CPP, 'std::fopen("x", "r");'),
        (Language.CPP, "auto t = std::chrono::steady_clock::now();"),
        (Language.TRITON, "import torch"),
        (Language.TRITON, "from flashinfer import norm"),
        (Language.TRITON, "    import os"),
        (Language.TRITON, "y = torch.nn.functional.rms_norm(x)"),
        (Language.TRITON, 'open("gate.yaml")'),
    ],
)
def test_what_no_gated_kernel_may_do_is_flagged_with_its_line(language: Language, line: str) -> None:
    """Whatever the constraints say, or when there are none."""
    assert set(lines_of(f"\n{line}\n", language)) == {2}


@pytest.mark.parametrize(
    ("language", "source"),
    [
        (Language.CUDA, "// cublasSgemm would be slower\n/* cudaGraphLaunch\n cudaEventRecord */ int x;"),
        (Language.CUDA, 'const char* s = "cudaMallocManaged <<<1, 2>>>";'),
        (Language.CUDA, 'const char* s = R"(#include <cublas.h>)";'),
        (Language.CUDA, "#define LAUNCH(f, ...) f<<<__VA_ARGS__>>>"),
        (Language.CUDA, "__nanosleep(20); cudaStreamSynchronize(stream);"),
        (Language.CUDA, "#include <cub/block/block_reduce.cuh>\n#include <cuda/barrier>\n#include <mma.h>"),
        (Language.CUDA, '#include "cute/tensor.hpp"\nusing namespace cute;'),
        (Language.CPP, "float time = 1; struct F { int open(int); } f; int y = f.open(2); ns::system(3);"),
        (Language.CPP, "#pragma omp simd\nfor (;;) {}"),
        (Language.CPP, "int million = 1'000'000; char c = '\"'; // std::thread"),
        (Language.CPP, 'asm("nop"); __m256 v = _mm256_setzero_ps();'),
        (Language.TRITON, "# import torch\nimport triton\nimport triton.language as tl\nfrom math import sqrt"),
        (Language.TRITON, '"""import os\nopen(x)"""\nx = tl.load(p)\ny = self.open(x)'),
    ],
)  # fmt: skip
def test_comments_texts_and_look_alikes_are_no_code(language: Language, source: str) -> None:
    """A word is not a call."""
    assert flagged(source, language, []) == []


@pytest.mark.parametrize(
    ("constraint", "source", "allowed"),
    [
        ("Single CUDA stream only.", "cudaStreamCreate(&s);", "cudaStreamSynchronize(s);"),
        ("No CUDA graphs. Focus on the kernel.", "cudaGraphLaunch(g, s);", "cudaEventRecord(e, s);"),
        ("cta_group::1 only - no clusters.", 'asm("tcgen05.mma.cta_group::2.kind::f16");', 'asm("cta_group::1");'),
        ("Do NOT use mma.sync (SM80).", 'asm("mma.sync.aligned.m16n8k16");', 'asm("wgmma.mma_async");'),
        ("No inline PTX.", 'asm volatile("nop;");', "int assembly;"),
        ("Your kernel.cu may NOT link against, #include, or call cuBLAS or Marlin.", "cublasCreate(&h);", "cudnnGo();"),
        ("NO additional -l flags, NO external library links.", "cudnnCreate(&h);", "my_cudnn();"),
        ("You may NOT call FlashInfer, but read it.", "flashinfer::go();", "cutlass::half_t h; int cublas_us;"),
        ("Write it without CUTLASS.", "cute::Tensor t;", "int cutlass_us;"),
    ],
)  # fmt: skip
def test_a_program_that_times_itself_is_bound_by_the_words_of_its_task(
    constraint: str, source: str, allowed: str
) -> None:
    """And by nothing else: it needs events, prints and files."""
    assert lines_of(source, constraints=[constraint], setting=PROGRAM) == [1]
    assert lines_of(source, setting=PROGRAM) == []
    assert lines_of(f"{allowed} printf(); cudaEventRecord();", constraints=[constraint], setting=PROGRAM) == []


@pytest.mark.parametrize(
    "constraint",
    [
        "cta_group::2 (2-CTA cluster MMA) IS ALLOWED for this task.",
        "cta_group::1 or cta_group::2 are both allowed.",
        "Output bit-compatible with the CUTLASS baseline.",
        "Warp roles: (b) MMA launcher (single-thread tcgen05.mma issue).",
    ],
)
def test_words_that_allow_switch_nothing_on(constraint: str) -> None:
    """A sentence that merely names a thing forbids nothing."""
    source = 'asm("cta_group::2"); cutlass::half_t h; std::thread t; cublasCreate(&h);'
    assert lines_of(source, constraints=[constraint], setting=PROGRAM) == []


@pytest.mark.skipif(not SHARED.exists(), reason="the original tasks are not on this machine")
def test_the_wording_of_the_original_tasks_is_understood() -> None:
    """All of them want one stream and no graphs."""
    tasks = sorted(SHARED.glob("*.yaml"))
    assert len(tasks) >= 20
    for path in tasks:
        prose = yaml.safe_load(path.read_text())["constraints"]
        source = "cudaStreamCreate(&s);\ncudaGraphLaunch(g, s);\nprintf(); cudaEventRecord(e);"
        assert lines_of(source, constraints=prose, setting=PROGRAM) == [1, 2], path.name


def test_a_launch_needs_a_stream_only_where_one_is_given() -> None:
    """An interface without a stream has none to pass on."""
    assert lines_of("f<<<1, 2>>>();", setting=Setting(stream=False)) == []


def test_include_folders_of_the_build_open_headers_but_no_vendors_and_no_other_folders() -> None:
    """What lies there is the task's own choice."""
    source = '#include "mine/tiles.cuh"\n#include <cublas_v2.h>\n#include "../gate/x.h"\n'
    assert lines_of(source, setting=Setting(folders=True)) == [2, 3]


def test_a_task_tells_its_own_setting(tmp_path: Path) -> None:
    """Its harness, its stream and its include folders."""
    gated = write_task(tmp_path / "gated", [], build={"flags": ["-Iinclude"]}).task
    assert [flag.line for flag in flagged_in('#include "mine.h"\nprintf();', gated)] == [2]
    program = write_task(tmp_path / "program", [], **SELF_CONTAINED).task
    assert flagged_in('#include "mine.h"\nprintf();', program) == []


def test_text_that_is_no_python_is_still_looked_at() -> None:
    """A file that ends in the middle of a string hides nothing that stands before it."""
    assert lines_of('import os\nx = """', Language.TRITON) == [1]


def test_flags_are_told_a_line_each_and_not_without_end() -> None:
    """What the model reads."""
    assert told([Flag(3, "cudaEventRecord", "no events")]) == "line 3: cudaEventRecord: no events"
    many = flagged("cudaEventRecord();\n" * 100, Language.CUDA, [])
    assert len(many) == 100
    assert told(many).splitlines()[-1] == f"and {100 - MOST_TOLD} more"
