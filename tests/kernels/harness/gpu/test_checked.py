"""What is made of a memory checker's report: a verdict, or a note where the tool cannot follow the code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.harness import cubin
from kernels.harness.gpu import checked

CONTROLS = Path(__file__).parents[3] / "exploits" / "honest_cuda"

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
needs_disassembler = pytest.mark.skipif(checked.disassembler() is None, reason="there is no cuobjdump")

RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at rms(const float *, int)+0x490 in kernel.cu:31
=========     and Read access at rms(const float *, int)+0x760 in kernel.cu:40 [8064 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OUTSIDE = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at rms(const float *, int)+0x120 in kernel.cu:12
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f1d2e400400 is out of bounds
========= ERROR SUMMARY: 1 error
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("cubins")
    made = {}
    for name in ("warp_specialised", "tma", "plain"):
        target = folder / f"{name}.cubin"
        flags = ["-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3"]
        subprocess.run(["nvcc", *flags, str(CONTROLS / f"{name}.cu"), "-o", str(target)], check=True)
        made[name] = target.read_bytes()
        assert cubin.read(made[name]).kernels
    return made


@needs_nvcc
@needs_disassembler
def test_tools_are_believed_on_code_that_they_can_follow(images: dict[str, bytes]) -> None:
    for tool in checked.TOOLS:
        assert checked.unfollowed(tool, [images["plain"]]) is None


@needs_nvcc
@needs_disassembler
def test_the_instruction_that_a_tool_cannot_follow_is_named(images: dict[str, bytes]) -> None:
    assert checked.unfollowed("racecheck", [images["warp_specialised"]]) == "BAR.ARV"
    assert "UTMALDG" in str(checked.unfollowed("initcheck", [images["plain"], images["tma"]]))


@needs_nvcc
def test_an_access_outside_is_a_verdict_whatever_the_code_is_made_of(images: dict[str, bytes]) -> None:
    for name in images:
        assert checked.unfollowed("memcheck", [images[name]]) is None
        assert checked.unfollowed("synccheck", [images[name]]) is None


@needs_nvcc
def test_without_a_disassembler_only_the_tools_without_limits_are_believed(
    images: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "disassembler", lambda: None)
    assert "cannot be disassembled" in str(checked.unfollowed("racecheck", [images["plain"]]))
    assert checked.unfollowed("memcheck", [images["plain"]]) is None


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (RACE, "Error: Race reported between Write access at rms(const float *, int)+0x490 in kernel.cu:31"),
        (OUTSIDE, "Invalid __global__ read of size 4 bytes at kernel.cu:12"),
        ("", "an error"),
    ],
)
def test_a_report_comes_to_its_first_line_and_its_place(report: str, told: str) -> None:
    assert checked.first_finding(report) == told
