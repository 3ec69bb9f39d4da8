"""Run a program so that cancellation, worker shutdown and a killed worker all end its whole family of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
TAIL_BYTES = 16_384
# ANTHROPIC_CUSTOM_HEADERS may carry a key and does not sound like one.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|^ANTHROPIC_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Completed:
    code: int  # exit status; 128 + n after signal n
    tail: str  # the end of what it wrote to stdout and stderr together
    timed_out: bool = False


async def run_process(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Completed:
    """Run to the end, or until `timeout_s`; when this raises or returns, everything that was started is gone."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(GUARD), *map(str, argv),
        cwd=cwd,
        env=clean_environment() if env is None else dict(env),
        # The guard reads this pipe: it closes when this process ends, however it ends.
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    tail = bytearray()
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            await _drain(process, tail)
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        await _end(process)
    assert process.returncode is not None
    return Completed(code=process.returncode, tail=tail.decode(errors="replace"), timed_out=timed_out)


async def _drain(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    assert process.stdout is not None
    while chunk := await process.stdout.read(65_536):
        tail += chunk
        del tail[:-TAIL_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    waiting = asyncio.ensure_future(process.wait())
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        # A second cancel must not leave the family behind; the guard needs well under a second.
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    with contextlib.suppress(Exception):
        await process.stdin.wait_closed()


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment without anything whose name sounds like a secret."""
    return {name: value for name, value in environ.items() if not _SECRET.search(name)}


def blanked(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to lay over this process's environment where a library hands it on whole: every secret is empty."""
    return {name: "" for name in environ if _SECRET.search(name)}


def has_ended(pid: int) -> bool:
    """True also for a process whose exit status nobody collects: without an init that does, it keeps its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
