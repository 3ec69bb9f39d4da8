// The slow start: a warp a column of C, values of two bytes, ordinary multiply-adds.
//
// It is correct for every shape up to 16 rows. Every warp reads all of A again, 128 KB of it for one column: expect a
// tenth of the bar's speed or less.
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

extern "C" void skinny_gemm(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int32_t M, int32_t N,
                            int32_t K, cudaStream_t stream) {
    constexpr int kWarps = 4;
    any_shape<<<(N + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
}
