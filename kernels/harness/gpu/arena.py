"""Device memory that the gate owns and executors map: inputs, poison and noise in it, and what must still be there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kernels.harness.arena import GUARD, SHIFT_PAGES, WRITTEN, CandidateFault, Prepared, poison_pattern, signalling
from kernels.harness.gpu.driver import CudaError, Mapped, ck, open_device
from kernels.harness.interface import Buffer
from specs.errors import MachineError
from specs.outcomes import FailureKind
from specs.schema import ArgumentKind

DEVICE_ALIGNMENT = 256  # bytes, as cudaMalloc gives it: what a kernel may rely on
PAGE = 4096
THREADS, BLOCKS = 256, 1056
NOWHERE = 2**64 - 1


class GateDevice:
    """The gate's own context on the device, and its few kernels."""

    def __init__(self, ordinal: int, kernels: Path) -> None:
        """Raises MachineError when the device cannot be used."""
        from cuda.bindings import driver

        try:
            self.device, self.context = open_device(ordinal)
            self.ordinal = ordinal
            module = ck(driver.cuModuleLoadData(kernels.read_bytes()), "cuModuleLoadData")
            self._functions = {
                name: ck(driver.cuModuleGetFunction(module, f"ferret_{name}".encode()), name)
                for name in ("noise", "check_noise", "differs")
            }
            self._found = int(ck(driver.cuMemAlloc(8), "cuMemAlloc"))
        except CudaError as error:
            raise MachineError(f"GPU {ordinal}: {error}") from None

    def current(self) -> None:
        """Make the context this thread's own: goldens are made in others."""
        from cuda.bindings import driver

        ck(driver.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    def launch(self, name: str, values: Sequence[int]) -> None:
        """One of the gate's kernels; every parameter is 8 bytes wide."""
        from cuda.bindings import driver

        content = (ctypes.c_uint64 * len(values))(*values)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(content) + 8 * i for i in range(len(values))))
        ck(
            driver.cuLaunchKernel(
                self._functions[name], BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, ctypes.addressof(pointers), 0
            ),
            name,
        )

    def first_found(self, name: str, values: Sequence[int]) -> int | None:
        """What a searching kernel found; None when nothing."""
        from cuda.bindings import driver

        ck(driver.cuMemsetD32(self._found, 0xFFFFFFFF, 2), "cuMemsetD32")
        self.launch(name, [*values, self._found])
        answer = np.zeros(1, dtype=np.uint64)
        ck(driver.cuMemcpyDtoH(answer.ctypes.data, self._found, 8), "cuMemcpyDtoH")
        return None if int(answer[0]) == NOWHERE else int(answer[0])


class DeviceArena:
    """`size` bytes of device memory with noise in every byte that is no buffer's; `fd` hands it to an executor."""

    def __init__(self, device: GateDevice, size: int) -> None:
        """Raises MachineError when the device has no room: another process may hold it."""
        self.device = device
        try:
            self._mapped = Mapped(device.ordinal, size, exportable=True)
            self._shadow = Mapped(device.ordinal, size)  # the gate's own copy of the inputs, mapped nowhere else
        except CudaError as error:
            raise MachineError(f"no {2 * size} bytes of device memory for the buffers: {error}") from None
        self.size = self._mapped.size
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._used: list[tuple[int, int]] = [(0, self.size)]
        self._staged: object = None
        self._places: dict[str, int] = {}

    @property
    def fd(self) -> int:
        return self._mapped.fd

    def layout(self, buffers: Sequence[Buffer], rng: np.random.Generator) -> dict[str, int]:
        """A fresh offset for every buffer: order permuted, each at a random multiple of 256 bytes."""
        offsets = {}
        cursor = 0
        for index in rng.permutation(len(buffers)):
            buffer = buffers[index]
            page = -(-(cursor + GUARD) // PAGE) + int(rng.integers(SHIFT_PAGES))
            offsets[buffer.name] = page * PAGE + int(rng.integers(PAGE // DEVICE_ALIGNMENT)) * DEVICE_ALIGNMENT
            cursor = offsets[buffer.name] + buffer.nbytes + GUARD
        return offsets

    def fill(
        self,
        buffers: Sequence[Buffer],
        offsets: Mapping[str, int],
        inputs: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        stages: bool,
    ) -> DeviceFilled:
        """Write inputs and poison, noise everywhere else. `inputs` are the private copies of `input_bytes`."""
        self.device.current()
        used = tuple(buffer for buffer in buffers if stages or buffer.kind is not ArgumentKind.STAGE)
        self._stage(inputs)
        for begin, end in self._used:
            self.device.launch("noise", [self._mapped.address, begin, end, self._seed])
        self._used = [(offsets[b.name], offsets[b.name] + b.nbytes) for b in used]
        poison = {}
        for buffer in used:
            if buffer.kind is ArgumentKind.INPUT:
                self._copy_in(buffer.name, offsets[buffer.name], buffer.nbytes)
            else:
                pattern = self._poison(buffer, offsets[buffer.name], rng)
                if buffer.kind in WRITTEN:
                    poison[buffer.name] = pattern
        kept = {b.name: inputs[b.name] for b in used if b.kind is ArgumentKind.INPUT}
        self._synchronise()
        return DeviceFilled(used, dict(offsets), kept, poison, self)

    # ------------------------------------------------------------ bytes in and out

    def write(self, offset: int, content: np.ndarray) -> None:
        from cuda.bindings import driver

        if content.nbytes:
            ck(driver.cuMemcpyHtoD(self._mapped.address + offset, content.ctypes.data, content.nbytes), "cuMemcpyHtoD")

    def read(self, offset: int, count: int) -> np.ndarray:
        from cuda.bindings import driver

        content = np.empty(count, dtype=np.uint8)
        if count:
            ck(driver.cuMemcpyDtoH(content.ctypes.data, self._mapped.address + offset, count), "cuMemcpyDtoH")
        return content

    def disturbed(self, begin: int, end: int) -> int | None:
        """Smallest offset in `[begin, end)` where the noise no longer stands."""
        if begin >= end:
            return None
        return self.device.first_found("check_noise", [self._mapped.address, begin, end, self._seed])

    def input_changed(self, name: str, offset: int, count: int) -> int | None:
        """First byte in which an input is no longer what the gate wrote."""
        if count == 0:
            return None
        ours = self._shadow.address + self._places[name]
        return self.device.first_found("differs", [self._mapped.address + offset, ours, count])

    def _stage(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Bring the inputs to the device once, however many contestants get them."""
        from cuda.bindings import driver

        if self._staged is inputs:
            return
        place = 0
        self._places = {}
        for name, content in inputs.items():
            self._places[name] = place
            if content.nbytes:
                ck(driver.cuMemcpyHtoD(self._shadow.address + place, content.ctypes.data, content.nbytes), "upload")
            place += -(-content.nbytes // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT
        self._staged = inputs

    def _copy_in(self, name: str, offset: int, count: int) -> None:
        from cuda.bindings import driver

        if count:
            ours = self._shadow.address + self._places[name]
            ck(driver.cuMemcpyDtoD(self._mapped.address + offset, ours, count), "cuMemcpyDtoD")

    def _poison(self, buffer: Buffer, offset: int, rng: np.random.Generator) -> np.ndarray:
        """Fill with what no honest kernel writes; returns it as u8, one element where all elements are the same."""
        from cuda.bindings import driver

        size = buffer.dtype.itemsize
        sets = {2: driver.cuMemsetD16, 4: driver.cuMemsetD32}
        if not signalling(buffer.dtype) or size not in sets or buffer.nbytes == 0:
            pattern = poison_pattern(buffer, rng)
            self.write(offset, pattern)
            return pattern
        pattern = poison_pattern(replace(buffer, shape=(1,)), rng)
        element = int.from_bytes(pattern.tobytes(), "little")
        ck(sets[size](self._mapped.address + offset, element, buffer.nbytes // size), "poison")
        return pattern

    def _synchronise(self) -> None:
        from cuda.bindings import driver

        ck(driver.cuCtxSynchronize(), "cuCtxSynchronize")

    def close(self) -> None:
        self.device.current()
        self._mapped.close()
        self._shadow.close()


def bytes_needed(cases: Sequence[Sequence[Buffer]]) -> int:
    """Size of a device arena in which every case fits at any layout."""
    room = [sum(b.nbytes + 2 * GUARD + (SHIFT_PAGES + 2) * PAGE for b in case) for case in cases]
    return max(room, default=0) + PAGE


@dataclass(frozen=True, slots=True)
class DeviceFilled(Prepared):
    """An arena on the device made ready for one call."""

    memory: DeviceArena

    def check_surroundings(self) -> None:
        """Raise CandidateFault when a byte outside the buffers or an input no longer holds what the gate put there."""
        memory = self.memory
        memory.device.current()
        begin = 0
        for offset, size in [*sorted((self.offsets[b.name], b.nbytes) for b in self.buffers), (memory.size, 0)]:
            at = memory.disturbed(begin, offset)
            if at is not None:
                raise self.stray(at)
            begin = max(begin, offset + size)
        for name, private in self.inputs.items():
            at = memory.input_changed(name, self.offsets[name], len(private))
            if at is not None:
                told = f"wrote to input {name}, first at byte {at}; inputs are read-only"
                raise CandidateFault(FailureKind.INPUT_CHANGED, told)

    def snapshot(self) -> np.ndarray:
        """A copy of outputs and stage tensors in the gate's own memory, u8, one after the other."""
        self.memory.device.current()
        parts = [self.memory.read(self.offsets[b.name], b.nbytes) for b in self.written]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)
