// The textbook way: copy B into panels first, then multiply panel by panel.
//
// What changed against 06: B is rewritten so that a column panel of one cache line is contiguous, which is what the
// big libraries do. The tile then reads perfect streams, for the whole of K, and holds all sixteen rows.
// Expected: slower than 06. With sixteen rows every value of B is used once only, so the copy (write all of B, read it
// again) costs more than the streams save.
#include <cstddef>
#include <cstdlib>

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
// One tile is a cache line of columns wide; its rows are as many as the registers hold beside it.
constexpr int kLine = 16;  // floats
constexpr int kVectors = kLine / kWidth;
#if defined(__AVX512F__)
constexpr int kRows = 16;  // of 32 registers
#elif defined(__AVX__)
constexpr int kRows = 4;
#else
constexpr int kRows = 2;
#endif

// Sixteen rows of A over one block of K, turned so that the sixteen values of one k lie side by side.
void pack(const float* __restrict a, float* __restrict packed, int K, int depth) {
    for (int i = 0; i < kGroup; ++i) {
        for (int k = 0; k < depth; ++k) packed[k * kGroup + i] = a[std::ptrdiff_t{i} * K + k];
    }
}

// All full cache lines of columns of B, panel after panel; a panel holds its K lines one after the other.
void pack_panels(const float* __restrict b, float* __restrict panels, int N, int K) {
    const std::ptrdiff_t n = N;
    for (int k = 0; k < K; ++k) {
        for (int j = 0; j + kLine <= N; j += kLine) {
            float* line = panels + std::ptrdiff_t{j} * K + std::ptrdiff_t{k} * kLine;
            for (int x = 0; x < kLine; ++x) line[x] = b[k * n + j + x];
        }
    }
}

void tile(const float* __restrict packed, const float* __restrict panel, float* __restrict c, std::ptrdiff_t N, int K) {
    Vector sum[kRows][kVectors] = {};
    for (int k = 0; k < K; ++k) {
        Vector row[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            row[v] = *reinterpret_cast<const Loose*>(panel + std::ptrdiff_t{k} * kLine + v * kWidth);
        }
        for (int i = 0; i < kRows; ++i) {
            for (int v = 0; v < kVectors; ++v) sum[i][v] += row[v] * packed[std::ptrdiff_t{k} * kGroup + i];
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
    const int columns = N - N % kLine;
    float* packed = static_cast<float*>(std::malloc(sizeof(float) * kGroup * static_cast<std::size_t>(K)));
    float* panels = static_cast<float*>(std::malloc(sizeof(float) * (static_cast<std::size_t>(columns) * K + 1)));
    int i = 0;
    if (packed != nullptr && panels != nullptr) {
        if (M >= kGroup) pack_panels(b, panels, N, K);
        for (; i + kGroup <= M; i += kGroup) {
            pack(a + std::ptrdiff_t{i} * K, packed, K, K);
            for (int j = 0; j < columns; j += kLine) {
                for (int r = 0; r < kGroup; r += kRows) {
                    tile(packed + r, panels + std::ptrdiff_t{j} * K, c + (i + r) * n + j, n, K);
                }
            }
            sweep(a, b, c, i, i + kGroup, columns, N, N, K);
        }
    }
    sweep(a, b, c, i, M, 0, N, N, K);
    std::free(panels);
    std::free(packed);
}
