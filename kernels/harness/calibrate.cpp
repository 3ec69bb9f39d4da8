// What one core can do at most. `calibrate NAME...` prints one line of JSON for each rate as soon as it is known:
// {"rate", "best", "median", "how"}, or {"rate", "missing": reason}, or {"rate", "absent": reason}. Rates are those of
// one second.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

double now() {
    using clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

// Where every result goes, so that none of the work can be left out.
volatile double g_kept;

struct Best {
    double best = 0, median = 0;
    std::string how;

    void take(const std::string& what, std::vector<double> rates) {
        std::sort(rates.begin(), rates.end());
        if (rates.empty() || rates.back() <= best) return;
        best = rates.back();
        median = rates[(rates.size() - 1) / 2];
        how = what;
    }
};

void say(const char* rate, const Best& found) {
    if (found.best > 0)
        std::printf("{\"rate\": \"%s\", \"best\": %.6e, \"median\": %.6e, \"how\": \"%s\"}\n", rate, found.best,
                    found.median, found.how.c_str());
    else
        std::printf("{\"rate\": \"%s\", \"missing\": \"nothing was measured\"}\n", rate);
}

void without(const char* rate, const char* kind, const char* reason) {
    std::printf("{\"rate\": \"%s\", \"%s\": \"%s\"}\n", rate, kind, reason);
}

// ---------------------------------------------------------------- memory

constexpr std::size_t kLine = 64;
constexpr std::size_t kBuffer = std::size_t{64} << 20;
constexpr int kRepeats = 8;

template <int W> struct Bytes { typedef long long type __attribute__((vector_size(W))); };
template <int W> using Vec = typename Bytes<W>::type;

unsigned char* memory(std::size_t size, bool huge) {
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    madvise(got, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(got, 1, size);
    return static_cast<unsigned char*>(got);
}

// Out of every cache, whatever replacement rule the caches follow.
void evict(const unsigned char* p, std::size_t size) {
#if defined(__x86_64__)
    for (std::size_t i = 0; i < size; i += kLine) _mm_clflush(p + i);
    _mm_mfence();
#elif defined(__aarch64__)
    for (std::size_t i = 0; i < size; i += 16) asm volatile("dc civac, %0" : : "r"(p + i) : "memory");
    asm volatile("dsb ish" : : : "memory");
#else
    (void)p, (void)size;
#endif
}

// One pass over `size` bytes as STREAMS parallel walks; AHEAD bytes of software prefetch, 0 for none.
template <int W, int STREAMS, int AHEAD> double read_all(const unsigned char* p, std::size_t size) {
    Vec<W> sum[STREAMS][2] = {};
    const std::size_t each = size / STREAMS;
    for (std::size_t i = 0; i < each; i += 2 * kLine) {
#pragma GCC unroll 8
        for (int s = 0; s < STREAMS; ++s) {
            const unsigned char* at = p + s * each + i;
            if (AHEAD != 0) {
                __builtin_prefetch(at + AHEAD, 0, 0);
                __builtin_prefetch(at + AHEAD + kLine, 0, 0);
            }
#pragma GCC unroll 8
            for (std::size_t w = 0; w < 2 * kLine; w += 2 * W) {
                sum[s][0] += *reinterpret_cast<const Vec<W>*>(at + w);
                sum[s][1] += *reinterpret_cast<const Vec<W>*>(at + w + W);
            }
        }
    }
    Vec<W> all = Vec<W>{};
#pragma GCC unroll 8
    for (int s = 0; s < STREAMS; ++s) all += sum[s][0] + sum[s][1];
    long long total = 0;
    for (int k = 0; k < W / 8; ++k) total += all[k];
    return static_cast<double>(total);
}

template <int W, int STREAMS, int AHEAD>
void read_variant(Best& found, const unsigned char* buffer, std::size_t chunk, bool huge) {
    std::vector<double> rates;
    for (int r = 0; r < kRepeats; ++r) {
        const unsigned char* p = buffer + (static_cast<std::size_t>(r) * chunk) % (kBuffer - chunk);
        evict(p, chunk);
        const double begin = now();
        g_kept = read_all<W, STREAMS, AHEAD>(p, chunk);
        rates.push_back(static_cast<double>(chunk) / (now() - begin));
    }
    found.take(std::to_string(W) + "-byte loads, " + std::to_string(STREAMS) + " streams, prefetch " +
                   std::to_string(AHEAD) + " bytes, " + std::to_string(chunk >> 20) + " MiB, " +
                   (huge ? "huge pages" : "small pages"),
               rates);
}

template <int W> void read_width(Best& found, const unsigned char* buffer, bool huge) {
    for (std::size_t chunk : {std::size_t{2} << 20, std::size_t{8} << 20}) {
        read_variant<W, 1, 0>(found, buffer, chunk, huge);
        read_variant<W, 2, 0>(found, buffer, chunk, huge);
        read_variant<W, 4, 0>(found, buffer, chunk, huge);
        read_variant<W, 8, 0>(found, buffer, chunk, huge);
        read_variant<W, 1, 512>(found, buffer, chunk, huge);
        read_variant<W, 1, 2048>(found, buffer, chunk, huge);
        read_variant<W, 2, 1024>(found, buffer, chunk, huge);
        read_variant<W, 4, 512>(found, buffer, chunk, huge);
        read_variant<W, 8, 512>(found, buffer, chunk, huge);
    }
}

template <int W> void store(unsigned char* to, Vec<W> value, bool around) {
#if defined(__AVX512F__)
    if constexpr (W == 64)
        if (around) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#endif
#if defined(__AVX__)
    if constexpr (W == 32)
        if (around) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#endif
#if defined(__x86_64__)
    if constexpr (W == 16)
        if (around) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#endif
    *reinterpret_cast<Vec<W>*>(to) = value;
}

template <int W, bool AROUND> void copy_all(unsigned char* to, const unsigned char* from, std::size_t size) {
    for (std::size_t i = 0; i < size; i += kLine)
#pragma GCC unroll 4
        for (std::size_t w = 0; w < kLine; w += W)
            store<W>(to + i + w, *reinterpret_cast<const Vec<W>*>(from + i + w), AROUND);
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

template <int W, bool AROUND> void copy_variant(Best& found, unsigned char* buffer, bool huge) {
    const std::size_t chunk = std::size_t{4} << 20;
    std::vector<double> rates;
    for (int r = 0; r < kRepeats; ++r) {
        unsigned char* from = buffer + static_cast<std::size_t>(r % 7) * chunk;
        unsigned char* to = from + kBuffer / 2;
        evict(from, chunk);
        evict(to, chunk);
        const double begin = now();
        copy_all<W, AROUND>(to, from, chunk);
        const double seconds = now() - begin;
        g_kept = to[chunk / 2];
        rates.push_back(2.0 * static_cast<double>(chunk) / seconds);
    }
    found.take(std::to_string(W) + "-byte accesses, " + (AROUND ? "stores around the caches, " : "plain stores, ") +
                   (huge ? "huge pages" : "small pages"),
               rates);
}

template <typename Each> bool with_memory(const char* rate, Each each) {
    bool any = false;
    for (bool huge : {false, true}) {
        unsigned char* buffer = memory(kBuffer, huge);
        if (buffer == nullptr) continue;
        any = true;
        each(buffer, huge);
        munmap(buffer, kBuffer);
    }
    if (!any) without(rate, "missing", "no memory for a buffer of 64 MiB");
    return any;
}

void dram_read() {
    Best found;
    const bool any = with_memory("dram_read", [&](unsigned char* buffer, bool huge) {
        read_width<16>(found, buffer, huge);
#if defined(__AVX__)
        read_width<32>(found, buffer, huge);
#endif
#if defined(__AVX512F__)
        read_width<64>(found, buffer, huge);
#endif
    });
    if (any) say("dram_read", found);
}

void copy() {
    Best found;
    const bool any = with_memory("copy", [&](unsigned char* buffer, bool huge) {
        copy_variant<16, false>(found, buffer, huge);
        copy_variant<16, true>(found, buffer, huge);
#if defined(__AVX__)
        copy_variant<32, false>(found, buffer, huge);
        copy_variant<32, true>(found, buffer, huge);
#endif
#if defined(__AVX512F__)
        copy_variant<64, false>(found, buffer, huge);
        copy_variant<64, true>(found, buffer, huge);
#endif
    });
    if (any) say("copy", found);
}

// ---------------------------------------------------------------- arithmetic

// The compiler is to know nothing of a value, and to have it in a register: equal chains would be merged into one, and
// a chain that lives in memory runs at a fifth of the rate.
#if defined(__x86_64__)
#define FERRET_PIN(value) asm volatile("" : "+v"(value))
#elif defined(__aarch64__)
#define FERRET_PIN(value) asm volatile("" : "+w"(value))
#else
#define FERRET_PIN(value) asm volatile("" : : : "memory")
#endif

constexpr int kSamples = 60;
constexpr double kSampleSeconds = 1e-3;

// `run(n)` does n rounds of `per_round` operations and gives something that depends on all of them.
template <typename Run> void rate_of(Best& found, const std::string& how, double per_round, Run run) {
    long rounds = 256;
    double seconds = 0;
    while (seconds < kSampleSeconds && rounds < (1L << 40)) {
        rounds *= 2;
        const double begin = now();
        g_kept = run(rounds);
        seconds = now() - begin;
    }
    std::vector<double> rates;
    for (int s = 0; s < kSamples; ++s) {
        const double begin = now();
        g_kept = run(rounds);
        rates.push_back(per_round * static_cast<double>(rounds) / (now() - begin));
    }
    found.take(how, rates);
}

template <typename T, int W> struct Lanes { typedef T type __attribute__((vector_size(W))); };

// Chains are named variables: of an array the compiler may decide that it lives in memory.
#define FERRET_TWELVE(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

// FMAS chains of multiply-adds beside ADDS chains of additions: some cores have adders of their own.
template <typename T, int W, int FMAS, int ADDS> double chains(long rounds) {
    static_assert(FMAS <= 12 && ADDS <= 12, "twelve chains of each kind are written out");
    using V = typename Lanes<T, W>::type;
    const V scale = V{} + T(0.999755859375), shift = V{} + T(1.1920928955078125e-7);
#define FERRET_BEGIN(i)          \
    V product##i = V{} + T(1 + i); \
    V sum##i = V{};
#define FERRET_STEP(i)                           \
    if constexpr (i < FMAS) {                    \
        product##i = product##i * scale + shift; \
        FERRET_PIN(product##i);                  \
    }                                            \
    if constexpr (i < ADDS) {                    \
        sum##i += shift;                         \
        FERRET_PIN(sum##i);                      \
    }
#define FERRET_END(i)                        \
    if constexpr (i < FMAS) all += product##i; \
    if constexpr (i < ADDS) all += sum##i;
    FERRET_TWELVE(FERRET_BEGIN)
    for (long r = 0; r < rounds; ++r) {
        FERRET_TWELVE(FERRET_STEP)
    }
    V all = V{};
    FERRET_TWELVE(FERRET_END)
#undef FERRET_BEGIN
#undef FERRET_STEP
#undef FERRET_END
    double total = 0;
    for (int k = 0; k < W / static_cast<int>(sizeof(T)); ++k) total += static_cast<double>(all[k]);
    return total;
}

template <typename T, int W, int FMAS, int ADDS> void chain_variant(Best& found) {
    const double lanes = W / static_cast<double>(sizeof(T));
    rate_of(found,
            std::to_string(W) + "-byte vectors, " + std::to_string(FMAS) + " multiply-adds and " +
                std::to_string(ADDS) + " additions in flight",
            lanes * (2.0 * FMAS + ADDS), chains<T, W, FMAS, ADDS>);
}

template <typename T> void floating(const char* rate) {
    Best found;
    chain_variant<T, 16, 10, 0>(found);
    chain_variant<T, 16, 8, 5>(found);
#if defined(__AVX__)
    chain_variant<T, 32, 10, 0>(found);
    chain_variant<T, 32, 8, 5>(found);
#endif
#if defined(__AVX512F__)
    chain_variant<T, 64, 12, 0>(found);
    chain_variant<T, 64, 8, 8>(found);
#endif
    say(rate, found);
}

#if defined(__x86_64__)
constexpr int kChains = 12;

// `step(x)` is one instruction whose result has to wait for x.
template <typename V, typename Step> double stepped(long rounds, V start, Step step) {
#define FERRET_BEGIN(i) V chain##i = start;
#define FERRET_STEP(i)       \
    chain##i = step(chain##i); \
    FERRET_PIN(chain##i);
#define FERRET_END(i) all ^= (Vec<sizeof(V)>)chain##i;
    FERRET_TWELVE(FERRET_BEGIN)
    for (long r = 0; r < rounds; ++r) {
        FERRET_TWELVE(FERRET_STEP)
    }
    Vec<sizeof(V)> all = {};
    FERRET_TWELVE(FERRET_END)
#undef FERRET_BEGIN
#undef FERRET_STEP
#undef FERRET_END
    long long total = 0;
    for (std::size_t k = 0; k < sizeof(V) / 8; ++k) total ^= all[k];
    return static_cast<double>(total);
}

template <typename V, typename Step>
void instruction(Best& found, const char* name, double operations, V start, Step step) {
    rate_of(found, name, operations * kChains, [&](long rounds) { return stepped(rounds, start, step); });
}
#endif

#if defined(__AMX_TILE__)
constexpr int kTileData = 18, kAskForTiles = 0x1023;  // XFEATURE_XTILEDATA, ARCH_REQ_XCOMP_PERM

bool tiles_ready() {
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t columns[16] = {};
        std::uint8_t rows[16] = {};
    } shape;
    if (syscall(SYS_arch_prctl, kAskForTiles, kTileData) != 0) return false;
    for (int i = 0; i < 8; ++i) shape.columns[i] = 64, shape.rows[i] = 16;
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    return true;
}

double tiles_kept() {
    alignas(64) float out[256];
    _tile_stored(0, out, 64);
    return static_cast<double>(out[17]);
}
#endif

void half() {
    Best found;
#if defined(__AVX512FP16__)
    const __m512h scale = _mm512_set1_ph(static_cast<_Float16>(0.99f));
    const __m512h shift = _mm512_set1_ph(static_cast<_Float16>(0.01f));
    instruction(found, "vfmadd on 32 halves", 64, scale, [&](__m512h x) { return _mm512_fmadd_ph(x, scale, shift); });
    say("f16", found);
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    without("f16", "missing", "half-precision vectors of this architecture are not measured");
#else
    without("f16", "absent", "no half-precision arithmetic in the instruction set that g++ -march=native uses");
#endif
}

void bfloat() {
    Best found;
    bool any = false;
#if defined(__AVX512BF16__)
    const __m512bh value = (__m512bh)_mm512_set1_epi16(0x3f80);
    instruction(found, "vdpbf16ps on 32 pairs", 64, _mm512_setzero_ps(),
                [&](__m512 x) { return _mm512_dpbf16_ps(x, value, value); });
    any = true;
#endif
#if defined(__AMX_BF16__)
    if (!tiles_ready()) return without("bf16", "missing", "the system refuses the use of matrix tiles");
    rate_of(found, "tdpbf16ps on tiles", 4.0 * 2 * 16 * 16 * 32, [](long rounds) {
        for (long r = 0; r < rounds; ++r) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        return tiles_kept();
    });
    any = true;
#endif
    if (any) return say("bf16", found);
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(__ARM_FEATURE_SVE_BF16) || defined(__ARM_FEATURE_BF16)
    without("bf16", "missing", "bfloat16 vectors of this architecture are not measured");
#else
    without("bf16", "absent", "no bfloat16 arithmetic in the instruction set that g++ -march=native uses");
#endif
}

void short_integer() {
#if defined(__x86_64__)
    Best found;
    const __m128i two = _mm_set1_epi16(2);
    instruction(found, "pmaddwd, 16 bytes", 16, two, [&](__m128i x) { return _mm_madd_epi16(x, two); });
#if defined(__AVX2__)
    const __m256i wide = _mm256_set1_epi16(2);
    instruction(found, "vpmaddwd, 32 bytes", 32, wide, [&](__m256i x) { return _mm256_madd_epi16(x, wide); });
#endif
#if defined(__AVX512BW__)
    const __m512i widest = _mm512_set1_epi16(2);
    instruction(found, "vpmaddwd, 64 bytes", 64, widest, [&](__m512i x) { return _mm512_madd_epi16(x, widest); });
#endif
#if defined(__AVX512VNNI__)
    instruction(found, "vpdpwssd, 64 bytes", 64, widest,
                [&](__m512i x) { return _mm512_dpwssd_epi32(x, widest, widest); });
#endif
    say("i16", found);
#else
    without("i16", "missing", "integer vectors of this architecture are not measured");
#endif
}

void byte_integer() {
#if defined(__x86_64__) && defined(__SSSE3__)
    Best found;
    const __m128i two = _mm_set1_epi8(2);
    instruction(found, "pmaddubsw, 16 bytes", 32, two, [&](__m128i x) { return _mm_maddubs_epi16(x, two); });
#if defined(__AVX2__)
    const __m256i wide = _mm256_set1_epi8(2);
    instruction(found, "vpmaddubsw, 32 bytes", 64, wide, [&](__m256i x) { return _mm256_maddubs_epi16(x, wide); });
#endif
#if defined(__AVX512BW__)
    const __m512i widest = _mm512_set1_epi8(2);
    instruction(found, "vpmaddubsw, 64 bytes", 128, widest, [&](__m512i x) { return _mm512_maddubs_epi16(x, widest); });
#endif
#if defined(__AVXVNNI__)
    instruction(found, "vpdpbusd, 32 bytes", 64, wide,
                [&](__m256i x) { return _mm256_dpbusd_avx_epi32(x, wide, wide); });
#endif
#if defined(__AVX512VNNI__)
    instruction(found, "vpdpbusd, 64 bytes", 128, widest,
                [&](__m512i x) { return _mm512_dpbusd_epi32(x, widest, widest); });
#endif
#if defined(__AMX_INT8__)
    if (!tiles_ready()) return without("i8", "missing", "the system refuses the use of matrix tiles");
    rate_of(found, "tdpbssd on tiles", 4.0 * 2 * 16 * 16 * 64, [](long rounds) {
        for (long r = 0; r < rounds; ++r) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        return tiles_kept();
    });
#endif
    say("i8", found);
#else
    without("i8", "missing", "integer vectors of this architecture are not measured");
#endif
}

struct Measure {
    const char* name;
    void (*run)();
};

const Measure kMeasures[] = {
    {"dram_read", dram_read}, {"copy", copy},   {"f64", [] { floating<double>("f64"); }},
    {"f32", [] { floating<float>("f32"); }},    {"f16", half},
    {"bf16", bfloat},         {"i16", short_integer}, {"i8", byte_integer},
};

}  // namespace

int main(int count, char** words) {
    for (int i = 1; i < count; ++i) {
        bool known = false;
        for (const Measure& measure : kMeasures) {
            if (std::strcmp(measure.name, words[i]) != 0) continue;
            known = true;
            measure.run();
        }
        if (!known) without(words[i], "missing", "this calibrator does not know the name");
        std::fflush(stdout);
    }
    return 0;
}
