"""Runs a Triton candidate on the processor, with Triton's interpreter, on the memory that the gate has filled.

Started by triton_host.py in a sandbox, on machines without a GPU: it can judge what a kernel computes, and never how
fast. Stopped by the gate whenever it is not in a call.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any, NoReturn

from kernels.harness import triton_child
from kernels.harness.triton_child import Channel, Fault


class Driver:
    """What Triton takes for the GPU's driver; there is none."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return 9, 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> NoReturn:
        raise Fault("not_loaded", triton_child.AUTOTUNE)

    def get_empty_cache_for_benchmark(self) -> NoReturn:
        raise Fault("not_loaded", triton_child.AUTOTUNE)

    def get_active_torch_device(self) -> str:
        return "cpu"


class Program:
    """Answers the gate: `load` once, then `call` by call."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(arena))
        self._entry: Any = None

    def handle(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if head["do"] == "load":
            import triton

            self._entry = triton_child.load(head["source"], head["entry"])
            return {"said": f"Triton {triton.__version__} interpreter"}, b""
        arguments = triton_child.arguments(head["arguments"], self._base, _zero)
        with triton_child.faults("crashed", "in the launcher"):
            self._entry(*arguments)
        return {}, b""


def _zero(address: int, size: int) -> None:
    ctypes.memset(address, 0, size)


def _let_scalars_count() -> None:
    """Triton 3.6 takes an array of one element for a whole number (the bound of a loop), which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main() -> None:
    """`FD` of the channel and of the arena, then its size; the confinement comes as the first frame."""
    channel_fd, arena_fd, size = map(int, sys.argv[1:4])
    channel = Channel(channel_fd)
    settings, _ = channel.receive()
    os.environ["TRITON_INTERPRET"] = "1"
    # Before the filter: numpy asks the system this and that when it is loaded.
    import triton

    triton.runtime.driver.set_active(Driver())
    _let_scalars_count()
    arena = mmap.mmap(arena_fd, size)
    os.close(arena_fd)
    triton_child.confine(settings, may_start=False)
    triton_child.serve(channel, Program(arena).handle)
