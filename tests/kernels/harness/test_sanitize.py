"""The memory check: what a sanitizer finds is a refusal with the kernel's own line, and honest kernels pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels.harness import gate, sandbox, sanitize
from kernels.harness.arena import CandidateFault
from specs.loader import load_task
from specs.outcomes import FailureKind
from tests.kernels.harness.conftest import Bench, kernel

needs_bubblewrap = pytest.mark.skipif(sandbox.unusable() is not None, reason="no bubblewrap here")
BEST = "process" if sandbox.unusable() else "bubblewrap"
EXPLOITS = Path(__file__).parents[2] / "exploits"
WALLS = ["process", pytest.param("bubblewrap", marks=needs_bubblewrap)]


def checked(bench: Bench, source: str, isolation: str = "process", **changes: float) -> str:
    path = bench.folder / "candidate.cpp"
    path.write_text(source)
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    return sanitize.check(loaded, bench.task, path, bench.builds, isolation, **changes)


def fault(bench: Bench, source: str, isolation: str = "process") -> str:
    with pytest.raises(CandidateFault) as caught:
        checked(bench, source, isolation)
    assert caught.value.kind is FailureKind.MEMORY_ERROR
    return caught.value.message


def line_of(source: str, mark: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if mark in line)


@pytest.mark.parametrize("isolation", WALLS)
def test_an_honest_kernel_passes(bench: Bench, isolation: str) -> None:
    """Every edge case and the cheapest config, on two distributions; the sentence says how many calls that were."""
    assert re.match(r"passed: 4 calls with AddressSanitizer and UBSan", checked(bench, kernel(), isolation))


@pytest.mark.parametrize("source", sorted((EXPLOITS / "honest").glob("*.cpp"))[::9], ids=lambda path: path.stem)
def test_honest_kernels_of_the_exploits_pass(source: Path, builds: Path) -> None:
    """Vectors, maps, exceptions, thread-local scratch, large frames: no sanitizer minds them."""
    named = re.search(r"^// task: (\w+)$", source.read_text(), re.MULTILINE)
    assert named is not None
    loaded = load_task(EXPLOITS / "tasks" / named[1] / "task.yaml")
    task = loaded.task
    assert task.gate is not None
    folder = loaded.resolve(task.gate)
    honest = gate.load(task, folder, gate.lock(task, folder))
    assert sanitize.check(honest, task, source, builds, BEST).startswith("passed")


@pytest.mark.parametrize("isolation", WALLS)
def test_reading_one_past_the_end_of_an_input_is_found(bench: Bench, isolation: str) -> None:
    """The kernel's own line, the size of the access, and which argument it ran off."""
    source = kernel(before="volatile float past = x[M * N];")
    where = f"kernel.cpp:{line_of(source, 'past')}"
    said = fault(bench, source, isolation)
    assert said.startswith("one_row (normal): heap-buffer-overflow: READ of size 4 at ")
    assert said.endswith(f"at {where}, 0 bytes past the end of x")


def test_reading_before_the_start_of_an_input_is_found(bench: Bench) -> None:
    """Either side of a buffer is outside."""
    assert fault(bench, kernel(before="volatile float before = g[-1];")).endswith("4 bytes before the start of g")


def test_the_end_is_that_of_the_case_not_of_the_largest(bench: Bench) -> None:
    """A workspace is as large as the interface says for this very case."""
    assert fault(bench, kernel(after="static_cast<float*>(scratch)[M] = 1;")).endswith("past the end of scratch")


def test_use_after_free_is_found(bench: Bench) -> None:
    """Memory of the kernel's own counts too."""
    said = fault(bench, kernel(top="#include <cstdlib>", before="float* p = (float*)malloc(64); free(p); p[3] = x[0];"))
    assert "heap-use-after-free: WRITE of size 4 at kernel.cpp:" in said
    assert said.endswith("12 bytes into a block of 64 bytes")


def test_running_off_a_local_array_is_found(bench: Bench) -> None:
    """The stack is watched as the heap is."""
    before = "float own[4] = {}; float* volatile p = own; p[3 + M] = 1;"
    assert "stack-buffer-overflow: WRITE of size 4" in fault(bench, kernel(before=before))


def test_endless_recursion_is_found(bench: Bench) -> None:
    """A stack that overflows is named so."""
    top = (
        "int deeper(int n) { volatile char room[512]; room[n % 512] = 1; return n < 0 ? 0 : deeper(n + 1) + room[0]; }"
    )
    assert "stack-overflow" in fault(bench, kernel(top=top, before="if (deeper(1) == 0) return;"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("volatile int big = 2147483647; volatile int more = big + M;", "signed integer overflow"),
        ("volatile int far = 33; volatile int bits = 1 << far;", "shift exponent 33 is too large"),
        ("volatile float odd = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + 1);", "misaligned"),
        ("float own[4] = {}; volatile int at = 4; volatile float out = own[at];", "index 4 out of bounds"),
        ("const float* volatile none = nullptr; volatile float zero = *none;", "null pointer"),
    ],
)  # fmt: skip
def test_undefined_behaviour_is_found(bench: Bench, what: str, said: str) -> None:
    """Signed overflow, shifts, misaligned and null accesses, bounds: each with its line."""
    source = kernel(before=what)
    message = fault(bench, source)
    assert "undefined behaviour: " in message
    assert said in message
    assert message.endswith(f"at kernel.cpp:{line_of(source, what)}")


@pytest.mark.parametrize(
    "what",
    [
        "volatile unsigned big = 4294967295u; volatile unsigned wrapped = big + 1u;",
        "volatile float zero = 0; volatile float infinite = 1 / zero;",
        "volatile float far = 1e30f; volatile int cut = static_cast<int>(far);",
    ],
)
def test_what_is_defined_or_has_a_meaning_in_hardware_is_no_finding(bench: Bench, what: str) -> None:
    """Unsigned numbers wrap, a float over zero is inf, and a conversion out of range is what the machine makes."""
    assert checked(bench, kernel(before=what)).startswith("passed")


@needs_bubblewrap
def test_a_leak_is_found(bench: Bench) -> None:
    """However small; where it was made is told."""
    source = kernel(top="#include <cstdlib>", before="static_cast<volatile char*>(malloc(40))[0] = 1;")
    said = fault(bench, source, "bubblewrap")
    assert re.search(rf"leak: \d+ bytes in \d+ objects, made at kernel.cpp:{line_of(source, 'malloc(40)')}", said)


def test_what_is_kept_in_a_static_is_no_leak(bench: Bench) -> None:
    """Scratch that is made once is a kernel's right."""
    top = "static float* kept;"
    source = kernel(top=top, before="if (!kept) kept = new float[64]; kept[0] = x[0];")
    assert checked(bench, source, BEST).startswith("passed")


def test_a_source_that_opts_out_is_not_called_checked(bench: Bench) -> None:
    """A kernel may switch a sanitizer off, and then the verdict says so."""
    source = kernel(top="#define ODD __attribute__((no_sanitize_address))", before="volatile float past = x[M * N];")
    assert checked(bench, source) == "not checked: the source speaks of sanitizers"


def test_a_source_cannot_tell_by_a_macro_that_it_is_checked(bench: Bench) -> None:
    """The preprocessor shows the same text in both builds."""
    source = kernel(before="#ifdef __SANITIZE_ADDRESS__\nreturn;\n#endif\nvolatile float past = x[M * N];")
    assert "past the end of x" in fault(bench, source)


def test_a_source_that_does_not_build_so_is_no_failure(bench: Bench) -> None:
    """The candidate was built without sanitizers; that this build fails says nothing about it."""
    source = kernel(before="#ifdef __SANITIZE_UNDEFINED__\n#endif\nthis is no C++;")
    assert checked(bench, source).startswith("not checked: the source does not build with")


def test_too_slow_with_sanitizers_is_no_failure(bench: Bench) -> None:
    """They cost a multiple of the time; the verdict says how far it came."""
    said = checked(bench, kernel(before="for (volatile int i = 1; i; i = 1);"), timeout_s=1.5)
    assert said == "not checked beyond 0 of 4 calls, which took too long with sanitizers"


def test_a_machine_without_the_library_is_no_failure(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without libasan nothing is checked, and nobody is blamed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "g++"
    refuse = 'case "$*" in *-fsanitize*) echo "cannot find libasan" >&2; exit 1;; esac'
    fake.write_text(f'#!/bin/sh\n{refuse}\nexec /usr/bin/g++ "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert "libasan" in checked(bench, kernel())


def test_an_early_end_is_not_called_passed(bench: Bench) -> None:
    """A kernel that ends the process leaves nothing checked."""
    source = kernel(top="#include <unistd.h>", before="_exit(0);")
    assert checked(bench, source).startswith("not checked: the check ended with status 0")


@pytest.mark.parametrize("isolation", WALLS)
def test_the_checked_kernel_is_shut_in(bench: Bench, tmp_path: Path, isolation: str) -> None:
    """No file can be written and no process started from inside, bubblewrap or not."""
    spoiled = tmp_path / "spoiled"
    top = "#include <cstdio>\n#include <unistd.h>\n#include <cstdlib>\n"
    before = f'if (FILE* f = fopen("{spoiled}", "w")) {{ fputs("x", f); fclose(f); }}'
    if isolation == "process":
        before += "if (fork() >= 0) abort();"
    assert checked(bench, kernel(top=top, before=before), isolation).startswith("passed")
    assert not spoiled.exists()


@pytest.mark.parametrize("isolation", WALLS)
def test_taking_all_memory_is_stopped_and_is_no_finding(bench: Bench, isolation: str) -> None:
    """The machine is not brought down by it; that a kernel holds too much is the judge's own rule."""
    top = "#include <cstdlib>\n#include <cstring>"
    before = "for (int i = 0; i < 4096; ++i) { void* p = malloc(1 << 28); if (p) memset(p, 1, 64); }"
    assert checked(bench, kernel(top=top, before=before), isolation).startswith("not checked: the check ended")


def test_a_large_frame_that_fits_the_stack_is_no_overflow(bench: Bench) -> None:
    """Sanitizers make frames larger, so there is more room."""
    before = "float room[1500000]; volatile float* p = room; for (int i = 0; i < 1500000; i += 512) p[i] = x[0];"
    assert checked(bench, kernel(before=before)).startswith("passed")


def test_stage_tensors_are_null_in_every_second_call(bench: Bench) -> None:
    """As in the judge's calls: a kernel that writes one without looking is found."""
    assert "null pointer" in fault(bench, kernel(before="rstd[0] = 1;"))
