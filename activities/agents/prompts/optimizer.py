"""What the optimiser is told: one system prompt for the whole run, and one opening for each conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from activities.agents.prompts import epochs, task_text
from activities.agents.prompts.blocks import (
    DATA,
    beginning,
    bullets,
    foreign,
    number,
    one_line,
    plural,
    prompt,
    ratio,
    section,
    table,
)
from activities.agents.prompts.epochs import Before
from activities.agents.prompts.ground_rules import ground_rules
from activities.agents.prompts.task_text import Calibration
from kernels.harness.gate_yaml import GateYaml
from specs.dialogue import Mode
from specs.history import Champion
from specs.notes import Notes
from specs.outcomes import Ending, Iteration, Origin, Role, Stage, labelled
from specs.schema import Config, Harness, Language, Scoring, Task
from specs.scoring import complete_ratios

MOST_SOURCE = 24_000  # characters of a kernel that are shown whole
SOURCE_HEAD = 16_000  # of a longer one; the rest is for read_kernel
MOST_ROWS = 16  # configs in the table, the worst ones
MOST_WINS = 8
MOST_ATTEMPTS = 10
MOST_REASON = 220  # characters
MOST_TRIED = 12  # notes
MOST_PROFILE = 3_000  # characters
MOST_PLAN = 4_000


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What the profiler has said last."""

    kind: str  # memory, compute or latency
    config: str
    text: str  # a digest of the counters
    of_this_kernel: bool  # or of an earlier one


@dataclass(frozen=True, slots=True)
class View:
    """All that an opening is made of."""

    task: Task
    stage: Stage
    mode: Mode
    source: str  # the kernel to begin with
    source_is: str  # where it comes from: "the champion v003"
    champion: Champion | None = None
    baseline_us: Mapping[str, float] = field(default_factory=dict)
    past: Sequence[Iteration] = ()
    notes: Notes = field(default_factory=Notes)
    bottleneck: Bottleneck | None = None
    hints: Sequence[str] = ()  # a person's
    plan: str = ""  # of the research turn, for a pivot
    objections: str = ""  # what a reviewer has against that plan
    tools: Sequence[str] = ()  # what it may call
    before: Before | None = None  # what this same conversation has done already


# ---------------------------------------------------------------- the system prompt


def system(
    task: Task,
    gate: GateYaml | None,
    calibration: Calibration,
    *,
    references: Sequence[str],
    tools: Sequence[str],
) -> str:
    """The same bytes for every conversation of a run, if `tools` are.

    `references` are the names that read_reference takes, `tools` the names of those with which a kernel is worked on.
    """
    language = {Language.CPP: "C++", Language.CUDA: "CUDA C++", Language.TRITON: "Triton"}[task.language]
    is_judged = task.harness is Harness.GATE
    return prompt(
        f"You are a senior performance engineer. You make one numerical kernel in {language} faster than its baseline "
        f"on {task.gpu} ({task.arch}): {one_line(task.baseline.source)}.",
        section("The game", _GAME.format(looks=_looks(tools)) if is_judged else _GAME_SELF_REPORTED),
        section("How to work", bullets((*_HOW, *_HOW_JUDGED) if is_judged else _HOW)),
        section("What the judge refuses" if is_judged else "What a program has to be", bullets(ground_rules(task))),
        section(
            f"The task: {one_line(task.name)}",
            task_text.problem(task),
            f"Precision: {task.precision}. {task_text.built_with(task)}",
        ),
        section("The function", task_text.interface(task)),
        section("The configs", task_text.configs(task)),
        section("The score", task_text.scoring(task)),
        section("The gate's contract", task_text.contract(gate, calibration)) if gate is not None else "",
        section("References", bullets(f"`{one_line(name)}`" for name in references)),
        section("Text of others", DATA),
    )


def _looks(tools: Sequence[str]) -> str:
    return ", ".join(told for name, told in _LOOKS.items() if name in tools)


_GAME = """\
A judge and a clock that you cannot touch decide what is correct and what is faster; nothing else counts.

A run is a row of iterations. Each begins with the fastest kernel that has passed the judge, the champion, and ends when
you hand one kernel in. That kernel is judged on fresh secret inputs, timed beside baseline and champion in the same
rounds, and, where it would win, read by a reviewer who asks whether it still does all of the contract's maths. Nothing
of this conversation outlives it except the kernel and your notes. So:

1. `read_kernel`, `write_kernel`, `edit_kernel` work on the kernel; `compile` builds it.
2. `check` runs the judge on the public cases and tells the first thing that is wrong; `measure` times it as the run
   does.
3. {looks}, in a digest.
4. `search_docs`, `read_doc` and `read_reference` tell what the hardware can do and what others did; `history` has every
   earlier iteration.
5. `note` keeps what the next iterations must know; `submit` hands in and ends the conversation, as does `submit_plan`
   when a plan is asked for. There is no shell, and what is not handed in is lost."""

_LOOKS = {
    "profile": "`profile` (in OPTIMIZE) tells what bounds it",
    "sass": "`sass` tells what the compiler made of it",
    "assembly": "`assembly` tells what the compiler made of it",
}

_GAME_SELF_REPORTED = """\
A run is a row of iterations. Each begins with the best program so far, the champion, and ends when you hand one program
in. It is compiled and run, and its own report is read. Nothing of this conversation outlives it except the program and
your notes: `note` keeps what the next iterations must know, and `submit` hands in. There is no shell. The report is
your word: its reference, its check and its clock stay in the program and stay honest, and only the kernel gets
faster."""

_HOW = (
    "One lever an iteration: one change with a name, whose effect you predict with a number before you measure it. "
    "Three changes at once teach nothing.",
    "Work on what bounds the worst config. Compare the bytes and operations that a call needs with what the machine "
    "can do: the gap says how much there is to win and where.",
    "Believe the clock. A plausible idea that measures slower is slower: note it with its number and take it out.",
    "Do the hard rewrite. If you can name a structural change (another tiling, a pipeline, tensor cores, split work) "
    "and are about to tune a block size instead, do the structural change, or write it down under *Untried (hard)*.",
    "A simpler instruction set is a dead end: falling back from the widest loads, vectors or matrix instructions that "
    "the machine has lowers the ceiling for good. Make the strong one work.",
    "Read counters and digests, not listings: pages of machine code explain little and use up the iteration.",
    "Dispatch on shape is honest and welcome. Anything that looks at values, remembers, skips or guesses is refused.",
)

_HOW_JUDGED = (
    "Correct first, fast second: compile, check, measure, in this order, after every edit that could matter.",
    "Hand in as soon as `measure` shows a gain that is larger than its noise. The next idea has the next iteration.",
)


# ---------------------------------------------------------------- the opening


def opening(view: View) -> str:
    """The first message of a conversation. Its length does not grow with the run."""
    task = view.task
    return prompt(
        f"# {view.stage.value}: {_HEADINGS[view.mode]}",
        _stage(view),
        section("The lever that you named", _lever(view)) if view.mode is Mode.PIVOT else "",
        section("What the reviewer has against your plan", _objections(view)),
        section("Where it stands", _standing(view)),
        section("Constraints, each of them hard", bullets(task.constraints)),
        section("Hints of the task's author, told this once", bullets(task.hints)) if _is_first(view.past) else "",
        section("Hints of the person who watches this run", bullets(view.hints)),
        section("What bounds it", _bottleneck(view)),
        section("What was tried", tried(task, view.past)),
        section("Your notes", _notes(view)),
        section("This conversation so far", epochs.told(view.before)) if view.before else "",
        section(f"The kernel: {view.source_is}", _kernel(view)),
        section("Now", _now(view)),
    )


_HEADINGS = {
    Mode.IMPROVE: "make the kernel faster",
    Mode.RESEARCH: "research, no edits",
    Mode.PIVOT: "the hard rewrite",
}


def _stage(view: View) -> str:
    task = view.task
    if view.stage is Stage.REPRODUCE:
        strict = " and every config at its own target" if task.stage_gate.strict else ""
        return (
            f"Reach a score of {task.stage_gate.ratio:g}{strict}. Get to a correct kernel first, then to the "
            "baseline's own structure: the same tiling, the same movement of data, the same use of the machine. "
            "Cleverness comes later."
        )
    return (
        "The kernel is about as fast as the baseline; now it has to be clearly faster. What the baseline does is no "
        "longer the aim: these exact shapes are. Find what bounds them, and take it away."
    )


def _standing(view: View) -> str:
    """The configs with what the champion makes of them, worst first where there are too many."""
    task, champion = view.task, view.champion
    ratios = complete_ratios(champion.ratios, task.configs) if champion else {}
    worst = worst_config(view)
    shown: Sequence[Config] = task.configs
    if len(shown) > MOST_ROWS:
        shown = sorted(shown, key=lambda config: ratios.get(config.name, 0.0))[:MOST_ROWS]
    rows = [_row(view, config, ratios.get(config.name), is_worst=config.name == worst) for config in shown]
    told = table(
        ["config", "arguments", "target", "champion's ratio", "baseline us", "champion us", "it reaches"], rows
    )
    if len(shown) < len(task.configs):
        left_out = plural(len(task.configs) - len(shown), "config")
        told += f"\n\n{left_out} more{', all with higher ratios' if champion else ''}."
    if champion is None:
        return f"{told}\n\nThere is no correct kernel yet: the first one that passes the judge becomes the champion."
    score = labelled(ratio(champion.score), champion.standing)
    since = sum(1 for one in view.past if one.index > champion.index)
    return (
        f"{told}\n\nThe champion is {champion.version}, score {score}; {plural(since, 'iteration')} since. "
        f"{_what_counts(task, worst)}"
    )


def _row(view: View, config: Config, champion: float | None, *, is_worst: bool) -> list[str]:
    baseline = view.baseline_us.get(config.name)
    ours = baseline / champion if baseline and champion else None
    return [
        f"**{config.name}** (WORST)" if is_worst else config.name,
        task_text.arguments(config.args),
        number(config.target_ratio),
        "" if champion is None else ratio(champion),
        "" if baseline is None else number(baseline),
        "" if ours is None else number(ours),
        "" if ours is None else _reached(view.task, config, ours),
    ]


def _reached(task: Task, config: Config, us: float) -> str:
    """`2.31 TB/s, 578 Gflop/s`: what a call's work amounts to in that time."""
    flops, moved = task_text.work(task, config)
    told = [
        task_text.amount(count / us * 1e6, unit)
        for count, unit in ((moved, "B/s"), (flops, "flop/s"))
        if count is not None
    ]
    return ", ".join(told)


def worst_config(view: View) -> str | None:
    """The config with the lowest ratio; None without a champion."""
    if view.champion is None:
        return None
    ratios = complete_ratios(view.champion.ratios, view.task.configs)
    return min(ratios, key=lambda name: ratios[name])


def _what_counts(task: Task, worst: str | None) -> str:
    return {
        Scoring.MIN_RATIO: f"`{worst}` alone decides the score: work on it, and leave the others where they are.",
        Scoring.WEIGHTED_AVG: f"`{worst}` is the furthest behind; the weighted mean of all decides the score.",
        Scoring.FOCUS: f"`{task.focus_config}` decides the score; `{worst}` is the furthest behind.",
    }[task.scoring]


def _is_first(past: Sequence[Iteration]) -> bool:
    """Whether no conversation of the optimiser has left anything yet."""
    return not any(
        (one.proposal is not None and one.proposal.origin is Origin.OPTIMIZER)
        or any(chapter.role is Role.OPTIMIZER for chapter in one.chapters)
        for one in past
    )


def _bottleneck(view: View) -> str:
    found = view.bottleneck
    if found is None:
        is_due = "profile" in view.tools and view.stage is Stage.OPTIMIZE and view.task.harness is Harness.GATE
        return "Not profiled yet. Begin with `profile`: without it the next lever is a guess." if is_due else ""
    of = "this kernel" if found.of_this_kernel else "an earlier kernel; profile again once the structure has changed"
    text, left = beginning(found.text.strip(), MOST_PROFILE)
    return f"**{found.kind}**, on `{one_line(found.config)}` ({of}).\n\n{_cut(text, left)}"


def tried(task: Task, past: Sequence[Iteration]) -> str:
    """The newest wins and attempts, a line each, and how many there are beside them."""
    wins = [one for one in past if one.ending is Ending.WIN]
    others = [one for one in past if one.ending is not Ending.WIN]
    older = max(len(wins) - MOST_WINS, 0), max(len(others) - MOST_ATTEMPTS, 0)
    parts = [f"Wins, newest last:\n{bullets(map(_won, wins[-MOST_WINS:]))}"] if wins else []
    if others:
        shown = bullets(_missed(task, one) for one in others[-MOST_ATTEMPTS:])
        parts.append(f"Attempts that did not win, newest last. Do not repeat one of them:\n{shown}")
    if any(older):
        parts.append(f"Older: {plural(older[0], 'win')} and {plural(older[1], 'attempt')}; `history` has them.")
    return "\n\n".join(parts)


def _won(one: Iteration) -> str:
    return f"{one.version} {_title(one)}: score {_score(one)}{_gain(one)}"


def _missed(task: Task, one: Iteration) -> str:
    """`a004 "two stages": slower. score 0.981 ...; worst m16 0.93`"""
    ratios = one.measurement.ratios() if one.measurement else one.self_reported.ratios() if one.self_reported else {}
    known = complete_ratios(ratios, task.configs)
    worst = min(known, key=lambda name: known[name])
    ended = one.ending.value.replace("_", " ")
    reason = one_line(one.reason, MOST_REASON).rstrip(".")
    return f"{one.version} {_title(one)}: {ended}. {reason}{f'; worst {worst} {ratio(known[worst])}' if ratios else ''}"


def _title(one: Iteration) -> str:
    return f'"{one_line(one.proposal.label, 80)}"' if one.proposal else f"(iteration {one.index})"


def _score(one: Iteration) -> str:
    if one.measurement is not None:
        return ratio(one.measurement.score.value)
    return labelled(ratio(one.self_reported.score), one.self_reported.label) if one.self_reported else "?"


def _gain(one: Iteration) -> str:
    gain = one.measurement.gain if one.measurement else None
    return "" if gain is None else f", {gain.value - 1:+.1%} over the champion before"


def _notes(view: View) -> str:
    shown, untried = view.notes.tried[-MOST_TRIED:], view.notes.untried
    hidden = len(view.notes.tried) - len(shown)
    more = f" ({plural(hidden, 'older one')} left out)" if hidden else ""
    parts = [f"*Tried*{more}:\n{bullets(shown)}"] if shown else []
    if untried and view.mode is not Mode.PIVOT:  # a pivot has them at its head
        parts.append(f"*Untried (hard)*:\n{bullets(untried)}")
    return "\n\n".join(parts)


def _cut(text: str, left: int) -> str:
    return f"{text}\n[{left} characters more]" if left else text


def _lever(view: View) -> str:
    plan, left = beginning(view.plan.strip(), MOST_PLAN)
    parts = [_cut(plan, left)] if plan else []
    if view.notes.untried:
        parts.append(f"*Untried (hard)*, in your own words:\n{bullets(view.notes.untried)}")
    return "\n\n".join(parts)


def _objections(view: View) -> str:
    """Quoted, since a reviewer quotes what it has read."""
    said = "\n".join(f"> {line}" for line in view.objections[: MOST_REASON * 4].splitlines())
    answer = "Answer each in the next plan." if view.mode is Mode.RESEARCH else "Meet each of them as you build it."
    return f"{said}\n\n{answer}" if said else ""


def _kernel(view: View) -> str:
    whole = len(view.source) <= MOST_SOURCE
    text, left = (view.source, 0) if whole else beginning(view.source, SOURCE_HEAD)
    more = f"\n\n{left} characters come after this: `read_kernel` shows them." if left else ""
    return f"{foreign(view.source_is, text)}{more}"


def _now(view: View) -> str:
    if view.mode is Mode.RESEARCH:
        worst = worst_config(view)
        most = f"`{worst}`" if worst else "the kernel"
        return _RESEARCH.format(stall=plural(_stall(view), "iteration"), most=most)
    if view.mode is Mode.PIVOT:
        return _PIVOT
    if view.task.harness is Harness.SELF_CONTAINED:
        return _IMPROVE_SELF_REPORTED
    if view.champion is None:
        return _FIRST
    return _IMPROVE.format(worst=worst_config(view), gain=f"{view.task.search.min_gain:.1%}")


def _stall(view: View) -> int:
    """Iterations since the last win."""
    ended = [one.ending is Ending.WIN for one in view.past]
    return len(ended) - 1 - max((at for at, won in enumerate(ended) if won), default=-1)


_FIRST = """\
Get one kernel through the judge. Write the plainest one that is right for every shape, edges included; `compile`,
`check`, fix the first thing that is wrong, `check` again. When it passes, `measure` and `submit`. Speed comes in the
next iteration."""

_IMPROVE = """\
1. Say in one sentence what bounds `{worst}` and how far it is from what the machine can do, with a number.
2. Choose the one lever that attacks that, and say what ratio you expect of it.
3. Edit, `compile`, `check`, `measure`. Fix or drop it; do not pile a second idea on a first that has not paid.
4. `note` the outcome with its number under *Tried*. A larger change that you see and do not make goes under
   *Untried (hard)*.
5. `submit` as soon as `measure` is better than the champion by more than {gain} and its noise. If nothing got there,
   submit the best correct kernel that is new, under a title that says what was tried, so that nobody tries it again."""

_IMPROVE_SELF_REPORTED = """\
1. Say in one sentence what bounds the worst config, with a number.
2. Choose the one lever that attacks that, and change the kernel for it. Leave reference, check and clock alone.
3. Build it, `note` what you expect and why, and `submit` under a title that names the lever."""

_RESEARCH = """\
There has been no win for {stall}: more of the same will not bring one. Do not edit the kernel in this conversation.

1. Read: what bounds {most}, what `history` says was never tried, what references and docs do on
   this hardware. What would the time be if only bytes, or only operations, counted? Which structure gets near it?
2. `note` under *Tried* what failed and why, and under *Untried (hard)* at least one structural change that is new,
   with its expected gain in a number. Another block size or unrolling is no entry. A plan is taken with new notes in
   both only.
3. End with `submit_plan`: one lever; why it must pay, with a number; how to build it in three to six steps that can
   each be checked; what measurement would show that it has failed. You will be asked to carry it out next."""

_PIVOT = """\
Carry out the lever above: the hard rewrite that you named yourself, and not another tweak of the kernel below.

1. Build it up in steps that can each be checked: a skeleton that is right on one config, then all shapes, then speed.
2. Do not retreat. Going back to simpler instructions or to the old structure because they are easier is a dead end:
   that ceiling has been reached. When it does not work, the bug is in the details; `check` names the first wrong
   tensor.
3. A rewrite is slower at first. `measure` early, find its own worst part, and fix that before you judge the idea.
4. `submit` the rewrite once it is correct and measured, better or not, under a title that names it; `note` what is
   still missing. Hand in nothing only if it never became correct, and then note exactly where it stands."""
