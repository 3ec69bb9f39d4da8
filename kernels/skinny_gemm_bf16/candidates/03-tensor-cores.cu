// Tensor cores fed straight from memory: sixteen bytes a lane, no shared memory on the way.
//
// What changed against the seed: a block has eight columns of C, its four warps take turns along K, and each lane's
// load of eight values is two steps of the tensor core. Shapes whose rows are not aligned go the seed's way.
// Expected: many times the seed. A is still read once for every eight columns, twice as many bytes as W itself.
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

template <int kWarps>
__global__ __launch_bounds__(kWarps * 32) void tile(const uint4* a, const uint4* w, __nv_bfloat16* c, int M, int N,
                                                    int K) {
    __shared__ __align__(16) float parts[kWarps * kRows * 8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const size_t pitch = K / 8;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const uint4* upper = a + group * pitch;
    const uint4* lower = a + (group + 8) * pitch;
    const int n = blockIdx.x * 8 + group;
    float sums[1][4] = {};
    for (int k = warp * 4 + quad; k < K / 8; k += kWarps * 4)
        multiply(sums[0], group < M ? upper[k] : zero, group + 8 < M ? lower[k] : zero,
                 n < N ? w[n * pitch + k] : zero);
    add_and_store<kWarps, 1>(sums, parts, c, M, N);
}

static bool aligned(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0;
}

extern "C" void skinny_gemm(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int32_t M, int32_t N,
                            int32_t K, cudaStream_t stream) {
    constexpr int kWarps = 4;
    if (K % 32 != 0 || !aligned(a) || !aligned(w)) {
        any_shape<<<(N + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(a, w, c, M, N, K);
        return;
    }
    tile<kWarps><<<(N + 7) / 8, kWarps * 32, 0, stream>>>(reinterpret_cast<const uint4*>(a),
                                                         reinterpret_cast<const uint4*>(w), c, M, N, K);
}
