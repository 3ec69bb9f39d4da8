// The bar: OpenBLAS sgemm on one thread, with the fastest of its kernel sets for the machine.
//
// OpenBLAS chooses kernels by the processor's name when it is loaded. On an AMD processor with AVX-512 it takes the
// SkylakeX set, which is a third slower for these shapes than its own AVX2 set (Haswell); an expert sets
// OPENBLAS_CORETYPE there, so the bar does the same. That has to be done before the library is loaded, hence dlopen.
// Of the calls it offers for this product none is faster than the plain one; README.md has the figures of both.
#include <cblas.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace {

// What this file needs of the library, by its own header's types.
struct OpenBlas {
    decltype(&scipy_cblas_sgemm) sgemm;
    decltype(&scipy_openblas_get_config) config;
    decltype(&scipy_openblas_get_corename) core;
    decltype(&scipy_openblas_get_num_threads) threads;
};
OpenBlas openblas;

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        std::fprintf(stderr, "OpenBLAS: %s\n", dlerror());
        std::abort();
    }
}

bool avx2_kernels_are_faster() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") != 0 && __builtin_cpu_supports("avx512f") != 0;
#else
    return false;
#endif
}

// While this object is loaded, so that no call pays for it.
__attribute__((constructor)) void load() {
    // A decode kernel is judged on one core; more threads would only measure the thread pool.
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (avx2_kernels_are_faster()) setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    void* library = dlopen("libscipy_openblas.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "OpenBLAS: %s\n", dlerror());
        std::abort();
    }
    find(library, "scipy_cblas_sgemm", openblas.sgemm);
    find(library, "scipy_openblas_get_config", openblas.config);
    find(library, "scipy_openblas_get_corename", openblas.core);
    find(library, "scipy_openblas_get_num_threads", openblas.threads);
}

}  // namespace

extern "C" void skinny_gemm(const float* a, const float* b, float* c, int M, int N, int K) {
    openblas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, M, N, K, 1.0f, a, K, b, N, 0.0f, c, N);
}

extern "C" const char* ferret_describe(void) {
    static char text[256];
    std::snprintf(text, sizeof text, "%s, %s kernels, %d thread", openblas.config(), openblas.core(),
                  openblas.threads());
    return text;
}
