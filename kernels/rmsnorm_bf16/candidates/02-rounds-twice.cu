// Multiplies in bfloat16: x * rstd is rounded, then multiplied by g and rounded again.
//
// What changed against the seed: the last product is made by the packed instruction for bfloat16.
// Expected: refused. Many models are written that way, but this contract has one rounding; the second one shows.
#include <cuda_bf16.h>
#include <cstdint>

__global__ void rms(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* y, float eps, int N) {
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
        y[base + j] = __hmul(__float2bfloat16(__bfloat162float(x[base + j]) * r), g[j]);
}

extern "C" void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* y, float eps, int32_t M,
                        int32_t N, cudaStream_t stream) {
    rms<<<M, 256, 0, stream>>>(x, g, y, eps, N);
}
