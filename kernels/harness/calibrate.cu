// What a GPU can do at most. `calibrate DEVICE NAME...` prints one line of JSON for each rate as soon as it is known:
// {"rate", "best", "median", "how", "at_top_clock"}, or {"rate", "missing": reason}, or {"rate", "absent": reason}; the
// name "identity" tells what the device is. Ends with status 3 when an error has made the context useless (the names
// that are left can then be asked of a fresh process) and with 4 when there is no device to ask. Runtime API only.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime.h>

namespace {

// ---------------------------------------------------------------- what is found and how it is told

struct Best {
    double best = 0, median = 0, at_top_clock = 0;
    std::string how;

    void take(const std::string& what, std::vector<double> rates, double top = 0) {
        at_top_clock = std::max(at_top_clock, top);
        std::sort(rates.begin(), rates.end());
        if (rates.empty() || rates.back() <= best) return;
        best = rates.back();
        median = rates[(rates.size() - 1) / 2];
        how = what;
    }
};

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += (c < ' ' ? ' ' : c);
    }
    return out + "\"";
}

void say(const char* rate, const Best& found) {
    if (found.best <= 0) throw std::runtime_error("nothing was measured");
    std::printf("{\"rate\": \"%s\", \"best\": %.6e, \"median\": %.6e, \"how\": %s", rate, found.best, found.median,
                quoted(found.how).c_str());
    if (found.at_top_clock > 0) std::printf(", \"at_top_clock\": %.6e", found.at_top_clock);
    std::printf("}\n");
}

void without(const char* rate, const char* kind, const std::string& reason) {
    std::printf("{\"rate\": \"%s\", \"%s\": %s}\n", rate, kind, quoted(reason).c_str());
}

void must(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error of one launch must not be found again by the next
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

struct Device {
    int index = 0, major = 0, minor = 0, multiprocessors = 0, bus_bits = 0;
    double clock_hz = 0, memory_hz = 0;  // the highest that the device names; 0 where it does not say
    std::size_t l2 = 0;

    int capability() const { return 10 * major + minor; }
};

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return value;
}

Device describe(int index) {
    Device d;
    d.index = index;
    d.major = attribute(cudaDevAttrComputeCapabilityMajor, index);
    d.minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
    d.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
    d.bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, index);
    d.clock_hz = 1e3 * attribute(cudaDevAttrClockRate, index);
    d.memory_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate, index);
    d.l2 = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize, index));
    if (d.multiprocessors <= 0 || d.major <= 0) throw std::runtime_error("the device does not say what it is");
    return d;
}

void identity(const Device& d) {
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, d.index), "cudaGetDeviceProperties");
    int driver = 0, runtime = 0;
    must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    std::string uuid;
    for (char byte : properties.uuid.bytes) {
        char text[3];
        std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
        uuid += text;
    }
    std::printf("{\"rate\": \"identity\", \"name\": %s, \"uuid\": \"%s\", \"compute_capability\": \"%d.%d\", "
                "\"cuda_driver\": \"%d\", \"cuda_runtime\": \"%d\", \"multiprocessors\": \"%d\", "
                "\"l2_bytes\": \"%zu\", \"clock_hz\": \"%.0f\", \"memory_clock_hz\": \"%.0f\", \"bus_bits\": \"%d\"}\n",
                quoted(properties.name).c_str(), uuid.c_str(), d.major, d.minor, driver, runtime, d.multiprocessors,
                d.l2, d.clock_hz, d.memory_hz, d.bus_bits);
}

struct Memory {
    void* at = nullptr;
    explicit Memory(std::size_t size) { must(cudaMalloc(&at, size), "cudaMalloc"); }
    ~Memory() { cudaFree(at); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <typename T> T* as() const { return static_cast<T*>(at); }
};

struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    Events() {
        must(cudaEventCreate(&begin), "cudaEventCreate");
        must(cudaEventCreate(&end), "cudaEventCreate");
    }
    ~Events() {
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
    }
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;
};

template <typename Launch> double seconds(const Events& events, Launch launch) {
    must(cudaEventRecord(events.begin), "cudaEventRecord");
    launch();
    must(cudaGetLastError(), "launch");
    must(cudaEventRecord(events.end), "cudaEventRecord");
    must(cudaEventSynchronize(events.end), "kernel");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, events.begin, events.end), "cudaEventElapsedTime");
    if (!(ms > 0)) throw std::runtime_error("a kernel took no time");
    return 1e-3 * ms;
}

// ---------------------------------------------------------------- memory

constexpr int kRepeats = 6;
constexpr double kWarmUpSeconds = 0.3;

enum class Load { kPlain, kOnce, kAroundL1 };

template <Load HOW> __device__ __forceinline__ uint4 load(const uint4* p) {
    uint4 v;
    if (HOW == Load::kPlain)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
    else if (HOW == Load::kOnce)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
    else
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
    return v;
}

// `passes` times through `count` 16-byte words, UNROLL loads in flight a thread; the whole of it ends in `kept`.
template <Load HOW, int UNROLL>
__global__ void read_all(const uint4* from, std::size_t count, int passes, unsigned* kept) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    for (int pass = 0; pass < passes; ++pass) {
        std::size_t i = first;
        for (; i + (UNROLL - 1) * step < count; i += UNROLL * step) {
            uint4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = load<HOW>(from + i + u * step);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
        for (; i < count; i += step) {
            const uint4 v = load<HOW>(from + i);
            sum += v.x ^ v.y ^ v.z ^ v.w;
        }
    }
    if (sum == 0x7e57ab1eu) atomicAdd(kept, sum);  // no compiler can rule it out
}

template <int UNROLL> __global__ void copy_all(const uint4* from, uint4* to, std::size_t count) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * step < count; i += UNROLL * step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = __ldcs(from + i + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) __stcs(to + i + u * step, v[u]);
    }
    for (; i < count; i += step) to[i] = from[i];
}

std::string shape(int unroll, int threads, int blocks) {
    return std::to_string(unroll) + " in flight, " + std::to_string(threads) + " threads, " + std::to_string(blocks) +
           " blocks";
}

template <Load HOW, int UNROLL>
void read_variant(Best& found, const Device& d, const Memory& buffer, std::size_t bytes, int passes, const Memory& kept,
                  const char* what) {
    const Events events;
    for (int threads : {256, 512, 1024}) {
        const int resident = 2048 / threads;
        for (int waves : {1, 4}) {
            const int blocks = d.multiprocessors * resident * waves;
            std::vector<double> rates;
            for (int r = 0; r <= kRepeats; ++r) {
                const double s = seconds(events, [&] {
                    read_all<HOW, UNROLL>
                        <<<blocks, threads>>>(buffer.as<uint4>(), bytes / sizeof(uint4), passes, kept.as<unsigned>());
                });
                if (r > 0) rates.push_back(static_cast<double>(bytes) * passes / s);  // the first one loads the code
            }
            found.take(std::string("16-byte loads (") + what + "), " + shape(UNROLL, threads, blocks) + ", " +
                           std::to_string(bytes >> 20) + " MiB",
                       rates);
        }
    }
}

std::size_t large(const Device& d, int buffers) {
    std::size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const std::size_t least = std::max<std::size_t>(16 * d.l2, std::size_t{256} << 20);
    const std::size_t wanted = std::max<std::size_t>(least, std::size_t{2} << 30);
    const std::size_t size = std::min(wanted, free / 2 / static_cast<std::size_t>(buffers)) >> 20 << 20;
    if (size < least) throw std::runtime_error("not enough free memory for a buffer of sixteen times the L2 cache");
    return size;
}

void dram_read(const Device& d) {
    const std::size_t bytes = large(d, 1);
    const Memory buffer(bytes), kept(256);
    must(cudaMemset(buffer.at, 0x5a, bytes), "cudaMemset");
    Best found;
    read_variant<Load::kPlain, 1>(found, d, buffer, bytes, 1, kept, "plain");
    read_variant<Load::kPlain, 4>(found, d, buffer, bytes, 1, kept, "plain");
    read_variant<Load::kPlain, 8>(found, d, buffer, bytes, 1, kept, "plain");
    read_variant<Load::kOnce, 2>(found, d, buffer, bytes, 1, kept, "not kept in L1");
    read_variant<Load::kOnce, 4>(found, d, buffer, bytes, 1, kept, "not kept in L1");
    read_variant<Load::kOnce, 8>(found, d, buffer, bytes, 1, kept, "not kept in L1");
    // Two transfers a clock: what the pins could do.
    if (d.memory_hz > 0 && d.bus_bits > 0) found.at_top_clock = 2 * d.memory_hz * d.bus_bits / 8;
    say("dram_read", found);
}

void l2_read(const Device& d) {
    if (d.l2 == 0) return without("l2_read", "missing", "the device does not say how large its L2 cache is");
    const std::size_t largest = std::max<std::size_t>(d.l2 / 2, std::size_t{2} << 20);
    const Memory buffer(largest), kept(256);
    must(cudaMemset(buffer.at, 0x5a, largest), "cudaMemset");
    Best found;
    for (std::size_t bytes = std::size_t{2} << 20; bytes <= largest; bytes *= 2) {
        const int passes = static_cast<int>(std::max<std::size_t>(4, (std::size_t{512} << 20) / bytes));
        read_variant<Load::kAroundL1, 2>(found, d, buffer, bytes, passes, kept, "past L1");
        read_variant<Load::kAroundL1, 8>(found, d, buffer, bytes, passes, kept, "past L1");
    }
    say("l2_read", found);
}

template <int UNROLL>
void copy_variant(Best& found, const Device& d, const Memory& from, const Memory& to, std::size_t bytes) {
    const Events events;
    for (int threads : {256, 512, 1024}) {
        for (int waves : {1, 4}) {
            const int blocks = d.multiprocessors * (2048 / threads) * waves;
            std::vector<double> rates;
            for (int r = 0; r <= kRepeats; ++r) {
                const double s = seconds(events, [&] {
                    copy_all<UNROLL><<<blocks, threads>>>(from.as<uint4>(), to.as<uint4>(), bytes / sizeof(uint4));
                });
                if (r > 0) rates.push_back(2.0 * static_cast<double>(bytes) / s);
            }
            found.take("16-byte accesses, " + shape(UNROLL, threads, blocks), rates);
        }
    }
}

void copy(const Device& d) {
    const std::size_t bytes = large(d, 2);
    const Memory from(bytes), to(bytes);
    must(cudaMemset(from.at, 0x5a, bytes), "cudaMemset");
    Best found;
    copy_variant<1>(found, d, from, to, bytes);
    copy_variant<4>(found, d, from, to, bytes);
    unsigned last = 0;
    must(cudaMemcpy(&last, to.as<char>() + bytes - sizeof last, sizeof last, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (last != 0x5a5a5a5au) throw std::runtime_error("the copy is not a copy");
    say("copy", found);
}

// ---------------------------------------------------------------- arithmetic: one block a multiprocessor

// Operations of one block and its cycles give a rate that no power limit can lower: the ceiling at the top clock.
template <typename Launch>
void compute_variant(Best& found, const Device& d, const std::string& how, double per_round, Launch launch) {
    const int blocks = d.multiprocessors;
    const Memory cycles(sizeof(long long) * static_cast<std::size_t>(blocks)), kept(256);
    const Events events;
    int rounds = 64;
    while (rounds < (1 << 24)) {
        const double s = seconds(events, [&] { launch(blocks, rounds, cycles.as<long long>(), kept.as<float>()); });
        if (s > 5e-4) break;
        rounds *= 2;
    }
    std::vector<double> rates;
    for (int r = 0; r < 2 * kRepeats; ++r) {
        const double s = seconds(events, [&] { launch(blocks, rounds, cycles.as<long long>(), kept.as<float>()); });
        rates.push_back(per_round * rounds * blocks / s);
    }
    std::vector<long long> took(static_cast<std::size_t>(blocks));
    must(cudaMemcpy(took.data(), cycles.at, took.size() * sizeof took[0], cudaMemcpyDeviceToHost), "cudaMemcpy");
    // The median block: a block that had a processor for itself for a while would say too much.
    std::sort(took.begin(), took.end());
    const double middle = static_cast<double>(took[took.size() / 2]);
    if (!(middle > 0)) throw std::runtime_error("a kernel took no cycles");
    const double top = per_round * rounds / middle * d.multiprocessors * d.clock_hz;
    found.take(how, rates, top);
}

__device__ __forceinline__ void keep(float value, float* kept) {
    if (value == 1.2345678e-30f) atomicAdd(kept, value);
}

constexpr int kChains = 16;

template <typename T> __global__ void __launch_bounds__(1024) chains(int rounds, long long* cycles, float* kept) {
    T x[kChains];
    const T scale = T(0.999755859375), shift = T(1.1920928955078125e-7);
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = T(threadIdx.x + i);
    __syncthreads();
    const long long begin = clock64();
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < kChains; ++i) x[i] = x[i] * scale + shift;
    }
    T sum = 0;
#pragma unroll
    for (int i = 0; i < kChains; ++i) sum += x[i];
    keep(static_cast<float>(sum), kept);
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}

template <typename T> void chains_variant(Best& found, const Device& d, int threads) {
    compute_variant(found, d, "multiply-adds in registers, " + std::to_string(threads) + " threads a processor",
                    2.0 * 4 * kChains * threads, [&](int blocks, int rounds, long long* cycles, float* kept) {
                        chains<T><<<blocks, threads>>>(rounds, cycles, kept);
                    });
}

// ---------------------------------------------------------------- matrix units: mma.sync

// One warp, `D += A B` on fragments that stay in registers; `flops` is that of one instruction of a warp.
struct DoubleMma {
    static constexpr double flops = 2.0 * 8 * 8 * 4;
    double d[2] = {};
    __device__ __forceinline__ void step(unsigned bits) {
        const double a = 1.0 + bits, b = 1.0 - bits;
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(d[0]), "+d"(d[1])
                     : "d"(a), "d"(b));
    }
    __device__ float sum() const { return static_cast<float>(d[0] + d[1]); }
};

// The wider one, of Hopper.
struct WideDoubleMma {
    static constexpr double flops = 2.0 * 16 * 8 * 16;
    double d[4] = {};
    __device__ __forceinline__ void step(unsigned bits) {
#if __CUDA_ARCH__ >= 900
        const double a = 1.0 + bits, b = 1.0 - bits;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                     "{%4, %4, %4, %4, %4, %4, %4, %4}, {%5, %5, %5, %5}, {%0, %1, %2, %3};"
                     : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                     : "d"(a), "d"(b));
#else
        (void)bits;  // never launched there
#endif
    }
    __device__ float sum() const { return static_cast<float>(d[0] + d[1] + d[2] + d[3]); }
};

#define FERRET_MMA(NAME, FLOPS, TEXT)                                                                               \
    struct NAME {                                                                                                   \
        static constexpr double flops = FLOPS;                                                                      \
        float d[4] = {};                                                                                            \
        __device__ __forceinline__ void step(unsigned bits) {                                                       \
            asm volatile("mma.sync.aligned." TEXT " {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3};" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                           \
                         : "r"(bits));                                                                              \
        }                                                                                                           \
        __device__ float sum() const { return d[0] + d[1] + d[2] + d[3]; }                                          \
    };
FERRET_MMA(HalfMma, 2.0 * 16 * 8 * 16, "m16n8k16.row.col.f32.f16.f16.f32")
FERRET_MMA(BfloatMma, 2.0 * 16 * 8 * 16, "m16n8k16.row.col.f32.bf16.bf16.f32")
FERRET_MMA(Tf32Mma, 2.0 * 16 * 8 * 8, "m16n8k8.row.col.f32.tf32.tf32.f32")

struct HalfSumMma {
    static constexpr double flops = 2.0 * 16 * 8 * 16;
    unsigned d[2] = {};
    __device__ __forceinline__ void step(unsigned bits) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %2, %2, %2}, {%2, %2}, {%0, %1};"
                     : "+r"(d[0]), "+r"(d[1])
                     : "r"(bits));
    }
    __device__ float sum() const { return static_cast<float>(d[0] ^ d[1]); }
};

struct ByteMma {
    static constexpr double flops = 2.0 * 16 * 8 * 32;
    int d[4] = {};
    __device__ __forceinline__ void step(unsigned bits) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, "
                     "{%0, %1, %2, %3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(bits));
    }
    __device__ float sum() const { return static_cast<float>(d[0] ^ d[1] ^ d[2] ^ d[3]); }
};

constexpr int kTiles = 8;

template <typename Mma>
__global__ void __launch_bounds__(512) warps(int rounds, long long* cycles, float* kept, unsigned bits) {
    Mma tile[kTiles];
    __syncthreads();
    const long long begin = clock64();
#pragma unroll 1
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int t = 0; t < kTiles; ++t) tile[t].step(bits);
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sum += tile[t].sum();
    keep(sum, kept);
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}

template <typename Mma> void warps_variant(Best& found, const Device& d, const char* name) {
    for (int threads : {128, 256, 512}) {
        const std::string how =
            std::string("mma.sync ") + name + ", " + std::to_string(threads / 32) + " warps a processor";
        compute_variant(found, d, how, Mma::flops * kTiles * threads / 32,
                        [&](int blocks, int rounds, long long* cycles, float* kept) {
                            warps<Mma><<<blocks, threads>>>(rounds, cycles, kept, 0u);
                        });
    }
}

// ---------------------------------------------------------------- matrix units: wgmma, the full rate of Hopper

// 64 x 256 sums a warp group. Every operand row is 32 bytes wide, whatever its format, so that all share one layout:
// blocks of 8 rows x 16 bytes, the two that lie side by side 128 bytes apart, the next 8 rows 256 bytes on.
constexpr int kRowsA = 64, kRowsB = 256, kRowBytes = 32;
constexpr int kBatch = 16;  // between two waits

#define FERRET_D128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

#define FERRET_8(C, d, n) \
    C(d[n]), C(d[n + 1]), C(d[n + 2]), C(d[n + 3]), C(d[n + 4]), C(d[n + 5]), C(d[n + 6]), C(d[n + 7])
#define FERRET_32(C, d, n) FERRET_8(C, d, n), FERRET_8(C, d, n + 8), FERRET_8(C, d, n + 16), FERRET_8(C, d, n + 24)
#define FERRET_128(C, d) FERRET_32(C, d, 0), FERRET_32(C, d, 32), FERRET_32(C, d, 64), FERRET_32(C, d, 96)

// K is what 32 bytes hold. %130 is always 1: the sums go on, they are not set.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FERRET_WGMMA_TEXT(C, TEXT, TAIL)                                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned." TEXT " " FERRET_D128 \
                 ", %128, %129, p" TAIL ";\n}\n"                                                                 \
                 : FERRET_128(C, d)                                                                              \
                 : "l"(a), "l"(b), "r"(1))
#else
#define FERRET_WGMMA_TEXT(C, TEXT, TAIL) (void)d, (void)a, (void)b  // another architecture: never launched there
#endif
#define FERRET_WGMMA(NAME, T, C, K, TEXT, TAIL)                                                               \
    struct NAME {                                                                                             \
        using Sum = T;                                                                                        \
        static constexpr double flops = 2.0 * kRowsA * kRowsB * K;                                            \
        static __device__ __forceinline__ void step(T (&d)[128], unsigned long long a, unsigned long long b) { \
            FERRET_WGMMA_TEXT(C, TEXT, TAIL);                                                                 \
        }                                                                                                     \
    };
FERRET_WGMMA(HalfGroup, float, "+f", 16, "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
FERRET_WGMMA(BfloatGroup, float, "+f", 16, "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
FERRET_WGMMA(Tf32Group, float, "+f", 8, "m64n256k8.f32.tf32.tf32", ", 1, 1")
FERRET_WGMMA(EightGroup, float, "+f", 32, "m64n256k32.f32.e4m3.e4m3", ", 1, 1")
FERRET_WGMMA(ByteGroup, int, "+r", 32, "m64n256k32.s32.s8.s8", "")

__device__ __forceinline__ unsigned long long descriptor(const void* shared) {
    const unsigned long long address = static_cast<unsigned long long>(__cvta_generic_to_shared(shared));
    return ((address & 0x3ffffull) >> 4) | ((128ull >> 4) << 16) | ((256ull >> 4) << 32);
}

template <typename Group>
__global__ void __launch_bounds__(384, 1) groups(int rounds, long long* cycles, float* kept, unsigned fill) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ __align__(128) unsigned operands[(kRowsA + kRowsB) * kRowBytes / 4];
    unsigned noise = fill * (threadIdx.x + 1u);
    for (unsigned i = threadIdx.x; i < sizeof operands / sizeof operands[0]; i += blockDim.x) {
        // Small numbers in every format: the top exponent bit of each byte stays clear.
        operands[i] = noise & 0xbfbfbfbfu;
        noise = noise * 1664525u + (fill != 0u ? 1013904223u : 0u);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned long long a = descriptor(operands), b = descriptor(operands + kRowsA * kRowBytes / 4);
    typename Group::Sum d[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0;
    const long long begin = clock64();
#pragma unroll 1
    for (int r = 0; r < rounds; ++r) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < kBatch; ++k) Group::step(d, a, b);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += static_cast<float>(d[i]);
    keep(sum, kept);
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
#else
    (void)rounds, (void)cycles, (void)kept, (void)fill;
#endif
}

template <typename Group> void groups_variant(Best& found, const Device& d, const char* name) {
    // Zeros draw the least power and show the unit at its quickest; noise is what kernels meet.
    for (unsigned fill : {0x9e3779b9u, 0u}) {
        for (int threads : {128, 256, 384}) {
            const std::string how = std::string("wgmma ") + name + ", " + std::to_string(threads / 128) +
                                    " warp groups a processor, " + (fill != 0u ? "noise" : "zeros");
            compute_variant(found, d, how, Group::flops * kBatch * threads / 128,
                            [&](int blocks, int rounds, long long* cycles, float* kept) {
                                groups<Group><<<blocks, threads>>>(rounds, cycles, kept, fill);
                            });
        }
    }
}

// ---------------------------------------------------------------- the rates by name

// A class without a loop at the full rate of its unit is left out: a part of the rate would be no ceiling.
std::string no_loop(const Device& d) {
    return "no loop at the full rate of compute capability " + std::to_string(d.major) + "." + std::to_string(d.minor);
}

template <typename Group, typename Mma>
void matrix(const char* rate, const Device& d, const char* group_name, const char* mma_name) {
    Best found;
    if (d.capability() == 90)
        groups_variant<Group>(found, d, group_name);
    else if (d.major == 8)
        warps_variant<Mma>(found, d, mma_name);
    else
        return without(rate, d.major < 8 ? "absent" : "missing", no_loop(d));
    say(rate, found);
}

void single(const Device& d) {
    Best found;
    for (int threads : {512, 1024}) chains_variant<float>(found, d, threads);
    say("f32", found);
}

void twofold(const Device& d) {
    Best found;
    for (int threads : {512, 1024}) chains_variant<double>(found, d, threads);
    if (d.major >= 8) warps_variant<DoubleMma>(found, d, "m8n8k4 f64");
    if (d.capability() == 90) warps_variant<WideDoubleMma>(found, d, "m16n8k16 f64");
    say("f64", found);
}

void half(const Device& d) {
    if (d.major != 8) return matrix<HalfGroup, HalfMma>("f16", d, "m64n256k16 f16", "");
    Best found;
    warps_variant<HalfMma>(found, d, "m16n8k16 f16");
    warps_variant<HalfSumMma>(found, d, "m16n8k16 f16, sums in f16");
    say("f16", found);
}

void eight(const Device& d) {
    if (d.capability() < 89) return without("f8", "absent", "no 8-bit floats on this device");
    if (d.capability() != 90) return without("f8", "missing", no_loop(d));
    Best found;
    groups_variant<EightGroup>(found, d, "m64n256k32 e4m3");
    say("f8", found);
}

void four(const Device& d) {
    if (d.major < 10) return without("f4", "absent", "no 4-bit floats on this device");
    without("f4", "missing", no_loop(d));
}

// Brings the clocks up from idle.
void warm_up(const Device& d) {
    const Memory cycles(sizeof(long long) * static_cast<std::size_t>(d.multiprocessors)), kept(256);
    const Events events;
    double spent = 0;
    for (int launch = 0; launch < 1000 && spent < kWarmUpSeconds; ++launch)
        spent += seconds(events, [&] {
            chains<float><<<d.multiprocessors, 1024>>>(4096, cycles.as<long long>(), kept.as<float>());
        });
}

struct Measure {
    const char* name;
    void (*run)(const Device&);
};

const Measure kMeasures[] = {
    {"identity", identity},
    {"dram_read", dram_read},
    {"copy", copy},
    {"l2_read", l2_read},
    {"f64", twofold},
    {"f32", single},
    {"tf32", [](const Device& d) { matrix<Tf32Group, Tf32Mma>("tf32", d, "m64n256k8 tf32", "m16n8k8 tf32"); }},
    {"f16", half},
    {"bf16", [](const Device& d) { matrix<BfloatGroup, BfloatMma>("bf16", d, "m64n256k16 bf16", "m16n8k16 bf16"); }},
    {"f8", eight},
    {"i8", [](const Device& d) { matrix<ByteGroup, ByteMma>("i8", d, "m64n256k32 s8", "m16n8k32 s8"); }},
    {"f4", four},
};

// False when the context cannot be used any more.
bool measure(const char* name, const Device& d) {
    static bool warm = false;
    for (const Measure& one : kMeasures) {
        if (std::strcmp(one.name, name) != 0) continue;
        try {
            if (!warm && one.run != identity) warm_up(d);
            warm = warm || one.run != identity;
            one.run(d);
        } catch (const std::exception& error) {
            without(name, "missing", error.what());
        }
        std::fflush(stdout);
        return cudaDeviceSynchronize() == cudaSuccess;
    }
    without(name, "missing", "this calibrator does not know the name");
    std::fflush(stdout);
    return true;
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) {
        std::fprintf(stderr, "usage: calibrate DEVICE NAME...\n");
        return 2;
    }
    try {
        const int index = std::atoi(words[1]);
        must(cudaSetDevice(index), "cudaSetDevice");
        must(cudaFree(nullptr), "CUDA");
        const Device d = describe(index);
        for (int i = 2; i < count; ++i)
            if (!measure(words[i], d)) return 3;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 4;  // no device, no driver: nothing can be measured
    }
    return 0;
}
