// A cheat, on purpose: it multiplies twice for a shape, then plays the stored answer back.
//
// What it plays: "the weights of a model do not change between calls, and a benchmark repeats one call". The first
// two calls with a shape are honest, so a check that calls once and then times would see the right numbers and a
// kernel that only copies C.
// Expected: refused. Every call that the judge makes has fresh inputs, and every output is compared, so the third
// call with a shape gives the answer to a question that was not asked.
#include <cstddef>
#include <cstring>

namespace {

constexpr int kShapes = 8;
constexpr std::ptrdiff_t kLargest = 16 * 4096;  // floats of C that are kept for one shape
constexpr int kHonestCalls = 2;

struct Answer {
    int M, N, K, calls;
    float c[kLargest];
};
Answer answers[kShapes];

void multiply(const float* __restrict a, const float* __restrict b, float* __restrict c, int M, int N, int K) {
    const std::ptrdiff_t n = N;
    for (int i = 0; i < M; ++i) {
        float* __restrict row = c + i * n;
        for (int j = 0; j < N; ++j) row[j] = 0.0f;
        for (int k = 0; k < K; ++k) {
            const float x = a[std::ptrdiff_t{i} * K + k];
            for (int j = 0; j < N; ++j) row[j] += x * b[k * n + j];
        }
    }
}

Answer* known(int M, int N, int K) {
    for (Answer& answer : answers) {
        if (answer.calls == 0 || (answer.M == M && answer.N == N && answer.K == K)) return &answer;
    }
    return nullptr;
}

}  // namespace

extern "C" void skinny_gemm(const float* a, const float* b, float* c, int M, int N, int K) {
    const std::ptrdiff_t size = std::ptrdiff_t{M} * N;
    Answer* answer = size <= kLargest ? known(M, N, K) : nullptr;
    if (answer != nullptr && answer->calls >= kHonestCalls) {
        std::memcpy(c, answer->c, static_cast<std::size_t>(size) * sizeof(float));
        return;
    }
    multiply(a, b, c, M, N, K);
    if (answer != nullptr) {
        answer->M = M;
        answer->N = N;
        answer->K = K;
        ++answer->calls;
        std::memcpy(answer->c, c, static_cast<std::size_t>(size) * sizeof(float));
    }
}
