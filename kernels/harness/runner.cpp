// The throw-away process that loads one shared object and calls it when told to. It holds nothing worth stealing: no
// golden, no seed, no tolerance, no clock that anybody believes.
//
// runner ARENA_FD CONTROL_FD ARENA_BYTES LIBRARY ENTRY CORE SPIN TRUSTED ADDRESS_BYTES CPU_SECONDS PARENT
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol.h"

// Generated from the task's interface: `static void ferret_invoke(void* entry, unsigned char* arena, const uint64_t*)`.
#include "call.inc"

using namespace ferret;

namespace {

Control* control;

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
    std::signal(SIGSYS, SIG_DFL);
    syscall(SYS_tgkill, getpid(), gettid(), SIGSYS);
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
    void refuse(long number) { answer(number, SECCOMP_RET_TRAP); }
    void deny(long number, int error) { answer(number, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }
    // Traps `number` unless the low half of argument `index`, masked, equals `wanted`.
    void refuse_unless(long number, int index, std::uint32_t mask, std::uint32_t wanted) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 5));
        load(argument(index));
        add(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 1, 0));
        give(SECCOMP_RET_TRAP);
        load(offsetof(seccomp_data, nr));
    }
    void refuse_if(long number, int index, std::uint32_t value) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 4));
        load(argument(index));
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
        give(SECCOMP_RET_TRAP);
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
    bool install() {
        give(SECCOMP_RET_ALLOW);
        const sock_fprog program{static_cast<unsigned short>(size_), code_};
        return size_ <= kRoom && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
    }

  private:
    static constexpr std::size_t kRoom = 256;
    static std::uint32_t argument(int index) {
        return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(index));
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

bool filter_system_calls() {
    struct sigaction action {};
    action.sa_sigaction = on_refused_call;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, nullptr);

    Filter filter;
    // New processes and programs. Threads may start: the gate counts them, and says so in better words.
#ifdef SYS_fork
    filter.refuse(SYS_fork);
    filter.refuse(SYS_vfork);
#endif
    filter.refuse_unless(SYS_clone, 0, 0x00010000 /* CLONE_THREAD */, 0x00010000);
    filter.deny(SYS_clone3, ENOSYS);  // its flags are behind a pointer; libc falls back to clone
    filter.refuse(SYS_execve);
    filter.refuse(SYS_execveat);
    // Other processes.
    filter.refuse(SYS_ptrace);
    filter.refuse(SYS_process_vm_readv);
    filter.refuse(SYS_process_vm_writev);
    filter.refuse(SYS_pidfd_open);
    filter.refuse(SYS_pidfd_send_signal);
    filter.refuse(SYS_pidfd_getfd);
    const auto self = static_cast<std::uint32_t>(getpid());
    filter.refuse_unless(SYS_kill, 0, ~0u, self);
    filter.refuse_unless(SYS_tgkill, 0, ~0u, self);
    filter.refuse(SYS_tkill);
    // A SIGKILL from inside would look like one from outside, which is nobody's fault.
    filter.refuse_if(SYS_kill, 1, SIGKILL);
    filter.refuse_if(SYS_tgkill, 2, SIGKILL);
    filter.refuse(SYS_rt_sigqueueinfo);
    filter.refuse(SYS_rt_tgsigqueueinfo);
    filter.refuse_if(SYS_prctl, 0, PR_SET_PDEATHSIG);
    // Code that would run between calls without being a thread.
    filter.refuse(SYS_setitimer);
    filter.refuse(SYS_timer_create);
#ifdef SYS_alarm
    filter.refuse(SYS_alarm);
#endif
    filter.refuse(SYS_io_uring_setup);
    filter.refuse(SYS_io_setup);
    filter.refuse(SYS_userfaultfd);
    filter.refuse(SYS_perf_event_open);
    filter.refuse(SYS_bpf);
    // The world outside.
    filter.refuse(SYS_socket);
    filter.refuse(SYS_unshare);
    filter.refuse(SYS_setns);
    filter.refuse(SYS_mount);
    // A second core, a longer leash. Libraries ask for these in good faith, so they are denied, not fatal.
    // Yielding would count as being preempted, and preempted rounds are left out.
    filter.deny(SYS_sched_yield, EPERM);
    filter.deny(SYS_sched_setaffinity, EPERM);
    filter.deny(SYS_sched_setscheduler, EPERM);
    filter.deny(SYS_sched_setattr, EPERM);
    filter.deny(SYS_setpriority, EPERM);
    filter.deny(SYS_setrlimit, EPERM);
    filter.deny_new_limits(SYS_prlimit64);
    filter.deny(SYS_setsid, EPERM);
    filter.deny(SYS_setpgid, EPERM);
    return filter.install();
}
#else
bool filter_system_calls() { return false; }
#endif

void serve(void* entry, unsigned char* arena, bool spin) {
    std::uint32_t last = 0;
    for (;;) {
        std::uint32_t token;
        while ((token = control->command.load(std::memory_order_acquire)) == last)
            futex(&control->command, FUTEX_WAIT, last);
        last = token;
        control->armed.store(token, std::memory_order_release);
        if (!spin) futex(&control->armed, FUTEX_WAKE, 1);
        std::uint32_t seen;
        while ((seen = control->go.load(std::memory_order_acquire)) != token) {
            if (spin)
                ease();
            else
                futex(&control->go, FUTEX_WAIT, seen);
        }
        if (control->kind == kCall) ferret_invoke(entry, arena, control->slots);
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
    void* memory = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, arena_fd, 0);
    if (memory == MAP_FAILED) give_up("arena");

    const int library_fd = close_all_but(library);
    limit(RLIMIT_CORE, 0, 0);
    limit(RLIMIT_FSIZE, 0, 0);
    limit(RLIMIT_NOFILE, 32, 32);
    limit(RLIMIT_NPROC, 64, 64);
    limit(RLIMIT_AS, address_bytes, address_bytes);
    limit(RLIMIT_CPU, cpu_seconds, cpu_seconds + 5);  // SIGXCPU first: a SIGKILL would look like one from outside
    filter_system_calls();  // the gate sees in /proc whether it holds

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
    control->state.store(kLoaded, std::memory_order_release);
    serve(entry, static_cast<unsigned char*>(memory), spin);
}
