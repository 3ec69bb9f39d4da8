"""A digest of a C++ kernel's machine code: what its arithmetic and its loops are made of, from objdump's listing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernels.harness import loops
from kernels.harness.loops import Instruction, Loop

_FUNCTION = re.compile(r"^(?P<address>[0-9a-f]+) <(?P<name>.+)>:$")
_INSTRUCTION = re.compile(
    r"^ +(?P<address>[0-9a-f]+):\t(?:(?:data16|cs|ds|rep|repz|repnz|bnd|notrack|lock) )*(?P<name>\S+) *(?P<rest>.*)$"
)
_TARGET = re.compile(r"^(?P<address>[0-9a-f]+) <(?P<name>[^>+]+)(?:\+0x[0-9a-f]+)?>$")
_ARITHMETIC = re.compile(
    r"^v?(?P<fma>fn?m(?:add|sub|addsub|subadd)(?:132|213|231)|)(?:add|sub|mul|div|sqrt|max|min|)(?P<type>[ps][sdh])$"
)
_DOT = re.compile(r"^v?(?:dpbf16ps|pdp(?:bu|bs|wu|ws)\w*|pmaddwd|pmaddubsw)$")
_DIVIDE = re.compile(r"^v?(?:div|sqrt)[ps][sdh]$|^i?div[bwlq]?$")
_GATHER, _SCATTER = re.compile(r"^vp?gather"), re.compile(r"^vp?scatter")
_REGISTER = re.compile(r"%(?P<kind>[xyz])mm\d+")
_NO_ACCESS = re.compile(r"^(?:lea[lqw]?|nop[wl]?|prefetch\w*)$")
_WRITES_LAST = re.compile(r"^(?:v?mov|vextract|vcompress|vcvtps2ph|set|add|sub|inc|dec|and|or|xor|not|neg)")
_BYTES = {"x": 16, "y": 32, "z": 64}
_ELEMENT = {"s": 4, "d": 8, "h": 2}
FEW_SUMS = 4  # a multiply-add takes about four cycles, and a core begins two a cycle
MANY_SCALARS = 4
NAMES_SHOWN = 6


def parse(listing: str) -> dict[str, list[Instruction]]:
    """The functions of `objdump -d --no-show-raw-insn`, in order."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in listing.splitlines():
        if found := _FUNCTION.match(line):
            current = functions.setdefault(found["name"], [])
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(_instruction(found["address"], found["name"], found["rest"].partition("#")[0].strip()))
    return functions


def _instruction(address: str, name: str, rest: str) -> Instruction:
    target = _TARGET.match(rest) if name.startswith("j") else None
    return Instruction(
        int(address, 16),
        name,
        tuple(_operands(rest)),
        jump=int(target["address"], 16) if target else None,
        ends=name.startswith(("jmp", "ret", "ud2", "hlt")),
    )


def reached(functions: Mapping[str, Sequence[Instruction]], entry: str) -> tuple[list[str], list[str]]:
    """What the entry runs into within the object, itself first, and what it calls outside of it, by name."""
    inside, outside, waiting = [], [], [entry]
    while waiting:
        name = waiting.pop(0)
        if name in inside:
            continue
        inside.append(name)
        for one in functions[name]:
            called = _called(one)
            if called is None or called in (name, *waiting):
                continue
            if called in functions and not called.endswith("@plt"):
                waiting.append(called)
            elif called not in outside:
                outside.append(called)
    return inside, outside


def digest(listing: str, entry: str, *, widest: int) -> str:
    """`widest` is the processor's widest register in bits. Raises ValueError when the entry is not in the listing."""
    functions = parse(listing)
    if entry not in functions:
        raise ValueError(f"the listing has no function {entry}")
    inside, outside = reached(functions, entry)
    everything = [one for name in inside for one in functions[name]]
    framed = {id(one) for name in inside if _has_frame(functions[name]) for one in functions[name]}
    found = [(name, loop) for name in inside for loop in loops.innermost(functions[name])]
    home = {id(loop): name for name, loop in found}
    hot = loops.by_heat([loop for _, loop in found], _weight)
    more = f" and {len(inside) - 1} more that it calls" if len(inside) > 1 else ""
    lines = [
        f"{entry}{more}: {len(everything)} instructions, {len(found)} innermost loops",
        f"all of it: {_told(everything, framed)}",
    ]
    if outside:
        lines.append(f"calls outside of the object: {_listed(outside)}")
    for which, loop in zip(("hottest-looking", "next"), hot, strict=False):
        where = f"{home[id(loop)][:60]}, depth {loop.depth}, {len(loop.body)} instructions"
        lines.append(f"{which} loop ({where}): {_told(loop.body, framed)}")
    told = list(_conclusions(hot[0], everything, framed, widest)) if hot else []
    if not hot:
        told.append("no loop: all of it is straight code, or the work is done in what it calls")
    return "\n".join([*lines, *(f"- {one}" for one in told)])


# ---------------------------------------------------------------- counting


def _told(code: Sequence[Instruction], framed: set[int]) -> str:
    """The mix of some code in one line; `framed` are the instructions (by id) of functions with a frame pointer."""
    fma: Counter[str] = Counter()
    other: Counter[str] = Counter()
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    plain: Counter[str] = Counter()
    for one in code:
        if match := _ARITHMETIC.match(one.name):
            (fma if match["fma"] else other)[_shape(one)] += 1
        plain["dot products"] += bool(_DOT.match(one.name))
        plain["divides and roots"] += bool(_DIVIDE.match(one.name))
        plain["gathers"] += bool(_GATHER.match(one.name))
        plain["scatters"] += bool(_SCATTER.match(one.name))
        plain["prefetches"] += one.name.startswith("prefetch")
        plain["calls"] += one.name.startswith("call")
        plain["stack moves"] += _on_stack(one, id(one) in framed)
        reads, writes = accesses(one)
        if not _on_stack(one, id(one) in framed):
            loads[_width(one)] += reads
            stores[_width(one)] += writes
    parts = [f"FMA {_mix(fma)}", f"other float arithmetic {_mix(other)}"]
    parts += [f"loads {_sizes(loads)}", f"stores {_sizes(stores)}"]
    return ", ".join([*parts, *(f"{name} {count}" for name, count in plain.items() if count)])


def accesses(one: Instruction) -> tuple[bool, bool]:
    """Whether an instruction reads and writes memory."""
    at = [index for index, operand in enumerate(one.operands) if _is_memory(operand)]
    if not at or _NO_ACCESS.match(one.name) or one.name.startswith(("call", "jmp", "j", "push", "pop")):
        return False, False
    last = at[-1] == len(one.operands) - 1
    if not last:
        return True, False
    moves = one.name.startswith(("mov", "vmov", "vextract", "vcompress", "vcvtps2ph", "set"))
    if len(one.operands) == 1:  # inc, neg and the like
        return not moves, True
    writes = bool(_WRITES_LAST.match(one.name)) or bool(_SCATTER.match(one.name))
    return not moves and not _SCATTER.match(one.name), writes


def _conclusions(hot: Loop, everything: Sequence[Instruction], framed: set[int], widest: int) -> Iterable[str]:
    body = hot.body
    arithmetic = [one for one in body if _ARITHMETIC.match(one.name)]
    fmas = [one for one in arithmetic if _is_fma(one)]
    vector = [one for one in arithmetic if _is_packed(one)]
    scalar = [one for one in arithmetic if not _is_packed(one)]
    if not arithmetic and not any(_DOT.match(one.name) for one in body):
        yield "no float arithmetic in the hottest-looking loop: it moves data or counts"
    if scalar and not vector:
        elsewhere = any(_is_packed(one) for one in everything if _ARITHMETIC.match(one.name))
        yield (
            "no vector arithmetic in the hottest-looking loop, though elsewhere: this one was not vectorised"
            if elsewhere
            else "no vector arithmetic anywhere: the compiler did not vectorise"
        )
    if vector and len(scalar) >= MANY_SCALARS:
        yield (
            f"{len(scalar)} scalar operations beside {len(vector)} vector ones: a sum kept in its order goes element "
            "by element; give each lane an accumulator of its own"
        )
    if vector and not fmas and _multiplies_and_adds(vector):
        yield "multiplies and adds are not fused into FMA (contraction is off, or the target has none)"
    sums = _sums(body)
    if 0 < len(sums) < FEW_SUMS:
        yield (
            f"it sums into {len(sums)} register(s): each addition waits about four cycles for the one before; eight or "
            "more independent sums keep a core busy"
        )
    reads = sum(accesses(one)[0] for one in body)
    if fmas and reads > len(fmas):
        yield f"{reads} loads for {len(fmas)} FMAs: loads are its limit; use what is in registers more often"
    used = max((_width(one) for one in everything if _REGISTER.search(" ".join(one.operands))), default=0) * 8
    if vector and used < widest:
        yield f"widest register used: {used} bits; this processor has {widest}"
    if count := sum(bool(_GATHER.match(one.name)) for one in body):
        yield f"{count} gathers: each is about one load an element"
    if count := sum(bool(_DIVIDE.match(one.name)) for one in body):
        yield f"{count} divides or roots: each takes 4 to 20 cycles, and they hardly overlap"
    if count := sum(_on_stack(one, id(one) in framed) for one in body):
        yield f"{count} moves to or from the stack inside it: more values are alive than there are registers"
    if called := [_called(one) or "a pointer" for one in body if one.name.startswith("call")]:
        yield f"calls in it: {_listed(dict.fromkeys(called))}"


def _sums(body: Sequence[Instruction]) -> set[str]:
    """Registers that a loop adds to and that nothing else in it sets."""
    added: set[str] = set()
    anew: set[str] = set()
    for one in body:
        if not one.operands or _is_memory(one.operands[-1]):
            continue
        target = one.operands[-1].partition("{")[0].strip()
        onto_itself = _is_fma(one) or (
            bool(re.match(r"^v?add[ps][sdh]$", one.name)) and (len(one.operands) < 3 or target in one.operands[:-1])
        )
        (added if onto_itself else anew).add(target)
    return added - anew


def _weight(one: Instruction) -> float:
    if _ARITHMETIC.match(one.name):
        return (2.0 if _is_fma(one) else 1.0) * _lanes(one)
    if _DOT.match(one.name):
        return 2.0 * _width(one)
    return 0.1


def _is_fma(one: Instruction) -> bool:
    match = _ARITHMETIC.match(one.name)
    return bool(match and match["fma"])


def _is_packed(one: Instruction) -> bool:
    match = _ARITHMETIC.match(one.name)
    return bool(match and match["type"].startswith("p"))


def _multiplies_and_adds(vector: Sequence[Instruction]) -> bool:
    return any("mul" in one.name for one in vector) and any("add" in one.name or "sub" in one.name for one in vector)


def _lanes(one: Instruction) -> int:
    match = _ARITHMETIC.match(one.name)
    assert match is not None
    return _width(one) // _ELEMENT[match["type"][1]] if match["type"].startswith("p") else 1


def _shape(one: Instruction) -> str:
    if not _is_packed(one):
        return "scalar"
    return {16: "xmm", 32: "ymm", 64: "zmm"}[_width(one)]


def _width(one: Instruction) -> int:
    """Bytes of its vector registers, or 8 for all else, whose width is not looked at."""
    if (match := _ARITHMETIC.match(one.name)) and match["type"].startswith("s"):
        return _ELEMENT[match["type"][1]]
    kinds = [found["kind"] for found in _REGISTER.finditer(" ".join(one.operands))]
    if not kinds:
        return 8
    if scalar := re.match(r"^v?mov(?P<type>ss|sd|d|q)$", one.name):
        return 4 if scalar["type"] in ("ss", "d") else 8
    if broadcast := re.match(r"^vp?broadcast(?P<type>ss|sd|[bwdq])$", one.name):
        return {"ss": 4, "d": 4, "sd": 8, "q": 8, "w": 2, "b": 1}[broadcast["type"]]
    return max(_BYTES[kind] for kind in kinds)


def _on_stack(one: Instruction, framed: bool) -> bool:
    if not any(accesses(one)):
        return False
    operand = next(operand for operand in one.operands if _is_memory(operand))
    return "(%rsp" in operand or (framed and operand.startswith("-") and "(%rbp)" in operand)


def _has_frame(function: Sequence[Instruction]) -> bool:
    return any(one.name == "mov" and one.operands == ("%rsp", "%rbp") for one in function)


def _is_memory(operand: str) -> bool:
    return "(" in operand or ":0x" in operand


def _operands(rest: str) -> list[str]:
    found, depth, current = [], 0, ""
    for letter in rest:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append(current)
            current = ""
        else:
            current += letter
    return [*found, current] if current else found


def _called(one: Instruction) -> str | None:
    """The function that a call, or a jump at a function's end, goes to."""
    if not one.name.startswith(("call", "jmp")) or not one.operands:
        return None
    match = _TARGET.match(",".join(one.operands))
    return match["name"] if match else None


def _mix(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {shape}" for shape, count in sorted(counts.items())) or "none"


def _sizes(counts: Mapping[int, int]) -> str:
    parts = [f"{count} of {size} B" for size, count in sorted(counts.items(), reverse=True) if count]
    return " + ".join(parts) or "none"


def _listed(names: Iterable[str]) -> str:
    shown = [name.removesuffix("@plt")[:40] for name in names]
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return ", ".join(shown[:NAMES_SHOWN]) + more
