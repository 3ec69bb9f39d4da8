// Vector sums, stage tensor forgotten.
//
// What changed against 01: eps is back. What is missing: rstd is computed for y, but never stored where the gate asks
// for it. Expected: refused, rstd not written.
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

void scale(const float* __restrict x, const float* __restrict g, float* __restrict y, float r, int N) {
    int j = 0;
    for (; j + kWidth <= N; j += kWidth) {
        const Vector v = *reinterpret_cast<const Loose*>(x + j);
        const Vector gain = *reinterpret_cast<const Loose*>(g + j);
        *reinterpret_cast<Loose*>(y + j) = v * r * gain;
    }
    for (; j < N; ++j) y[j] = x[j] * r * g[j];
}

}  // namespace

extern "C" void rmsnorm(const float* x, const float* g, float*, float* y, float eps, int M, int N) {
    for (std::ptrdiff_t i = 0; i < M; ++i) {
        const float r = 1.0f / std::sqrt(sum_of_squares(x + i * N, N) / static_cast<float>(N) + eps);
        scale(x + i * N, g, y + i * N, r, N);
    }
}
