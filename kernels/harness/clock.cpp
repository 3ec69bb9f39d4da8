// One call, from the gate's side: wakes a runner that sleeps in its wait and watches for its answer. Called through ctypes,
// so Python's lock is not held and nothing of Python runs while the runner does.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol.h"

using namespace ferret;

namespace {

enum Status : int { kAnswered = 0, kDeadline = 1, kEnded = 2 };

constexpr std::size_t kLine = 64;
constexpr double kLookEvery = 2e-3;  // seconds between looks at whether the runner still lives

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void wait_word(std::atomic<std::uint32_t>* word, std::uint32_t seen, double seconds) {
    timespec t;
    t.tv_sec = static_cast<time_t>(seconds);
    t.tv_nsec = static_cast<long>((seconds - static_cast<double>(t.tv_sec)) * 1e9);
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAIT, seen, &t, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool ended(int pidfd) {
    pollfd p{pidfd, POLLIN, 0};
    return poll(&p, 1, 0) > 0;
}

// Until `word` holds `token`. The clock is read only every so many turns, so that a look costs the time nothing.
int await(std::atomic<std::uint32_t>* word, std::uint32_t token, int pidfd, double deadline, bool spin) {
    double look = 0;
    for (;;) {
        if (spin) {
            for (int turn = 0; turn < 256; ++turn) {
                if (word->load(std::memory_order_acquire) == token) return kAnswered;
                ease();
            }
        } else {
            const std::uint32_t seen = word->load(std::memory_order_acquire);
            if (seen == token) return kAnswered;
            wait_word(word, seen, kLookEvery);
        }
        const double t = now();
        if (t > look) {
            look = t + kLookEvery;
            if (ended(pidfd)) return word->load(std::memory_order_acquire) == token ? kAnswered : kEnded;
            if (t > deadline) return kDeadline;
        }
    }
}

std::uint64_t preemptions() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<std::uint64_t>(usage.ru_nivcsw);
}

void move_to(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
}

void read_through(const unsigned char* bytes, std::size_t size) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i + sizeof sum <= size; i += kLine) {
        std::uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        sum += word;
    }
    asm volatile("" : : "r"(sum) : "memory");
}

}  // namespace

extern "C" {

struct FerretCall {
    Control* control;
    unsigned char* arena;
    const std::uint64_t* slots;
    std::uint32_t count, kind, token, spin;
    std::int32_t pidfd, runner_core, gate_core, status;
    double timeout_s;
    double wall_us;  // out: from waking it to its answer
    // What is flushed before the call: nothing when flush_bytes is 0.
    const unsigned char* flush;
    std::uint64_t flush_bytes, private_bytes;
    // Lines of the outputs as they were at the answer, so that a write after the answer shows.
    const std::uint64_t* probes;  // offsets in the arena
    std::uint64_t probe_count;
    unsigned char* probed;
    std::uint64_t preempted;  // out: how often this thread lost its core while the clock ran
};

// One call of the runner, which sleeps before it and goes back to sleep after its answer.
int ferret_call(FerretCall* call) {
    Control* control = call->control;
    const bool spin = call->spin != 0;
    if (call->flush_bytes != 0) {
        if (spin) {
            move_to(call->runner_core);
            read_through(call->flush, call->flush_bytes);
            move_to(call->gate_core);
            read_through(call->flush, call->private_bytes);
        } else {
            read_through(call->flush, call->flush_bytes);
        }
    }
    // All that a call needs is on the page before the runner may run again.
    control->done.store(0, std::memory_order_relaxed);
    control->left = 0;
    control->kind = call->kind;
    std::memcpy(control->slots, call->slots, call->count * sizeof(std::uint64_t));
    control->go.store(call->token, std::memory_order_release);
    const std::uint64_t before = preemptions();
    const double begin = now();
    wake(&control->go);
    call->status = await(&control->done, call->token, call->pidfd, begin + call->timeout_s, spin);
    call->wall_us = (now() - begin) * 1e6;
    call->preempted = preemptions() - before;
    if (call->status != kAnswered) return call->status;
    for (std::uint64_t p = 0; p < call->probe_count; ++p)
        std::memcpy(call->probed + p * kLine, call->arena + call->probes[p], kLine);
    return call->status;
}

// Index of the first byte that differs, or `size` when none does.
std::uint64_t ferret_differs(const unsigned char* a, const unsigned char* b, std::uint64_t size) {
    constexpr std::uint64_t kBlock = 1 << 16;
    for (std::uint64_t i = 0; i < size; i += kBlock) {
        const std::uint64_t n = std::min(kBlock, size - i);
        if (std::memcmp(a + i, b + i, n) != 0)
            return i + static_cast<std::uint64_t>(std::mismatch(a + i, a + i + n, b + i).first - (a + i));
    }
    return size;
}

// Memory to flush the caches with: written once, so that its pages are real and their lines clean when read.
unsigned char* ferret_flush_memory(std::uint64_t size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    std::memset(memory, 0x5a, size);
    return static_cast<unsigned char*>(memory);
}

void ferret_release_memory(unsigned char* memory, std::uint64_t size) { munmap(memory, size); }

std::uint64_t ferret_control_bytes() { return sizeof(Control); }

std::uint64_t ferret_state_offset() { return offsetof(Control, state); }

}
