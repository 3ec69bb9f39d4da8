// Four tiles of columns a block: each value of A that a warp holds is used four times.
//
// What changed against 03: 32 columns a block, eight warps along K, whole lines of 128 bytes of each row of W at once.
// A warp has 4 KB of W on its way at every step, a block 32 KB.
// Expected: half the traffic of the second-level cache, and near to the speed of memory.
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

// d += A @ B for a tile of 16 x 8 and 16 terms, on tensor cores, bfloat16 products and f32 sums.
__device__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 32 terms: lanes of a quad hold eight neighbouring values each. That is another order of the terms than the
// instruction's own, but the same one for A and W, and a sum does not mind.
__device__ void multiply(float (&d)[4], uint4 upper, uint4 lower, uint4 w) {
    multiply(d, upper.x, lower.x, upper.y, lower.y, w.x, w.y);
    multiply(d, upper.z, lower.z, upper.w, lower.w, w.z, w.w);
}

// Each warp has sums of its own part of K for a tile of 16 x kColumns; they are added in the order of the warps.
template <int kWarps, int kTiles>
__device__ void add_and_store(const float (&sums)[kTiles][4], float* parts, __nv_bfloat16* c, int M, int N) {
    constexpr int kColumns = kTiles * 8, kValues = kRows * kColumns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    float* mine = parts + warp * kValues;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
        const int column = t * 8 + quad * 2;
        *reinterpret_cast<float2*>(mine + group * kColumns + column) = make_float2(sums[t][0], sums[t][1]);
        *reinterpret_cast<float2*>(mine + (group + 8) * kColumns + column) = make_float2(sums[t][2], sums[t][3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kValues; i += kWarps * 32) {
        float sum = 0;
#pragma unroll
        for (int p = 0; p < kWarps; ++p) sum += parts[p * kValues + i];
        const int row = i / kColumns, column = blockIdx.x * kColumns + i % kColumns;
        if (row < M && column < N) c[size_t(row) * N + column] = __float2bfloat16(sum);
    }
}

// K is a multiple of 64: a step is a line of each row.
template <int kWarps, int kTiles>
__global__ __launch_bounds__(kWarps * 32) void tiles(const uint4* __restrict__ a, const uint4* __restrict__ w,
                                                     __nv_bfloat16* __restrict__ c, int M, int N, int K) {
    __shared__ __align__(16) float parts[kWarps * kRows * kTiles * 8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const size_t pitch = K / 8;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const uint4* upper = a + group * pitch + quad;
    const uint4* lower = a + (group + 8) * pitch + quad;
    const uint4* weights[kTiles];
    // Columns beyond the last are computed from the last row of W and not stored.
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
        weights[t] = w + min(blockIdx.x * kTiles * 8 + t * 8 + group, N - 1) * pitch + quad;
    float sums[kTiles][4] = {};
    for (int k = warp * 8; k < K / 8; k += kWarps * 8) {
        uint4 b[kTiles][2];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            b[t][0] = __ldcs(weights[t] + k);
            b[t][1] = __ldcs(weights[t] + k + 4);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 above = group < M ? __ldg(upper + k + half * 4) : zero;
            const uint4 below = group + 8 < M ? __ldg(lower + k + half * 4) : zero;
#pragma unroll
            for (int t = 0; t < kTiles; ++t) multiply(sums[t], above, below, b[t][half]);
        }
    }
    add_and_store<kWarps, kTiles>(sums, parts, c, M, N);
}

static bool aligned(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0;
}

extern "C" void skinny_gemm(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int32_t M, int32_t N,
                            int32_t K, cudaStream_t stream) {
    constexpr int kWarps = 8, kTiles = 4;
    if (K % 64 != 0 || !aligned(a) || !aligned(w)) {
        any_shape<<<(N + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
        return;
    }
    const int blocks = (N + kTiles * 8 - 1) / (kTiles * 8);
    tiles<kWarps, kTiles><<<blocks, kWarps * 32, 0, stream>>>(reinterpret_cast<const uint4*>(a),
                                                             reinterpret_cast<const uint4*>(w), c, M, N, K);
}
