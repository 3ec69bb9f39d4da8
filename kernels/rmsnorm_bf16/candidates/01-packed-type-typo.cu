// Pairs of values, with a type that there is not.
//
// What changed against the seed: two values a load. Expected: does not compile; the packed type is __nv_bfloat162.
#include <cuda_bf16.h>
#include <cstdint>

__global__ void rms(const __nv_bfloat16x2* x, const __nv_bfloat16x2* g, __nv_bfloat16x2* y, float eps, int pairs) {
    __shared__ float partial[8];
    const size_t base = size_t(blockIdx.x) * pairs;
    float sum = 0;
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        const float2 v = __bfloat1622float2(x[base + j]);
        sum += v.x * v.x + v.y * v.y;
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (float part : partial) sum += part;
    const float r = 1 / sqrtf(sum / (2 * pairs) + eps);
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        const float2 v = __bfloat1622float2(x[base + j]), w = __bfloat1622float2(g[j]);
        y[base + j] = __floats2bfloat162_rn(v.x * r * w.x, v.y * r * w.y);
    }
}

extern "C" void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* y, float eps, int32_t M,
                        int32_t N, cudaStream_t stream) {
    rms<<<M, 256, 0, stream>>>(reinterpret_cast<const __nv_bfloat16x2*>(x), reinterpret_cast<const __nv_bfloat16x2*>(g),
                               reinterpret_cast<__nv_bfloat16x2*>(y), eps, N / 2);
}
