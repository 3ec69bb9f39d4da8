"""The trusted program that has the device: replays what a recorder wrote down, between events of its own.

No host code of a candidate ever runs here. A process is thrown away with its contestant, since a kernel's fault takes
the whole context along. Run as
`python -m kernels.harness.gpu.executor CHANNEL_FD ORDINAL ARENA_FD ARENA_BYTES KERNELS`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import secrets
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from kernels.harness.gpu import frames
from kernels.harness.gpu.driver import KERNEL_FAULTS, LAUNCH_ERRORS, CudaError, Mapped, ck, open_device
from kernels.harness.tape import Copy, Launch, Memset, SetAttribute, Tape, TensorMapRequest, Upload

WAIT_LIMIT_NS = 200_000_000  # after which the device goes on by itself: a vendor's call that waits for its stream
HEAP_BYTES = 4 << 30  # address space for what candidates allocate; memory is mapped as it is used
HEAP_STEP = 32 << 20
CHECKED_HEAP_BYTES = 256 << 20
PLACES = 8
PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = 2  # CUresult
MACHINE_ERRORS = {3, 4, 46, 100, 214, 999}  # shut down, no or an unavailable device, a memory error, an unknown one
ROOM_BYTES = 4 << 30
TRUSTED = ("open", "call")  # these run a program of ours
ATTRIBUTES = 160  # cudaDeviceAttr numbers that are asked for
PLACEHOLDER = 128  # bytes of a tensor map, and of what stands for one on a tape
NULL = 2**64 - 1


class _Refused(Exception):
    """The driver did not accept an operation of the tape: a result, not an accident."""


class Executor:
    def __init__(self, ordinal: int, arena_fd: int, arena_bytes: int, kernels: Path) -> None:
        self.device, self.context = open_device(ordinal)
        self.ordinal = ordinal
        self.stream = ck(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
        self.begin, self.end = (ck(driver.cuEventCreate(0), "cuEventCreate") for _ in range(2))
        self.arena = Mapped(ordinal, arena_bytes, imported_fd=arena_fd) if arena_fd >= 0 else None
        if self.arena is not None:
            self.heap_bytes, self.heap_mapped = HEAP_BYTES, 0
            self.heap_address = int(ck(driver.cuMemAddressReserve(HEAP_BYTES, 0, 0, 0), "cuMemAddressReserve"))
        else:
            # Under a checker of memory, which knows plain allocations only.
            self.heap_bytes = self.heap_mapped = CHECKED_HEAP_BYTES
            self.heap_address = int(ck(driver.cuMemAlloc(CHECKED_HEAP_BYTES), "the kernel's own allocations"))
        own = ck(driver.cuModuleLoadData(kernels.read_bytes()), "cuModuleLoadData")
        self.own = {
            name: ck(driver.cuModuleGetFunction(own, f"ferret_{name}".encode()), name)
            for name in ("wait", "soil", "flush", "nothing")
        }
        attribute = driver.CUdevice_attribute
        self.processors = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_bytes = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ck(driver.cuFuncSetAttribute(self.own["soil"], most, self.shared_bytes), "cuFuncSetAttribute")
        l2 = self.attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        self.flush_bytes = max(2 * l2, 64 << 20)
        self.flush_buffer = int(ck(driver.cuMemAlloc(self.flush_bytes + 256), "the flush buffer"))
        ck(driver.cuMemsetD8(self.flush_buffer, 0x5A, self.flush_bytes + 256), "the flush buffer")
        flags = driver.CU_MEMHOSTALLOC_DEVICEMAP
        self.host_word = int(ck(driver.cuMemHostAlloc(4096, flags), "cuMemHostAlloc"))
        self.device_word = int(ck(driver.cuMemHostGetDevicePointer(self.host_word, 0), "cuMemHostGetDevicePointer"))
        self.passed_on = int(ck(driver.cuMemAlloc(256), "cuMemAlloc"))
        ck(driver.cuMemsetD32(self.passed_on, 0, 64), "cuMemsetD32")
        self.word = ctypes.c_uint32.from_address(self.host_word)
        self.token = 0
        self.modules: dict[str, list[Any]] = {}  # every place that the same code was loaded to
        self.functions: dict[tuple[str, str, int], Any] = {}
        self.place = 0
        self.programs: Any = None
        self.flush_mode = "read"
        self.buffers: dict[str, int] = {}
        ck(driver.cuCtxSynchronize(), "start")

    def attribute(self, which: Any) -> int:
        return int(ck(driver.cuDeviceGetAttribute(which, self.device), "cuDeviceGetAttribute"))

    # ------------------------------------------------------------ what it is asked

    def facts(self) -> tuple[dict[str, Any], bytes]:
        from cuda.bindings import runtime

        attributes = {}
        for number in range(1, ATTRIBUTES):
            try:
                result = driver.cuDeviceGetAttribute(driver.CUdevice_attribute(number), self.device)
            except ValueError:
                continue
            if int(result[0]) == 0:
                attributes[str(number)] = int(result[1])
        properties = ck(runtime.cudaGetDeviceProperties(self.ordinal), "cudaGetDeviceProperties")
        raw = ctypes.string_at(properties.getPtr(), _PROPERTIES_BYTES)
        head = {
            "arena": self.arena.address if self.arena is not None else 0,
            "heap": [self.heap_address, self.heap_bytes],
            "attributes": attributes,
            "flush_bytes": self.flush_bytes,
        }
        return head, raw

    def load(self, module: str, content: bytes, variables: list[str]) -> dict[str, Any]:
        """Load device code; where it has no variables, at several places, of which every run draws one.

        Where code lies in memory makes one of two identical kernels a few per cent faster for as long as it stays.
        """
        if module not in self.modules:
            copies = 1 if variables else PLACES
            places = []
            for _ in range(copies):
                places.append(self._loaded(content))
                ck(driver.cuMemAlloc((1 + secrets.randbelow(63)) << 12), "memory between two places")
            self.modules[module] = places
        loaded = self.modules[module][0]
        found = {}
        for name in variables:
            result = driver.cuModuleGetGlobal(loaded, name.encode())
            if int(result[0]) == 0:
                found[name] = [int(result[1]), int(result[2])]
        return {"variables": found}

    def _loaded(self, content: bytes) -> Any:
        """Raises _Refused: whatever the driver has against these bytes, it is not the machine's doing."""
        try:
            return ck(driver.cuModuleLoadData(content), "its device code cannot be loaded")
        except CudaError as error:
            if error.code in MACHINE_ERRORS or (error.code == OUT_OF_MEMORY and not self._roomy()):
                raise
            raise _Refused(str(error)) from None

    def _roomy(self) -> bool:
        """Whether the device has room enough that running out of it is the candidate's doing."""
        return int(ck(driver.cuMemGetInfo(), "cuMemGetInfo")[0]) > ROOM_BYTES

    def run(self, tape: Tape, *, flush: bool, hidden: bool) -> dict[str, Any]:
        """One replay. `hidden`: all is queued before any of it runs, so that no launch is waited for."""
        ready = self._steps(tape)

        last = next((op for op in reversed(tape.ops) if isinstance(op, Launch)), None)

        def work() -> None:
            for index, step in enumerate(ready):
                self._accepted(step(), f"operation {index + 1} of {len(ready)}")
            if last is not None and last.programmatic:
                # It may have ended before those ahead of it. What is launched in the usual way waits for all of them.
                self._launch_own("nothing", 1, 1, [])

        return self._window(work, flush=flush, hidden=hidden)

    def empty(self) -> dict[str, Any]:
        return self._window(lambda: None, flush=True, hidden=True)

    def open(self, path: str, entry: str) -> dict[str, Any]:
        """A trusted program behind the interface, a shared object or a Python file; what it says it is, if it does."""
        if path.endswith(".py"):
            spec = importlib.util.spec_from_file_location("ferret_baseline", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.programs = ("python", getattr(module, entry))
            describe = getattr(module, "describe", None)
            return {"description": str(describe()) if describe is not None else ""}
        library = ctypes.CDLL(path)
        function = getattr(library, entry)
        function.restype = None
        self.programs = ("native", function)
        try:
            describe = library.ferret_describe
        except AttributeError:
            return {"description": ""}
        describe.restype = ctypes.c_char_p
        return {"description": (describe() or b"").decode(errors="replace")}

    def call(self, arguments: list[dict[str, Any]], *, flush: bool, hidden: bool) -> dict[str, Any]:
        """One call of the trusted program. Each argument: kind, and value or offset, dtype and shape."""
        kind, function = self.programs
        given = [self._native(a) if kind == "native" else self._python(a) for a in arguments]
        if kind == "native":
            return self._window(lambda: function(*given), flush=flush, hidden=hidden)
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(int(self.stream))):
            return self._window(lambda: function(*given), flush=flush, hidden=hidden)

    def graph(self, tape: Tape, copies: int, replays: int) -> dict[str, Any]:
        """Another timer: (graph of `copies` flushes and calls - graph of `copies` flushes) / copies, each replay."""
        steps = self._steps(tape)
        graphs = [self._captured(steps, copies, flush=True), self._captured([], copies, flush=True)]
        times: list[list[float]] = [[], []]
        for _ in range(replays):
            for which, graph in enumerate(graphs):
                ck(driver.cuEventRecord(self.begin, self.stream))
                ck(driver.cuGraphLaunch(graph, self.stream), "cuGraphLaunch")
                ck(driver.cuEventRecord(self.end, self.stream))
                ck(driver.cuStreamSynchronize(self.stream))
                times[which].append(1000 * float(ck(driver.cuEventElapsedTime(self.begin, self.end))))
        return {"us": [(a - b) / copies for a, b in zip(*times, strict=True)]}

    def graph_window(self, tape: Tape, replays: int) -> dict[str, Any]:
        """And another: the same window as `run`, round one replay of a CUDA graph of the call."""
        graph = self._captured(self._steps(tape), 1, flush=False)

        def replay() -> None:
            ck(driver.cuGraphLaunch(graph, self.stream), "cuGraphLaunch")

        return {"us": [self._window(replay, flush=True, hidden=True)["us"] for _ in range(replays)]}

    def _steps(self, tape: Tape) -> list[Any]:
        self.place = secrets.randbelow(PLACES)
        self._map_heap(tape.heap_bytes)
        maps = [self._tensor_map(request) for request in tape.tensor_maps]
        first = _first_launch(tape)
        steps = [self._prepared(op, tape, maps, first=index == first) for index, op in enumerate(tape.ops)]
        return [step for step in steps if step is not None]

    def _captured(self, steps: list[Any], copies: int, *, flush: bool) -> Any:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ck(driver.cuStreamBeginCapture(self.stream, mode), "cuStreamBeginCapture")
        for _ in range(copies):
            if flush:
                self._flush()
            for step in steps:
                ck(step(), "a launch in a graph")
        captured = ck(driver.cuStreamEndCapture(self.stream), "cuStreamEndCapture")
        return ck(driver.cuGraphInstantiate(captured, 0), "cuGraphInstantiate")

    def allocate(self, sizes: dict[str, int]) -> dict[str, int]:
        """A plain allocation of just its size for every buffer: what a checker of memory can see the ends of."""
        for address in self.buffers.values():
            ck(driver.cuMemFree(address), "cuMemFree")
        self.buffers = {name: int(ck(driver.cuMemAlloc(max(size, 1)), name)) for name, size in sizes.items()}
        return self.buffers

    def write(self, name: str, content: bytes) -> None:
        if content:
            ck(driver.cuMemcpyHtoD(self.buffers[name], content, len(content)), f"write of {name}")

    # ------------------------------------------------------------ the window

    def _window(self, work: Any, *, flush: bool, hidden: bool) -> dict[str, Any]:
        stream = self.stream
        self._launch_own("soil", self.processors, 1024, [(self.shared_bytes // 4, 4)], shared=self.shared_bytes)
        if flush:
            self._flush()
        self.token = (self.token + 1) & 0xFFFFFFFF or 1
        if hidden:
            values = [(self.device_word, 8), (self.passed_on, 8), (self.token, 4), (WAIT_LIMIT_NS, 8)]
            self._launch_own("wait", self.processors, 1, values)
        else:
            ck(driver.cuStreamSynchronize(stream), "the flush")
        host_begin = time.perf_counter_ns()
        ck(driver.cuEventRecord(self.begin, stream), "cuEventRecord")
        try:
            work()
        finally:
            begin = time.perf_counter_ns()
            self.word.value = self.token
        ck(driver.cuEventRecord(self.end, stream), "cuEventRecord")
        ck(driver.cuStreamSynchronize(stream), "the run")
        finished = time.perf_counter_ns()
        # Whatever else the context may have been given to do ends here too, and is seen.
        ck(driver.cuCtxSynchronize(), "the run")
        closed = time.perf_counter_ns()
        us = 1000 * float(ck(driver.cuEventElapsedTime(self.begin, self.end), "cuEventElapsedTime"))
        return {
            "us": us,
            "window_us": (finished - begin) / 1000,
            "tail_us": (closed - finished) / 1000,
            "host_us": (finished - host_begin) / 1000,
        }

    def _flush(self) -> None:
        stream, size = self.stream, self.flush_bytes
        if "memset" in self.flush_mode:
            ck(driver.cuMemsetD32Async(self.flush_buffer, self.token, size // 4, stream), "the flush")
        if "read" in self.flush_mode:
            count = size // 16
            sink = self.flush_buffer + size
            self._launch_own("flush", 1024, 256, [(self.flush_buffer, 8), (count, 8), (sink, 8)])

    def _launch_own(self, name: str, blocks: int, threads: int, values: list[tuple[int, int]], shared: int = 0) -> None:
        packed = bytearray()
        for value, size in values:
            packed += b"\0" * (-len(packed) % size) + value.to_bytes(size, "little")
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared
        config.hStream = self.stream
        kept = _Packed(bytes(packed))
        ck(driver.cuLaunchKernelEx(config, self.own[name], 0, kept.extra), name)

    # ------------------------------------------------------------ operations of a tape

    def _prepared(self, op: Any, tape: Tape, maps: list[bytes], *, first: bool) -> Any:
        """What is to be called in the window; attributes and the like are done at once, and give None."""
        match op:
            case SetAttribute():
                function = self._function(op.module, op.kernel)
                which = driver.CUfunction_attribute(op.attribute)
                self._accepted(driver.cuFuncSetAttribute(function, which, op.value), f"an attribute of {op.kernel}")
                return None
            case Launch():
                return self._launch(op, tape, maps, first=first)
            case Memset():
                call = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[op.width]
                return lambda: call(op.dst, op.value, op.count, self.stream)
            case Copy():
                return lambda: driver.cuMemcpyDtoDAsync(op.dst, op.src, op.nbytes, self.stream)
            case Upload():
                content = _with_maps(op.data, tape, maps)
                held = ctypes.create_string_buffer(content, len(content))
                address = ctypes.addressof(held)
                return lambda held=held: driver.cuMemcpyHtoDAsync(op.dst, address, len(held), self.stream)
        raise _Refused(f"an operation that no executor knows: {op!r}")

    def _launch(self, op: Launch, tape: Tape, maps: list[bytes], *, first: bool) -> Any:
        function = self._function(op.module, op.kernel)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = op.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = op.block
        config.sharedMemBytes = op.shared
        config.hStream = self.stream
        attributes = []
        ids = driver.CUlaunchAttributeID
        if op.cluster is not None:
            attribute = driver.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = op.cluster
            attributes.append(attribute)
        if op.cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        # The first kernel of a call never overlaps with what came before: that would be before the clock begins.
        if op.programmatic and not first:
            attribute = driver.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        packed = _Packed(_with_maps(op.params, tape, maps))
        return lambda packed=packed, kept=attributes: driver.cuLaunchKernelEx(config, function, 0, packed.extra)

    def _function(self, module: str, kernel: str) -> Any:
        if module not in self.modules:
            raise _Refused(f"a launch from a module that was never loaded ({module})")
        places = self.modules[module]
        key = (module, kernel, self.place % len(places))
        if key not in self.functions:
            self.functions[key] = self._accepted(
                driver.cuModuleGetFunction(places[key[2]], kernel.encode()), f"kernel {kernel}"
            )
        return self.functions[key]

    def _tensor_map(self, request: TensorMapRequest) -> bytes:
        rank = request.rank
        result = driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(request.dtype),
            rank,
            request.address,
            [driver.cuuint64_t(d) for d in request.dims],
            [driver.cuuint64_t(s) for s in request.strides],
            [driver.cuuint32_t(b) for b in request.box],
            [driver.cuuint32_t(e) for e in request.element_strides],
            driver.CUtensorMapInterleave(request.interleave),
            driver.CUtensorMapSwizzle(request.swizzle),
            driver.CUtensorMapL2promotion(request.l2),
            driver.CUtensorMapFloatOOBfill(request.oob),
        )
        encoded = self._accepted(result, "cuTensorMapEncodeTiled")
        return ctypes.string_at(encoded.getPtr(), PLACEHOLDER)

    def _map_heap(self, wanted: int) -> None:
        if wanted > self.heap_bytes:
            raise _Refused(f"{wanted} bytes of its own allocations; at most {self.heap_bytes} are accepted")
        while self.heap_mapped < wanted:
            piece = driver.CUmemAllocationProp()
            piece.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            piece.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            piece.location.id = self.ordinal
            handle = ck(driver.cuMemCreate(HEAP_STEP, piece, 0), "memory for the kernel's own allocations")
            at = self.heap_address + self.heap_mapped
            ck(driver.cuMemMap(at, HEAP_STEP, 0, handle, 0), "cuMemMap")
            access = driver.CUmemAccessDesc()
            access.location = piece.location
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            ck(driver.cuMemSetAccess(at, HEAP_STEP, [access], 1), "cuMemSetAccess")
            self.heap_mapped += HEAP_STEP

    def _accepted(self, result: Any, what: str) -> Any:
        """The values of a call that a candidate's data went into. Raises _Refused where the data is to blame."""
        try:
            return ck(result, what)
        except CudaError as error:
            if error.code == OUT_OF_MEMORY and self._roomy():
                raise _Refused(f"{what}: more memory than the device has (out of memory)") from None
            if error.code in LAUNCH_ERRORS:
                raise _Refused(f"{what}: {LAUNCH_ERRORS[error.code]}") from None
            raise

    # ------------------------------------------------------------ arguments of a trusted program

    def _native(self, argument: dict[str, Any]) -> Any:
        match argument["kind"]:
            case "stream":
                return ctypes.c_void_p(int(self.stream))
            case "scalar":
                return _SCALARS[argument["dtype"]](argument["value"])
        return ctypes.c_void_p(self._address(argument) or None)

    def _python(self, argument: dict[str, Any]) -> Any:
        import torch

        match argument["kind"]:
            case "stream":
                return int(self.stream)
            case "scalar":
                return argument["value"]
        address = self._address(argument)
        if not address:
            return None
        name, stand_in, torch_name = _TORCH[argument["dtype"]]
        holder = type("Holder", (), {})()
        holder.__cuda_array_interface__ = {
            "shape": tuple(argument["shape"]),
            "typestr": name,
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
        tensor = torch.as_tensor(holder, device=f"cuda:{self.ordinal}")
        return tensor.view(getattr(torch, torch_name)) if stand_in else tensor

    def _address(self, argument: dict[str, Any]) -> int:
        offset = int(argument["offset"])
        assert self.arena is not None
        return 0 if offset == NULL else self.arena.address + offset


class _Packed:
    """A parameter buffer in the form that a launch takes; keeps what it points to alive."""

    def __init__(self, content: bytes) -> None:
        self._content = ctypes.create_string_buffer(content, max(len(content), 1))
        self._size = ctypes.c_size_t(len(content))
        pointer, size, end = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        self._extra = (ctypes.c_void_p * 5)(
            pointer, ctypes.addressof(self._content), size, ctypes.addressof(self._size), end
        )
        self.extra = ctypes.addressof(self._extra) if content else 0


def _first_launch(tape: Tape) -> int:
    return next((index for index, op in enumerate(tape.ops) if isinstance(op, Launch)), -1)


def _with_maps(data: bytes, tape: Tape, maps: list[bytes]) -> bytes:
    """`data` with the real descriptor in every place that holds a stand-in."""
    if not maps or tape.nonce not in data:
        return data
    content = bytearray(data)
    at = content.find(tape.nonce)
    while at >= 0 and at + PLACEHOLDER <= len(content):
        (index,) = struct.unpack_from("<I", content, at + len(tape.nonce))
        if index >= len(maps):
            raise _Refused(f"tensor map {index} of {len(maps)}")
        content[at : at + PLACEHOLDER] = maps[index]
        at = content.find(tape.nonce, at + PLACEHOLDER)
    return bytes(content)


_SCALARS = {
    "f64": ctypes.c_double, "f32": ctypes.c_float,
    "i64": ctypes.c_int64, "i32": ctypes.c_int32, "i16": ctypes.c_int16, "i8": ctypes.c_int8,
    "u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "u16": ctypes.c_uint16, "u8": ctypes.c_uint8,
}  # fmt: skip
# Type string of the array interface, whether it only stands in for the real type, name of that in torch.
_TORCH = {
    "f64": ("<f8", False, ""), "f32": ("<f4", False, ""), "f16": ("<f2", False, ""),
    "bf16": ("<i2", True, "bfloat16"), "f8e4m3": ("|u1", True, "float8_e4m3fn"), "f8e5m2": ("|u1", True, "float8_e5m2"),
    "i64": ("<i8", False, ""), "i32": ("<i4", False, ""), "i16": ("<i2", False, ""), "i8": ("|i1", False, ""),
    "u64": ("<i8", True, "uint64"), "u32": ("<i4", True, "uint32"), "u16": ("<i2", True, "uint16"),
    "u8": ("|u1", False, ""),
}  # fmt: skip
_PROPERTIES_BYTES = 1008  # sizeof(cudaDeviceProp) of CUDA 13


def answer(executor: Executor, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    match head["do"]:
        case "facts":
            return executor.facts()
        case "load":
            return executor.load(head["module"], body, head["variables"]), b""
        case "run":
            return executor.run(Tape.from_bytes(body), flush=head["flush"], hidden=head["hidden"]), b""
        case "empty":
            return executor.empty(), b""
        case "open":
            return executor.open(head["path"], head["entry"]), b""
        case "call":
            return executor.call(head["arguments"], flush=head["flush"], hidden=head["hidden"]), b""
        case "graph":
            return executor.graph(Tape.from_bytes(body), head["copies"], head["replays"]), b""
        case "graph_window":
            return executor.graph_window(Tape.from_bytes(body), head["replays"]), b""
        case "flush_mode":
            executor.flush_mode = head["mode"]
            return {}, b""
        case "allocate":
            return {"addresses": executor.allocate(head["sizes"])}, b""
        case "write":
            executor.write(head["name"], body)
            return {}, b""
    raise ValueError(f"asked to {head['do']!r}")


def main(arguments: list[str]) -> int:
    # A device that is busy with a kernel that never ends would keep this process alive after its gate.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=int(arguments[0]))
    try:
        executor = Executor(int(arguments[1]), int(arguments[2]), int(arguments[3]), Path(arguments[4]))
        frames.send(channel, {"ready": True, "pid": os.getpid()})
    except CudaError as error:
        frames.send(channel, {"machine": str(error)})
        return 1
    while True:
        try:
            head, body = frames.receive(channel)
        except frames.Closed:
            return 0
        trusted = head.get("do") in TRUSTED
        try:
            reply, content = answer(executor, head, body)
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError, struct.error) as error:
            if trusted:
                traceback.print_exc()
                frames.send(channel, {"broken": f"{type(error).__name__}: {error}"})
                return 1
            # The bindings have not been given what they take: a number that is no enumerator, a size out of range.
            frames.send(channel, {"refused": f"an operation that cannot be: {error}"})
            continue
        except _Refused as refused:
            frames.send(channel, {"refused": str(refused)})
            continue
        except CudaError as error:
            # The context is lost with a fault in device code, and so is this process.
            told = KERNEL_FAULTS.get(error.code)
            frames.send(channel, {"fault": told, "what": str(error)} if told else {"machine": str(error)})
            return 1
        frames.send(channel, reply, content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
