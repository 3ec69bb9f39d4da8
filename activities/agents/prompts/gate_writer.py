"""What the gate writer is told: how a gate is made from a canonical source, and where its draft stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from activities.agents.prompts import epochs, task_text
from activities.agents.prompts.blocks import DATA, beginning, bullets, foreign, one_line, prompt, section
from activities.agents.prompts.epochs import Before
from specs.schema import Task

MOST_SHOWN = 24_000  # characters of a draft's file
MOST_FEEDBACK = 6_000


def system(task: Task) -> str:
    """The same bytes for every round."""
    return prompt(
        "You write the gate of a kernel task: the two files that decide what a correct kernel is. You do not write "
        "kernels. Whoever does will be a stranger who gains by every gap you leave, and the gate is locked before the "
        "first of them.",
        section("The one rule", _RULE),
        section("How to work", _HOW),
        section("gate.yaml", _GATE_YAML),
        section("reference.py", _REFERENCE),
        section("What makes a gate good", bullets(_GOOD)),
        section("Admission", _ADMISSION),
        section(
            f"The task: {one_line(task.name)}",
            task_text.problem(task),
            f"Precision: {task.precision}. Baseline: {one_line(task.baseline.source)}.",
        ),
        section("The function", task_text.interface(task)),
        section("The configs", task_text.configs(task)),
        section("Constraints for kernels", bullets(task.constraints)),
        section("Text of others", DATA),
    )


_RULE = """\
Take the maths from the canonical sources and from nothing else. Do not derive it anew, do not simplify it, do not fill
a gap from memory: a reference that is plausible and wrong cannot be found later. Each term of `reference.py` has a line
of a canonical source behind it, and the contract says which file. Where the sources and the task contradict each other,
the contract says so, and follows the sources."""

_HOW = """\
1. `read_canonical` every source, to its end.
2. `write_gate_file` both files; `read_gate_file` shows the draft.
3. `admit_gate` tries wrong answers on the draft, judges the baseline with it, and says what to mend. Mend, admit again.
4. `submit_gate` hands in a draft that has been admitted. A reviewer then compares it with the canonical sources, term
   by term; objections come back to you."""

_GATE_YAML = """\
```yaml
contract: |                      # the maths of each tensor, the precision inside, the order of sums, what NaN does,
  ...                            # which shapes are accepted, what is only read, and the canonical file behind it
deterministic: true              # two calls on the same input give the same bits
distributions: [normal, shifted] # two to seven names that make_inputs understands, the plainest first
tensors:                         # every intermediate and output, intermediates first: the first one that is off is told
  rstd: {elementwise: 1.0e-5}
  y: {elementwise: 1.0e-5, worst_row_cosine: 0.999999}
edges:                           # shapes that a tiled kernel gets wrong
  - {name: one_row, args: {M: 1, N: 7}}
held_out:                        # judged at the very end only, and unlike the configs
  - {name: odd, args: {M: 13, N: 999}}
admits: {}                       # mutants let through on purpose: name or family, each with its reason
```

Upper limits: `elementwise` (|got - want| <= limit * scale, where scale is what reference.py gives as `NAME.scale`, else
|want| + rms(want)), `max_abs`, `max_rel`, `mean_abs`, `rel_l2`, `mismatch_fraction`. Lower limits: `cosine`,
`worst_row_cosine`. `calibrated: k` in place of `elementwise` and `rel_l2` sets both to k times the baseline's own
error. No other keys, no YAML aliases."""

_REFERENCE = """\
Two functions; only numpy, ml_dtypes and math are imported:

```python
def make_inputs(rng, args, distribution):  # rng: a numpy Generator with a secret seed
    return {...}  # the input arguments only, each of its exact dtype and shape


def reference(inputs, args):  # inputs as the kernel gets them
    return {...}  # every intermediate and output in float64; "NAME.scale" where it is needed
```

`args` holds the config's arguments over `problem.shapes`. bf16 and float8 inputs are made with `ml_dtypes`. Scalars
that a kernel gets in float32 are rounded to float32 before they are used. Whole arrays, no Python loops over elements:
the largest config is evaluated many times."""

_GOOD = (
    "Each distribution shows something: eps wants inputs about as small as eps, a mean far from 0 tells a layer norm "
    "from an RMS norm, rows of different size show a wrong scale, one large value shows lost bits, a mask wants every "
    "kind of row. An unknown name raises ValueError.",
    "Tolerances are three to ten times what an honest kernel of the stated precision needs, sums in any order; the "
    "next lower precision and one dropped term have to fail. `scale` never excuses small elements behind large ones.",
    "Edges: one row, one column, one element, a size one past a tile and one short of it, a prime, rows that are not "
    "aligned. Held out: at least one shape unlike all configs.",
    "Inputs are as in real use, finite, and no sum overflows.",
    "Nothing that the sources do not say is asked of a kernel.",
)

_ADMISSION = """\
Mutants are made from your own golden and must all be refused somewhere: outputs of zeros, ones, a constant or a copy of
an input; scaled, negated, biased by four times the limit; one element wrong, NaN or infinite; the last row, column or
element left out or never written; out by one; an intermediate taken for 1; an input, a sixteenth of one, or a scalar
ignored; inputs or results rounded to the next lower formats. What is wrong in one place has to be refused at the shape
of the cheapest config. One that gets through is named: tighten a limit (`cosine` and `rel_l2` alone see no single
element), or add a distribution or an edge that shows it. `admits` is for what the sources truly allow, never for what
is hard to catch. The baseline has to pass, held-out cases included: if it does not, the reference is wrong or a limit
too narrow."""


def opening(
    canonical: Sequence[str],
    draft: Mapping[str, str],
    feedback: str = "",
    hints: Sequence[str] = (),
    before: Before | None = None,
) -> str:
    """The first message of a round. `canonical` are the names that read_canonical takes."""
    return prompt(
        "# Mend the gate" if feedback else "# Write the gate",
        section("Canonical sources", bullets(f"`{one_line(name, 200)}`" for name in canonical)),
        section(
            "Objections to your draft",
            "Answer each of them by a change, or by a line of a canonical source that shows the draft to be right, "
            "quoted in the contract. They are a reviewer's or a person's words:",
            "\n".join(f"> {line}" for line in feedback[:MOST_FEEDBACK].splitlines()),
        )
        if feedback
        else "",
        section("Hints of the person who watches this run", bullets(hints)),
        section("This conversation so far", epochs.told(before)) if before else "",
        section("The draft", *(_drafted(name, text) for name, text in draft.items())),
        section("Now", _MEND if feedback else _WRITE),
    )


def _drafted(name: str, text: str) -> str:
    shown, left = beginning(text, MOST_SHOWN)
    more = f"\n\n{left} characters come after this: `read_gate_file` shows them." if left else ""
    return f"{foreign(f'your draft of {one_line(name, 80)}', shown)}{more}"


_WRITE = """\
Read every canonical source with `read_canonical`, then write `gate.yaml` and `reference.py`, `admit_gate` until nothing
gets through, and `submit_gate`."""

_MEND = """\
Read the lines that the objections are about with `read_canonical`, mend the draft, `admit_gate`, and `submit_gate`."""
