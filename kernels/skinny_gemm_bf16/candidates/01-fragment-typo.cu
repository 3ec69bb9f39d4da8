// Tensor cores by the portable interface, with a fragment of a type that it does not have.
//
// What changed against the seed: 16 x 16 tiles by wmma. Expected: does not compile; an accumulator of bfloat16 inputs
// is float, never bfloat16.
#include <cuda_bf16.h>
#include <cstdint>

#include <mma.h>

__global__ void tiles(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int N, int K) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> rows;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> columns;
    wmma::fragment<wmma::accumulator, 16, 16, 16, __nv_bfloat16> sums;
    wmma::fill_fragment(sums, __float2bfloat16(0.0f));
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(rows, a + k, K);
        wmma::load_matrix_sync(columns, w + size_t(blockIdx.x) * 16 * K + k, K);
        wmma::mma_sync(sums, rows, columns, sums);
    }
    wmma::store_matrix_sync(c + blockIdx.x * 16, sums, N, wmma::mem_row_major);
}

extern "C" void skinny_gemm(const __nv_bfloat16* a, const __nv_bfloat16* w, __nv_bfloat16* c, int32_t M, int32_t N,
                            int32_t K, cudaStream_t stream) {
    tiles<<<N / 16, 32, 0, stream>>>(a, w, c, N, K);
}
