// Trusted device code: of the executor (flush, wait) and of the gate (noise, comparison).
#include <cstdint>

namespace {

// Steele, Lea and Flood's splitmix64 finaliser: noise that can be made again from its seed and place.
__device__ std::uint64_t mix(std::uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ std::uint64_t thread_index() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::uint64_t threads() { return std::uint64_t{gridDim.x} * blockDim.x; }

__device__ unsigned char noise_byte(std::uint64_t seed, std::uint64_t at) {
    return static_cast<unsigned char>(mix(seed ^ (at >> 3)) >> (8 * (at & 7)));
}

}  // namespace

extern "C" {

// Waits until the host lets it go, so that everything behind it on the stream is queued before any of it runs. Gives up
// by itself after `limit_ns`: a callee that waits for the stream must not hang the device. One block looks at the host's
// word and passes it on; the others keep their multiprocessors from idling before the call.
__global__ void ferret_wait(const volatile std::uint32_t* word, volatile std::uint32_t* passed_on, std::uint32_t token,
                            std::uint64_t limit_ns) {
    std::uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    const volatile std::uint32_t* looked_at = blockIdx.x == 0 ? word : passed_on;
    do {
        if (*looked_at == token) break;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < limit_ns);
    if (blockIdx.x == 0) *passed_on = token;
}

// Leaves signalling NaNs in all of a multiprocessor's shared memory: whoever relies on what it finds there is wrong.
__global__ void ferret_soil(std::uint32_t words) {
    extern __shared__ std::uint32_t memory[];
    for (std::uint32_t i = threadIdx.x; i < words; i += blockDim.x) memory[i] = 0x7fa5a5a5u;
    __syncthreads();
    // A read that nobody can drop, so that the writes are not dropped either.
    if (memory[words - 1] != 0x7fa5a5a5u) __trap();
}

__global__ void ferret_nothing() {}

// Reads a buffer larger than the L2 cache, so that nothing of a call's buffers is in it. Lines that are read leave no
// write-back behind for the timed call to pay.
__global__ void ferret_flush(const uint4* buffer, std::uint64_t count, std::uint32_t* sink) {
    std::uint32_t sum = 0;
    for (std::uint64_t i = thread_index(); i < count; i += threads()) {
        const uint4 v = buffer[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}

__global__ void ferret_noise(unsigned char* memory, std::uint64_t begin, std::uint64_t end, std::uint64_t seed) {
    const std::uint64_t first = begin >> 3, last = (end + 7) >> 3;
    for (std::uint64_t w = first + thread_index(); w < last; w += threads()) {
        const std::uint64_t at = w << 3;
        if (at >= begin && at + 8 <= end) {
            *reinterpret_cast<std::uint64_t*>(memory + at) = mix(seed ^ w);
        } else {
            for (std::uint64_t b = at; b < at + 8; ++b)
                if (b >= begin && b < end) memory[b] = noise_byte(seed, b);
        }
    }
}

// Leaves in `*found` the smallest offset in [begin, end) where the noise no longer stands.
__global__ void ferret_check_noise(const unsigned char* memory, std::uint64_t begin, std::uint64_t end,
                                   std::uint64_t seed, unsigned long long* found) {
    const std::uint64_t first = begin >> 3, last = (end + 7) >> 3;
    for (std::uint64_t w = first + thread_index(); w < last; w += threads()) {
        const std::uint64_t at = w << 3;
        if (at >= begin && at + 8 <= end && *reinterpret_cast<const std::uint64_t*>(memory + at) == mix(seed ^ w))
            continue;
        for (std::uint64_t b = at; b < at + 8; ++b)
            if (b >= begin && b < end && memory[b] != noise_byte(seed, b)) {
                atomicMin(found, static_cast<unsigned long long>(b));
                break;
            }
    }
}

// Leaves in `*found` the smallest index below `size` where two buffers differ. Buffers begin at multiples of 16.
__global__ void ferret_differs(const unsigned char* a, const unsigned char* b, std::uint64_t size,
                               unsigned long long* found) {
    const std::uint64_t chunks = (size + 15) / 16;
    for (std::uint64_t c = thread_index(); c < chunks; c += threads()) {
        const std::uint64_t at = c * 16;
        if (at + 16 <= size) {
            const uint4 x = *reinterpret_cast<const uint4*>(a + at), y = *reinterpret_cast<const uint4*>(b + at);
            if (x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w) continue;
        }
        for (std::uint64_t i = at; i < at + 16 && i < size; ++i)
            if (a[i] != b[i]) {
                atomicMin(found, static_cast<unsigned long long>(i));
                break;
            }
    }
}

}
