// Write around the caches, read ahead.
//
// What changed against 03: y is stored with non-temporal stores, so its lines are not first read from memory only to
// be overwritten: a third of the traffic goes. While a row is scaled, the next row is prefetched to the second-level
// cache, so that its sum does not wait for memory.
// Expected: a fifth faster than 03 or more. Whoever reads y next finds it in memory instead of in a cache, which is
// right for a tensor larger than the caches and a loss for a small one.
#include <cmath>
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

constexpr int kSums = 4;  // independent sums, so that no addition waits for the one before
constexpr int kStep = kSums * kWidth;

float sum_of_squares(const float* __restrict x, int N) {
    Vector sum[kSums] = {};
    int j = 0;
    for (; j + kStep <= N; j += kStep) {
        for (int s = 0; s < kSums; ++s) {
            const Vector v = *reinterpret_cast<const Loose*>(x + j + s * kWidth);
            sum[s] += v * v;
        }
    }
    for (int s = 1; s < kSums; ++s) sum[0] += sum[s];
    float total = 0.0f;
    for (int lane = 0; lane < kWidth; ++lane) total += sum[0][lane];
    for (; j < N; ++j) total += x[j] * x[j];
    return total;
}

// Both the line of y and the vector have to be aligned for a store that goes around the caches.
void stream(float* y, Vector v) {
#if defined(__AVX512F__)
    __builtin_ia32_movntps512(y, v);
#elif defined(__AVX__)
    __builtin_ia32_movntps256(y, v);
#elif defined(__SSE__)
    __builtin_ia32_movntps(y, v);
#else
    *reinterpret_cast<Loose*>(y) = v;
#endif
}

// Non-temporal stores are not ordered with anything; without this a reader could see old memory after the return.
void finish_streams() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

int elements_before_alignment(const float* y) {
    const std::size_t past = reinterpret_cast<std::size_t>(y) % sizeof(Vector);
    return past == 0 ? 0 : static_cast<int>((sizeof(Vector) - past) / sizeof(float));
}

void scale(const float* __restrict x, const float* __restrict g, float* __restrict y, const float* next, float r,
           int N) {
    constexpr int kToL2 = 2;  // the locality that __builtin_prefetch turns into "second level"
    const int before = elements_before_alignment(y);
    const int head = before < N ? before : N;
    int j = 0;
    for (; j < head; ++j) y[j] = x[j] * r * g[j];
    for (; j + kWidth <= N; j += kWidth) {
        __builtin_prefetch(next + j, 0, kToL2);
        const Vector v = *reinterpret_cast<const Loose*>(x + j);
        const Vector gain = *reinterpret_cast<const Loose*>(g + j);
        stream(y + j, v * r * gain);
    }
    for (; j < N; ++j) y[j] = x[j] * r * g[j];
}

}  // namespace

extern "C" void rmsnorm(const float* x, const float* g, float* rstd, float* y, float eps, int M, int N) {
    for (std::ptrdiff_t i = 0; i < M; ++i) {
        const float* row = x + i * N;
        const float r = 1.0f / std::sqrt(sum_of_squares(row, N) / static_cast<float>(N) + eps);
        if (rstd != nullptr) rstd[i] = r;
        scale(row, g, y + i * N, i + 1 < M ? row + N : row, r, N);
    }
    finish_streams();
}
