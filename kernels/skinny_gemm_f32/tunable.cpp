// A kernel with its measures left open: ferret's `tune` provider looks for the best ones on the machine it runs on.
//
// C is made in panels of PANEL columns, whose sums stay in a buffer of their own until they are complete, so that rows
// of C a multiple of 4096 bytes apart do not push each other out of the nearest cache. A panel goes through B in blocks
// of DEPTH rows. Each block is walked in tiles of VECTORS vectors: the first ROWS rows of C read a tile from memory and
// leave a copy of it side by side, the other rows read the copy. Meanwhile the block that is PREFETCH blocks further on
// is asked for, along its rows.
// The values below are a modest start that is right for any machine; every combination of the listed ones is right.
#include <cstddef>

namespace {

constexpr int ROWS = 2;      // ferret:tune ROWS 2 4 8
constexpr int VECTORS = 2;   // ferret:tune VECTORS 1 2 3 4
constexpr int DEPTH = 64;    // ferret:tune DEPTH 16 32 64
constexpr int PANEL = 192;   // ferret:tune PANEL 192 384 768
constexpr int PREFETCH = 0;  // ferret:tune PREFETCH 0 1 2
// More sums than this leave the registers of every machine but the largest.
// ferret:tune-when ROWS * VECTORS <= 16

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector register
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vector __attribute__((vector_size(kWidth * 4)));
typedef float Loose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));  // for memory: any float's address

constexpr int kGroup = 16;  // rows of C that are made together
constexpr int kLine = 16;   // floats in a cache line
constexpr int kColumns = VECTORS * kWidth;
static_assert(kGroup % ROWS == 0 && PANEL % kColumns == 0, "tiles fill a group of rows and a panel of columns");

// Where the prefetch is: it goes on from tile to tile along the rows of a block.
struct Ahead {
    const float* row;
    int column;
};

// One block of A, turned so that the values of one k lie side by side; rows that are not there are zeros.
void pack(const float* __restrict a, float* __restrict packed, int rows, int K, int depth) {
    for (int i = 0; i < kGroup; ++i) {
        for (int k = 0; k < depth; ++k) packed[k * kGroup + i] = i < rows ? a[std::ptrdiff_t{i} * K + k] : 0.0f;
    }
}

// ROWS x kColumns sums. `reads_memory`: b is the matrix itself; it is copied, and the prefetch goes on.
template <bool reads_memory>
void tile(const float* __restrict packed, const float* __restrict b, std::ptrdiff_t stride, float* __restrict copy,
          float* __restrict sums, int depth, Ahead& ahead, int width, std::ptrdiff_t N) {
    constexpr bool asks = reads_memory && PREFETCH > 0;
    Vector sum[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i) {
        for (int v = 0; v < VECTORS; ++v) sum[i][v] = *reinterpret_cast<const Loose*>(sums + i * PANEL + v * kWidth);
    }
    Ahead next = ahead;
    for (int k = 0; k < depth; ++k) {
        if (asks) {
            for (int x = 0; x < kColumns; x += kLine) __builtin_prefetch(next.row + next.column + x);
            next.column += kColumns;
            if (next.column >= width) next = {next.row + N, 0};
        }
        Vector row[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            row[v] = *reinterpret_cast<const Loose*>(b + k * stride + v * kWidth);
            if (reads_memory) *reinterpret_cast<Loose*>(copy + k * kColumns + v * kWidth) = row[v];
        }
        for (int i = 0; i < ROWS; ++i) {
            for (int v = 0; v < VECTORS; ++v) sum[i][v] += row[v] * packed[k * kGroup + i];
        }
    }
    if (asks) ahead = next;
    for (int i = 0; i < ROWS; ++i) {
        for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<Loose*>(sums + i * PANEL + v * kWidth) = sum[i][v];
    }
}

// The columns that fill no tile, copied with zeros behind them.
void copy_ragged(const float* __restrict b, float* __restrict copy, int columns, std::ptrdiff_t N, int depth) {
    for (int k = 0; k < depth; ++k) {
        for (int x = 0; x < kColumns; ++x) copy[k * kColumns + x] = x < columns ? b[k * N + x] : 0.0f;
    }
}

// Up to kGroup rows by up to PANEL columns of C.
void panel(const float* __restrict a, const float* __restrict b, float* __restrict c, int rows, int width, int N,
           int K) {
    const std::ptrdiff_t n = N;
    alignas(64) float packed[DEPTH * kGroup];
    alignas(64) float copy[DEPTH * kColumns];
    alignas(64) float sums[kGroup * PANEL] = {};
    for (int k = 0; k < K; k += DEPTH) {
        const int depth = K - k < DEPTH ? K - k : DEPTH;
        pack(a + k, packed, rows, K, depth);
        const float* block = b + k * n;
        // At the end the last block is asked for again, which costs next to nothing.
        const int further = k + PREFETCH * DEPTH;
        Ahead ahead = {further < K ? b + further * n : block, 0};
        for (int j = 0; j < width; j += kColumns) {
            int i = 0;
            if (j + kColumns <= width) {
                tile<true>(packed, block + j, n, copy, sums + j, depth, ahead, width, n);
                i = ROWS;
            } else {
                copy_ragged(block + j, copy, width - j, n, depth);
            }
            for (; i < rows; i += ROWS) {
                tile<false>(packed + i, copy, kColumns, nullptr, sums + i * PANEL + j, depth, ahead, width, n);
            }
        }
    }
    for (int i = 0; i < rows; ++i) __builtin_memcpy(c + i * n, sums + i * PANEL, sizeof(float) * width);
}

}  // namespace

extern "C" void skinny_gemm(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N,
                            int K) {
    const std::ptrdiff_t n = N;
    for (int i = 0; i < M; i += kGroup) {
        const int rows = M - i < kGroup ? M - i : kGroup;
        for (int j = 0; j < N; j += PANEL) {
            const int width = N - j < PANEL ? N - j : PANEL;
            panel(a + std::ptrdiff_t{i} * K, b + j, c + i * n + j, rows, width, N, K);
        }
    }
}
