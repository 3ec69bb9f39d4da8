// Register tile: 4 rows x 2 vectors of C are summed in registers over the whole of K.
//
// What changed against 02: C is written once instead of once per k, and each vector of B that is loaded feeds four
// rows. Against 03: every k is summed, with no unrolling by hand (the loop is limited by memory, not by its counter).
// Expected: half as fast again as 02. B is read four times, always down the columns.
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

constexpr int kRows = 4;     // of C in one register tile
constexpr int kVectors = 2;  // of columns in one register tile
constexpr int kColumns = kVectors * kWidth;

void tile(const float* __restrict a, const float* __restrict b, float* __restrict c, std::ptrdiff_t N, int K) {
    Vector sum[kRows][kVectors] = {};
    for (int k = 0; k < K; ++k) {
        for (int v = 0; v < kVectors; ++v) {
            const Vector x = *reinterpret_cast<const Loose*>(b + k * N + v * kWidth);
            for (int i = 0; i < kRows; ++i) sum[i][v] += x * a[std::ptrdiff_t{i} * K + k];
        }
    }
    for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Loose*>(c + i * N + v * kWidth) = sum[i][v];
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

}  // namespace

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    const int rows = M - M % kRows;
    const int columns = N - N % kColumns;
    for (int j = 0; j < columns; j += kColumns) {
        for (int i = 0; i < rows; i += kRows) tile(a + std::ptrdiff_t{i} * K, b + j, c + i * n + j, n, K);
    }
    sweep(a, b, c, 0, rows, columns, N, N, K);
    sweep(a, b, c, rows, M, 0, N, N, K);
}
