// The page that the gate shares with one runner. Everything in it may be overwritten by the candidate, which lives in
// the runner's address space: the gate reads it as hints about progress, never as evidence and never as a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ferret {

constexpr std::size_t kMaxArguments = 64;
constexpr std::size_t kTextBytes = 2048;
constexpr std::uint64_t kNullPointer = ~std::uint64_t{0};

enum State : std::uint32_t {
    kStarting = 0,   // our own code: a death here is the machine's fault
    kLoading = 1,    // the candidate's constructors may run from here on
    kLoaded = 2,
    kNotLoaded = 3,  // `text` holds what dlerror said
};

enum Kind : std::uint32_t {
    kCall = 1,
    kEmpty = 2,  // the hand-shake alone: what a call costs that does nothing
};

// What a call left behind in the processor.
enum Left : std::uint32_t {
    kFloatControl = 1,  // rounding, flush to zero, exception masks
    kX87Control = 2,
    kDirection = 4,  // the direction flag
};

// One cache line for each direction, so that a spinning reader does not slow the other side's next store.
struct Control {
    alignas(64) std::atomic<std::uint32_t> go;  // futex word: a new token says that a call is to be made
    std::uint32_t kind;
    std::uint64_t slots[kMaxArguments];  // pointers as offsets into the arena, scalars as raw bytes
    alignas(64) std::atomic<std::uint32_t> done;
    alignas(64) std::atomic<std::uint32_t> state;
    std::uint32_t trapped;  // number of the system call that the filter refused, plus one
    std::uint32_t left;     // Left bits of the last call
    std::uint32_t unused;
    char text[kTextBytes];
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "the page is shared between processes");

inline void ease() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace ferret
