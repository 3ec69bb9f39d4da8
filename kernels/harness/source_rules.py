"""What a candidate's source may not do while it is compiled: read files that are not its own.

Three looks, since each alone can be dodged: the text before the compiler sees it (an error message would quote the
file it was pointed at), the list of files that the compiler really read, and the assembly that it wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

_CONTINUED = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_GAP = r"(?:[ \t\v\f]|/\*.*?\*/)*"
_READS = re.compile(
    rf"(?:^|\*/){_GAP}(?:\#|%:|\?\?=){_GAP}(?:include_next|include|import|embed)\b{_GAP}([^\n]*)",
    re.DOTALL | re.MULTILINE,
)
# An error below a line directive quotes the file that the directive names.
_LINES = re.compile(rf"(?:^|\*/){_GAP}(?:\#|%:|\?\?=){_GAP}(?:line\b|(?=\d)){_GAP}([^\n]*)", re.DOTALL | re.MULTILINE)
_PLAIN_LINE = re.compile(r'\s*\d+\s*(?:"([^"]*)"[\s\d]*)?')
_PROBES = re.compile(r"__has_(?:include|include_next|embed)\b([^\n]*)")
_PATH = re.compile(r"""\s*\(?\s*["<]([^">\n]*)[">]""")
_MARKER = re.compile(r'^#(?: line)? \d+ "((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_INCBIN = re.compile(r"\.incbin\b", re.IGNORECASE)
_ASSEMBLER_READS = re.compile(r"\.(?:incbin|include)\b", re.IGNORECASE)
# Assembler macros can put such a directive's name together where no text search finds it.
_ASSEMBLER_MACROS = re.compile(r"\.(?:macro|altmacro|irpc?|rept)\b", re.IGNORECASE)


def in_source(text: str, name: str) -> list[str]:
    """Findings in the source text of a candidate, each with its line: `kernel.cpp:3: ...`."""
    folded = _CONTINUED.sub("", text)  # its line numbers are those of the text less the continuations before them
    found: list[tuple[int, str]] = []

    def add(position: int, what: str) -> None:
        found.append((folded.count("\n", 0, position) + 1, what))

    for match in _READS.finditer(folded):
        plain = _PATH.match(match.group(1))
        if problem := _path_problem(plain.group(1)) if plain else 'only a plain "file" or <file> is accepted':
            add(match.start(1), f"{problem}: {_shown(match.group())}")
    for match in _LINES.finditer(folded):
        plain = _PLAIN_LINE.fullmatch(match.group(1))
        if problem := _path_problem(plain.group(1) or "") if plain else 'only a number and a plain "file" are accepted':
            add(match.start(1), f"{problem}: {_shown(match.group())}")
    for match in _PROBES.finditer(folded):
        plain = _PATH.match(match.group(1))
        if plain and (problem := _path_problem(plain.group(1))):
            add(match.start(1), f"{problem}: {_shown(match.group())}")
    for match in _INCBIN.finditer(folded):
        add(match.start(), ".incbin reads a file while assembling; it is not accepted")
    return [f"{name}:{line}: {what}" for line, what in sorted(set(found))]


def in_files_read(makefile: str, folder: Path, roots: Sequence[Path]) -> list[str]:
    """Findings among the files that the compiler read, from the make rule of its -MD."""
    return _outside(_words(makefile), folder, roots)


def in_line_markers(preprocessed: str, folder: Path, roots: Sequence[Path]) -> list[str]:
    """Findings among the files whose text stands in a preprocessed file."""
    files = dict.fromkeys(_MARKER.findall(preprocessed))
    return _outside([re.sub(r"\\(.)", r"\1", file) for file in files if file[:1] != "<"], folder, roots)


def _outside(files: Sequence[str], folder: Path, roots: Sequence[Path]) -> list[str]:
    allowed = [Path(os.path.normpath(root)) for root in (folder, *roots)]
    found = []
    for word in files:
        # A link inside an allowed folder was put there by the machine's owner, so links are not followed here.
        path = Path(os.path.normpath(folder / word))
        if not any(path.is_relative_to(root) for root in allowed):
            found.append(f"reads {word}, which is not a header of the compiler or of the task's -I folders")
    return found


def in_assembly(text: str, name: str) -> list[str]:
    """Findings in the assembly that the compiler made, where the pieces of an asm statement stand joined."""
    return [
        f"{name}: asm statement: {match.group()} {why}; it is not accepted"
        for pattern, why in (
            (_ASSEMBLER_READS, "reads a file while assembling"),
            (_ASSEMBLER_MACROS, "is an assembler macro, which can hide a directive that reads a file"),
        )
        if (match := pattern.search(text))
    ]


def _path_problem(path: str) -> str | None:
    if path.startswith(("/", "\\", "~")):
        return "an absolute path is not accepted"
    if ".." in re.split(r"[/\\]", path):
        return "a path with '..' is not accepted"
    return None


def _shown(text: str) -> str:
    return " ".join(text.split())[:120]


def _words(makefile: str) -> list[str]:
    """Prerequisites of a make rule; make escapes blanks and # with a backslash and $ by doubling it."""
    body = makefile.replace("\\\n", " ").split(": ", 1)[-1]
    words = re.findall(r"(?:\\[ #]|[^\s])+", body)
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]
