"""The optimiser's source: read it, write it whole, or replace one place of it."""

from __future__ import annotations

import asyncio
import difflib
from typing import ClassVar

from pydantic import Field

from activities.agents.pages import one_line, page, visible
from activities.agents.tools.tool import Answer, Arguments, Desk, Tool
from activities.bundle import MAX_SOURCE_BYTES
from specs.constraints import flagged_in, told
from specs.outcomes import BlobRef

MOST_PLACES = 8  # that an error names
MOST_COMPARED = 4_000  # lines that are looked at for the nearest one
MOST_WIDE = 400  # characters of each
MOST_LONG = 200  # lines of a text that is looked for with other white space
NOTHING_YET = "there is no kernel yet; write_kernel makes one"


async def source_of(desk: Desk, ref: BlobRef) -> str:
    """As text; bytes that are no UTF-8 survive a way there and back."""
    return (await desk.workshop.store.get(ref)).decode(errors="surrogateescape")


class ReadKernelArguments(Arguments):
    first_line: int = Field(default=1, ge=1, description="Where to begin.")
    last_line: int = Field(default=0, ge=0, description="Where to end; 0: as far as an answer goes.")


class ReadKernel(Tool[ReadKernelArguments]):
    name: ClassVar[str] = "read_kernel"
    description: ClassVar[str] = "The kernel as it is now, its lines numbered. Long ones come a page at a time."
    arguments: ClassVar[type[Arguments]] = ReadKernelArguments

    async def use(self, desk: Desk, given: ReadKernelArguments) -> Answer:
        kernel = desk.workspace.kernel or (desk.session.subject.kernel if desk.session.subject else None)
        if kernel is None:
            return Answer(NOTHING_YET, error=True)
        return numbered(await source_of(desk, kernel), "kernel", given.first_line, given.last_line, self.name)


def numbered(source: str, what: str, first: int, last: int, tool: str) -> Answer:
    """A page of a source, with what is left and how to get it."""
    if last and last < first:
        return Answer(
            f"last_line: {last} given, which is before first_line {first}; accepted: 0, or {first} and more", True
        )
    read = page(source, first, last)
    if not read.total:
        return Answer(f"The {what} is empty.")
    if not read.last:
        return Answer(
            f"first_line: {first} given; accepted: 1 to {read.total}, the last line of the {what}", error=True
        )
    lines = f"{what}: lines {read.first} to {read.last} of {read.total}"
    left = f"\nMore: {tool} with first_line {read.last + 1}." if read.is_rest_left and read.last != last else ""
    return Answer(f"{lines}\n{read.text}{left}", said=lines)


class WriteKernelArguments(Arguments):
    source: str = Field(description="The whole file.")


class WriteKernel(Tool[WriteKernelArguments]):
    name: ClassVar[str] = "write_kernel"
    description: ClassVar[str] = (
        "Replace the whole kernel. Prefer edit_kernel for a change of a few lines. Says which constraints it breaks."
    )
    arguments: ClassVar[type[Arguments]] = WriteKernelArguments

    async def use(self, desk: Desk, given: WriteKernelArguments) -> Answer:
        if not given.source.strip():
            return Answer("source: nothing given; accepted: the whole file", error=True)
        return await _kept(desk, given.source)


class EditKernelArguments(Arguments):
    old: str = Field(min_length=1, description="Text that stands in the kernel exactly once, without line numbers.")
    new: str = Field(description="What comes in its place.")


class EditKernel(Tool[EditKernelArguments]):
    name: ClassVar[str] = "edit_kernel"
    description: ClassVar[str] = "Replace one place of the kernel. Says which constraints the result breaks."
    arguments: ClassVar[type[Arguments]] = EditKernelArguments

    async def use(self, desk: Desk, given: EditKernelArguments) -> Answer:
        if desk.workspace.kernel is None:
            return Answer(NOTHING_YET, error=True)
        if given.old == given.new:
            return Answer("old and new are the same, so nothing would change", error=True)
        source = await source_of(desk, desk.workspace.kernel)
        old, new = given.old, given.new
        if "\r\n" in source and "\r" not in old:  # the ends of its lines are not to be seen in a page
            old, new = (text.replace("\n", "\r\n") for text in (old, new.replace("\r\n", "\n")))
        places = _places(source, old)
        if len(places) == 1:
            at = places[0]
            return await _kept(desk, source[:at] + new + source[at + len(old) :])
        if places:
            lines = ", ".join(str(source.count("\n", 0, at) + 1) for at in places[:MOST_PLACES])
            many = len(places) > MOST_PLACES
            count, more = ("more than " * many) + str(min(len(places), MOST_PLACES)), " and further on" * many
            return Answer(
                f"old stands in the kernel {count} times, at lines {lines}{more}; accepted: text that stands"
                " there once. Give more of the lines around it.",
                error=True,
            )
        miss = await asyncio.to_thread(_near_miss, source, given.old)
        return Answer(f"old stands nowhere in the kernel; {miss}", error=True)


def _places(source: str, old: str) -> list[int]:
    """The first ones; of a text that overlaps itself there can be as many as there are characters."""
    found: list[int] = []
    at = source.find(old)
    while at >= 0 and len(found) <= MOST_PLACES:
        found.append(at)
        at = source.find(old, at + 1)
    return found


def _near_miss(source: str, old: str) -> str:
    if not old.strip():
        return "it is nothing but white space; give the text around it"
    lines = source.split("\n")
    wanted = [_bare(line) for line in old.strip().split("\n")]
    bare = [_bare(line) for line in lines] if len(wanted) <= MOST_LONG else []
    for number in range(len(bare) - len(wanted) + 1):
        window = lines[number : number + len(wanted)]
        if all(want in there for want, there in zip(wanted, bare[number : number + len(wanted)], strict=True)):
            where = f"line {number + 1}" if len(wanted) == 1 else f"lines {number + 1} to {number + len(wanted)}"
            return f"only white space differs from {where}:\n{visible(chr(10).join(window))[:1_500]}"
    first = next((line for line in old.split("\n") if line.strip()), old)
    near = [line.strip()[:MOST_WIDE] for line in lines[:MOST_COMPARED]]
    close = difflib.get_close_matches(first.strip()[:MOST_WIDE], near, n=1)
    if not close:
        return "no line of the kernel looks like its first one"
    number = near.index(close[0]) + 1
    return f"the line most like its first one is line {number}:\n{visible(lines[number - 1])[:400]}"


def _bare(text: str) -> str:
    return "".join(text.split())


async def _kept(desk: Desk, source: str) -> Answer:
    """Store a source as the kernel, and say what it is like."""
    content = source.encode(errors="surrogateescape")
    if len(content) > MAX_SOURCE_BYTES:
        return Answer(
            f"the kernel would have {len(content)} bytes; at most {MAX_SOURCE_BYTES} are accepted", error=True
        )
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        return Answer(f"the kernel would have a zero byte in line {line}; accepted: text", error=True)
    kernel = await desk.workshop.store.put(content)
    lines = source.count("\n") + (not source.endswith("\n"))
    size = f"{lines} lines, {len(content)} bytes"
    if kernel == desk.workspace.kernel:
        return Answer(f"The kernel is unchanged: {size}.", said="unchanged")
    flags = await asyncio.to_thread(flagged_in, source, desk.bundle.task)
    found = f"It breaks constraints of the task:\n{told(flags)}" if flags else "No constraint rule objects."
    said = f"{size}, {len(flags)} flagged: {one_line(flags[0].construct, 60)}" if flags else size
    return Answer(
        f"The kernel has {size}. {found}",
        workspace=desk.workspace.model_copy(update={"kernel": kernel}),
        said=said,
    )
