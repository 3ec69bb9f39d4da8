// A self-contained program in the original ferret's form: its own inputs, reference, baseline, check and clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

struct Config {
    const char* name;
    int n;
};

// The kernel that a run improves.
static void saxpy(float a, const float* x, float* y, int n) {
    for (int i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
}

// The baseline, written to be slow: the compiler may not keep anything in registers.
static void baseline(float a, const float* x, float* y, int n) {
    for (volatile int i = 0; i < n; i = i + 1) {
        volatile float product = a * x[i];
        y[i] = product + y[i];
    }
}

template <typename Function>
static double median_us(Function run) {
    std::vector<double> times;
    for (int sample = 0; sample < 21; ++sample) {
        const auto start = std::chrono::steady_clock::now();
        run();
        times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return times[10];
}

int main() {
    const Config configs[] = {{"n4096", 4096}, {"n65536", 65536}};
    double ours[2], theirs[2];
    bool valid[2];
    for (int c = 0; c < 2; ++c) {
        const int n = configs[c].n;
        std::vector<float> x(n), y(n), kept(n);
        for (int i = 0; i < n; ++i) x[i] = float(i % 17) - 8, y[i] = kept[i] = float(i % 5);
        saxpy(3.0f, x.data(), y.data(), n);
        valid[c] = true;
        for (int i = 0; i < n; ++i) valid[c] = valid[c] && std::fabs(y[i] - (3.0 * x[i] + kept[i])) < 1e-4;
        const double tera = 2.0 * n / 1e6;  // operations a microsecond, in units of 1e12 a second
        ours[c] = tera / median_us([&] { saxpy(1e-6f, x.data(), y.data(), n); });
        theirs[c] = tera / median_us([&] { baseline(1e-6f, x.data(), y.data(), n); });
    }
    std::printf("KERNEL_RESULT {");
    for (int c = 0; c < 2; ++c) {
        std::printf("%s\"%s\": ", c ? ", " : "", configs[c].name);
        valid[c] ? std::printf("%.6g", ours[c]) : std::printf("INVALID");
    }
    std::printf("}\nKERNEL_RESULT_REFERENCE {");
    for (int c = 0; c < 2; ++c) std::printf("%s\"%s\": %.6g", c ? ", " : "", configs[c].name, theirs[c]);
    std::printf("}\n");
    return 0;
}
