// The slow start: the formula, one row at a time.
//
// It is correct for every shape. Floating-point sums may not be reordered by the compiler, so the sum of squares is
// one long chain in which every addition waits for the one before: expect less than half of the bar's speed.
#include <cmath>
#include <cstddef>

extern "C" void rmsnorm(const float* __restrict x, const float* __restrict g, float* __restrict rstd,
                        float* __restrict y, float eps, int M, int N) {
    for (std::ptrdiff_t i = 0; i < M; ++i) {
        const float* row = x + i * N;
        float sum = 0.0f;
        for (int j = 0; j < N; ++j) sum += row[j] * row[j];
        const float r = 1.0f / std::sqrt(sum / static_cast<float>(N) + eps);
        if (rstd != nullptr) rstd[i] = r;
        for (int j = 0; j < N; ++j) y[i * N + j] = row[j] * r * g[j];
    }
}
