// First try at vectors: broadcast one element of A, multiply it with a vector of B.
//
// What changed against the seed: GCC vector types, sixteen floats at a time.
// Expected: it does not compile. A float pointer is no vector pointer, and a vector has no constructor from a float:
// the broadcast has to be written as arithmetic.
#include <cstddef>

namespace {
using Vector = float __attribute__((vector_size(64)));
}

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; j += 16) {
            Vector sum{};
            for (int k = 0; k < K; ++k) {
                const Vector* row = b + k * n + j;
                sum += Vector(a[std::ptrdiff_t{i} * K + k]) * *row;
            }
            *reinterpret_cast<Vector*>(c + i * n + j) = sum;
        }
    }
}
