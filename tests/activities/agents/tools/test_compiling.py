"""The compile tool: built, or what the compiler says, in as few words as help."""

from __future__ import annotations

from activities.agents.tools import compiling
from activities.agents.tools.compiling import Compile
from activities.agents.tools.tool import Desk, NoArguments
from specs.outcomes import BuildResult, BuildStatus
from tests.activities.agents.tools.bench import COPY, HEAD, TYPO, VENDOR, working_on

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4gemmPKfPf' for 'sm_90a'
ptxas info    : Function properties for _Z4gemmPKfPf
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 49152 bytes smem
ptxas info    : Compiling entry function '_Z4tailPf' for 'sm_90a'
ptxas info    : Function properties for _Z4tailPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


async def test_a_kernel_that_builds_is_remembered_as_compiled(desk: Desk) -> None:
    there = await working_on(desk, COPY)
    answer = await Compile().use(there, NoArguments())
    assert not answer.error
    assert answer.text.startswith("built in ")
    assert "no warnings" in answer.text
    assert answer.workspace is not None
    assert answer.workspace.compiled == there.workspace.kernel


async def test_a_mistake_comes_with_its_line_and_without_folders(desk: Desk) -> None:
    answer = await Compile().use(await working_on(desk, TYPO), NoArguments())
    assert answer.error
    assert answer.workspace is None
    assert "kernel.cpp:3" in answer.text
    assert "error: " in answer.text
    assert "was not declared" in answer.text
    assert str(desk.workshop.settings.home) not in answer.text


async def test_warnings_are_counted_and_shown(desk: Desk) -> None:
    source = HEAD + '#warning "not so fast"\n    for (int32_t i = 0; i < N; ++i) y[i] = x[i];\n}\n'
    answer = await Compile().use(await working_on(desk, source), NoArguments())
    assert "1 warning" in answer.text
    assert "not so fast" in answer.text


async def test_a_forbidden_construct_is_told_without_a_compile(desk: Desk) -> None:
    builds = desk.workshop.settings.builds
    before = set(builds.iterdir())
    answer = await Compile().use(await working_on(desk, VENDOR), NoArguments())
    assert answer.error
    assert "cblas.h" in answer.text
    assert "line 2" in answer.text
    assert set(builds.iterdir()) == before


async def test_without_a_kernel_there_is_nothing_to_compile(desk: Desk) -> None:
    answer = await Compile().use(desk, NoArguments())
    assert answer.error
    assert "write_kernel" in answer.text


def test_a_long_log_keeps_its_head_and_its_tail() -> None:
    log = "\n".join(f"/home/somebody/x/kernel.cpp:{line}: error: no {line}" for line in range(500))
    shown = compiling.words(log).splitlines()
    assert len(shown) == compiling.MOST_LINES + 1
    assert shown[0] == "kernel.cpp:0: error: no 0"
    assert shown[-1] == "kernel.cpp:499: error: no 499"
    assert "lines left out" in compiling.words(log)


def test_what_ptxas_says_of_each_kernel_is_told() -> None:
    assert compiling.resources(PTXAS) == [
        "_Z4gemmPKfPf: 128 registers, spills 24 B stored, 32 B loaded, shared memory 49152 B",
        "_Z4tailPf: 12 registers, spills 0 B stored, 0 B loaded, shared memory 0 B",
    ]


def test_a_rule_that_is_broken_is_told_as_such() -> None:
    result = BuildResult(status=BuildStatus.REFUSED, key="0" * 64, log_tail="needs libopenblas.so; accepted: libc")
    assert compiling.refused(result) == "not accepted, whatever it computes:\nneeds libopenblas.so; accepted: libc"
