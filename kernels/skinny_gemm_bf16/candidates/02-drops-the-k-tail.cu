// Eight values a load, and the last K % 8 terms forgotten.
//
// What changed against the seed: loads of sixteen bytes, which no timed shape has a rest of; rows that are not aligned
// still go the seed's way. Expected: refused, at an edge case whose K is no multiple of eight.
#include <cuda_bf16.h>
#include <cstdint>

constexpr int kRows = 16;  // of A, at most

// For every shape: a warp a column of C, its lanes side by side along K, all rows of A against each value of W.
__global__ void any_shape(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int M, int N, int K) {
    const int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= N) return;
    float sum[kRows] = {};
    for (int k = lane; k < K; k += 32) {
        const float weight = __bfloat162float(w[size_t(n) * K + k]);
#pragma unroll
        for (int m = 0; m < kRows; ++m)
            if (m < M) sum[m] += __bfloat162float(a[size_t(m) * K + k]) * weight;
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
        for (int d = 16; d > 0; d /= 2) sum[m] += __shfl_xor_sync(~0u, sum[m], d);
        if (m < M && lane == 0) c[size_t(m) * N + n] = __float2bfloat16(sum[m]);
    }
}

__device__ float low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

__device__ float product(uint4 a, uint4 w) {
    return low(a.x) * low(w.x) + high(a.x) * high(w.x) + low(a.y) * low(w.y) + high(a.y) * high(w.y) +
           low(a.z) * low(w.z) + high(a.z) * high(w.z) + low(a.w) * low(w.w) + high(a.w) * high(w.w);
}

// Copies eight values of a row that need not be aligned.
__device__ uint4 eight(const __nv_bfloat16* from) {
    const auto* bits = reinterpret_cast<const uint16_t*>(from);
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = bits[2 * i] | uint32_t(bits[2 * i + 1]) << 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

template <bool kAligned>
__global__ void by_eights(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int M, int N, int K) {
    const int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= N) return;
    float sum[kRows] = {};
    for (int k = lane * 8; k + 8 <= K; k += 256) {
        const __nv_bfloat16* at = w + size_t(n) * K + k;
        const uint4 weights = kAligned ? *reinterpret_cast<const uint4*>(at) : eight(at);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
            if (m >= M) break;
            const __nv_bfloat16* row = a + size_t(m) * K + k;
            sum[m] += product(kAligned ? *reinterpret_cast<const uint4*>(row) : eight(row), weights);
        }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
        for (int d = 16; d > 0; d /= 2) sum[m] += __shfl_xor_sync(~0u, sum[m], d);
        if (m < M && lane == 0) c[size_t(m) * N + n] = __float2bfloat16(sum[m]);
    }
}

static bool aligned(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0;
}

extern "C" void skinny_gemm(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int32_t M, int32_t N,
                            int32_t K, cudaStream_t stream) {
    constexpr int kWarps = 4;
    const int blocks = (N + kWarps - 1) / kWarps;
    if (K < 8)
        any_shape<<<blocks, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
    else if (K % 8 == 0 && aligned(a) && aligned(w))
        by_eights<true><<<blocks, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
    else
        by_eights<false><<<blocks, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
}
