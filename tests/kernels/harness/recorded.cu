// Entries for the recorder's tests: one file, since nvcc takes seconds for each.
#include <cooperative_groups.h>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>
#include <initializer_list>
#include <pthread.h>
#include <unistd.h>

namespace cg = cooperative_groups;

#define ENTRY(name) extern "C" void name([[maybe_unused]] const float* x, [[maybe_unused]] float* y, \
                                         [[maybe_unused]] int32_t n, [[maybe_unused]] cudaStream_t stream)

struct Mixed {
    char a;
    double b;
    short c;
};

__constant__ float table[16];
__device__ float counters[64];

__global__ void plain(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * table[i & 15] + counters[i & 63];
}

template <int K> __global__ void __launch_bounds__(256) scaled(float* y, Mixed mixed, char z) {
    extern __shared__ float scratch[];
    scratch[threadIdx.x] = y[threadIdx.x] * K + float(mixed.b);
    __syncthreads();
    y[threadIdx.x] = scratch[255 - threadIdx.x] + z;
}

__global__ void __cluster_dims__(2, 1, 1) paired(float* y) {
    __shared__ float mine[128];
    mine[threadIdx.x & 127] = y[threadIdx.x];
    cg::this_cluster().sync();
    y[threadIdx.x] = *cg::this_cluster().map_shared_rank(mine, 1);
}

__global__ void described(const __grid_constant__ CUtensorMap map, float* y, int n) {
    y[n] = *reinterpret_cast<const float*>(&map);
}

__global__ void together(float* y) {
    cg::this_grid().sync();
    y[0] = 1;
}

static __constant__ float own[4];
namespace named {
__device__ float inner[8];
}
namespace {
__device__ float hidden[16];
__global__ void anonymous(float* y) { y[0] = own[1] + named::inner[2] + hidden[3]; }
}  // namespace
template <typename T> __device__ T typed[32];
static __global__ void local(float* y) { y[1] = typed<float>[5]; }

struct Adds {
    float value;
    __device__ void operator()(float* y) const { y[3] += value; }
};
template <typename F> __global__ void calls(F function, float* y) { function(y); }

ENTRY(launches) {
    plain<<<dim3((n + 255) / 256, 2), 256, 0, stream>>>(x, y, n);
    scaled<3><<<2, dim3(32, 8), 1024, stream>>>(y, Mixed{1, 2.0, 3}, 'z');
    paired<<<4, 128, 0, stream>>>(y);
}

ENTRY(with_attributes) {
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = 4;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 8;
    config.blockDim = 64;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    cudaLaunchKernelEx(&config, plain, x, y, int(n));
    void* arguments[] = {&y};
    cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(together), dim3(132), dim3(32), arguments, 0, stream);
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, together, y);
}

ENTRY(moves_memory) {
    float host[4] = {1, 2, 3, 4};
    cudaMemcpyToSymbolAsync(table, host, sizeof host, 8, cudaMemcpyHostToDevice, stream);
    cudaMemsetAsync(y, 0x1ff, 64, stream);
    cudaMemcpyAsync(y, x, 4 * n, cudaMemcpyDeviceToDevice, stream);
    cudaMemcpyAsync(y + n, host, sizeof host, cudaMemcpyDefault, stream);
    void* place = nullptr;
    cudaGetSymbolAddress(&place, counters);
    cudaMemset(place, 0, sizeof counters);
    cudaMemcpy2DAsync(y, 64, x, 32, 16, 2, cudaMemcpyDefault, stream);
}

ENTRY(takes_memory) {
    void *a = nullptr, *b = nullptr, *c = nullptr, *big = nullptr;
    cudaMalloc(&a, 1000);
    cudaMallocAsync(&b, 300, stream);
    cudaFree(a);
    cudaMalloc(&c, 100);
    if (cudaMalloc(&big, size_t(1) << 40) != cudaErrorMemoryAllocation) std::abort();
    if (cudaGetLastError() != cudaErrorMemoryAllocation) std::abort();
    cudaMemsetAsync(b, 1, 300, stream);
    cudaMemsetAsync(c, 2, 100, stream);
    cudaFreeAsync(b, stream);
    cudaFreeAsync(c, stream);
}

ENTRY(raises_shared) {
    static const bool once = cudaFuncSetAttribute(scaled<3>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000) == 0;
    if (!once) std::abort();
    scaled<3><<<1, 256, 150000, stream>>>(y, Mixed{}, 0);
}

ENTRY(describes_tensors) {
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (result != cudaDriverEntryPointSuccess) std::abort();
    static CUtensorMap kept;
    static bool made = false;
    CUtensorMap fresh;
    const cuuint64_t dims[2] = {64, 32}, strides[1] = {256};
    const cuuint32_t box[2] = {32, 8}, steps[2] = {1, 1};
    const auto encode = reinterpret_cast<Encode>(found);
    const auto make = [&](CUtensorMap* map, const void* place) {
        return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<void*>(place), dims, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    if (!made && make(&kept, x) != CUDA_SUCCESS) std::abort();
    made = true;
    if (make(&fresh, y) != CUDA_SUCCESS) std::abort();
    if (make(&fresh, reinterpret_cast<const char*>(y) + 4) != CUDA_ERROR_INVALID_VALUE) std::abort();
    described<<<1, 1, 0, stream>>>(fresh, y, 5);
    described<<<1, 1, 0, stream>>>(kept, y, 6);
}

ENTRY(finds_its_names) {
    void* place = nullptr;
    for (const auto error : {cudaGetSymbolAddress(&place, own), cudaGetSymbolAddress(&place, named::inner),
                             cudaGetSymbolAddress(&place, hidden), cudaGetSymbolAddress(&place, typed<float>)})
        if (error != cudaSuccess) std::abort();
    anonymous<<<1, 1, 0, stream>>>(y);
    local<<<2, 1, 0, stream>>>(y);
    calls<<<3, 1, 0, stream>>>(Adds{2}, y);
}

// Tells what it was told, as the value of a memset.
ENTRY(asks) {
    int blocks = 0, device = -1, count = 0, processors = 0, shared = 0;
    cudaFuncAttributes attributes{};
    cudaDeviceProp properties{};
    cudaGetDevice(&device);
    cudaGetDeviceCount(&count);
    cudaSetDevice(0);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    cudaGetDeviceProperties(&properties, 0);
    cudaFuncGetAttributes(&attributes, scaled<3>);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scaled<3>, 256, 100 * 1024);
    int grid = 0, block = 0;
    cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0);
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusActive;
    cudaStreamIsCapturing(stream, &capturing);
    shared = attributes.maxDynamicSharedSizeBytes;
    const int told[] = {blocks, device, count, processors, shared, attributes.maxThreadsPerBlock, grid, block,
                        properties.multiProcessorCount, int(capturing), int(cudaStreamSynchronize(stream)),
                        int(cudaPeekAtLastError())};
    cudaMemcpyAsync(y, told, sizeof told, cudaMemcpyHostToDevice, stream);
}

// ---------------------------------------------------------------- what is refused

ENTRY(on_default_stream) { plain<<<1, 1>>>(x, y, n); }
ENTRY(on_per_thread_stream) { plain<<<1, 1, 0, cudaStreamPerThread>>>(x, y, n); }
ENTRY(on_made_up_stream) { cudaMemsetAsync(y, 0, 4, reinterpret_cast<cudaStream_t>(0x1234)); }
ENTRY(reads_back) {
    float host[4];
    cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDeviceToHost, stream);
}
ENTRY(reads_back_by_address) {
    float host[4];
    cudaMemcpy(host, x, sizeof host, cudaMemcpyDefault);
}
ENTRY(uploads_much) {
    static char host[1 << 16];
    cudaMemcpyAsync(y, host, sizeof host, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync(y, host, 1, cudaMemcpyHostToDevice, stream);
}
ENTRY(launches_forever) {
    for (;;) plain<<<1, 1, 0, stream>>>(x, y, n);
}
ENTRY(asks_the_driver) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuStreamCreate", &found, 12000, cudaEnableDefault, &result);
}
ENTRY(pins_l2) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeAccessPolicyWindow;
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = 1;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, plain, x, y, int(n));
}
ENTRY(block_too_large) { plain<<<1, 1025, 0, stream>>>(x, y, n); }
ENTRY(bounds_ignored) { scaled<3><<<1, 512, 0, stream>>>(y, Mixed{}, 0); }
ENTRY(shared_too_large) { scaled<3><<<1, 256, 100000, stream>>>(y, Mixed{}, 0); }
ENTRY(grid_not_of_clusters) { paired<<<3, 128, 0, stream>>>(y); }
ENTRY(too_many_together) {
    void* arguments[] = {&y};
    cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(together), dim3(100000), dim3(32), arguments, 0, stream);
}
ENTRY(looks_at_the_error) {
    plain<<<1, 1025, 0, stream>>>(x, y, n);
    if (cudaGetLastError() == cudaErrorInvalidConfiguration) plain<<<1, 1024, 0, stream>>>(x, y, n);
}
ENTRY(edits_a_tensor_map) {
    using Encode = CUresult (*)(CUtensorMap*, int, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                const cuuint32_t*, const cuuint32_t*, int, int, int, int);
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    CUtensorMap map;
    const cuuint64_t dims[1] = {64};
    const cuuint32_t box[1] = {32}, steps[1] = {1};
    reinterpret_cast<Encode>(found)(&map, 7, 1, y, dims, nullptr, box, steps, 0, 0, 0, 0);
    reinterpret_cast<char*>(&map)[100] = 1;
    described<<<1, 1, 0, stream>>>(map, y, n);
}
ENTRY(reads_device_memory) { y[0] = x[0]; }
ENTRY(never_returns) {
    for (volatile int i = 0;; ++i) {
    }
}
ENTRY(exits) { _exit(3); }
ENTRY(aborts) { std::abort(); }
ENTRY(starts_a_thread) {
    pthread_t thread;
    pthread_create(&thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
}
ENTRY(keeps_host_memory) {
    for (int i = 0; i < 1 << 20; i += 4096) *static_cast<volatile char*>(std::malloc(4096)) = 1;
}

