"""Ports of this machine: which are free, and whose they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import structlog

from specs.errors import UserError

HOST = "127.0.0.1"
NEARBY = 500
FREED_S = 3.0

log = structlog.get_logger(__name__)


def choose(given: int | None, wanted: int, option: str, *, avoid: int | None) -> int:
    """The port a person gave, which must be free (else UserError), or the wanted one, or the next free one after it."""
    if given is not None:
        if not 1 <= given <= 65535:
            raise UserError(f"{option} {given}; accepted: 1 to 65535")
        if given == avoid or not is_free(given):
            raise UserError(f"{option} {given}: the port is in use by another process; accepted: a free port")
        return given
    # Not one of the system's own choice: on those, a client that keeps connecting may end up talking to itself.
    for port in range(wanted, min(wanted + NEARBY, 65535)):
        if port != avoid and is_free(port):
            if port != wanted:
                log.warning("port is in use, the next free one is taken", option=option, wanted=wanted, taken=port)
            return port
    raise UserError(f"{option}: no free port from {wanted} to {wanted + NEARBY}; give one")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


async def freed(port: int) -> bool:
    """Wait a little: a process that was killed a moment ago may still be letting go of its port."""
    deadline = asyncio.get_running_loop().time() + FREED_S
    for _ in iter(lambda: is_free(port) or asyncio.get_running_loop().time() > deadline, True):
        await asyncio.sleep(0.05)
    return is_free(port)


def listens(pid: int, port: int) -> bool:
    """Whether this very process holds the listening socket."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: listening
                    sockets.add(f"socket:[{fields[9]}]")
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed while we look
                if str(Path(entry.path).readlink()) in sockets:
                    return True
    return False
