"""Where the commands write: results to standard output, remarks and mistakes to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from workflows.console.lines import printable_source

# A pipe has no width to wrap to: 80 columns would cut run ids in two.
out = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)
err = Console(highlight=False, stderr=True, soft_wrap=True)


def say(text: str | Text) -> None:
    """One line of output that is neither wrapped nor read as markup."""
    out.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)


def draw(view: RenderableType) -> None:
    """A table or a whole picture; in a pipe without the blanks that fill its lines."""
    # Nothing is cropped: what a table may not cut, a path or a run id, goes on in the terminal's next line.
    if out.is_terminal:
        out.print(view, crop=False)
        return
    with out.capture() as drawn:
        out.print(view, crop=False)
    say("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def note(text: str, *, warning: bool = False) -> None:
    """One line beside the output: what was done, which run is meant."""
    err.print(Text(f"warning: {text}", style="yellow") if warning else Text(text))


def complain(message: str) -> None:
    """What is wrong, an `error:` line for each line of the message; lines that are indented quote something."""
    for line in message.splitlines():
        err.print(Text(line) if line.startswith(" ") else Text(f"error: {line}", style="red"))


def say_json(value: Any) -> None:
    out.print_json(json.dumps(value))


def say_source(content: bytes) -> None:
    """A pipe gets the very bytes; a terminal gets nothing that it would obey."""
    if out.is_terminal:
        say(printable_source(content.decode(errors="replace")))
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
