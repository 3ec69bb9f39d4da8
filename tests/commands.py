"""Commands of client.py as processes that are forked from one which has the imports done.

Each is a process with words, environment, folder, output in pipes and an exit code, like the one a person starts; what
is saved is the second or two in which Python reads the Temporal SDK. What depends on the start itself, on a terminal or
on who is signalled has to be started for real.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client.py"
PATIENCE_S = 60.0
REQUEST_BYTES = 2**20
# An output as wide as the terminal is known when the modules are read, which is too early here.
NEEDS_A_START = ("COLUMNS", "LINES")


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What a mistake got: exactly one line, no traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert self.code == 2
        return lines[0]


async def command(*words: str | Path, env: Mapping[str, str], cwd: Path, patience_s: float = PATIENCE_S) -> Answer:
    """`python client.py WORDS...` there, and what came of it."""
    assert not any(name in env for name in NEEDS_A_START)
    pipes = [os.pipe() for _ in range(3)]
    try:
        request = {"words": [*map(str, words)], "env": dict(env), "cwd": str(cwd)}
        socket.send_fds(parent()[0], [json.dumps(request).encode()], [write for _, write in pipes])
    finally:
        for _, write in pipes:
            os.close(write)
    out, err, told = [await _stream(read) for read, _ in pipes]
    pid = int(await told.readline())
    try:
        async with asyncio.timeout(patience_s):
            printed, complained, code = await asyncio.gather(out.read(), err.read(), told.readline())
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    return Answer(int(code), printed.decode(), complained.decode())


async def _stream(descriptor: int) -> asyncio.StreamReader:
    """What comes out of a pipe, which is closed at its end."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


@functools.lru_cache(maxsize=1)
def parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks and the way to it, started when it is first needed; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    plain = {name: value for name, value in os.environ.items() if name not in NEEDS_A_START}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={**plain, "OPENBLAS_NUM_THREADS": "1"},  # a thread of its own would not be in the fork
    )  # fmt: skip
    theirs.close()
    return ours, process


# ---------------------------------------------------------------- the process that forks


def serve(requests: socket.socket) -> None:
    """Fork a process for every request, and tell its number and its exit code, until nobody is there to ask."""
    read_in()
    children: dict[int, tuple[int, int]] = {}  # descriptor of a process -> its number, where its end is told
    asked = requests.fileno()
    while True:
        for ready in select.select([asked, *children], [], [])[0]:
            if ready == asked:
                message, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 3)
                if not message:
                    return
                pid = os.fork()
                if pid == 0:
                    requests.close()
                    run(json.loads(message), files)
                out, err, told = files
                os.close(out)
                os.close(err)
                os.write(told, b"%d\n" % pid)
                children[os.pidfd_open(pid)] = pid, told
            else:
                pid, told = children.pop(ready)
                os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(told)
                os.close(ready)


def read_in() -> None:
    """Import whatever a command could import."""
    import client
    import workflows.console

    assert client.app is not None
    for module in pkgutil.iter_modules(workflows.console.__path__):
        importlib.import_module(f"workflows.console.{module.name}")


def run(request: dict[str, object], files: list[int]) -> NoReturn:
    """Be the process that the request asks for."""
    import client

    try:
        for number, descriptor in enumerate(files, 1):
            if number < 3:
                os.dup2(descriptor, number)
            os.close(descriptor)
        words, environment = request["words"], request["env"]
        assert isinstance(words, list)
        assert isinstance(environment, dict)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(str(request["cwd"]))
        sys.argv = [str(CLIENT), *words]
        client.log_to_stderr()
        client.leave(client.main(words))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    serve(socket.socket(fileno=int(sys.argv[1])))
