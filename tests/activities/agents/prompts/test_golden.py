"""Every kind of prompt, word for word: a change of one shows in the diff of its file.

FERRET_REWRITE_GOLDEN=1 writes the files anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from activities.agents.prompts import gate_writer, nudges, optimizer, reviewer
from activities.agents.prompts.epochs import Before, Call
from activities.agents.prompts.stub import stub
from activities.model_turn import Nudge
from specs.dialogue import Mode
from tests.activities.agents.prompts.values import (
    CALIBRATION,
    GATE,
    PLAN,
    SOURCE,
    make_first_view,
    make_past,
    make_task,
    make_view,
)

GOLDEN = Path(__file__).with_name("golden")
BEFORE = Before(
    (
        Call("edit_kernel", "The kernel has 40 lines, 1800 bytes. No constraint rule objects."),
        Call("compile", "kernel.cu(12): error: identifier rows is undefined", error=True),
    ),
    "the model refused (cyber)",
)
FIGURES = "score 1.043 is 3.1% above the champion's 1.012\nm128_n8192: 6.42 us against 6.69 us, ratio 1.043"
DRAFT = {"gate.yaml": "contract: as in norm.py\n", "reference.py": "import numpy as np\n"}
CANONICAL = {"norm.py": "def norm(x, eps):\n    return x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)\n"}
UNGATED = {"interface": None, "gate": None, "harness": "self_contained"}

PROMPTS: dict[str, Callable[[], str]] = {
    "optimizer_system_cuda": lambda: optimizer.system(
        make_task(), GATE, CALIBRATION, references=("csrc/norm.cuh",), tools=("profile", "sass")
    ),
    "optimizer_system_cpp": lambda: optimizer.system(
        make_task(language="cpp", gpu="CPU"), GATE, {}, references=(), tools=("assembly",)
    ),
    "optimizer_system_triton": lambda: optimizer.system(
        make_task(language="triton"), GATE, {}, references=(), tools=("sass",)
    ),
    "optimizer_system_self_contained": lambda: optimizer.system(
        make_task(**UNGATED), None, {}, references=(), tools=("sass",)
    ),
    "optimizer_first": lambda: optimizer.opening(make_first_view()),
    "optimizer_without_a_kernel": lambda: optimizer.opening(
        make_first_view(past=[], champion=None, source=stub(make_task()), source_is="an empty entry")
    ),
    "optimizer_improve": lambda: optimizer.opening(make_view(hints=["Look at the tail of the grid."])),
    "optimizer_research": lambda: optimizer.opening(make_view(mode=Mode.RESEARCH)),
    "optimizer_pivot": lambda: optimizer.opening(make_view(mode=Mode.PIVOT, plan=PLAN)),
    "optimizer_anew": lambda: optimizer.opening(make_view(before=BEFORE, source_is="as you left it")),
    "optimizer_self_contained": lambda: optimizer.opening(replace(make_view(), task=make_task(**UNGATED))),
    "reviewer_system": reviewer.system,
    "reviewer_integrity": lambda: reviewer.integrity(make_task(), SOURCE, FIGURES, GATE, CALIBRATION),
    "reviewer_plan": lambda: reviewer.plan(
        make_task(), PLAN, SOURCE, FIGURES, optimizer.tried(make_task(), make_past())
    ),
    "reviewer_gate": lambda: reviewer.gate(make_task(gate=None), DRAFT, CANONICAL),
    "gate_writer_system": lambda: gate_writer.system(make_task(gate=None)),
    "gate_writer_first": lambda: gate_writer.opening(("norm.py",), {}),
    "gate_writer_mends": lambda: gate_writer.opening(("norm.py",), DRAFT, 'eps is missing\n- "mean(x)": no eps'),
    "nudges": lambda: "\n\n".join(f"{nudge.value}: {nudges.text(nudge)}".strip() for nudge in Nudge) + "\n",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_it_reads_as_it_was_agreed(name: str) -> None:
    file = GOLDEN / f"{name}.md"
    if os.environ.get("FERRET_REWRITE_GOLDEN") == "1":
        file.write_text(PROMPTS[name]())
    assert PROMPTS[name]() == file.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(PROMPTS)
