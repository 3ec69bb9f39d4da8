// Everything in double, to be safe.
//
// What changed against 03: the squares are summed in double, in order, and every element is divided by the root in
// double instead of being multiplied with its inverse.
// Expected: correct, closer to the golden than any other, and slower than 03: one chain of additions again, and a
// division for each element.
#include <cmath>
#include <cstddef>

extern "C" void rmsnorm(const float* __restrict x, const float* __restrict g, float* __restrict rstd,
                        float* __restrict y, float eps, int M, int N) {
    for (std::ptrdiff_t i = 0; i < M; ++i) {
        const float* row = x + i * N;
        double sum = 0.0;
        for (int j = 0; j < N; ++j) sum += static_cast<double>(row[j]) * row[j];
        const double root = std::sqrt(sum / N + static_cast<double>(eps));
        if (rstd != nullptr) rstd[i] = static_cast<float>(1.0 / root);
        for (int j = 0; j < N; ++j) y[i * N + j] = static_cast<float>(row[j] / root * g[j]);
    }
}
