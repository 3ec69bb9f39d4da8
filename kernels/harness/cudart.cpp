// The CUDA runtime that a candidate's host code is loaded against where no GPU is. Nothing here reaches a device: each
// call is checked as the real runtime would, answered from the facts, and written down on the tape.
//
// It holds no secret and guards nothing: a candidate may write the tape itself. It is honest to honest callers, and the
// executor does what the tape says, whoever wrote it.
#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tape.h"

using namespace ferret;

// ---------------------------------------------------------------- CUDA's own types, as its headers lay them out

using cudaError_t = int;
using cudaStream_t = void*;

struct dim3 {
    unsigned x, y, z;
};

struct LaunchAttribute {
    int id, pad;
    union {
        char room[64];
        int flag;
        unsigned cluster[3];
    } value;
};

struct LaunchConfig {
    dim3 grid, block;
    std::size_t shared;
    cudaStream_t stream;
    const LaunchAttribute* attributes;
    unsigned count;
};

struct FuncAttributes {
    std::size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared, carveout;
    int cluster_must_be_set, cluster[3], scheduling, non_portable, reserved[16];
};

struct PointerAttributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

namespace {

enum Error : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kMemoryAllocation = 2,
    kInvalidConfiguration = 9,
    kInvalidSymbol = 13,
    kInvalidDevicePointer = 17,
    kInvalidDeviceFunction = 98,
    kInvalidDevice = 101,
    kSymbolNotFound = 500,
    kLaunchOutOfResources = 701,
    kCooperativeLaunchTooLarge = 720,
    kNotSupported = 801,
    kInvalidClusterSize = 912,
};

enum DeviceAttribute : int {
    kSharedPerBlock = 8,
    kRegistersPerBlock = 12,
    kProcessors = 16,
    kThreadsPerProcessor = 39,
    kSharedPerProcessor = 81,
    kRegistersPerProcessor = 82,
    kSharedPerBlockOptIn = 97,
    kBlocksPerProcessor = 106,
    kReservedShared = 111,
};

enum FunctionAttribute : int { kMaxDynamicShared = 8, kCarveout = 9, kNonPortableCluster = 14 };

enum Direction : int { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kByAddress };

constexpr int kRuntimeVersion = 13000;
constexpr std::uint64_t kHeapAlignment = 256;
constexpr std::size_t kRememberedMaps = 8192;  // a descriptor may be kept by its maker for that many later ones
constexpr int kExitStatus = 96;

struct Kernel {
    std::string name;
    KernelRecord info;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> params;
    int values[3];  // max dynamic shared, carve-out, non-portable cluster: set once, they hold for every later call
    bool set[3];
};

struct Variable {
    std::uint64_t address, bytes;
};

struct Block {
    std::uint64_t begin, end;
};

// Made once and never taken down: the object that uses it is unloaded at an unknown time, if ever.
struct State {
    Recording* shared = nullptr;
    FactsHead facts{};
    std::string module;
    std::unordered_map<int, int> attributes;
    std::vector<unsigned char> properties;
    std::unordered_map<std::string_view, Kernel*> by_name;
    std::vector<Kernel*> kernels;
    std::unordered_map<const void*, Kernel*> by_address;
    std::unordered_map<std::string, Variable> variables;
    std::unordered_map<const void*, std::string> symbols;
    std::vector<Block> blocks;  // of the heap, in order

    // The tape of this call.
    std::size_t used = 0;
    std::uint32_t records = 0, ops = 0;
    std::uint64_t uploaded = 0, heap_high = 0;
    std::vector<std::uint32_t> maps;  // index on the tape -> number

    // Descriptors, by the number that their placeholder carries until it is put on a tape.
    std::vector<TensorMapRecord> requests;
    std::uint32_t encoded = 0;

    int last_error = 0;
    struct Configuration {
        dim3 grid, block;
        std::size_t shared;
        cudaStream_t stream;
    };
    std::vector<Configuration> pushed;
};

State* state = nullptr;

State& now() {
    if (state == nullptr) state = new State;
    return *state;
}

// ---------------------------------------------------------------- refusing and failing

[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(Refusal kind, const char* format, ...) {
    if (Recording* shared = now().shared) {
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(shared->said, kSaidBytes, format, arguments);
        va_end(arguments);
        shared->refused = kind;
    }
    _exit(kExitStatus);
}

cudaError_t failed(cudaError_t error) {
    now().last_error = error;
    return error;
}

__attribute__((format(printf, 2, 3))) cudaError_t launch_failed(cudaError_t error, const char* format, ...) {
    if (Recording* shared = now().shared; shared != nullptr && shared->failed == 0) {
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(shared->why, kSaidBytes, format, arguments);
        va_end(arguments);
        shared->failed = static_cast<std::uint32_t>(error);
    }
    return failed(error);
}

void check_stream(const char* what, cudaStream_t stream) {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    if (handle == now().facts.stream) return;
    const char* which = handle <= 1 ? "the default stream" : handle == 2 ? "the per-thread stream" : "another stream";
    refuse(kWrongStream, "%s on %s; the stream it was given is the one to use", what, which);
}

int attribute(int which, int otherwise) {
    const auto found = now().attributes.find(which);
    return found != now().attributes.end() ? found->second : otherwise;
}

// ---------------------------------------------------------------- writing the tape

std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

unsigned char* tape() { return reinterpret_cast<unsigned char*>(now().shared) + now().shared->tape_at; }

struct Piece {
    const void* data;
    std::size_t bytes;
};

// Room for a record's payload of `bytes`; the pieces fill it.
void record(RecordKind kind, std::initializer_list<Piece> pieces) {
    State& it = now();
    if (it.shared == nullptr) refuse(kRefusedCall, "called CUDA before it was told of a device");
    std::size_t bytes = sizeof(RecordHead);
    for (const Piece& piece : pieces) bytes += piece.bytes;
    bytes = padded(bytes);
    if (kind != kTensorMap && ++it.ops > kMaxOps)
        refuse(kTooMuch, "put more than %zu operations on the stream in one call", kMaxOps);
    if (it.used + bytes > kMaxTapeBytes)
        refuse(kTooMuch, "put operations of more than %zu bytes on the stream in one call", kMaxTapeBytes);
    unsigned char* at = tape() + it.used;
    const RecordHead head{kind, static_cast<std::uint32_t>(bytes)};
    std::memcpy(at, &head, sizeof head);
    std::size_t filled = sizeof head;
    for (const Piece& piece : pieces) {
        if (piece.bytes != 0) std::memcpy(at + filled, piece.data, piece.bytes);
        filled += piece.bytes;
    }
    std::memset(at + filled, 0, bytes - filled);
    it.used += bytes;
    ++it.records;
}

// A descriptor's placeholder carries the number that it was encoded under; on the tape it carries its place there.
void localise(unsigned char* data, std::size_t bytes) {
    State& it = now();
    if (it.encoded == 0) return;
    unsigned char* at = data;
    unsigned char* const end = data + bytes;
    while ((at = static_cast<unsigned char*>(memmem(at, end - at, it.shared->nonce, kNonceBytes))) != nullptr) {
        if (static_cast<std::size_t>(end - at) < kPlaceholderBytes)
            refuse(kRefusedCall, "passed a part of a tensor map");
        std::uint32_t number;
        std::memcpy(&number, at + kNonceBytes, sizeof number);
        if (number >= it.encoded) refuse(kRefusedCall, "changed a tensor map after it had been encoded");
        if (it.encoded - number > kRememberedMaps)
            refuse(kRefusedCall, "used a tensor map after it had encoded %zu later ones", kRememberedMaps);
        const auto found = std::find(it.maps.begin(), it.maps.end(), number);
        const auto place = static_cast<std::uint32_t>(found - it.maps.begin());
        if (found == it.maps.end()) {
            if (it.maps.size() >= kMaxTensorMaps)
                refuse(kTooMuch, "used more than %zu tensor maps in one call", kMaxTensorMaps);
            it.maps.push_back(number);
            record(kTensorMap, {{&it.requests[number % kRememberedMaps], sizeof(TensorMapRecord)}});
        }
        std::memcpy(at + kNonceBytes, &place, sizeof place);
        at += kPlaceholderBytes;
    }
}

void record_attribute(const Kernel& kernel, int which, int value) {
    const State& it = now();
    const AttributeRecord what{which, value, static_cast<std::uint32_t>(it.module.size()),
                               static_cast<std::uint32_t>(kernel.name.size())};
    record(kSetAttribute, {{&what, sizeof what},
                           {it.module.data(), it.module.size()},
                           {kernel.name.data(), kernel.name.size()}});
}

constexpr int kAttributes[3] = {kMaxDynamicShared, kCarveout, kNonPortableCluster};

// ---------------------------------------------------------------- the device's memory

bool in_heap(std::uint64_t address) {
    const FactsHead& facts = now().facts;
    return address >= facts.heap && address - facts.heap < facts.heap_bytes;
}

bool on_device(const void* pointer) {
    const State& it = now();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address >= it.facts.arena && address - it.facts.arena < it.facts.arena_bytes) return true;
    if (in_heap(address)) return true;
    for (const auto& [_, variable] : it.variables)
        if (address >= variable.address && address - variable.address < variable.bytes) return true;
    return false;
}

cudaError_t allocate(void** pointer, std::size_t bytes) {
    State& it = now();
    if (pointer == nullptr) return failed(kInvalidValue);
    *pointer = nullptr;
    if (bytes == 0) return kSuccess;
    if (bytes > it.facts.heap_bytes) return failed(kMemoryAllocation);
    const std::uint64_t wanted = (bytes + kHeapAlignment - 1) / kHeapAlignment * kHeapAlignment;
    std::uint64_t begin = 0;
    auto place = it.blocks.begin();
    for (; place != it.blocks.end() && place->begin - begin < wanted; ++place) begin = place->end;
    if (begin + wanted > it.facts.heap_bytes) return failed(kMemoryAllocation);
    it.blocks.insert(place, {begin, begin + wanted});
    it.heap_high = std::max(it.heap_high, begin + wanted);
    *pointer = reinterpret_cast<void*>(it.facts.heap + begin);
    return kSuccess;
}

cudaError_t release(void* pointer) {
    State& it = now();
    if (pointer == nullptr) return kSuccess;
    const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(pointer) - it.facts.heap;
    for (auto block = it.blocks.begin(); block != it.blocks.end(); ++block) {
        if (block->begin != begin) continue;
        it.blocks.erase(block);
        return kSuccess;
    }
    return failed(kInvalidValue);
}

cudaError_t fill(void* pointer, int value, std::size_t bytes) {
    if (bytes == 0) return kSuccess;
    const auto byte = static_cast<std::uint32_t>(value & 0xff);
    const MemsetRecord what{reinterpret_cast<std::uintptr_t>(pointer), bytes, byte, 1};
    record(kMemset, {{&what, sizeof what}});
    return kSuccess;
}

cudaError_t upload(std::uint64_t dst, const void* src, std::size_t bytes, const char* call) {
    State& it = now();
    if (bytes > kMaxUpload - std::min<std::uint64_t>(it.uploaded, kMaxUpload))
        refuse(kTooMuch, "%s: copies more than %zu bytes from the host to the device in one call", call, kMaxUpload);
    it.uploaded += bytes;
    std::vector<unsigned char> data(bytes);
    std::memcpy(data.data(), src, bytes);
    localise(data.data(), bytes);
    const UploadRecord what{dst, bytes};
    record(kUpload, {{&what, sizeof what}, {data.data(), bytes}});
    return kSuccess;
}

cudaError_t copy(void* dst, const void* src, std::size_t bytes, int direction, const char* call) {
    if (bytes == 0) return kSuccess;
    if (direction < kHostToHost || direction > kByAddress) return failed(kInvalidValue);
    if (direction == kByAddress) {
        const bool to_device = on_device(dst);
        direction = on_device(src) ? (to_device ? kDeviceToDevice : kDeviceToHost)
                                   : (to_device ? kHostToDevice : kHostToHost);
    }
    switch (direction) {
        case kDeviceToHost:
            refuse(kRefusedCall, "called %s from device to host: a kernel's host side sees no data", call);
        case kHostToHost:
            std::memmove(dst, src, bytes);
            return kSuccess;
        case kHostToDevice:
            return upload(reinterpret_cast<std::uintptr_t>(dst), src, bytes, call);
        default: {
            const CopyRecord what{reinterpret_cast<std::uintptr_t>(dst), reinterpret_cast<std::uintptr_t>(src), bytes};
            record(kCopy, {{&what, sizeof what}});
            return kSuccess;
        }
    }
}

cudaError_t copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t width,
                      std::size_t height, int direction, const char* call) {
    if (width > dst_pitch || width > src_pitch) return failed(kInvalidValue);
    if (width == dst_pitch && width == src_pitch) return copy(dst, src, width * height, direction, call);
    for (std::size_t row = 0; row < height; ++row) {
        void* to = static_cast<char*>(dst) + row * dst_pitch;
        if (const auto error = copy(to, static_cast<const char*>(src) + row * src_pitch, width, direction, call))
            return error;
    }
    return kSuccess;
}

cudaError_t fill_rows(void* dst, std::size_t pitch, int value, std::size_t width, std::size_t height) {
    if (width > pitch) return failed(kInvalidValue);
    if (width == pitch) return fill(dst, value, width * height);
    for (std::size_t row = 0; row < height; ++row)
        if (const auto error = fill(static_cast<char*>(dst) + row * pitch, value, width)) return error;
    return kSuccess;
}

const Variable* variable_of(const void* symbol) {
    State& it = now();
    const auto name = it.symbols.find(symbol);
    if (name == it.symbols.end()) return nullptr;
    const auto found = it.variables.find(name->second);
    return found != it.variables.end() ? &found->second : nullptr;
}

cudaError_t copy_to_symbol(const void* symbol, const void* src, std::size_t bytes, std::size_t offset, int direction,
                           const char* call) {
    const Variable* variable = variable_of(symbol);
    if (variable == nullptr) return failed(kInvalidSymbol);
    if (offset > variable->bytes || bytes > variable->bytes - offset) return failed(kInvalidValue);
    if (direction != kHostToDevice && direction != kDeviceToDevice && direction != kByAddress)
        return failed(kInvalidValue);
    return copy(reinterpret_cast<void*>(variable->address + offset), src, bytes, direction, call);
}

// ---------------------------------------------------------------- kernels

Kernel* kernel_of(const void* function) {
    State& it = now();
    const auto found = it.by_address.find(function);
    if (found != it.by_address.end()) return found->second;
    const auto handle = std::find(it.kernels.begin(), it.kernels.end(), function);
    return handle != it.kernels.end() ? *handle : nullptr;
}

std::uint64_t shared_limit(const Kernel& kernel) {
    if (kernel.set[0]) return static_cast<std::uint64_t>(kernel.values[0]);
    const auto whole = static_cast<std::uint64_t>(attribute(kSharedPerBlock, 48 << 10));
    return whole - std::min<std::uint64_t>(whole, kernel.info.static_shared);
}

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

// The documented rule: the scarcest of threads, blocks, registers and shared memory of one multiprocessor.
int blocks_per_processor(const Kernel& kernel, std::uint64_t threads, std::uint64_t dynamic) {
    constexpr std::uint64_t kWarp = 32, kRegisterUnit = 256, kSharedUnit = 128, kPartitions = 4;
    if (threads == 0 || threads > kernel.info.max_threads) return 0;
    const std::uint64_t warps = (threads + kWarp - 1) / kWarp;
    auto blocks = static_cast<std::uint64_t>(attribute(kBlocksPerProcessor, 32));
    blocks = std::min(blocks, static_cast<std::uint64_t>(attribute(kThreadsPerProcessor, 2048)) / kWarp / warps);
    if (kernel.info.registers != 0) {
        const auto registers = static_cast<std::uint64_t>(attribute(kRegistersPerProcessor, 65536));
        const std::uint64_t a_warp = rounded_up(kernel.info.registers * kWarp, kRegisterUnit);
        blocks = std::min(blocks, registers / kPartitions / a_warp * kPartitions / warps);
    }
    const auto reserved = static_cast<std::uint64_t>(attribute(kReservedShared, 1024));
    const std::uint64_t shared = rounded_up(kernel.info.static_shared + dynamic + reserved, kSharedUnit);
    if (dynamic > static_cast<std::uint64_t>(attribute(kSharedPerBlockOptIn, 232448))) return 0;
    const auto all_shared = static_cast<std::uint64_t>(attribute(kSharedPerProcessor, 233472));
    if (shared != 0) blocks = std::min(blocks, all_shared / shared);
    return static_cast<int>(blocks);
}

struct How {
    unsigned cluster[3] = {0, 0, 0};
    bool cooperative = false, programmatic = false;
};

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream, const How& how) {
    State& it = now();
    Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return launch_failed(kInvalidDeviceFunction, "launched a function that is not its kernel");
    const char* name = kernel->name.c_str();
    char what[512];
    std::snprintf(what, sizeof what, "launched %s", name);
    check_stream(what, stream);

    const KernelRecord& info = kernel->info;
    if (grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
        return launch_failed(kInvalidConfiguration,
                             "%s: a grid of (%u, %u, %u) blocks; 1 to 2147483647, 65535 and 65535 are possible", name,
                             grid.x, grid.y, grid.z);
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024)
        return launch_failed(kInvalidConfiguration, "%s: a block of (%u, %u, %u) threads; at most 1024 are possible",
                             name, block.x, block.y, block.z);
    if (threads > info.max_threads)
        return launch_failed(kInvalidValue, "%s: a block of %llu threads; it was compiled for at most %u", name,
                             static_cast<unsigned long long>(threads), info.max_threads);
    const std::uint64_t registers = rounded_up(info.registers * 32ull, 256) * rounded_up((threads + 31) / 32, 4);
    if (registers > static_cast<std::uint64_t>(attribute(kRegistersPerBlock, 65536)))
        return launch_failed(kLaunchOutOfResources,
                             "%s: %llu threads of %u registers each are more than a block can have", name,
                             static_cast<unsigned long long>(threads), info.registers);
    if (shared > shared_limit(*kernel))
        return launch_failed(kInvalidValue, "%s: %zu bytes of dynamic shared memory; at most %llu are allowed%s", name,
                             shared, static_cast<unsigned long long>(shared_limit(*kernel)),
                             kernel->set[0] ? "" : " until cudaFuncSetAttribute raises it");
    const bool compiled = info.cluster[0] != 0;
    const bool given = how.cluster[0] != 0 || how.cluster[1] != 0 || how.cluster[2] != 0;
    if (compiled && given && std::memcmp(info.cluster, how.cluster, sizeof how.cluster) != 0)
        return launch_failed(kInvalidClusterSize, "%s: a cluster of (%u, %u, %u); it was compiled for (%u, %u, %u)",
                             name, how.cluster[0], how.cluster[1], how.cluster[2], info.cluster[0], info.cluster[1],
                             info.cluster[2]);
    if (compiled || given) {
        const std::uint32_t* cluster = compiled ? info.cluster : how.cluster;
        const std::uint64_t blocks = std::uint64_t{cluster[0]} * cluster[1] * cluster[2];
        const unsigned most = kernel->set[2] && kernel->values[2] != 0 ? 16 : 8;
        if (blocks == 0 || blocks > most)
            return launch_failed(kInvalidClusterSize, "%s: a cluster of (%u, %u, %u) blocks; at most %u are allowed%s",
                                 name, cluster[0], cluster[1], cluster[2], most,
                                 most == 8 ? " until cudaFuncSetAttribute allows non-portable sizes" : "");
        if (grid.x % cluster[0] != 0 || grid.y % cluster[1] != 0 || grid.z % cluster[2] != 0)
            return launch_failed(kInvalidConfiguration,
                                 "%s: a grid of (%u, %u, %u) is no multiple of its cluster of (%u, %u, %u)", name,
                                 grid.x, grid.y, grid.z, cluster[0], cluster[1], cluster[2]);
    }
    if (how.cooperative) {
        const std::uint64_t room = static_cast<std::uint64_t>(blocks_per_processor(*kernel, threads, shared)) *
                                   static_cast<std::uint64_t>(attribute(kProcessors, 132));
        const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
        if (blocks > room)
            return launch_failed(kCooperativeLaunchTooLarge,
                                 "%s: a cooperative launch of %llu blocks; %llu fit at once", name,
                                 static_cast<unsigned long long>(blocks), static_cast<unsigned long long>(room));
    }

    unsigned char params[kMaxParams] = {};
    for (std::size_t i = 0; i < kernel->params.size(); ++i) {
        const auto [offset, bytes] = kernel->params[i];
        if (arguments == nullptr) return launch_failed(kInvalidValue, "%s: launched without its arguments", name);
        std::memcpy(params + offset, arguments[i], bytes);
    }
    localise(params, info.param_bytes);
    const LaunchRecord head{
        {grid.x, grid.y, grid.z},
        {block.x, block.y, block.z},
        static_cast<std::uint32_t>(shared),
        {how.cluster[0], how.cluster[1], how.cluster[2]},
        (how.cooperative ? kCooperative : 0u) | (how.programmatic ? kProgrammatic : 0u),
        static_cast<std::uint32_t>(it.module.size()),
        static_cast<std::uint32_t>(kernel->name.size()),
        info.param_bytes,
    };
    record(kLaunch, {{&head, sizeof head},
                     {it.module.data(), it.module.size()},
                     {kernel->name.data(), kernel->name.size()},
                     {params, info.param_bytes}});
    return kSuccess;
}

cudaError_t encode_tiled(void* map, int dtype, std::uint32_t rank, void* address, const std::uint64_t* dims,
                         const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides,
                         int interleave, int swizzle, int l2, int oob) {
    State& it = now();
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    if (map == nullptr || reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank == 0 || rank > kMaxRank ||
        place % 16 != 0 || dims == nullptr || box == nullptr || element_strides == nullptr ||
        (rank > 1 && strides == nullptr) || dtype < 0 || dtype > 15 || interleave < 0 || interleave > 2 ||
        swizzle < 0 || swizzle > 6 || l2 < 0 || l2 > 3 || oob < 0 || oob > 1)
        return kInvalidValue;
    TensorMapRecord request{};
    request.dtype = static_cast<std::uint32_t>(dtype);
    request.rank = rank;
    request.interleave = static_cast<std::uint32_t>(interleave);
    request.swizzle = static_cast<std::uint32_t>(swizzle);
    request.l2 = static_cast<std::uint32_t>(l2);
    request.oob = static_cast<std::uint32_t>(oob);
    request.address = place;
    for (std::uint32_t i = 0; i < rank; ++i) {
        if (dims[i] == 0 || dims[i] > (std::uint64_t{1} << 32) || box[i] == 0 || box[i] > 256 ||
            element_strides[i] == 0 || element_strides[i] > 8)
            return kInvalidValue;
        request.dims[i] = dims[i];
        request.box[i] = box[i];
        request.element_strides[i] = element_strides[i];
        if (i + 1 < rank) {
            if (strides[i] % 16 != 0 || strides[i] >= (std::uint64_t{1} << 40)) return kInvalidValue;
            request.strides[i] = strides[i];
        }
    }
    if (it.shared == nullptr) return kNotSupported;
    if (it.requests.empty()) it.requests.resize(kRememberedMaps);
    it.requests[it.encoded % kRememberedMaps] = request;
    unsigned char placeholder[kPlaceholderBytes] = {};
    std::memcpy(placeholder, it.shared->nonce, kNonceBytes);
    std::memcpy(placeholder + kNonceBytes, &it.encoded, sizeof it.encoded);
    std::memcpy(map, placeholder, sizeof placeholder);
    ++it.encoded;
    return kSuccess;
}

cudaError_t entry_point(const char* symbol, void** function, int* status) {
    if (symbol == nullptr || function == nullptr) return failed(kInvalidValue);
    if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0)
        refuse(kRefusedCall, "asked for %.100s of the driver; only cuTensorMapEncodeTiled is there", symbol);
    *function = reinterpret_cast<void*>(encode_tiled);
    if (status != nullptr) *status = 0;
    return kSuccess;
}

struct Named {
    int error;
    const char *name, *text;
};

constexpr Named kErrors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {912, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
};

// ---------------------------------------------------------------- the facts

// Nothing of the host's comes to lie where the device's memory is said to be, so an address tells whose it is, and
// reading through it fails at once. Where something lies there already, both are only likely.
void reserve(std::uint64_t begin, std::uint64_t bytes) {
    if (begin == 0 || bytes == 0) return;
    constexpr int kHow = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    mmap(reinterpret_cast<void*>(begin), bytes, PROT_NONE, kHow, -1, 0);
}

struct Reader {
    const unsigned char *at, *end;
    const unsigned char* take(std::size_t bytes) {
        if (static_cast<std::size_t>(end - at) < bytes) _exit(97);  // our own side wrote it: the machine's fault
        const unsigned char* begin = at;
        at += bytes;
        return begin;
    }
    template <typename T> T get() {
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    std::string text(std::size_t bytes) {
        return std::string(reinterpret_cast<const char*>(take(padded(bytes))), bytes);
    }
};

}  // namespace

extern "C" {

// ---------------------------------------------------------------- for the runner

void ferret_recorder_attach(Recording* shared) {
    State& it = now();
    it.shared = shared;
    const unsigned char* begin = reinterpret_cast<const unsigned char*>(shared) + shared->facts_at;
    Reader reader{begin, begin + sizeof(FactsHead)};
    it.facts = reader.get<FactsHead>();
    reader.end = begin + it.facts.bytes;
    if (std::memcmp(it.facts.magic, "FERRETFA", 8) != 0 || it.facts.version != kVersion) _exit(97);
    reserve(it.facts.arena, it.facts.arena_bytes);
    reserve(it.facts.heap, it.facts.heap_bytes);
    it.module = reader.text(it.facts.module_bytes);
    for (std::uint32_t i = 0; i < it.facts.attributes; ++i) {
        const auto which = reader.get<std::int32_t>();
        it.attributes[which] = reader.get<std::int32_t>();
    }
    const unsigned char* properties = reader.take(padded(it.facts.properties_bytes));
    it.properties.assign(properties, properties + it.facts.properties_bytes);
    for (std::uint32_t i = 0; i < it.facts.kernels; ++i) {
        auto* kernel = new Kernel{};
        kernel->info = reader.get<KernelRecord>();
        kernel->name = reader.text(kernel->info.name_bytes);
        if (kernel->info.param_bytes > kMaxParams) _exit(97);
        for (std::uint32_t j = 0; j < kernel->info.params; ++j) {
            const auto offset = reader.get<std::uint32_t>(), bytes = reader.get<std::uint32_t>();
            kernel->params.emplace_back(offset, bytes);
            if (std::uint64_t{offset} + bytes > kernel->info.param_bytes) _exit(97);
        }
        it.kernels.push_back(kernel);
        it.by_name[kernel->name] = kernel;
    }
    for (std::uint32_t i = 0; i < it.facts.variables; ++i) {
        const auto variable = reader.get<VariableRecord>();
        it.variables[reader.text(variable.name_bytes)] = {variable.address, variable.bytes};
    }
}

void ferret_recorder_begin() {
    State& it = now();
    it.used = sizeof(TapeHead);
    it.records = it.ops = 0;
    it.uploaded = 0;
    it.heap_high = it.blocks.empty() ? 0 : it.blocks.back().end;
    it.maps.clear();
    it.pushed.clear();
    it.last_error = 0;
    it.shared->failed = 0;
    // What was set in an earlier call holds in this one: each tape tells all of it.
    for (const Kernel* kernel : it.kernels)
        for (int i = 0; i < 3; ++i)
            if (kernel->set[i]) record_attribute(*kernel, kAttributes[i], kernel->values[i]);
}

void ferret_recorder_end() {
    State& it = now();
    TapeHead head{};
    std::memcpy(head.magic, "FERRETTP", sizeof head.magic);
    head.version = kVersion;
    head.records = it.records;
    head.bytes = it.used - sizeof head;
    head.heap_bytes = it.heap_high;
    std::memcpy(head.nonce, it.shared->nonce, kNonceBytes);
    std::memcpy(tape(), &head, sizeof head);
}

// ---------------------------------------------------------------- what nvcc's code calls

void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
    State& it = now();
    const auto found = it.by_name.find(name);
    if (found != it.by_name.end()) it.by_address[host] = found->second;
}

void __cudaRegisterVar(void**, char* host, char*, const char* name, int, std::size_t, int, int) {
    now().symbols[host] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
    now().pushed.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
    State& it = now();
    if (it.pushed.empty()) return failed(kInvalidConfiguration);
    const State::Configuration top = it.pushed.back();
    it.pushed.pop_back();
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *static_cast<cudaStream_t*>(stream) = top.stream;
    return kSuccess;
}

cudaError_t cudaGetKernel(const void** kernel, const void* function) {
    const Kernel* found = kernel_of(function);
    if (kernel == nullptr || found == nullptr) return failed(kInvalidDeviceFunction);
    *kernel = found;
    return kSuccess;
}

cudaError_t __cudaGetKernel(const void** kernel, const void* function) { return cudaGetKernel(kernel, function); }

cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
    return launch(kernel, grid, block, arguments, shared, stream, {});
}

// ---------------------------------------------------------------- launching

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
    return launch(function, grid, block, arguments, shared, stream, {});
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared, cudaStream_t stream) {
    How how;
    how.cooperative = true;
    return launch(function, grid, block, arguments, shared, stream, how);
}

cudaError_t cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** arguments) {
    constexpr const char* kNames[] = {"ignore", "access policy window", "cooperative", "synchronization policy",
                                      "cluster dimension", "cluster scheduling policy",
                                      "programmatic stream serialization", "programmatic event", "priority",
                                      "memory synchronization domain map", "memory synchronization domain",
                                      "preferred cluster dimension", "launch completion event",
                                      "device updatable kernel node", "preferred shared memory carve-out"};
    if (config == nullptr) return failed(kInvalidValue);
    How how;
    for (unsigned i = 0; i < config->count; ++i) {
        const LaunchAttribute& given = config->attributes[i];
        switch (given.id) {
            case 0:
            case 11:  // a larger cluster that would be welcome, which nobody has to give
                break;
            case 2:
                how.cooperative = given.value.flag != 0;
                break;
            case 4:
                std::memcpy(how.cluster, given.value.cluster, sizeof how.cluster);
                break;
            case 6:
                how.programmatic = given.value.flag != 0;
                break;
            default: {
                const bool known = given.id > 0 && given.id < static_cast<int>(std::size(kNames));
                refuse(kRefusedCall,
                       "launched with attribute %d (%s), which is not accepted; accepted: cluster dimension, "
                       "cooperative, programmatic stream serialization",
                       given.id, known ? kNames[given.id] : "unknown");
            }
        }
    }
    return launch(function, config->grid, config->block, arguments, config->shared, config->stream, how);
}

cudaError_t cudaFuncSetAttribute(const void* function, int which, int value) {
    Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return failed(kInvalidDeviceFunction);
    const auto* found = std::find(std::begin(kAttributes), std::end(kAttributes), which);
    if (found == std::end(kAttributes)) return failed(kInvalidValue);
    const auto i = static_cast<std::size_t>(found - std::begin(kAttributes));
    if (which == kMaxDynamicShared) {
        const int most = attribute(kSharedPerBlockOptIn, 232448) - static_cast<int>(kernel->info.static_shared);
        if (value < 0 || value > most) return failed(kInvalidValue);
    }
    if (which == kCarveout && (value < -1 || value > 100)) return failed(kInvalidValue);
    if (which == kNonPortableCluster && (value < 0 || value > 1)) return failed(kInvalidValue);
    if (kernel->set[i] && kernel->values[i] == value) return kSuccess;
    record_attribute(*kernel, which, value);
    kernel->set[i] = true;
    kernel->values[i] = value;
    return kSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void* function, int) {
    return kernel_of(function) != nullptr ? kSuccess : failed(kInvalidDeviceFunction);  // a hint, and no more
}

cudaError_t cudaFuncGetAttributes(FuncAttributes* attributes, const void* function) {
    const Kernel* kernel = kernel_of(function);
    if (attributes == nullptr || kernel == nullptr) return failed(kInvalidDeviceFunction);
    const KernelRecord& info = kernel->info;
    *attributes = {};
    attributes->shared = info.static_shared;
    attributes->constant = info.constant;
    attributes->local = info.local;
    attributes->max_threads = static_cast<int>(info.max_threads);
    if (info.registers != 0) {
        // As many whole groups of four warps as the registers of a block are enough for.
        const std::uint64_t a_warp = rounded_up(info.registers * 32ull, 256);
        const std::uint64_t warps = static_cast<std::uint64_t>(attribute(kRegistersPerBlock, 65536)) / a_warp / 4 * 4;
        attributes->max_threads = static_cast<int>(std::min<std::uint64_t>(info.max_threads, warps * 32));
    }
    attributes->registers = static_cast<int>(info.registers);
    attributes->ptx_version = attributes->binary_version = static_cast<int>(info.binary_version);
    attributes->max_dynamic_shared = static_cast<int>(shared_limit(*kernel));
    attributes->carveout = kernel->set[1] ? kernel->values[1] : -1;
    attributes->cluster_must_be_set = 0;
    for (int i = 0; i < 3; ++i) attributes->cluster[i] = static_cast<int>(info.cluster[i]);
    attributes->non_portable = kernel->set[2] ? kernel->values[2] : 0;
    return kSuccess;
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
    const Kernel* kernel = kernel_of(function);
    if (name == nullptr || kernel == nullptr) return failed(kInvalidDeviceFunction);
    *name = kernel->name.c_str();
    return kSuccess;
}

cudaError_t cudaFuncGetParamInfo(const void* function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    const Kernel* kernel = kernel_of(function);
    if (kernel == nullptr || offset == nullptr) return failed(kInvalidDeviceFunction);
    if (index >= kernel->params.size()) return failed(kInvalidValue);
    *offset = kernel->params[index].first;
    if (bytes != nullptr) *bytes = kernel->params[index].second;
    return kSuccess;
}

// ---------------------------------------------------------------- occupancy

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t shared, unsigned flags) {
    const Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return failed(kInvalidDeviceFunction);
    if (blocks == nullptr || threads <= 0 || flags > 1) return failed(kInvalidValue);
    *blocks = blocks_per_processor(*kernel, static_cast<std::uint64_t>(threads), shared);
    return kSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function, int blocks,
                                                      int threads) {
    const Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return failed(kInvalidDeviceFunction);
    if (bytes == nullptr || blocks <= 0 || threads <= 0) return failed(kInvalidValue);
    const std::int64_t each = attribute(kSharedPerProcessor, 233472) / blocks / 128 * 128;
    const std::int64_t own = std::int64_t{kernel->info.static_shared} + attribute(kReservedShared, 1024);
    const std::int64_t most = std::int64_t{attribute(kSharedPerBlockOptIn, 232448)} - kernel->info.static_shared;
    *bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, std::min(each - own, most)));
    return kSuccess;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function, const LaunchConfig* config) {
    const Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return failed(kInvalidDeviceFunction);
    if (size == nullptr || config == nullptr) return failed(kInvalidValue);
    *size = kernel->set[2] && kernel->values[2] != 0 ? 16 : 8;
    return kSuccess;
}

// An estimate: a cluster lies in one group of multiprocessors (GPC), of which the smallest have 16.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const LaunchConfig* config) {
    constexpr std::uint64_t kGroup = 16;
    const Kernel* kernel = kernel_of(function);
    if (kernel == nullptr) return failed(kInvalidDeviceFunction);
    if (clusters == nullptr || config == nullptr) return failed(kInvalidValue);
    std::uint64_t size = std::max<std::uint64_t>(
        1, std::uint64_t{kernel->info.cluster[0]} * kernel->info.cluster[1] * kernel->info.cluster[2]);
    for (unsigned i = 0; i < config->count; ++i) {
        if (config->attributes[i].id != 4) continue;
        const unsigned* given = config->attributes[i].value.cluster;
        size = std::uint64_t{given[0]} * given[1] * given[2];
    }
    if (size == 0 || size > 16) return failed(kInvalidClusterSize);
    const std::uint64_t threads = std::uint64_t{config->block.x} * config->block.y * config->block.z;
    const auto blocks = static_cast<std::uint64_t>(blocks_per_processor(*kernel, threads, config->shared));
    const auto processors = static_cast<std::uint64_t>(attribute(kProcessors, 132));
    *clusters = static_cast<int>(size <= 2 ? processors * blocks / size
                                           : processors / kGroup * (kGroup * blocks / size));
    return kSuccess;
}

// ---------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaFree(void* pointer) { return release(pointer); }

cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
    check_stream("called cudaMallocAsync", stream);
    return allocate(pointer, bytes);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    check_stream("called cudaFreeAsync", stream);
    return release(pointer);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    State& it = now();
    if (free == nullptr || total == nullptr) return failed(kInvalidValue);
    *total = *free = it.facts.heap_bytes;
    for (const Block& block : it.blocks) *free -= block.end - block.begin;
    return kSuccess;
}

cudaError_t cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
    if (attributes == nullptr) return failed(kInvalidValue);
    *attributes = {};
    const bool device = on_device(pointer);
    attributes->type = device ? 2 : 0;
    attributes->device = device ? 0 : -2;
    if (device) attributes->device_pointer = const_cast<void*>(pointer);
    if (!device) attributes->host_pointer = const_cast<void*>(pointer);
    return kSuccess;
}

// The forms without a stream stand in line with everything else: there is no other stream that they could overtake.
cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) { return fill(pointer, value, bytes); }

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
    check_stream("called cudaMemsetAsync", stream);
    return fill(pointer, value, bytes);
}

cudaError_t cudaMemset2D(void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height) {
    return fill_rows(pointer, pitch, value, width, height);
}

cudaError_t cudaMemset2DAsync(void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
    check_stream("called cudaMemset2DAsync", stream);
    return fill_rows(pointer, pitch, value, width, height);
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t bytes, int direction) {
    return copy(dst, src, bytes, direction, "cudaMemcpy");
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, int direction, cudaStream_t stream) {
    check_stream("called cudaMemcpyAsync", stream);
    return copy(dst, src, bytes, direction, "cudaMemcpyAsync");
}

cudaError_t cudaMemcpy2D(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t width,
                         std::size_t height, int direction) {
    return copy_rows(dst, dst_pitch, src, src_pitch, width, height, direction, "cudaMemcpy2D");
}

cudaError_t cudaMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                              std::size_t width, std::size_t height, int direction, cudaStream_t stream) {
    check_stream("called cudaMemcpy2DAsync", stream);
    return copy_rows(dst, dst_pitch, src, src_pitch, width, height, direction, "cudaMemcpy2DAsync");
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* src, std::size_t bytes, std::size_t offset,
                               int direction) {
    return copy_to_symbol(symbol, src, bytes, offset, direction, "cudaMemcpyToSymbol");
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* src, std::size_t bytes, std::size_t offset,
                                    int direction, cudaStream_t stream) {
    check_stream("called cudaMemcpyToSymbolAsync", stream);
    return copy_to_symbol(symbol, src, bytes, offset, direction, "cudaMemcpyToSymbolAsync");
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
    const Variable* variable = variable_of(symbol);
    if (pointer == nullptr || variable == nullptr) return failed(kInvalidSymbol);
    *pointer = reinterpret_cast<void*>(variable->address);
    return kSuccess;
}

cudaError_t cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
    const Variable* variable = variable_of(symbol);
    if (bytes == nullptr || variable == nullptr) return failed(kInvalidSymbol);
    *bytes = variable->bytes;
    return kSuccess;
}

// ---------------------------------------------------------------- the device and the stream

cudaError_t cudaGetDevice(int* device) {
    if (device == nullptr) return failed(kInvalidValue);
    *device = 0;
    return kSuccess;
}

cudaError_t cudaSetDevice(int device) { return device == 0 ? kSuccess : failed(kInvalidDevice); }

cudaError_t cudaGetDeviceCount(int* count) {
    if (count == nullptr) return failed(kInvalidValue);
    *count = 1;
    return kSuccess;
}

cudaError_t cudaGetDeviceProperties(void* properties, int device) {
    State& it = now();
    if (device != 0) return failed(kInvalidDevice);
    if (properties == nullptr) return failed(kInvalidValue);
    if (it.properties.empty())
        refuse(kRefusedCall, "called cudaGetDeviceProperties, and nothing is known of the device");
    std::memcpy(properties, it.properties.data(), it.properties.size());
    return kSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, int which, int device) {
    State& it = now();
    if (device != 0) return failed(kInvalidDevice);
    const auto found = it.attributes.find(which);
    if (value == nullptr || found == it.attributes.end()) return failed(kInvalidValue);
    *value = found->second;
    return kSuccess;
}

cudaError_t cudaDeviceSynchronize() { return kSuccess; }  // there is nothing to see that it could wait for
cudaError_t cudaStreamSynchronize(cudaStream_t) { return kSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return kSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t, int* status) {
    if (status == nullptr) return failed(kInvalidValue);
    *status = 0;
    return kSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    if (priority == nullptr) return failed(kInvalidValue);
    *priority = 0;
    return kSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned* flags) {
    if (flags == nullptr) return failed(kInvalidValue);
    *flags = 1;  // cudaStreamNonBlocking
    return kSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return cudaGetDevice(device); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = 0;
    return kSuccess;
}

// ---------------------------------------------------------------- errors and versions

cudaError_t cudaPeekAtLastError() { return now().last_error; }

cudaError_t cudaGetLastError() {
    State& it = now();
    if (it.shared != nullptr) it.shared->failed = 0;  // somebody looked, and may do something about it
    return std::exchange(it.last_error, 0);
}

const char* cudaGetErrorName(cudaError_t error) {
    for (const Named& known : kErrors)
        if (known.error == error) return known.name;
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    for (const Named& known : kErrors)
        if (known.error == error) return known.text;
    return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
    if (version == nullptr) return failed(kInvalidValue);
    *version = kRuntimeVersion;
    return kSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long, int* status) {
    return entry_point(symbol, function, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             int* status) {
    return entry_point(symbol, function, status);
}

}  // extern "C"
