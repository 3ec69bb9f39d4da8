// The memory check: calls a kernel that was built with sanitizers, with every buffer a heap block of exactly its size.
// It is linked with AddressSanitizer itself and holds nothing worth stealing. The findings are the sanitizers' own text.
//
// checked CASES LIBRARY ENTRY FILTER
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "protocol.h"

// Generated from the task's interface: `static void ferret_invoke(void* entry, unsigned char* arena, const uint64_t*)`.
#include "call.inc"

namespace {

// What stands in CASES: a count of calls; for each call a count of arguments; for each argument its kind, a number, and
// for an input its bytes, padded to eight.
enum Argument : std::uint64_t {
    kScalar = 0,   // the number is the raw value
    kNull = 1,     // a stage tensor that is not asked for
    kInput = 2,    // the number is the size in bytes
    kScratch = 3,  // the same; filled with a pattern here
};

constexpr int kPattern = 0xA5;
constexpr std::size_t kAlignment = 64;  // what the runner promises too

[[noreturn]] void give_up(const char* what) {
    std::printf("gave up: %s: %s\n", what, std::strerror(errno));
    std::fflush(stdout);
    _exit(97);
}

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

// Where there is no bubblewrap: memory, reading, a report on standard error, an end. All else fails with EPERM.
void filter() {
    static const long allowed[] = {
        SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_read, SYS_pread64, SYS_close,
        SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_getcwd, SYS_readlinkat, SYS_uname, SYS_futex, SYS_getpid, SYS_gettid,
        SYS_getuid, SYS_getrandom, SYS_sched_getaffinity, SYS_sched_yield, SYS_sysinfo, SYS_clock_gettime,
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit, SYS_exit_group, SYS_faccessat,
#ifdef SYS_access
        SYS_access, SYS_readlink,
#endif
#ifdef SYS_stat
        SYS_stat,
#endif
    };
    std::vector<sock_filter> code;
    const auto load = [&](std::size_t offset) {
        code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
    };
    const auto give = [&](std::uint32_t action) { code.push_back(BPF_STMT(BPF_RET | BPF_K, action)); };
    const auto argument = [](int index) {
        return offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(index);
    };
    // Allowed when the low half of an argument, masked, is as wanted; otherwise the next rule decides.
    const auto allow_if = [&](long number, int index, std::uint32_t mask, std::uint32_t wanted) {
        code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 5));
        load(argument(index));
        code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
        code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1));
        give(SECCOMP_RET_ALLOW);
        load(offsetof(seccomp_data, nr));
    };
    load(offsetof(seccomp_data, arch));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
    give(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1));  // the x32 numbers
    give(SECCOMP_RET_KILL_PROCESS);
    // `open` is as harmless as `openat` only when it reads.
    allow_if(SYS_open, 1, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY);
#endif
    allow_if(SYS_openat, 2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY);
    allow_if(SYS_write, 0, ~0u, 1);
    allow_if(SYS_write, 0, ~0u, 2);
    allow_if(SYS_tgkill, 0, ~0u, static_cast<std::uint32_t>(getpid()));
    for (const long number : allowed) {
        code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
        give(SECCOMP_RET_ALLOW);
    }
    give(SECCOMP_RET_ERRNO | EPERM);
    const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
    if (kArchitecture == 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
        give_up("the filter of system calls");
}

// Frames are larger with sanitizers, so that a kernel which just fits the stack is not said to overflow it.
void more_stack(char** argv) {
    constexpr rlim_t kWanted = rlim_t{64} << 20;
    rlimit stack{};
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kWanted || stack.rlim_max < kWanted) return;
    stack.rlim_cur = kWanted;
    if (setrlimit(RLIMIT_STACK, &stack) == 0) execv("/proc/self/exe", argv);
}

// The shadow is terabytes of address space, so what counts is what is mapped beyond the start.
void limit_memory() {
    constexpr rlim_t kRoom = rlim_t{4} << 30;
    unsigned long long kilobytes = 0;
    std::FILE* status = std::fopen("/proc/self/status", "r");
    if (status == nullptr) give_up("/proc/self/status");
    char line[256];
    while (std::fgets(line, sizeof line, status) != nullptr)
        if (std::sscanf(line, "VmData: %llu kB", &kilobytes) == 1) break;
    std::fclose(status);
    const rlimit data{(rlim_t{kilobytes} << 10) + kRoom, (rlim_t{kilobytes} << 10) + kRoom}, processes{64, 64};
    if (setrlimit(RLIMIT_DATA, &data) != 0 || setrlimit(RLIMIT_NPROC, &processes) != 0) give_up("limits");
}

class Reader {
  public:
    explicit Reader(const char* path) {
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        struct stat about {};
        if (file < 0 || fstat(file, &about) != 0) give_up(path);
        void* memory = mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0);
        if (memory == MAP_FAILED) give_up(path);
        at_ = static_cast<const unsigned char*>(memory);
        close(file);
    }
    std::uint64_t number() {
        std::uint64_t value;
        std::memcpy(&value, bytes(sizeof value), sizeof value);
        return value;
    }
    const unsigned char* bytes(std::size_t size) {
        const unsigned char* here = at_;
        at_ += (size + 7) / 8 * 8;
        return here;
    }

  private:
    const unsigned char* at_;
};

}  // namespace

int main(int, char** argv) {
    more_stack(argv);
    Reader cases(argv[1]);
    limit_memory();
    if (std::atoi(argv[4]) != 0) filter();
    void* object = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    void* entry = object != nullptr ? dlsym(object, argv[3]) : nullptr;
    if (entry == nullptr) {
        const char* reason = dlerror();
        std::printf("gave up: %s\n", reason != nullptr ? reason : "the entry is a null pointer");
        return 97;
    }
    const std::uint64_t calls = cases.number();
    for (std::uint64_t call = 0; call < calls; ++call) {
        std::printf("call %llu\n", static_cast<unsigned long long>(call));
        std::uint64_t slots[ferret::kMaxArguments] = {};
        std::vector<void*> blocks;
        const std::uint64_t arguments = cases.number();
        for (std::uint64_t i = 0; i < arguments; ++i) {
            const std::uint64_t kind = cases.number(), value = cases.number();
            slots[i] = kind == kNull ? ferret::kNullPointer : value;
            if (kind != kInput && kind != kScratch) continue;
            void* block = nullptr;
            if (posix_memalign(&block, kAlignment, value) != 0) give_up("a buffer");
            if (kind == kInput)
                std::memcpy(block, cases.bytes(value), value);
            else
                std::memset(block, kPattern, value);
            blocks.push_back(block);
            slots[i] = reinterpret_cast<std::uintptr_t>(block);
            std::printf("block %llu %p\n", static_cast<unsigned long long>(i), block);
        }
        std::fflush(stdout);
        ferret_invoke(entry, nullptr, slots);
        for (void* block : blocks) free(block);
    }
    std::printf("called %llu\n", static_cast<unsigned long long>(calls));
    std::fflush(stdout);
}
