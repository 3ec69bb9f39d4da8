// Unit stride: sweep along the rows of B.
//
// What changed against the seed: the loop over K moved outside the loop over the columns, so that B and C are both
// read in the order in which they lie in memory, and the compiler can use vectors of any width.
// Expected: two to three times the seed. B is still read once for every row of A, and each sweep also reads and
// writes a whole row of C.
#include <cstddef>

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    for (int i = 0; i < M; ++i) {
        float* __restrict row = c + i * n;
        for (int j = 0; j < N; ++j) row[j] = 0.0f;
        for (int k = 0; k < K; ++k) {
            const float x = a[std::ptrdiff_t{i} * K + k];
            for (int j = 0; j < N; ++j) row[j] += x * b[k * n + j];
        }
    }
}
