"""Runs a Triton candidate's launcher where there is no GPU, and tells what it would launch.

Started by triton_host.py in a sandbox. The candidate's kernels are compiled by the real Triton to machine code for the
target; a launch is written down instead of made. What this program says is a proposal of device work and nothing more:
the candidate lives in the same process and can say whatever this program can.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from kernels.harness import tape, triton_child
from kernels.harness.triton_child import Channel, Fault

# Numbers of cudaDeviceAttr and CUfunction_attribute.
_THREADS_A_BLOCK, _WARP, _REGISTERS, _CLOCK, _PROCESSORS = 1, 10, 12, 13, 16
_MEMORY_CLOCK, _BUS_WIDTH, _MAJOR, _MINOR, _SHARED_OPT_IN = 36, 37, 75, 76, 97
_SET_SHARED, _SET_WIDE_CLUSTER = 8, 14
_SHARED_BY_DEFAULT = 48 << 10  # bytes a block gets without being asked for more
_PORTABLE_CLUSTER = 8

_TENSOR_MAP, _L2_PROMOTION_128B = "nvTmaDesc", 2

_CODES = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I"}
_CODES |= {"u64": "Q", "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d"}


class Recording:
    """What one call of the launcher would do, and where its scratch lies."""

    def __init__(self, stream: int, heap: tuple[int, int], nonce: bytes) -> None:
        self.stream = stream
        self._heap = heap
        self._nonce = nonce
        self._tensor_maps: dict[tape.TensorMapRequest, int] = {}
        self._used = 0
        self.ops: list[Any] = []
        self.modules: dict[str, bytes] = {}
        self._attributes: set[tuple[str, str, int]] = set()

    def allocate(self, size: int, align: int) -> int:
        """Device memory of this call; its content is undefined. Raises Fault when the heap is spent."""
        address, room = self._heap
        begin = -(-(address + self._used) // max(align, 256)) * max(align, 256)
        if begin + size > address + room:
            raise Fault("launch_failed", f"needs {size} bytes of global scratch; {room - self._used} are left")
        self._used = begin + size - address
        return begin

    def zero(self, address: int, size: int) -> None:
        self._add(tape.Memset(dst=address, value=0, width=1, count=size))

    def tensor_map(self, request: tape.TensorMapRequest) -> bytes:
        """What stands for its descriptor in a kernel's parameters."""
        index = self._tensor_maps.setdefault(request, len(self._tensor_maps))
        if index >= tape.MAX_TENSOR_MAPS:
            raise Fault("launch_failed", f"more than {tape.MAX_TENSOR_MAPS} descriptors in one call")
        return tape.placeholder(self._nonce, index)

    def set_attribute(self, module: str, kernel: str, attribute: int, value: int) -> None:
        if (module, kernel, attribute) not in self._attributes:
            self._attributes.add((module, kernel, attribute))
            self._add(tape.SetAttribute(module=module, kernel=kernel, attribute=attribute, value=value))

    def launch(self, launch: tape.Launch, cubin: bytes) -> None:
        self.modules[launch.module] = cubin
        self._add(launch)

    def _add(self, op: Any) -> None:
        if len(self.ops) >= tape.MAX_OPS:
            raise Fault("launch_failed", f"more than {tape.MAX_OPS} launches in one call")
        self.ops.append(op)

    def finished(self) -> tape.Tape:
        first = [op for op in self.ops if isinstance(op, tape.SetAttribute)]
        rest = [op for op in self.ops if not isinstance(op, tape.SetAttribute)]
        # In powers of two: scratch that differs from shape to shape is not to look like a leak.
        heap_bytes = min(1 << (self._used - 1).bit_length(), self._heap[1]) if self._used else 0
        return tape.Tape((*first, *rest), tuple(self._tensor_maps), heap_bytes, self._nonce)


class Driver:
    """What Triton takes for the GPU's driver: the target's numbers, and a launcher that writes down."""

    def __init__(self, attributes: dict[int, int]) -> None:
        self.attributes = attributes
        self.recording = Recording(0, (0, 0), bytes(tape.NONCE_BYTES))
        self.utils = self
        self.launcher_cls = self._launcher

    def _launcher(self, source: Any, metadata: Any) -> Launcher:
        return Launcher(self, source, metadata)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return self.recording.stream

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self.attributes[_MAJOR], self.attributes[_MINOR]

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.attributes[_SHARED_OPT_IN],
            "max_num_regs": self.attributes[_REGISTERS],
            "multiprocessor_count": self.attributes[_PROCESSORS],
            "warpSize": self.attributes[_WARP],
            "sm_clock_rate": self.attributes[_CLOCK],
            "mem_clock_rate": self.attributes[_MEMORY_CLOCK],
            "mem_bus_width": self.attributes[_BUS_WIDTH],
        }

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[bytes, tuple[str, bytes], int, int, int]:
        """Module, function, registers, spills and threads a block; the function is the kernel's name and its code."""
        return cubin, (name, cubin), 0, 0, self.attributes[_THREADS_A_BLOCK]

    def get_benchmarker(self) -> NoReturn:
        raise Fault("not_loaded", triton_child.AUTOTUNE)

    def get_empty_cache_for_benchmark(self) -> NoReturn:
        raise Fault("not_loaded", triton_child.AUTOTUNE)

    def get_active_torch_device(self) -> str:
        return "cuda:0"

    def get_device_interface(self) -> NoReturn:
        raise Fault("not_loaded", "asks for torch.cuda, and torch is not there; the device's numbers are in the task")


class Launcher:
    """One compiled kernel; called like Triton's own launcher."""

    def __init__(self, driver: Driver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._metadata = metadata
        given = list(_flat(source.signature.values()))
        described = iter(getattr(metadata, "tensordesc_meta", None) or [])
        # What the compiler says of each descriptor; None for one that it takes apart.
        self._descriptors = [next(described, None) if kind.startswith("tensordesc") else None for kind in given]
        self._types = list(_flat(map(_taken_apart, given, self._descriptors)))
        if metadata.profile_scratch_size:
            raise Fault("not_loaded", "compiled with Triton's profiler in it; no instrumentation is accepted")

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: tuple[str, bytes], packed: object, *rest: Any
    ) -> None:
        metadata, recording = self._metadata, self._driver.recording
        name, cubin = function
        grid = tuple(_whole(size, "grid") for size in (x, y, z))
        if min(grid) < 0:
            raise Fault("launch_failed", f"{name} launched with a grid of {list(grid)}; no size can be negative")
        if 0 in grid:  # as with Triton's own launcher nothing is launched
            return
        ctas = metadata.num_ctas
        scratch = 0
        if metadata.global_scratch_size:
            size = grid[0] * grid[1] * grid[2] * ctas * metadata.global_scratch_size
            scratch = recording.allocate(size, metadata.global_scratch_align)
        module = hashlib.sha256(cubin).hexdigest()
        if metadata.shared > _SHARED_BY_DEFAULT:
            recording.set_attribute(module, name, _SET_SHARED, metadata.shared)
        if ctas > _PORTABLE_CLUSTER:
            recording.set_attribute(module, name, _SET_WIDE_CLUSTER, 1)
        launch = tape.Launch(
            module=module,
            kernel=name,
            grid=(grid[0] * ctas, grid[1], grid[2]),
            block=(32 * metadata.num_warps, 1, 1),
            shared=metadata.shared,
            params=packed_parameters([*self._types, "*i8", "*i8"], [*self._values(rest[3:]), scratch, 0]),
            cluster=(ctas, 1, 1) if ctas > 1 else None,
            cooperative=bool(metadata.launch_cooperative_grid),
            programmatic=bool(metadata.launch_pdl),
        )
        recording.launch(launch, cubin)

    def _values(self, given: Any) -> list[Any]:
        values: list[Any] = []
        for value, described in zip(_flat_values(given), self._descriptors, strict=True):
            if type(value).__name__ != "TensorDescriptor":
                values.append(value)
            elif described is None:
                sizes = [*value.shape, *value.strides]
                values += [value.base, *sizes, value.padding == "nan", *sizes]
            else:
                request, shape = _request(value, described)
                values += [self._driver.recording.tensor_map(request), *shape, *value.strides]
        return values


def _taken_apart(kind: str, described: dict[str, Any] | None) -> list[str]:
    """The parameters that a kernel takes for one argument, as make_launcher of Triton's own driver has them."""
    if not kind.startswith("tensordesc"):
        return [kind]
    dtype, _, block = kind.removeprefix("tensordesc<").partition("[")
    rank = block.partition("]")[0].count(",") + 1
    sizes = ["i32"] * rank + ["i64"] * rank
    return [_TENSOR_MAP, *sizes] if described is not None else [f"*{dtype}", *["i64"] * (2 * rank), "i1", *sizes]


def _request(value: Any, described: dict[str, Any]) -> tuple[tape.TensorMapRequest, list[int]]:
    """The descriptor that the driver is asked for, as fill_tma_descriptor of Triton's driver does, and the shape."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    shape = [_whole(size, "shape of a descriptor") for size in value.shape]
    strides = [_whole(stride, "stride of a descriptor") for stride in value.strides]
    if described["fp4_padded"]:
        shape[-1] *= 2
    request = tape.TensorMapRequest(
        dtype=TMA_DTYPE_DEVICE_TO_HOST[described["elem_type"]],
        address=value.base.data_ptr(),
        dims=tuple(reversed(shape)),
        strides=tuple(described["elem_size"] * stride for stride in reversed(strides[:-1])),
        box=tuple(reversed(described["block_size"])),
        element_strides=(1,) * len(shape),
        swizzle=described["swizzle"],
        l2=_L2_PROMOTION_128B,
        oob=int(value.padding == "nan"),
    )
    return request, shape


def packed_parameters(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """A kernel's parameters but for constants, without gaps: where each belongs, the gate reads in the cubin."""
    if len(types) != len(values):
        raise Fault("launch_failed", f"{len(values)} arguments for a kernel of {len(types)}")
    buffer = bytearray()
    for kind, value in zip(types, values, strict=True):
        if kind == "constexpr":
            continue
        buffer += _raw(kind, value)
    return bytes(buffer)


def _raw(kind: str, value: Any) -> bytes:
    if kind == _TENSOR_MAP:
        return bytes(value)
    try:
        if kind.startswith("*"):
            address = 0 if value is None else value if isinstance(value, int) else value.data_ptr()
            return struct.pack("<Q", address)
        if kind == "bf16":  # cut, as Triton's own launcher does
            return struct.pack("<f", value)[2:]
        return struct.pack(f"<{_CODES[kind]}", value)
    except (struct.error, OverflowError, TypeError, AttributeError, KeyError):
        raise Fault("launch_failed", f"{value!r:.60} cannot be passed to a kernel as {kind}") from None


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int):
        raise Fault("launch_failed", f"{what}: {value!r:.60} given; whole numbers are needed")
    return value


def _flat(types: Any) -> Iterator[str]:
    for kind in types:
        if isinstance(kind, tuple | list):
            yield from _flat(kind)
        else:
            yield kind


def _flat_values(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat_values(value)
        else:
            yield value


class Program:
    """Answers the gate: `load` once, then `record` call by call."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._entry: Any = None
        self._sent: set[str] = set()
        self._nonce = bytes(tape.NONCE_BYTES)

    def handle(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if head["do"] == "load":
            return self._load(head)
        return self._record(head)

    def _load(self, head: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        import triton

        self._nonce = bytes.fromhex(head["nonce"])
        self._driver = Driver({int(number): value for number, value in head["attributes"].items()})
        triton.runtime.driver.set_active(self._driver)
        self._tell_of_compiling(triton.runtime.JITFunction)
        self._entry = triton_child.load(head["source"], head["entry"])
        return {"said": f"Triton {triton.__version__}"}, b""

    def _tell_of_compiling(self, kernel: Any) -> None:
        """The gate gives a launcher seconds, and Triton's compiler minutes."""
        compile_it = kernel._do_compile

        def told(*arguments: Any, **options: Any) -> Any:
            self._channel.send({"compiling": True})
            try:
                return compile_it(*arguments, **options)
            finally:
                self._channel.send({"compiling": False})

        kernel._do_compile = told

    def _record(self, head: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        recording = Recording(head["stream"], (head["heap"][0], head["heap"][1]), self._nonce)
        self._driver.recording = recording
        arguments = triton_child.arguments(head["arguments"], 0, recording.zero)
        with triton_child.faults("crashed", "in the launcher"):
            self._entry(*arguments)
        try:
            told = recording.finished().to_bytes()
        except ValueError as error:
            raise Fault("launch_failed", f"cannot be launched: {error}") from None
        fresh = {digest: cubin for digest, cubin in recording.modules.items() if digest not in self._sent}
        self._sent |= fresh.keys()
        sizes = [len(told), *(len(cubin) for cubin in fresh.values())]
        return {"sizes": sizes}, told + b"".join(fresh.values())


def main() -> None:
    """`FD` of the channel, then the confinement as triton_host.py gives it."""
    channel = Channel(int(sys.argv[1]))
    settings, _ = channel.receive()
    triton_child.confine(settings, may_start=True)
    triton_child.serve(channel, Program(channel).handle)
