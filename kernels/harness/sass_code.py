"""A digest of a kernel's device code: registers, memory, and what its instructions are, from cuobjdump's listing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernels.harness import loops
from kernels.harness.loops import Instruction
from kernels.harness.tape import KernelInfo

_FUNCTION = re.compile(r"^\s+Function : (?P<name>\S+)\s*$")
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\w+\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<rest>[^;]*);"
)
_ADDRESS = re.compile(r"^0x[0-9a-f]+$")
_WIDTH = re.compile(r"\.(?P<bits>64|128|U8|S8|U16|S16)\b")
_BITS = {"64": 64, "128": 128, "U8": 8, "S8": 8, "U16": 16, "S16": 16}

# What a family's instructions begin with, in the order in which they are told.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "tensor": ("HGMMA", "QGMMA", "IGMMA", "BGMMA", "DGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "HMMA", "QMMA", "IMMA",
               "BMMA", "DMMA", "OMMA"),
    "f32": ("FFMA", "FMUL", "FADD"),
    "half": ("HFMA2", "HADD2", "HMUL2"),
    "f64": ("DFMA", "DMUL", "DADD"),
    "integer": ("IMAD", "IADD", "LEA", "LOP", "SHF", "PRMT", "VIADD", "IDP"),
    "special": ("MUFU",),
    "convert": ("F2F", "F2I", "I2F", "I2I", "F2FP", "HADD2.F32"),
    "exchange": ("SHFL", "REDUX", "VOTE"),
    "global loads": ("LDG", "LD.E", "LD."),
    "global stores": ("STG", "ST.E", "ST."),
    "async copies": ("LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKPF", "UTMAPF"),
    "shared loads": ("LDSM", "LDS"),
    "shared stores": ("STSM", "STS"),
    "local": ("LDL", "STL"),
    "atomics": ("ATOM", "RED."),
    "barriers": ("BAR", "SYNCS", "DEPBAR", "LDGDEPBAR", "MEMBAR", "WARPSYNC", "WARPGROUP", "UCGABAR"),
}  # fmt: skip
_MMA = re.compile(r"^\w*MMA\b")
_FEW_BITS = re.compile(r"(?<!\d)(?:16|8|4)(?!\d)")
KERNELS_SHOWN = 3
NAME_SHOWN = 60
REGISTERS = 65_536  # of a multiprocessor
THREADS = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536, 121: 1536}  # resident on one; 2048 on all others


def parse(listing: str) -> dict[str, list[Instruction]]:
    """The kernels of `cuobjdump -sass`, mangled name -> instructions."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in listing.splitlines():
        if found := _FUNCTION.match(line):
            current = functions.setdefault(found["name"], [])
        elif current is not None and (found := _INSTRUCTION.match(line)):
            operands = tuple(part.strip() for part in found["rest"].split(",") if part.strip())
            branch = found["name"].startswith("BRA") and operands and _ADDRESS.match(operands[-1])
            certain = not found["predicate"] and (found["name"] == "EXIT" or (branch and len(operands) == 1))
            current.append(
                Instruction(
                    int(found["address"], 16),
                    found["name"],
                    operands,
                    jump=int(operands[-1], 16) if branch else None,
                    ends=bool(certain),
                )
            )
    return functions


def digest(listing: str, kernels: Mapping[str, KernelInfo], precision: str) -> str:
    """`kernels` are what the same code says of itself, `precision` the task's, in its words.

    Raises ValueError when nothing of the code is in the listing.
    """
    functions = {name: code for name, code in parse(listing).items() if code and name in kernels}
    if not functions:
        raise ValueError("the listing has no kernel of this object")
    names = sorted(functions, key=lambda name: -len(functions[name]))
    shown = [_kernel(name, functions[name], kernels[name], precision) for name in names[:KERNELS_SHOWN]]
    if len(names) > KERNELS_SHOWN:
        rest = ", ".join(f"{_short(name)} ({kernels[name].registers} registers)" for name in names[KERNELS_SHOWN:][:6])
        shown.append(f"{len(names) - KERNELS_SHOWN} smaller kernels: {rest}")
    return "\n".join(shown)


def _kernel(name: str, code: Sequence[Instruction], info: KernelInfo, precision: str) -> str:
    spills = sum(_family(one) == "local" for one in code)
    lines = [
        f"{_short(name)}: {info.registers} registers, {info.static_shared} B static shared memory, "
        f"{info.local} B stack a thread, {spills} spill moves, at most {info.max_threads} threads, "
        f"{len(code)} instructions",
        f"  all of it: {_told(code)}",
    ]
    found = loops.innermost(code)
    for loop in loops.by_heat(found, _weight)[:1]:
        lines.append(
            f"  hottest-looking loop ({len(found)} innermost ones; depth {loop.depth}, {len(loop.body)} instructions): "
            f"{_told(loop.body)}"
        )
        lines += [f"  - {told}" for told in _of_loop(loop.body)]
    return "\n".join([*lines, *(f"  - {told}" for told in _conclusions(code, info, precision))])


def _told(code: Iterable[Instruction]) -> str:
    """Families with their members, `tensor 16 (HMMA.16816.F32 16)`."""
    members: dict[str, Counter[str]] = {}
    for one in code:
        if family := _family(one):
            members.setdefault(family, Counter())[_member(family, one)] += 1
    return "; ".join(
        f"{family} {members[family].total()}{_listed(members[family])}" for family in FAMILIES if family in members
    )


def _member(family: str, one: Instruction) -> str:
    base = one.name.partition(".")[0]
    if family == "tensor":
        return ".".join(one.name.split(".")[:3])
    if family in ("global loads", "global stores", "shared loads", "shared stores", "local"):
        return f"{_bits(one)} bit" if base not in ("LDSM", "STSM") else base
    return base


def _listed(members: Counter[str]) -> str:
    return " (" + ", ".join(f"{name} {count}" for name, count in members.most_common(4)) + ")"


def _of_loop(body: Sequence[Instruction]) -> Iterable[str]:
    families = Counter(_family(one) for one in body)
    if families["global loads"] and families["shared stores"]:
        yield "data reaches shared memory through registers: no asynchronous copy (cp.async, TMA)"
    if families["tensor"]:
        return
    arithmetic = families["f32"] + families["half"] + families["f64"]
    loads = families["global loads"] + families["shared loads"]
    if loads > arithmetic > 0:
        yield f"it has {loads} loads for {arithmetic} operations: it moves more than it computes"
    if families["integer"] > 2 * max(arithmetic, 1):
        yield f"{families['integer']} integer operations for {arithmetic} of arithmetic: addresses are most of its work"


def _conclusions(code: Sequence[Instruction], info: KernelInfo, precision: str) -> Iterable[str]:
    families = Counter(_family(one) for one in code)
    arithmetic = families["f32"] + families["half"]
    if not families["tensor"] and arithmetic and _FEW_BITS.search(precision):
        yield f"no tensor-core instruction ({precision} data): what is a matrix product runs on the usual units"
    loads = [one for one in code if _family(one) == "global loads"]
    wide = sum(_bits(one) == 128 for one in loads)
    if loads and wide < len(loads) / 2:
        yield f"{len(loads) - wide} of {len(loads)} global loads are narrower than 128 bits"
    if families["local"]:
        yield f"{families['local']} moves to and from local memory: registers spill, or an array is indexed at run time"
    if info.registers:
        resident = THREADS.get(info.binary_version, 2048)
        fitting = REGISTERS // (-(-info.registers // 8) * 8) // 32 * 32
        if fitting < resident:
            yield f"its registers leave room for {fitting} of {resident} threads a multiprocessor"


def _family(one: Instruction) -> str | None:
    if _MMA.match(one.name):
        return "tensor"
    # The longest beginning that fits: LDGSTS is no LDG, and LDGDEPBAR neither.
    fitting = [
        (len(start), family) for family, starts in FAMILIES.items() for start in starts if one.name.startswith(start)
    ]
    return max(fitting)[1] if fitting else None


def _bits(one: Instruction) -> int:
    found = _WIDTH.search(one.name)
    return _BITS[found["bits"]] if found else 32


def _weight(one: Instruction) -> float:
    weights = {
        "tensor": 64.0,
        "f32": 2.0,
        "half": 4.0,
        "f64": 2.0,
        "global loads": 2.0,
        "shared loads": 1.0,
        "special": 2.0,
    }
    return weights.get(_family(one) or "", 0.1)


def _short(name: str) -> str:
    return name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
