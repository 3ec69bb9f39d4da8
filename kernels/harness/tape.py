"""What a candidate's host code would do on the stream, as bytes that two sides can agree on, and the facts it sees.

The recorder (untrusted) writes a tape, the gate and the executor read it, so reading checks every length and count.
Little-endian throughout; tape.h says the same in C++.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

Dim3 = tuple[int, int, int]

MAX_OPS = 4096  # operations of one call
MAX_TENSOR_MAPS = 1024
MAX_BYTES = 4 * 2**20  # of one tape
MAX_PARAMS = 32764  # bytes of one launch's parameters
MAX_UPLOAD = 64 * 1024  # bytes of host data in one tape
MAX_NAME = 16 * 1024  # bytes of a mangled name
MAX_RANK = 5  # dimensions of a tensor map
PLACEHOLDER_BYTES = 128  # what stands for a tensor map's descriptor: the nonce, u32 index, zeros
NONCE_BYTES = 16

_VERSION = 1
_TAPE_MAGIC, _FACTS_MAGIC = b"FERRETTP", b"FERRETFA"
_HEAD = struct.Struct("<8sIIQQ16s")  # magic, version, records, bytes of the records, heap bytes, nonce
_RECORD = struct.Struct("<II")  # kind, bytes with this head, a multiple of 8
_LAUNCH = struct.Struct("<14I")  # grid, block, shared, cluster (0 for none), flags, bytes of module, kernel, parameters
_ATTRIBUTE = struct.Struct("<iiII")  # attribute, value, bytes of module, kernel
_MEMSET = struct.Struct("<QQII")  # destination, count, value, width
_COPY = struct.Struct("<QQQ")  # destination, source, bytes
_UPLOAD = struct.Struct("<QQ")  # destination, bytes
_TENSOR_MAP = struct.Struct("<6IQ5Q4Q5I5I")  # dtype, rank, interleave, swizzle, l2, oob, address, dims, strides, boxes
_FACTS = struct.Struct("<8sII5Q6I")  # magic, version, bytes, stream, arena, its bytes, heap, its bytes, the counts
_KERNEL = struct.Struct("<12I")
_VARIABLE = struct.Struct("<QQII")
_COOPERATIVE, _PROGRAMMATIC = 1, 2

# What may be set of a function, CUfunction_attribute -> the least and the most. No block has a MiB of shared memory.
_ATTRIBUTE_VALUES = {8: (0, 2**20), 9: (-1, 100), 14: (0, 1)}
# The last enumerator of each, as of CUDA 13.0; all of them count from 0.
_LAST_MODES = {"dtype": 15, "interleave": 2, "swizzle": 6, "l2": 3, "oob": 1}
_MAP_ALIGNMENT = 16  # of a tensor's address and of its strides
_MAX_DIM, _MAX_STRIDE, _MAX_BOX, _MAX_ELEMENT_STRIDE = 2**32, 2**40 - 1, 256, 8

_GRID_LIMIT: Dim3 = (2**31 - 1, 65535, 65535)
_THREADS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; `params` is the packed parameter buffer, every parameter at its offset."""

    module: str
    kernel: str  # as mangled
    grid: Dim3
    block: Dim3
    shared: int  # dynamic bytes
    params: bytes
    cluster: Dim3 | None = None
    cooperative: bool = False
    programmatic: bool = False  # programmatic stream serialization: may begin before the launch ahead of it has ended


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """A CUfunction_attribute: 8 most dynamic shared memory, 9 carve-out, 14 non-portable cluster sizes."""

    module: str
    kernel: str
    attribute: int
    value: int


@dataclass(frozen=True, slots=True)
class Memset:
    """`count` elements of `width` bytes (1, 2 or 4) at `dst` become `value`."""

    dst: int
    value: int
    width: int
    count: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Device to device."""

    dst: int
    src: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Host bytes to the device: symbols and small tables."""

    dst: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TensorMapRequest:
    """The arguments of cuTensorMapEncodeTiled: enumerators as numbers, sizes per dimension, innermost first."""

    dtype: int
    address: int
    dims: tuple[int, ...]  # elements, [rank]
    strides: tuple[int, ...]  # bytes, [rank - 1]: the innermost one is the element itself
    box: tuple[int, ...]  # elements, [rank]
    element_strides: tuple[int, ...]  # [rank]
    interleave: int = 0
    swizzle: int = 0
    l2: int = 0
    oob: int = 0

    @property
    def rank(self) -> int:
        return len(self.dims)


Op = Launch | SetAttribute | Memset | Copy | Upload


@dataclass(frozen=True, slots=True)
class Tape:
    """Everything one call of an entry puts on its stream, in order."""

    ops: tuple[Op, ...]
    tensor_maps: tuple[TensorMapRequest, ...] = ()
    heap_bytes: int = 0  # the first that many bytes of the heap are what the call may use
    nonce: bytes = bytes(NONCE_BYTES)

    def to_bytes(self) -> bytes:
        """Raises ValueError for a tape that from_bytes would refuse."""
        records = [_record(_TENSOR_MAP_KIND, _pack_tensor_map(request)) for request in self.tensor_maps]
        records += [_record(_KINDS[type(op)], _pack(op)) for op in self.ops]
        body = b"".join(records)
        try:
            head = _HEAD.pack(_TAPE_MAGIC, _VERSION, len(records), len(body), self.heap_bytes, self.nonce)
        except struct.error as error:
            raise ValueError(f"tape: {error}") from None
        whole = head + body
        _read(whole)
        return whole

    @staticmethod
    def from_bytes(data: bytes) -> Tape:
        """Parse what an untrusted process wrote; raises ValueError, and nothing else, for anything malformed."""
        return _read(data)

    def placeholder(self, index: int) -> bytes:
        """The 128 bytes that stand in parameters and uploads for the descriptor of `tensor_maps[index]`."""
        return placeholder(self.nonce, index)

    def placeholders(self, data: bytes) -> list[tuple[int, int]]:
        """(offset, index into tensor_maps) of every placeholder in some parameters or uploaded bytes.

        Raises ValueError for an index that has no request behind it, and for one that is cut short.
        """
        if not self.tensor_maps or not any(self.nonce):
            return []
        found, at = [], data.find(self.nonce)
        while at >= 0:
            whole = data[at : at + PLACEHOLDER_BYTES]
            index = int.from_bytes(whole[NONCE_BYTES : NONCE_BYTES + 4], "little")
            if index >= len(self.tensor_maps) or whole != self.placeholder(index):
                raise ValueError(f"the tensor map at byte {at} was changed after it had been encoded")
            found.append((at, index))
            at = data.find(self.nonce, at + PLACEHOLDER_BYTES)
        return found


def placeholder(nonce: bytes, index: int) -> bytes:
    """128 bytes: the nonce, the index as u32, zeros."""
    return (nonce + struct.pack("<I", index)).ljust(PLACEHOLDER_BYTES, b"\0")


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What the recorder has to know of one kernel, from its cubin; sizes in bytes."""

    params: tuple[tuple[int, int], ...]  # (offset, size) of each parameter
    param_bytes: int
    registers: int = 0
    static_shared: int = 0
    max_threads: int = _THREADS_LIMIT  # a block: 1024, or less by __launch_bounds__ or registers
    local: int = 0  # a thread
    constant: int = 0
    cluster: Dim3 | None = None  # by __cluster_dims__
    binary_version: int = 0  # 90 for sm_90


@dataclass(frozen=True, slots=True)
class Facts:
    """What a recorder tells its candidate about the device; addresses are device addresses, sizes bytes."""

    module: str
    kernels: Mapping[str, KernelInfo]
    stream: int  # the handle that an entry is given; never 0, 1 or 2, which are CUDA's own
    arena: int  # what pointer slots are relative to
    heap: tuple[int, int]  # (address, bytes): cudaMalloc takes from here
    variables: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> (address, bytes)
    attributes: Mapping[int, int] = field(default_factory=dict)  # cudaDeviceAttr -> value
    properties: bytes = b""  # a cudaDeviceProp as the runtime fills it
    arena_bytes: int = 2**38  # from `arena` on: what tells the device's addresses from the host's

    def to_bytes(self) -> bytes:
        """The form that the recorder's runtime library reads. Raises ValueError for what does not fit."""
        module = self.module.encode()
        try:
            parts = [_padded(module)]
            parts += [_padded(b"".join(struct.pack("<ii", *pair) for pair in sorted(self.attributes.items())))]
            parts += [_padded(self.properties)]
            parts += [_pack_kernel(name, info) for name, info in self.kernels.items()]
            for name, (address, size) in self.variables.items():
                encoded = name.encode()
                parts.append(_VARIABLE.pack(address, size, len(encoded), 0) + _padded(encoded))
            body = b"".join(parts)
            counts = len(module), len(self.kernels), len(self.variables), len(self.attributes), len(self.properties)
            places = self.stream, self.arena, self.arena_bytes, *self.heap
            head = _FACTS.pack(_FACTS_MAGIC, _VERSION, _FACTS.size + len(body), *places, *counts, 0)
        except struct.error as error:
            raise ValueError(f"facts of {self.module}: {error}") from None
        return head + body


# ---------------------------------------------------------------- writing


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _record(kind: int, payload: bytes) -> bytes:
    payload = _padded(payload)
    return _RECORD.pack(kind, _RECORD.size + len(payload)) + payload


def _pack(op: Op) -> bytes:
    try:
        if isinstance(op, Launch):
            module, kernel = op.module.encode(), op.kernel.encode()
            flags = (_COOPERATIVE if op.cooperative else 0) | (_PROGRAMMATIC if op.programmatic else 0)
            shape = *op.grid, *op.block, op.shared, *(op.cluster or (0, 0, 0))
            return _LAUNCH.pack(*shape, flags, len(module), len(kernel), len(op.params)) + module + kernel + op.params
        if isinstance(op, SetAttribute):
            module, kernel = op.module.encode(), op.kernel.encode()
            return _ATTRIBUTE.pack(op.attribute, op.value, len(module), len(kernel)) + module + kernel
        if isinstance(op, Memset):
            return _MEMSET.pack(op.dst, op.count, op.value, op.width)
        if isinstance(op, Copy):
            return _COPY.pack(op.dst, op.src, op.nbytes)
        return _UPLOAD.pack(op.dst, len(op.data)) + op.data
    except struct.error as error:
        raise ValueError(f"{type(op).__name__}: {error}") from None


def _pack_tensor_map(request: TensorMapRequest) -> bytes:
    def filled(values: tuple[int, ...], length: int) -> tuple[int, ...]:
        return values + (0,) * (length - len(values))

    rank = request.rank
    if (len(request.strides), len(request.box), len(request.element_strides)) != (rank - 1, rank, rank):
        raise ValueError("TensorMapRequest: needs rank - 1 strides, rank boxes and rank element strides")
    sizes = *filled(request.dims, 5), *filled(request.strides, 4), *filled(request.box, 5)
    modes = request.dtype, rank, request.interleave, request.swizzle, request.l2, request.oob
    try:
        return _TENSOR_MAP.pack(*modes, request.address, *sizes, *filled(request.element_strides, 5))
    except struct.error as error:
        raise ValueError(f"TensorMapRequest: {error}") from None


def _pack_kernel(name: str, info: KernelInfo) -> bytes:
    encoded = name.encode()
    sizes = info.param_bytes, info.registers, info.static_shared, info.max_threads, info.local, info.constant
    shape = *(info.cluster or (0, 0, 0)), info.binary_version
    params = b"".join(struct.pack("<II", offset, size) for offset, size in info.params)
    return _KERNEL.pack(len(encoded), len(info.params), *sizes, *shape) + _padded(encoded) + params


# ---------------------------------------------------------------- reading


def _read(data: bytes) -> Tape:
    data = bytes(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"tape: {len(data)} bytes; at most {MAX_BYTES} are accepted")
    if len(data) < _HEAD.size:
        raise ValueError(f"tape: {len(data)} bytes are less than its head of {_HEAD.size}")
    magic, version, records, body, heap_bytes, nonce = _HEAD.unpack_from(data)
    if magic != _TAPE_MAGIC or version != _VERSION:
        raise ValueError("tape: does not begin like one of this version")
    if body != len(data) - _HEAD.size:
        raise ValueError(f"tape: says {body} bytes of records and holds {len(data) - _HEAD.size}")
    if heap_bytes >= 2**63:
        raise ValueError(f"tape: {heap_bytes} bytes of heap are out of range")
    ops: list[Op] = []
    tensor_maps: list[TensorMapRequest] = []
    for kind, payload in _records(data, records):
        if kind == _TENSOR_MAP_KIND:
            tensor_maps.append(_tensor_map(payload))
        elif kind in _READERS:
            ops.append(_READERS[kind](payload))
        else:
            raise ValueError(f"tape: no operation has the number {kind}")
    if len(ops) > MAX_OPS or len(tensor_maps) > MAX_TENSOR_MAPS:
        raise ValueError(f"tape: over {MAX_OPS} operations or {MAX_TENSOR_MAPS} tensor maps")
    uploaded = sum(len(op.data) for op in ops if isinstance(op, Upload))
    if uploaded > MAX_UPLOAD:
        raise ValueError(f"tape: uploads {uploaded} bytes; at most {MAX_UPLOAD} are accepted")
    tape = Tape(tuple(ops), tuple(tensor_maps), heap_bytes, nonce)
    for op in ops:
        if isinstance(op, Launch | Upload):
            tape.placeholders(op.params if isinstance(op, Launch) else op.data)
    return tape


def _records(data: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    if count > MAX_OPS + MAX_TENSOR_MAPS:
        raise ValueError(f"tape: {count} records; at most {MAX_OPS + MAX_TENSOR_MAPS} are accepted")
    at = _HEAD.size
    for _ in range(count):
        if len(data) - at < _RECORD.size:
            raise ValueError(f"tape: ends before all of its {count} records")
        kind, length = _RECORD.unpack_from(data, at)
        if length < _RECORD.size or length % 8 or length > len(data) - at:
            raise ValueError(f"tape: a record of {length} bytes at byte {at} of {len(data)}")
        yield kind, data[at + _RECORD.size : at + length]
        at += length
    if at != len(data):
        raise ValueError(f"tape: {len(data) - at} bytes after its last record")


def _unpack(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < form.size:
        raise ValueError(f"tape: an operation of {len(payload)} bytes; it needs {form.size}")
    return form.unpack_from(payload)


def _parts(payload: bytes, begin: int, *lengths: int) -> Iterator[bytes]:
    if len(payload) != begin + sum(lengths) + -(begin + sum(lengths)) % 8:
        raise ValueError(f"tape: an operation of {len(payload)} bytes says that it holds {begin + sum(lengths)}")
    for length in lengths:
        yield payload[begin : begin + length]
        begin += length


def _name(raw: bytes) -> str:
    if not 0 < len(raw) <= MAX_NAME:
        raise ValueError(f"tape: a name of {len(raw)} bytes; 1 to {MAX_NAME} are accepted")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError("tape: a name that is not UTF-8") from None


def _launch(payload: bytes) -> Launch:
    values = _unpack(_LAUNCH, payload)
    flags, module_bytes, kernel_bytes, param_bytes = values[10:]
    module, kernel, params = _parts(payload, _LAUNCH.size, module_bytes, kernel_bytes, param_bytes)
    grid, block, cluster = (values[0], values[1], values[2]), (values[3], values[4], values[5]), values[7:10]
    name = _name(kernel)
    if not all(0 < n <= most for n, most in zip(grid, _GRID_LIMIT, strict=True)):
        raise ValueError(f"tape: {name}: a grid of {grid}")
    if not all(block) or block[0] * block[1] * block[2] > _THREADS_LIMIT:
        raise ValueError(f"tape: {name}: a block of {block}; 1 to {_THREADS_LIMIT} threads are accepted")
    if any(cluster) and (not all(cluster) or cluster[0] * cluster[1] * cluster[2] > 16):
        raise ValueError(f"tape: {name}: a cluster of {cluster}; 1 to 16 blocks are accepted")
    if values[6] >= 2**31 or param_bytes > MAX_PARAMS or flags & ~(_COOPERATIVE | _PROGRAMMATIC):
        raise ValueError(f"tape: {name}: shared memory, parameters or flags out of range")
    return Launch(
        _name(module), name, grid, block, values[6], params,
        cluster=(cluster[0], cluster[1], cluster[2]) if any(cluster) else None,
        cooperative=bool(flags & _COOPERATIVE),
        programmatic=bool(flags & _PROGRAMMATIC),
    )  # fmt: skip


def _set_attribute(payload: bytes) -> SetAttribute:
    attribute, value, module_bytes, kernel_bytes = _unpack(_ATTRIBUTE, payload)
    module, kernel = _parts(payload, _ATTRIBUTE.size, module_bytes, kernel_bytes)
    if attribute not in _ATTRIBUTE_VALUES:
        accepted = ", ".join(map(str, _ATTRIBUTE_VALUES))
        raise ValueError(f"tape: function attribute {attribute}; {accepted} are accepted")
    least, most = _ATTRIBUTE_VALUES[attribute]
    if not least <= value <= most:
        raise ValueError(f"tape: function attribute {attribute} of {value}; {least} to {most} are accepted")
    return SetAttribute(_name(module), _name(kernel), attribute, value)


def _memset(payload: bytes) -> Memset:
    dst, count, value, width = _unpack(_MEMSET, payload)
    _check_room(dst, count * width)
    if width not in (1, 2, 4) or value >> (8 * width):
        raise ValueError(f"tape: a memset of value {value} and width {width}")
    return Memset(dst, value, width, count)


def _copy(payload: bytes) -> Copy:
    dst, src, nbytes = _unpack(_COPY, payload)
    _check_room(dst, nbytes)
    _check_room(src, nbytes)
    return Copy(dst, src, nbytes)


def _upload(payload: bytes) -> Upload:
    dst, nbytes = _unpack(_UPLOAD, payload)
    (data,) = _parts(payload, _UPLOAD.size, nbytes)
    _check_room(dst, nbytes)
    return Upload(dst, data)


def _check_room(address: int, nbytes: int) -> None:
    if address + nbytes > 2**64:
        raise ValueError(f"tape: {nbytes} bytes at {address:#x} are past the end of every memory")


def _tensor_map(payload: bytes) -> TensorMapRequest:
    values = _unpack(_TENSOR_MAP, payload)
    dtype, rank, interleave, swizzle, l2, oob, address = values[:7]
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"tape: a tensor map of rank {rank}; 1 to {MAX_RANK} are accepted")
    request = TensorMapRequest(
        dtype, address, values[7 : 7 + rank], values[12 : 12 + rank - 1], values[16 : 16 + rank],
        values[21 : 21 + rank], interleave, swizzle, l2, oob,
    )  # fmt: skip
    _check_tensor_map(request)
    return request


def _check_tensor_map(request: TensorMapRequest) -> None:
    """The bounds of cuTensorMapEncodeTiled, as cudart.cpp has them; whether they fit together, the driver says."""
    for mode, last in _LAST_MODES.items():
        if (number := getattr(request, mode)) > last:
            raise ValueError(f"tape: a tensor map with {mode} {number}; 0 to {last} are accepted")
    for what, sizes, most in (
        ("dimensions", request.dims, _MAX_DIM),
        ("boxes", request.box, _MAX_BOX),
        ("element strides", request.element_strides, _MAX_ELEMENT_STRIDE),
    ):
        if not all(1 <= size <= most for size in sizes):
            raise ValueError(f"tape: a tensor map with {what} {list(sizes)}; 1 to {most} are accepted")
    if request.address % _MAP_ALIGNMENT:
        raise ValueError(f"tape: a tensor map at {request.address:#x}, which is no multiple of {_MAP_ALIGNMENT}")
    if any(stride % _MAP_ALIGNMENT or stride > _MAX_STRIDE for stride in request.strides):
        accepted = f"multiples of {_MAP_ALIGNMENT} up to {_MAX_STRIDE}"
        raise ValueError(f"tape: a tensor map with strides {list(request.strides)}; {accepted} are accepted")


_KINDS = {Launch: 1, SetAttribute: 2, Memset: 3, Copy: 4, Upload: 5}
_READERS: dict[int, Callable[[bytes], Op]] = {1: _launch, 2: _set_attribute, 3: _memset, 4: _copy, 5: _upload}
_TENSOR_MAP_KIND = 6
