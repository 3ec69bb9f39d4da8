// Blocks of K: walk B along its rows again, and keep what a tile needs in the first-level cache.
//
// What changed against 04: K is cut into blocks of 64. One block of A is packed so that the values of one k lie side
// by side (4 KB), and a tile of B (64 rows x 3 vectors) is read from memory once and then used for both halves of the
// sixteen rows. C is loaded and stored once a block. Neighbouring tiles lie side by side in B, so its 64 rows are 64
// streams instead of a walk down the columns that touches a new page at each step.
// Expected: a quarter faster than 04 or more, and near OpenBLAS, which copies all of B before it multiplies.
#include <cstddef>

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector register
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vector __attribute__((vector_size(kWidth * 4)));
typedef float Loose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));  // for memory: any float's address

constexpr int kGroup = 16;  // rows of A that are packed together
constexpr int kBlock = 64;  // values of k in one block
constexpr int kVectors = 3;
#if defined(__AVX512F__)
constexpr int kRows = 8;  // 8 x 3 sums and 3 vectors of B, of 32 registers
#else
constexpr int kRows = 4;
#endif

// Sixteen rows of A over one block of K, turned so that the sixteen values of one k lie side by side.
void pack(const float* __restrict a, float* __restrict packed, int K, int depth) {
    for (int i = 0; i < kGroup; ++i) {
        for (int k = 0; k < depth; ++k) packed[k * kGroup + i] = a[std::ptrdiff_t{i} * K + k];
    }
}

template <int vectors>
void tile(const float* __restrict packed, const float* __restrict b, float* __restrict c, std::ptrdiff_t N, int depth,
          bool first) {
    Vector sum[kRows][vectors];
    for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < vectors; ++v) {
            sum[i][v] = first ? Vector{} : Vector(*reinterpret_cast<const Loose*>(c + i * N + v * kWidth));
        }
    }
    for (int k = 0; k < depth; ++k) {
        Vector row[vectors];
        for (int v = 0; v < vectors; ++v) row[v] = *reinterpret_cast<const Loose*>(b + k * N + v * kWidth);
        for (int i = 0; i < kRows; ++i) {
            for (int v = 0; v < vectors; ++v) sum[i][v] += row[v] * packed[k * kGroup + i];
        }
    }
    for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < vectors; ++v) *reinterpret_cast<Loose*>(c + i * N + v * kWidth) = sum[i][v];
    }
}

// Rows and columns that fill no tile: plain sweeps over [i0, i1) x [j0, j1).
void sweep(const float* __restrict a, const float* __restrict b, float* __restrict c, int i0, int i1, int j0, int j1,
           int N, int K) {
    const std::ptrdiff_t n = N;
    for (int i = i0; i < i1; ++i) {
        float* __restrict row = c + i * n;
        for (int j = j0; j < j1; ++j) row[j] = 0.0f;
        for (int k = 0; k < K; ++k) {
            const float x = a[std::ptrdiff_t{i} * K + k];
            for (int j = j0; j < j1; ++j) row[j] += x * b[k * n + j];
        }
    }
}

// Sixteen rows of C; returns how many columns were done (the rest fill no vector).
int sixteen_rows(const float* __restrict a, const float* __restrict b, float* __restrict c, int N, int K) {
    const std::ptrdiff_t n = N;
    alignas(64) float packed[kBlock * kGroup];
    int j = 0;
    for (int k = 0; k < K; k += kBlock) {
        const int depth = K - k < kBlock ? K - k : kBlock;
        pack(a + k, packed, K, depth);
        const float* block = b + k * n;
        for (j = 0; j + kVectors * kWidth <= N; j += kVectors * kWidth) {
            for (int i = 0; i < kGroup; i += kRows) {
                tile<kVectors>(packed + i, block + j, c + i * n + j, n, depth, k == 0);
            }
        }
        for (; j + kWidth <= N; j += kWidth) {
            for (int i = 0; i < kGroup; i += kRows) tile<1>(packed + i, block + j, c + i * n + j, n, depth, k == 0);
        }
    }
    return j;
}

}  // namespace

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    int i = 0;
    for (; i + kGroup <= M; i += kGroup) {
        const float* rows = a + std::ptrdiff_t{i} * K;
        const int done = sixteen_rows(rows, b, c + i * n, N, K);
        sweep(rows, b, c + i * n, 0, kGroup, done, N, N, K);
    }
    sweep(a, b, c, i, M, 0, N, N, K);
}
