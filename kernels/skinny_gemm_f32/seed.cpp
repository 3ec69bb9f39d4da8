// The slow start: one row of C at a time, two cache lines of its columns at a time, summed over all of K.
//
// It is correct for every shape. It reads B once for each row of A, and walks it down the columns, so nearly every
// read of B goes to another page: expect a small fraction of OpenBLAS's speed.
#include <cstddef>

namespace {
constexpr int kStrip = 32;  // floats in two cache lines
}

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; j += kStrip) {
            const int width = N - j < kStrip ? N - j : kStrip;
            float sum[kStrip] = {};
            for (int k = 0; k < K; ++k) {
                for (int x = 0; x < width; ++x) sum[x] += a[std::ptrdiff_t{i} * K + k] * b[k * n + j + x];
            }
            for (int x = 0; x < width; ++x) c[i * n + j + x] = sum[x];
        }
    }
}
