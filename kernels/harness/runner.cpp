// The throw-away process that loads one shared object and calls it when told to. It holds nothing worth stealing: no
// golden, no seed, no tolerance, no clock that anybody believes.
//
// runner ARENA_FD CONTROL_FD ARENA_BYTES LIBRARY ENTRY CORE SPIN TRUSTED ADDRESS_BYTES CPU_SECONDS PARENT RUNTIME
//        RECORDING_FD RECORDING_BYTES
//
// As a recorder of CUDA calls it has no arena (descriptor -1) and loads RUNTIME first, our stand-in for the library
// that the object is linked to; otherwise RUNTIME is "-".
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <fcntl.h>
#include <initializer_list>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <typeinfo>
#include <unistd.h>

#include "protocol.h"
#include "tape.h"

// Generated from the task's interface: `static void ferret_invoke(void* entry, unsigned char* arena, const uint64_t*)`.
#include "call.inc"

using namespace ferret;

namespace {

Control* control;
Recording* recording;  // null unless CUDA calls are recorded
Bracket begin_recording, end_recording;

// The numbers mean "the runner itself could not start"; the gate blames the machine for them, not the candidate.
[[noreturn]] void give_up(const char* what) {
    if (control != nullptr) std::snprintf(control->text, kTextBytes, "%s: %s", what, std::strerror(errno));
    _exit(97);
}

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

void limit(int resource, rlim_t soft, rlim_t hard) {
    const rlimit wanted{soft, hard};
    setrlimit(static_cast<__rlimit_resource>(resource), &wanted);
}

// Nothing of ours stays open for the candidate, except the object itself when it is read through a descriptor.
int close_all_but(const char* library) {
    constexpr char kPrefix[] = "/proc/self/fd/";
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    const bool through_fd = std::strncmp(library, kPrefix, sizeof kPrefix - 1) == 0;
    const int kept = through_fd ? std::atoi(library + sizeof kPrefix - 1) : -1;
    if (kept > 3) close_range(3, static_cast<unsigned>(kept) - 1, 0);
    close_range(kept >= 3 ? static_cast<unsigned>(kept) + 1 : 3, ~0u, 0);
    return kept;
}

// A refused system call ends the runner, and this leaves word of which one it was.
void on_refused_call(int, siginfo_t* info, void*) {
    control->trapped = static_cast<std::uint32_t>(info->si_syscall) + 1;
    syscall(SYS_tgkill, getpid(), gettid(), SIGSYS);  // its handler is gone by now
    for (;;) {
    }
}

// Of an abort the gate sees the signal alone; whether an exception was behind it is known only here.
[[noreturn]] void on_terminate() {
    const std::type_info* type = abi::__cxa_current_exception_type();
    std::snprintf(control->text, kTextBytes, "uncaught exception %s", type != nullptr ? type->name() : "");
    std::abort();
}

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#define FERRET_FILTER 1
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#define FERRET_FILTER 1
#endif

#ifdef FERRET_FILTER
class Filter {
  public:
    Filter() {
        load(offsetof(seccomp_data, arch));
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
        give(SECCOMP_RET_KILL_PROCESS);
        load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
        // The x32 numbers would be a second door to every call below.
        add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1));
        give(SECCOMP_RET_KILL_PROCESS);
#endif
    }
    void allow(long number) { answer(number, SECCOMP_RET_ALLOW); }
    void refuse(long number) { answer(number, SECCOMP_RET_TRAP); }
    void deny(long number, int error) { answer(number, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }
    // Allows `number` when the low half of argument `index`, masked, equals `wanted`; otherwise the next rule decides.
    void allow_if(long number, int index, std::uint32_t mask, std::uint32_t wanted) {
        when(number, index, mask, wanted, SECCOMP_RET_ALLOW);
    }
    void refuse_if(long number, int index, std::uint32_t value) { when(number, index, ~0u, value, SECCOMP_RET_TRAP); }
    void deny_if(long number, int index, std::uint32_t value, int error) {
        when(number, index, ~0u, value, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
    }
    void refuse_unless(long number, int index, std::uint32_t mask, std::uint32_t wanted) {
        allow_if(number, index, mask, wanted);
        refuse(number);
    }
    struct Word {
        std::uint32_t offset, value;
    };
    static Word low(int index, std::uint64_t value) { return {argument(index), static_cast<std::uint32_t>(value)}; }
    static Word high(int index, std::uint64_t value) {
        return {argument(index) + 4, static_cast<std::uint32_t>(value >> 32)};
    }
    // When every one of these words is as given.
    void allow_when(long number, std::initializer_list<Word> words) {
        auto left = static_cast<std::uint8_t>(2 * words.size() + 2);
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, left));
        for (const Word& word : words) {
            left = static_cast<std::uint8_t>(left - 2);
            load(word.offset);
            add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word.value, 0, static_cast<std::uint8_t>(left - 1)));
        }
        give(SECCOMP_RET_ALLOW);
        load(offsetof(seccomp_data, nr));
    }
    // Setting a limit is denied, reading one (a null pointer in argument 2) is not.
    void deny_new_limits(long number) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 6));
        load(argument(2));
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2));
        load(argument(2) + 4);
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
        give(SECCOMP_RET_ERRNO | EPERM);
        load(offsetof(seccomp_data, nr));
    }
    // `otherwise` is what every call gets that no rule has decided.
    bool install(std::uint32_t otherwise) {
        give(otherwise);
        const sock_fprog program{static_cast<unsigned short>(size_), code_};
        return size_ <= kRoom && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
    }

  private:
    static constexpr std::size_t kRoom = 256;
    static std::uint32_t argument(int index) {
        return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(index));
    }
    void when(long number, int index, std::uint32_t mask, std::uint32_t wanted, std::uint32_t action) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 5));
        load(argument(index));
        add(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1));
        give(action);
        load(offsetof(seccomp_data, nr));
    }
    void add(sock_filter instruction) {
        if (size_ < kRoom) code_[size_] = instruction;
        ++size_;
    }
    void load(std::size_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset))); }
    void give(std::uint32_t action) { add(BPF_STMT(BPF_RET | BPF_K, action)); }
    void answer(long number, std::uint32_t action) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
        give(action);
    }

    sock_filter code_[kRoom];
    std::size_t size_ = 0;
};

void tell_of_refused_calls() {
    struct sigaction action {};
    action.sa_sigaction = on_refused_call;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_NODEFER);
    sigaction(SIGSYS, &action, nullptr);
}

// For what we trust, a vendor's library among it: no processes, no signals to others, no world outside.
bool filter_trusted() {
    Filter filter;
#ifdef SYS_fork
    filter.refuse(SYS_fork);
    filter.refuse(SYS_vfork);
#endif
    filter.refuse_unless(SYS_clone, 0, 0x00010000 /* CLONE_THREAD */, 0x00010000);
    filter.deny(SYS_clone3, ENOSYS);  // its flags are behind a pointer; libc falls back to clone
    for (const long number : {SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
                              SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd, SYS_tkill, SYS_rt_sigqueueinfo,
                              SYS_rt_tgsigqueueinfo, SYS_setitimer, SYS_timer_create, SYS_io_uring_setup, SYS_io_setup,
                              SYS_userfaultfd, SYS_perf_event_open, SYS_bpf, SYS_socket, SYS_unshare, SYS_setns,
                              SYS_mount})
        filter.refuse(number);
    const auto self = static_cast<std::uint32_t>(getpid());
    // A SIGKILL from inside would look like one from outside, which is nobody's fault.
    filter.refuse_if(SYS_kill, 1, SIGKILL);
    filter.refuse_if(SYS_tgkill, 2, SIGKILL);
    filter.refuse_unless(SYS_kill, 0, ~0u, self);
    filter.refuse_unless(SYS_tgkill, 0, ~0u, self);
    // A second core, a longer leash. Libraries ask for these in good faith, so they are denied, not fatal.
    for (const long number : {SYS_sched_yield, SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setattr,
                              SYS_setpriority, SYS_setrlimit, SYS_setsid, SYS_setpgid})
        filter.deny(number, EPERM);
    filter.deny_new_limits(SYS_prlimit64);
    return filter.install(SECCOMP_RET_ALLOW);
}

// What a call of a candidate may ask of the system: memory of its own, and a way to end. All else is refused, by its
// number, however it got to be called.
void allow_calling(Filter& filter) {
    filter.allow(SYS_brk);
    filter.allow(SYS_munmap);
    filter.allow(SYS_mremap);
    constexpr std::uint32_t kKind = MAP_PRIVATE | MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    filter.allow_if(SYS_mmap, 3, kKind, MAP_PRIVATE | MAP_ANONYMOUS);
    filter.allow_if(SYS_mprotect, 2, PROT_EXEC, 0);
    // Never those that reach the memory behind a shared mapping (MADV_REMOVE, MADV_PAGEOUT): others are timed on it.
    for (const int advice : {MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE})
        filter.allow_if(SYS_madvise, 2, ~0u, static_cast<std::uint32_t>(advice));
    // The one wait there is has no time limit and ends when the gate says so: who sleeps in it stands still.
    const auto word = reinterpret_cast<std::uintptr_t>(&control->go);
    filter.allow_when(SYS_futex, {Filter::low(0, word), Filter::high(0, word), Filter::low(1, FUTEX_WAIT),
                                  Filter::low(3, 0), Filter::high(3, 0)});
    filter.allow_if(SYS_futex, 1, 0x7f, FUTEX_WAKE);
    filter.allow(SYS_getpid);
    filter.allow(SYS_gettid);
    filter.allow(SYS_getrandom);
    filter.allow(SYS_sched_getaffinity);
    filter.allow(SYS_sysinfo);  // qsort looks how much memory there is
    filter.deny(SYS_sched_yield, EPERM);
    filter.deny(SYS_sched_setaffinity, EPERM);
    // Ways to end: abort, and the word that is said before it to /dev/null.
    filter.allow(SYS_exit);
    filter.allow(SYS_exit_group);
    // Said to be done and not done: a blocked SIGSYS could not leave word of the call that brought it about.
    filter.deny(SYS_rt_sigprocmask, 0);
    // So that a thread is refused as a thread: libc sets these two up before it starts its first.
    for (const int internal : {32, 33}) filter.deny_if(SYS_rt_sigaction, 0, static_cast<std::uint32_t>(internal), 0);
    const auto self = static_cast<std::uint32_t>(getpid());
    filter.allow_when(SYS_tgkill, {Filter::low(0, self), Filter::low(2, SIGABRT)});
    filter.allow_when(SYS_tgkill, {Filter::low(0, self), Filter::low(2, SIGSYS)});
    filter.allow_if(SYS_write, 0, ~0u, 2);
    filter.allow_if(SYS_writev, 0, ~0u, 2);  // the C library, of a damaged heap
}

// While the object is loaded the loader has to read files; nothing may be written, made or sent even then.
bool filter_loading() {
    Filter filter;
    allow_calling(filter);
    filter.allow_if(SYS_openat, 2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY);
    filter.allow_if(SYS_mmap, 3, MAP_SHARED, 0);
    for (const long number : {SYS_read, SYS_pread64, SYS_close, SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_mprotect,
                              SYS_getcwd, SYS_readlinkat, SYS_uname})
        filter.allow(number);
#ifdef SYS_access
    filter.allow(SYS_access);
    filter.allow(SYS_readlink);
#endif
    filter.allow(SYS_faccessat);
    filter.allow_if(SYS_prctl, 0, ~0u, PR_SET_NO_NEW_PRIVS);
    filter.allow(SYS_seccomp);  // a further filter can only take more away
    return filter.install(SECCOMP_RET_TRAP);
}

bool filter_calling() {
    Filter filter;
    allow_calling(filter);
    return filter.install(SECCOMP_RET_TRAP);
}
#else
void tell_of_refused_calls() {}
bool filter_trusted() { return false; }
bool filter_loading() { return false; }
bool filter_calling() { return false; }
#endif

#if defined(__x86_64__)
// What an honest kernel leaves as it found it; read and put right by us, right after the call.
std::uint32_t put_right() {
    constexpr std::uint32_t kFloat = 0x1f80, kFloatFlags = 0x3f;
    constexpr std::uint16_t kX87 = 0x037f;
    std::uint64_t flags;
    std::uint32_t floats;
    std::uint16_t x87;
    asm volatile("pushfq\n\tpopq %0\n\tcld\n\tstmxcsr %1\n\tfnstcw %2" : "=r"(flags), "=m"(floats), "=m"(x87) : : "memory", "cc");
    std::uint32_t left = 0;
    if ((floats & ~kFloatFlags) != kFloat) {
        left |= kFloatControl;
        asm volatile("ldmxcsr %0" : : "m"(kFloat));
    }
    if (x87 != kX87) {
        left |= kX87Control;
        asm volatile("fldcw %0" : : "m"(kX87));
    }
    if ((flags & 0x400) != 0) left |= kDirection;
    return left;
}
#elif defined(__aarch64__)
std::uint32_t put_right() {
    std::uint64_t control_register;
    asm volatile("mrs %0, fpcr" : "=r"(control_register));
    if (control_register == 0) return 0;
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
    return kFloatControl;
}
#else
std::uint32_t put_right() { return 0; }
#endif

// The runtime library is ours and is there before the candidate: the loader takes it for the one that is asked for.
void load_runtime(const char* path) {
    void* runtime = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    auto attach = runtime != nullptr ? reinterpret_cast<Attach>(dlsym(runtime, "ferret_recorder_attach")) : nullptr;
    if (attach == nullptr) {
        const char* why = dlerror();
        std::snprintf(control->text, kTextBytes, "the runtime library: %s", why != nullptr ? why : "no such symbol");
        _exit(97);
    }
    begin_recording = reinterpret_cast<Bracket>(dlsym(runtime, "ferret_recorder_begin"));
    end_recording = reinterpret_cast<Bracket>(dlsym(runtime, "ferret_recorder_end"));
    attach(recording);
}

void serve(void* entry, unsigned char* arena, bool spin) {
    std::uint32_t last = 0;
    for (;;) {
        std::uint32_t token;
        while ((token = control->go.load(std::memory_order_acquire)) == last) futex(&control->go, FUTEX_WAIT, last);
        last = token;
        if (control->kind == kCall) {
            if (recording != nullptr) {
                begin_recording();
                ferret_invoke(entry, reinterpret_cast<unsigned char*>(recording->base), control->slots);
                end_recording();
            } else {
                ferret_invoke(entry, arena, control->slots);
            }
            if (const std::uint32_t left = put_right()) control->left = left;
        }
        control->done.store(token, std::memory_order_release);
        if (!spin) futex(&control->done, FUTEX_WAKE, 1);
    }
}

}  // namespace

int main(int, char** argv) {
    const int arena_fd = std::atoi(argv[1]), control_fd = std::atoi(argv[2]);
    const std::size_t arena_bytes = std::strtoull(argv[3], nullptr, 10);
    const char *library = argv[4], *name = argv[5];
    const int core = std::atoi(argv[6]);
    const bool spin = std::atoi(argv[7]) != 0, trusted = std::atoi(argv[8]) != 0;
    const rlim_t address_bytes = std::strtoull(argv[9], nullptr, 10), cpu_seconds = std::strtoull(argv[10], nullptr, 10);
    const int parent = std::atoi(argv[11]);
    const char* runtime = argv[12];
    const int recording_fd = std::atoi(argv[13]);
    const std::size_t recording_bytes = std::strtoull(argv[14], nullptr, 10);

    void* page = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (page == MAP_FAILED) give_up("control page");
    control = static_cast<Control*>(page);
    if (parent != 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(97);  // the gate died before the line above could tell us
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) give_up("pinning to a core");

    // Populated here, so that no call pays for page faults on memory that an earlier layout did not touch.
    void* memory = nullptr;
    if (arena_fd >= 0) {
        memory = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, arena_fd, 0);
        if (memory == MAP_FAILED) give_up("arena");
    }
    if (recording_fd >= 0) {
        void* shared = mmap(nullptr, recording_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, recording_fd, 0);
        if (shared == MAP_FAILED) give_up("recording");
        recording = static_cast<Recording*>(shared);
        ferret_stream = reinterpret_cast<void*>(recording->stream);
    }

    const int library_fd = close_all_but(library);
    if (recording != nullptr) load_runtime(runtime);
    limit(RLIMIT_CORE, 0, 0);
    limit(RLIMIT_FSIZE, 0, 0);
    limit(RLIMIT_NOFILE, 32, 32);
    limit(RLIMIT_NPROC, 64, 64);
    limit(RLIMIT_AS, address_bytes, address_bytes);
    limit(RLIMIT_CPU, cpu_seconds, cpu_seconds + 5);  // SIGXCPU first: a SIGKILL would look like one from outside
    tell_of_refused_calls();
    std::set_terminate(on_terminate);
    // Without it a candidate could sleep and wake as it likes, and no time would mean anything.
    if (!(trusted ? filter_trusted() : filter_loading())) give_up("the filter of system calls");

    control->state.store(kLoading, std::memory_order_release);
    void* object = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void* entry = object != nullptr ? dlsym(object, name) : nullptr;
    if (entry == nullptr) {
        const char* reason = dlerror();
        std::snprintf(control->text, kTextBytes, "%s", reason != nullptr ? reason : "the entry is a null pointer");
        control->state.store(kNotLoaded, std::memory_order_release);
        return 1;
    }
    if (trusted) {
        using Describe = const char* (*)();
        if (auto describe = reinterpret_cast<Describe>(dlsym(object, "ferret_describe")))
            std::snprintf(control->text, kTextBytes, "%s", describe());
    }
    if (library_fd >= 0) close(library_fd);
    if (!trusted && !filter_calling()) give_up("the filter of system calls");
    control->state.store(kLoaded, std::memory_order_release);
    serve(entry, static_cast<unsigned char*>(memory), spin);
}
