"""Speaks an executor's protocol without a device; what it is asked to do says how it is to behave."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from kernels.harness.gpu import frames


def main() -> int:
    channel = socket.socket(fileno=int(sys.argv[1]))
    start = Path(sys.argv[5]).read_text().strip()
    if start == "no room":
        frames.send(channel, {"machine": "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"})
        return 1
    frames.send(channel, {"ready": True})
    while True:
        try:
            head, body = frames.receive(channel)
        except frames.Closed:
            return 0
        match head["do"]:
            case "echo":
                frames.send(channel, {"environment": sorted(os.environ), "cwd": str(Path.cwd())}, body)
            case "refuse":
                frames.send(channel, {"refused": "kernel rms: too many threads"})
            case "fault":
                frames.send(channel, {"fault": "a misaligned access", "what": "the run"})
                return 1
            case "break":
                frames.send(channel, {"machine": "CUDA_ERROR_ECC_UNCORRECTABLE"})
                return 1
            case "hang":
                signal.pause()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "load":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "open":
                frames.send(channel, {"broken": "ImportError: no flashinfer"})
                return 1
            case "babble":
                channel.sendall(b"\xff" * 64)


if __name__ == "__main__":
    sys.exit(main())
