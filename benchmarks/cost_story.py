"""What the fake model of run_cost.py does: a run as models make them, the same work in every iteration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specs.outcomes import Ending
from tests import fake_harness
from tests.fake_messages import Asked, Block, Reply, called, reply, spoken, thought
from tests.fake_models import Models, Move, verdict

ROOT = Path(__file__).parents[1]
TASK = ROOT / "specs" / "tasks" / "skinny-gemm-f32-cpu.yaml"
SOURCE = (ROOT / "kernels" / "skinny_gemm_f32" / "candidates" / "09-prefetch-to-l2.cpp").read_text()
BEGINS, ENDS_BEFORE = (
    "    for (int k = 0; k < depth; ++k) {\n        if (ahead)",
    "    for (int i = 0; i < kRows; ++i) {\n",
)
LOOP = BEGINS + SOURCE.partition(BEGINS)[2].partition(ENDS_BEFORE)[0]  # what every lever changes
PAGE = "cpu-simd-and-cache-blocking"
PERIOD = 10  # iterations: a win, four that miss, research, the pivot, one more miss, a win, a miss
WIN, SLOWER, WRONG, TIMED_WRONG, RESEARCH, PIVOT = "win", "slower", "wrong", "wrong when timed", "research", "pivot"
ENDS = (WIN, SLOWER, WRONG, SLOWER, TIMED_WRONG, RESEARCH, PIVOT, SLOWER, WIN, SLOWER)
ENDINGS = {
    WIN: Ending.WIN,
    SLOWER: Ending.SLOWER,
    WRONG: Ending.REFUSED,
    TIMED_WRONG: Ending.REFUSED,
    RESEARCH: Ending.RESEARCHED,
    PIVOT: Ending.SLOWER,
}
STALL_AFTER = 4  # as a task has it by default: research comes after the fourth miss
FIRST_SCORE, STEP, LOSS = 0.95, 1.015, 0.97
SEED_SCORE = 0.6

# Characters that a model thinks a turn (a summary is what is sent back), says beside a call, and keeps in a note.
# Nobody has measured these: they are a guess, chosen so that an answer with its edits has about a thousand tokens.
THINKS, SAYS, NOTED = 3_200, 240, 280


# ---------------------------------------------------------------- kernels


def champion(number: int) -> int:
    """Whose kernel iteration `number` begins with: the newest win's before it, or -1, the seed's."""
    return max((one for one in range(number) if ENDS[one % PERIOD] == WIN), default=-1)


def score(number: int) -> float:
    """Of a win."""
    if number < 0:
        return SEED_SCORE
    wins = sum(ENDS[one % PERIOD] == WIN for one in range(number))
    return FIRST_SCORE * STEP**wins


def fate(number: int) -> str:
    """What the fake harness makes of an iteration's kernel."""
    end = ENDS[number % PERIOD]
    if number < 0 or end == WIN:
        return f"ratio {score(number):.6f}"
    return end if end in (WRONG, TIMED_WRONG) else f"ratio {score(champion(number)) * LOSS:.6f}"


def start(number: int) -> tuple[int, str]:
    """The lever and the fate of the kernel that an iteration begins with."""
    return champion(number), fate(champion(number))


def loop(number: int, told: str) -> str:
    """The hot loop in the variant of an iteration, with its fate in it."""
    return f'    static const char* lever_{number} = "fake: {told};";\n{LOOP}'


def source(number: int, told: str, size: int) -> str:
    """A whole kernel of so many bytes at the least."""
    written = SOURCE.replace(LOOP, loop(number, told))
    line = "// padding: a kernel of another size, the work the same\n"
    return written + line * max(0, -(-(size - len(written.encode())) // len(line)))


# ---------------------------------------------------------------- conversations


def scripts(iterations: int, size: int, *, brief: bool) -> Iterator[list[Move]]:
    for number in range(iterations):
        if ENDS[number % PERIOD] == RESEARCH:
            yield [*([] if brief else looks(number)), *research(number)]
        else:
            yield in_brief(number) if brief else [*looks(number), *work(number, size)]


def in_brief(number: int) -> list[Move]:
    """As few turns as an iteration can have in which something fails."""
    before, slip, final = loop(*start(number)), loop(number, "fails"), loop(number, fate(number))
    return [
        turn(number, called("edit_kernel", old=before, new=slip)),
        turn(number, called("compile")),
        turn(number, called("edit_kernel", old=slip, new=final)),
        turn(number, called("measure")),
        turn(number, *notes(number)),
        turn(number, called("submit", title=title(number))),
    ]


def work(number: int, size: int) -> list[Move]:
    """Change the loop with a slip, mend it, check, measure, refine, measure, note, hand in."""
    slip, draft, final = loop(number, "fails"), loop(number, f"{fate(number)}; draft"), loop(number, fate(number))
    if ENDS[number % PERIOD] == PIVOT:
        first = called("write_kernel", source=source(number, "fails", size))
    else:
        first = called("edit_kernel", old=loop(*start(number)), new=slip)
    return [
        turn(number, called("read_kernel")),
        turn(number, first),
        turn(number, called("compile")),
        turn(number, called("edit_kernel", old=slip, new=draft)),
        turn(number, called("compile")),
        turn(number, called("check")),
        turn(number, called("measure")),
        turn(number, called("assembly")),
        turn(number, called("edit_kernel", old=draft, new=final)),
        turn(number, called("measure")),
        *(turn(number, note) for note in notes(number)),
        turn(number, called("submit", title=title(number))),
    ]


def research(number: int) -> list[Move]:
    """Read, note, and hand a plan in."""
    steps = [f"Step {step}: build one part of it, then check it on every shape before the next." for step in range(5)]
    why = "The loads bound the loop: twelve of them for eight multiplications, by the machine code's own counts. " * 5
    plan = called("submit_plan", lever=f"plan {number}", why=why, steps=steps, expected_gain="1.1 on all configs")
    read = called("read_reference") | {"input": {"name": "../../docs/knowledge/roofline.md"}}
    return [turn(number, read), turn(number, *notes(number)), turn(number, plan)]


def looks(number: int) -> list[Reply]:
    return [
        turn(number, called("profile")),
        turn(number, called("history")),
        turn(number, called("search_docs", query="register tile prefetch L2 vector loads")),
        turn(number, called("read_doc", page=PAGE)),
    ]


def notes(number: int) -> list[Block]:
    tried = (
        f"Lever {number}, expected 1.05, measured {number % 7 / 100 + 0.95:.2f}: loads of neighbouring rows collide."
    )
    hard = (
        f"Idea {number}: split K over two passes so that a block of B stays in L2; expected 1.10 on n3072, 1.00 else."
    )
    return [
        called("note", section="tried", text=_prose(tried, NOTED)),
        called("note", section="untried_hard", text=_prose(hard, NOTED)),
    ]


def title(number: int) -> str:
    return f"lever {number}: {ENDS[number % PERIOD]}, rows of B in pairs with {number} values of k between them"


def turn(number: int, *calls: Block) -> Reply:
    return reply(thought(_prose(f"Iteration {number}.", THINKS)), spoken(_prose("Next.", SAYS)), *calls)


def _prose(begins: str, size: int) -> str:
    words = " The tile keeps sixteen sums in registers, so what bounds it is how fast the rows of B arrive."
    return (begins + words * (size // len(words) + 1))[:size]


def reviewer(asked: Asked) -> Reply:
    """Reads the whole kernel once more, then approves."""
    is_plan = "Is this the right next lever?" in str(asked.messages[0])
    if not is_plan and asked.turns == 0:
        return turn(0, called("read_kernel"))
    quote = "The loads bound the loop" if is_plan else "void sixteen_rows("
    given = verdict(approved=True, quote=quote, summary="Every term of the sum is there, for every shape. " * 4)
    return turn(0, given.content[-1])


def endings(iterations: int) -> list[Ending]:
    """How a run goes that follows the story: the seed, then every iteration."""
    return [Ending.WIN, *(ENDINGS[ENDS[number % PERIOD]] for number in range(iterations))]


def model(iterations: int, size: int, *, brief: bool) -> Models:
    return Models(*scripts(iterations, size, brief=brief), reviewer=reviewer)


# ---------------------------------------------------------------- what the harness says, at the real one's length

SAID_BY_GCC = """\
kernel.cpp: In function 'void {anonymous}::tile(const float*, const float*, const float*, float*, ptrdiff_t, int)':
kernel.cpp:61:47: error: cannot convert 'const float* __restrict__' to 'const {anonymous}::Vector*' in initialization
   61 |                 const Vector* row = b + k * n + j;
      |                                     ~~~~~~~~~~^~~
      |                                               |
      |                                               const float* __restrict__
kernel.cpp:62:59: error: cannot convert value to a vector
   62 |                 sum += Vector(a[std::ptrdiff_t{i} * K + k]) * *row;
      |                                                           ^
"""
SAID_OF_THE_CODE = """\
skinny_gemm and 1 more that it calls: 1302 instructions, 7 innermost loops
all of it: FMA 18 scalar + 6 xmm + 22 ymm, loads 42 of 32 B + 10 of 16 B + 121 of 4 B, stores 20 of 32 B + 4 of 16 B
calls outside of the object: memset
hottest-looking loop (sixteen_rows, depth 4, 16 instructions): FMA 8 ymm, loads 8 of 32 B + 4 of 4 B, stores none
next loop (sixteen_rows, depth 3, 18 instructions): FMA 8 ymm, loads 8 of 32 B + 4 of 4 B, stores none, prefetches 1
- 12 loads for 8 FMAs: loads are its limit; use what is in registers more often
"""
SAID_BY_THE_PROFILER = """\
attn_out_n1024_k1024: 214 us, at 71% of what memory gives and 38% of what the multipliers give
bytes that have to move: 4.33 MB, 20.2 GB/s of 28.5; operations: 33.6 M, 157 Gflop/s of 410
- memory bounds it: fewer bytes, or the same bytes earlier
"""


def build(request: dict[str, Any]) -> dict[str, Any]:
    built = fake_harness.build(request)
    if built["result"]["status"] == "failed":
        built["result"]["log_tail"] = SAID_BY_GCC
    return built


def judge(request: dict[str, Any]) -> dict[str, Any]:
    judged = fake_harness.judge(request)
    judged["verdict"]["worst"] = [{"tensor": "c", "max_abs": 3.1e-6, "mean_abs": 2.2e-7, "mismatch_fraction": 0.0}]
    return judged


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "inspected", "digest": SAID_OF_THE_CODE}


def profile(request: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "profiled", "bottleneck": "memory", "source": "roofline", "digest": SAID_BY_THE_PROFILER}


ANSWERS = {"build": build, "judge": judge, "inspect": inspect, "profile": profile}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """In this process, since starting one for each question takes longer than all the rest."""
    kind = request["kind"]
    found: dict[str, Any] = ANSWERS[kind](request) if kind in ANSWERS else getattr(fake_harness, kind)(request)
    return found
