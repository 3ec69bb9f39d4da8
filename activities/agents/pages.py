"""Texts a page at a time, with numbered lines: bounded for a prompt, and no line can pass for anything else."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 5_000  # characters of a page: with what is said around it, within `tool.MOST_ANSWERED`
LONGEST = 400  # characters of one line


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    first: int
    last: int  # 0 when there is no such line
    total: int

    @property
    def is_rest_left(self) -> bool:
        return self.last < self.total


def page(text: str, first: int = 1, last: int = 0, most: int = MOST) -> Page:
    """Lines `first` to `last` (0: to the end), as many as fit."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    shown: list[str] = []
    room = most
    for number, line in enumerate(lines[first - 1 : last or None], first):
        row = f"{number:>5} {_cut(visible(line))}"
        room -= len(row) + 1
        if room < 0 and shown:
            break
        shown.append(row)
    return Page("\n".join(shown), first, first + len(shown) - 1 if shown else 0, len(lines))


def visible(text: str) -> str:
    """The same with a mark for every character that is not to be seen, among them all odd ends of lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text.rstrip("\r"))


def one_line(text: str, most: int) -> str:
    told = " ".join(visible(text).split())
    return told if len(told) <= most else f"{told[: most - 3]}..."


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} [... {len(line) - LONGEST} characters more]"
