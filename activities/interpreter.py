"""How a person calls ferret's programs again: with the Python that is running, from the folder they are in."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def command(program: str, *words: str) -> str:
    """`.venv/bin/python client.py watch RUN`: a line to paste. `program` is `client.py` or `worker.py`.

    A bare `python` would be whatever the shell finds, which may well lack ferret's packages.
    """
    called = [shlex.quote(_from_here(Path(sys.executable))), shlex.quote(_from_here(ROOT / program))]
    return " ".join([*called, *words])


def lacking(error: ModuleNotFoundError) -> str:
    """One line for a Python in which ferret's packages are not installed."""
    activate = shlex.quote(_from_here(ROOT / ".venv/bin/activate"))
    return (
        f"ferret's packages are not in this Python ({sys.executable} lacks {error.name}); "
        f"activate the environment: . {activate}"
    )


def _from_here(path: Path) -> str:
    # A link is not followed: a virtual environment's python is one, and is only itself by its own name.
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
