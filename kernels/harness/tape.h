// The bytes of a tape and of the facts, as tape.py has them, and the memory that gate and recorder share. All of that
// memory may be overwritten by the candidate: the gate parses it as what it is, the word of an untrusted process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferret {

constexpr std::size_t kMaxOps = 4096;
constexpr std::size_t kMaxTensorMaps = 1024;
constexpr std::size_t kMaxTapeBytes = 4 << 20;
constexpr std::size_t kMaxParams = 32764;
constexpr std::size_t kMaxUpload = 64 << 10;
constexpr std::size_t kMaxRank = 5;
constexpr std::size_t kPlaceholderBytes = 128;
constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kSaidBytes = 1024;
constexpr std::uint32_t kVersion = 1;

enum RecordKind : std::uint32_t {
    kLaunch = 1,
    kSetAttribute = 2,
    kMemset = 3,
    kCopy = 4,
    kUpload = 5,
    kTensorMap = 6,
};

enum LaunchFlags : std::uint32_t { kCooperative = 1, kProgrammatic = 2 };

struct TapeHead {
    char magic[8];  // FERRETTP
    std::uint32_t version, records;
    std::uint64_t bytes;  // of the records
    std::uint64_t heap_bytes;
    unsigned char nonce[kNonceBytes];
};

struct RecordHead {
    std::uint32_t kind, bytes;  // with this head, a multiple of 8
};

// Behind it: module, kernel, parameters, without gaps.
struct LaunchRecord {
    std::uint32_t grid[3], block[3], shared, cluster[3], flags, module_bytes, kernel_bytes, param_bytes;
};

struct AttributeRecord {
    std::int32_t attribute, value;
    std::uint32_t module_bytes, kernel_bytes;
};

struct MemsetRecord {
    std::uint64_t dst, count;
    std::uint32_t value, width;
};

struct CopyRecord {
    std::uint64_t dst, src, bytes;
};

struct UploadRecord {
    std::uint64_t dst, bytes;
};

struct TensorMapRecord {
    std::uint32_t dtype, rank, interleave, swizzle, l2, oob;
    std::uint64_t address, dims[kMaxRank], strides[kMaxRank - 1];
    std::uint32_t box[kMaxRank], element_strides[kMaxRank];
};

// Behind it, each padded to 8 bytes: module, attributes (pairs of i32), properties, kernels, variables.
struct FactsHead {
    char magic[8];  // FERRETFA
    std::uint32_t version, bytes;
    std::uint64_t stream, arena, arena_bytes, heap, heap_bytes;
    std::uint32_t module_bytes, kernels, variables, attributes, properties_bytes, unused;
};

// Behind it: the name, padded, and pairs of u32: offset and size of each parameter.
struct KernelRecord {
    std::uint32_t name_bytes, params, param_bytes, registers, static_shared, max_threads, local, constant;
    std::uint32_t cluster[3], binary_version;
};

struct VariableRecord {
    std::uint64_t address, bytes;
    std::uint32_t name_bytes, unused;
};

static_assert(sizeof(TapeHead) == 48 && sizeof(LaunchRecord) == 56 && sizeof(TensorMapRecord) == 144);
static_assert(sizeof(FactsHead) == 80 && sizeof(KernelRecord) == 48 && sizeof(VariableRecord) == 24);

enum Refusal : std::uint32_t {
    kNothingRefused = 0,
    kWrongStream = 1,
    kRefusedCall = 2,  // a call that a kernel's host side may not make
    kTooMuch = 3,      // more than a tape holds
};

// At the start of the shared memory; the facts and then the tape stand where it says.
struct Recording {
    std::uint64_t facts_at, tape_at, tape_bytes;
    std::uint32_t refused;  // Refusal; the process has ended itself with it
    std::uint32_t failed;   // cudaError of a launch that failed, until somebody has asked for it
    std::uint64_t base;     // of this call: what its pointers are relative to, an address of the device
    std::uint64_t stream;   // the handle that the entry is given
    unsigned char nonce[kNonceBytes];
    char said[kSaidBytes];    // what was refused
    char why[kSaidBytes];     // why the launch failed
};

// What the runtime library exports for the runner: ferret_recorder_attach, and _begin and _end round each call.
using Attach = void (*)(Recording*);
using Bracket = void (*)();

}  // namespace ferret
