// Sixteen bytes a load, the row in registers, and g on its way before the sum is known.
//
// What changed against the seed: each thread holds one or two vectors of eight values, so x is read once; g is loaded
// before the reduction, so that the second latency hides behind the first. Shapes that do not fit go the seed's way.
// Expected: twice the seed and more; with few rows faster than a kernel that loads g after the reduction.
#include <cuda_bf16.h>
#include <cstdint>

// For every shape: one value at a time.
__global__ void rms_any(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* y, float eps, int N) {
    __shared__ float partial[8];
    const size_t base = size_t(blockIdx.x) * N;
    float sum = 0;
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        const float v = __bfloat162float(x[base + j]);
        sum += v * v;
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (float part : partial) sum += part;
    const float r = 1 / sqrtf(sum / N + eps);
    for (int j = threadIdx.x; j < N; j += blockDim.x)
        y[base + j] = __float2bfloat16(__bfloat162float(x[base + j]) * r * __bfloat162float(g[j]));
}

// Eight bfloat16 values; the first of each pair is the lower half of its word.
__device__ float low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

__device__ float squares(uint4 v) {
    float sum = 0;
    for (uint32_t word : {v.x, v.y, v.z, v.w}) sum += low(word) * low(word) + high(word) * high(word);
    return sum;
}

__device__ uint32_t scaled(uint32_t x, uint32_t g, float r) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low(x) * r * low(g), high(x) * r * high(g));
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ uint4 scaled(uint4 x, uint4 g, float r) {
    return make_uint4(scaled(x.x, g.x, r), scaled(x.y, g.y, r), scaled(x.z, g.z, r), scaled(x.w, g.w, r));
}

// The sum over the block, the same for every thread. `partial` has a place for each of at most 32 warps.
__device__ float block_sum(float sum, float* partial) {
    const int lane = threadIdx.x % 32;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = lane < (blockDim.x + 31) / 32 ? partial[lane] : 0.0f;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

template <int kVectors>
__global__ void rms(const uint4* __restrict__ x, const uint4* __restrict__ g, uint4* __restrict__ y, float eps,
                    int vectors) {
    __shared__ float partial[32];
    const size_t base = size_t(blockIdx.x) * vectors;
    uint4 row[kVectors] = {}, gain[kVectors] = {};
    for (int v = 0; v < kVectors; ++v) {
        const int j = v * blockDim.x + threadIdx.x;
        if (j < vectors) row[v] = x[base + j];
    }
    for (int v = 0; v < kVectors; ++v) {
        const int j = v * blockDim.x + threadIdx.x;
        if (j < vectors) gain[v] = g[j];
    }
    float sum = 0;
    for (int v = 0; v < kVectors; ++v) sum += squares(row[v]);
    const float r = rsqrtf(block_sum(sum, partial) / (8 * vectors) + eps);
    for (int v = 0; v < kVectors; ++v) {
        const int j = v * blockDim.x + threadIdx.x;
        if (j < vectors) y[base + j] = scaled(row[v], gain[v], r);
    }
}

static bool aligned(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0;
}

extern "C" void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* y, float eps, int32_t M,
                        int32_t N, cudaStream_t stream) {
    const int vectors = N / 8;
    if (N % 8 != 0 || vectors > 2048 || !aligned(x) || !aligned(g) || !aligned(y)) {
        rms_any<<<M, 256, 0, stream>>>(x, g, y, eps, N);
        return;
    }
    const auto* from = reinterpret_cast<const uint4*>(x);
    const auto* gain = reinterpret_cast<const uint4*>(g);
    auto* to = reinterpret_cast<uint4*>(y);
    const int threads = vectors < 1024 ? (vectors + 31) / 32 * 32 : 1024;
    if (vectors <= threads)
        rms<1><<<M, threads, 0, stream>>>(from, gain, to, eps, vectors);
    else
        rms<2><<<M, threads, 0, stream>>>(from, gain, to, eps, vectors);
}
