"""Loops are found in the flow of a function, wherever a compiler has put its blocks."""

from __future__ import annotations

from kernels.harness import loops
from kernels.harness.loops import Instruction


def code(*steps: tuple[str, int | None] | str) -> list[Instruction]:
    """One instruction an address; a pair is a jump: `jmp` never goes on, anything else may."""
    return [
        Instruction(at, step) if isinstance(step, str) else Instruction(at, step[0], (), step[1], step[0] == "jmp")
        for at, step in enumerate(steps)
    ]


def addresses(found: loops.Loop) -> list[int]:
    return [one.address for one in found.body]


def test_code_that_never_comes_back_has_no_loop() -> None:
    assert loops.innermost(code("add", ("je", 3), "mul", "ret")) == []
    assert loops.innermost([]) == []


def test_the_loop_that_holds_no_other_is_found_with_its_depth() -> None:
    nested = code("begin", "outer", "inner", ("jne", 2), "after", ("jne", 1), "ret")
    (found,) = loops.innermost(nested)
    assert (found.depth, addresses(found)) == (2, [2, 3])


def test_a_block_that_lies_elsewhere_belongs_to_its_loop() -> None:
    """A compiler moves what is rare to the end; jumping back from there makes no loop of all between."""
    moved = code("begin", "head", ("je", 6), "work", ("jne", 1), ("jmp", 8), "rare", ("jmp", 3), "end")
    (found,) = loops.innermost(moved)
    assert (found.depth, addresses(found)) == (1, [1, 2, 3, 4, 6, 7])


def test_a_jump_back_into_code_that_has_other_ways_in_is_no_loop() -> None:
    assert loops.innermost(code(("je", 2), "first", "second", "more", ("jmp", 1))) == []


def test_the_loop_with_the_most_work_comes_first() -> None:
    two = code("mul", ("jne", 0), "mul", "mul", "mul", ("jne", 2), "ret")
    ordered = loops.by_heat(loops.innermost(two), lambda one: float(one.name == "mul"))
    assert [addresses(one) for one in ordered] == [[2, 3, 4, 5], [0, 1]]
