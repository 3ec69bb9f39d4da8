"""Run one command whose whole family of processes dies with it, or with whoever holds our standard input.

Used as `python guard.py COMMAND...` by activities.process, in a session of its own. The guard adopts every orphan
below it, so a descendant that starts a session or forks twice is found all the same. Standard library only: it must
start fast.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLITE_S = 0.5  # what a command gets to remove its shared memory after SIGTERM


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_the_guard() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # an iterator of Paths costs ten times as much here
        if entry.isdigit():
            try:
                # The command name may hold spaces and parentheses; the fields start after the last one.
                found[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def descendants(root: int) -> list[int]:
    """Every process below `root`, at whatever depth and in whatever session."""
    parents = _parents()
    found: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_all() -> None:
    """Kill until nothing is left: a process may fork while we look."""
    while True:
        _reap()
        alive = descendants(os.getpid())
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)


def main(command: list[str]) -> int:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Terminal signals are for the worker, which then closes our input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_prepare, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    ended = os.pidfd_open(process.pid)
    ready = select.poll()
    ready.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    ready.register(ended, select.POLLIN)
    while True:
        events = dict(ready.poll())
        if ended in events:
            code = process.wait()
            break
        if sys.stdin.fileno() in events and not os.read(sys.stdin.fileno(), 4096):
            process.terminate()
            select.select([ended], [], [], POLITE_S)
            code = -signal.SIGKILL
            break
    end_all()
    return code if code >= 0 else 128 - code


def _prepare() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _die_with_the_guard()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
