"""Loops of a disassembled function: where they are, how deep, and which of them look hottest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

REPEATS = 4  # that often a loop is taken to run what it holds: how often it really does cannot be read from the code
BLOCKS_LIMIT = 10_000  # of one function; a larger one has no loops as far as this is concerned


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    name: str  # with its suffixes
    operands: tuple[str, ...] = ()
    jump: int | None = None  # where it may go on instead, within the function
    ends: bool = False  # it never goes on with the next one


@dataclass(frozen=True, slots=True)
class Loop:
    depth: int  # 1: in no other loop
    body: tuple[Instruction, ...]


def innermost(function: Sequence[Instruction]) -> list[Loop]:
    """The loops that hold no other, in order of their addresses.

    A loop is what comes back to a block that every way into it passes (a natural loop); how blocks lie in memory says
    little, since compilers move them.
    """
    blocks = _blocks(function)
    if len(blocks) > BLOCKS_LIMIT:
        return []
    loops = _natural_loops(_successors(blocks))
    found = []
    for head, body in sorted(loops.items()):
        if any(other != head and other in body for other in loops):
            continue
        depth = sum(head in other for other in loops.values())
        found.append(Loop(depth, tuple(one for index in sorted(body) for one in blocks[index])))
    return found


def by_heat(loops: Iterable[Loop], weight: Callable[[Instruction], float]) -> list[Loop]:
    """The hottest-looking loop first: the one that most work seems to be done in, by depth and instructions."""
    return sorted(loops, key=lambda loop: -(REPEATS**loop.depth) * sum(map(weight, loop.body)))


def _blocks(function: Sequence[Instruction]) -> list[list[Instruction]]:
    targets = {one.jump for one in function if one.jump is not None}
    blocks: list[list[Instruction]] = []
    begin = True
    for one in function:
        if begin or one.address in targets:
            blocks.append([])
        blocks[-1].append(one)
        begin = one.ends or one.jump is not None
    return blocks


def _successors(blocks: Sequence[Sequence[Instruction]]) -> list[list[int]]:
    at = {block[0].address: index for index, block in enumerate(blocks)}
    found: list[list[int]] = []
    for index, block in enumerate(blocks):
        last = block[-1]
        after = [index + 1] if not last.ends and index + 1 < len(blocks) else []
        found.append([*after, *([at[last.jump]] if last.jump in at else [])])
    return found


def _natural_loops(successors: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Head -> blocks, for every block that one behind it comes back to."""
    if not successors:
        return {}
    order = _postorder(successors)
    place = {block: index for index, block in enumerate(order)}
    predecessors: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for after in successors[block]:
            predecessors[after].append(block)
    above = _dominators(order, place, predecessors)
    loops: dict[int, set[int]] = {}
    for block in order:
        for head in successors[block]:
            if not _dominates(head, block, above):
                continue
            body = loops.setdefault(head, {head})
            waiting = [block]
            while waiting:
                one = waiting.pop()
                if one not in body:
                    body.add(one)
                    waiting += predecessors[one]
    return loops


def _postorder(successors: Sequence[Sequence[int]]) -> list[int]:
    """Blocks that can be reached from the first, each after those that follow it."""
    order: list[int] = []
    seen = {0}
    path = [(0, iter(successors[0]))]
    while path:
        block, following = path[-1]
        after = next((one for one in following if one not in seen), None)
        if after is None:
            order.append(block)
            path.pop()
        else:
            seen.add(after)
            path.append((after, iter(successors[after])))
    return order


def _dominators(order: Sequence[int], place: dict[int, int], predecessors: dict[int, list[int]]) -> dict[int, int]:
    """The nearest block that every way to a block passes (Cooper, Harvey and Kennedy's iteration)."""
    above = {order[-1]: order[-1]}
    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            known = [one for one in predecessors[block] if one in above]
            nearest = known[0]
            for other in known[1:]:
                while nearest != other:
                    if place[nearest] < place[other]:
                        nearest = above[nearest]
                    else:
                        other = above[other]
            if above.get(block) != nearest:
                above[block] = nearest
                changed = True
    return above


def _dominates(head: int, block: int, above: dict[int, int]) -> bool:
    while block != head and above[block] != block:
        block = above[block]
    return block == head
