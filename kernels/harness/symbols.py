"""Which libraries and functions a C++ or CUDA kernel may import, and why not the others."""

from __future__ import annotations

import re
import shutil
import subprocess

from specs.schema import Language


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LIBRARIES = ("libc", "libm", "libmvec", "libstdc++", "libgcc_s", "ld-linux")
_LIBRARY = re.compile(r"(libc|libm|libmvec|libstdc\+\+|libgcc_s|ld-linux[\w-]*)\.so\.\d+")

# Memory, and what the compiler itself calls: copies, checks, static guards, ends by assertion.
_C = _words(
    """
    malloc calloc realloc free aligned_alloc posix_memalign memalign memcpy memmove memset memcmp memchr memrchr
    mempcpy bcmp bzero strlen strcmp strncmp strchr __memcpy_chk __memmove_chk __memset_chk __mempcpy_chk qsort
    bsearch abs labs llabs div ldiv lldiv abort __assert_fail __stack_chk_fail __stack_chk_guard __chk_fail
    __errno_location __cxa_finalize __cxa_atexit __cxa_thread_atexit_impl __tls_get_addr
    """
)
_TOOLCHAIN_WEAK = _words(
    """
    __gmon_start__ _ITM_registerTMCloneTable _ITM_deregisterTMCloneTable __cxa_finalize _ZTH
    __pthread_key_create __cxa_thread_atexit_impl
    """
)
_GCC = re.compile(r"_Unwind_(Resume|Resume_or_Rethrow|DeleteException|RaiseException)|__\w+")
_STDCXX = re.compile(
    r"""
      _Zn[wa].* | _Zd[la].*                                   # new and delete
    | __cxa_\w+ | __gxx_personality_v0 | __dynamic_cast
    | _ZSt9terminatev | _ZSt10unexpectedv | _ZSt7nothrow
    | _ZSt\d+__throw_\w+ | _ZSt\d+__glibcxx_assert_fail\w*
    | _ZT[ISV](St|N10__cxxabiv1)\w* | _ZTI[PK]*[a-z]          # type information of std:: and of built-in types
    | _ZT[ISV]NSt\w*
    | _ZNK?St(9exception|13bad_exception|9bad_alloc|8bad_cast|10bad_typeid|20bad_array_new_length|17bad_function_call
             |11logic_error|12domain_error|16invalid_argument|12length_error|12out_of_range
             |13runtime_error|11range_error|14overflow_error|15underflow_error)\w*
    | _ZNK?St15__exception_ptr\w* | _ZSt17current_exceptionv | _ZSt17rethrow_exception\w*
    | _ZSt18uncaught_exceptionv | _ZSt19uncaught_exceptionsv
    | _ZNK?St7__cxx1112basic_string\w* | _ZNK?S[sab]\w*       # std::string
    | _ZSt\d+_Rb_tree_\w+ | _ZNK?St8__detail\w+ | _ZSt11_Hash_bytes\w* | _ZSt15_Fnv_hash_bytes\w*  # containers
    """,
    re.VERBOSE,
)

# Well-known ways out of a kernel: symbol pattern -> what it would do here.
_FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.VERBOSE), f"{reason} is not accepted in a kernel")
    for pattern, reason in (
        (r"_ZNSt8ios_base4Init\w*", "start-up code of <iostream> (leave that header out)"),
        (
            r"_?_?dl(open|mopen|sym|vsym|addr|info|error|close|_iterate_phdr|_find_object)|_dl_\w+|__libc_dl\w+",
            "loading or searching other code at run time",
        ),
        (
            r"_?_?v?fork|clone3?|_?_?clone|exec[lv]\w*|execveat|fexecve|system|__libc_system|popen|posix_spawnp?|wait\w*|daemon",
            "starting another program",
        ),
        (
            r"pthread_(create|atfork|cancel|kill|sigmask|set\w+|get\w*affinity\w*|detach|join|exit)|thrd_create|_ZNSt6thread\w*|_ZNSt18condition_variable\w*"
            r"|_ZNSt7promise\w*|_ZNSt6future\w*|_ZNSt13__future\w*|__libc_single_threaded|GOMP_\w+|omp_\w+|tbb\w*",
            "threading",
        ),
        (
            r"socket(pair)?|connect|bind|listen|accept4?|send(to|msg|mmsg)?|recv(from|msg|mmsg)?|getaddrinfo|gethostby\w+|shutdown",
            "networking",
        ),
        (
            r"ptrace|process_vm_\w+|prctl|arch_prctl|seccomp|syscall|personality|setns|unshare|bpf|perf_event_open|ioctl|fcntl(64)?",
            "reaching the operating system past the C library",
        ),
        (
            r"m(protect|map|map64|unmap|remap|advise|lock\w*|sync|seal)|pkey_\w+|shm(get|at|dt|ctl|_open|_unlink)|memfd_\w+|s?brk",
            "changing memory maps",
        ),
        (
            r"clock(_\w+)?|gettimeofday|times?|ftime|timespec_get|timer_\w+|nanosleep|usleep|sleep|alarm|setitimer|_ZNSt6chrono\w*|_ZNKSt6chrono\w*",
            "reading a clock or sleeping",
        ),
        (
            r"_?_?(secure_)?getenv|setenv|putenv|unsetenv|clearenv|_?_?environ|program_invocation\w*|__progname\w*|getauxval|getopt\w*",
            "looking at the environment",
        ),
        (
            r"_?_?open(64|at|at64|_2|64_2|dir)?|creat(64)?|f?d?f?re?open(64)?|fopen(64)?|_?_?read(v|link|linkat|dir\w*)?|p(read|write)\w*|_?_?write(v)?|fread\w*|fwrite\w*|fgets\w*"
            r"|_IO_\w+|std(in|out|err)|v?f?printf|_?_?\w*printf(_chk)?|puts|fputs?c?|putchar|perror|unlink\w*|rename\w*|mk\w+|dup[23]?|pipe2?|stat\w*|fstat\w*|lstat\w*|access|syslog"
            r"|_ZNK?Si\w*|_ZNK?So\w*|_ZNK?Sd\w*|_ZSt4(cout|cerr|clog)|_ZSt3cin|_ZNSt8ios_base\w*|_ZNK?St(9basic_ios|7__cxx1118basic_string\w*|7__cxx1115basic_string\w*|7__cxx1119basic_\w*|13basic_\w*|14basic_\w*|10filesystem|12__basic_file)\w*"
            r"|_ZNSt13random_device\w*|getrandom|getentropy|getcwd|chdir|chroot",
            "reading or writing files",
        ),
        (
            r"sched_\w+|pthread_\w*affinity\w*|nice|setpriority|setrlimit\w*|prlimit\w*|getcpu|__sched_\w+|set_mempolicy|mbind|numa_\w+|sysconf|getpid|getppid|gettid|uname|gethostname",
            "looking at or changing how the process runs",
        ),
        (
            r"_?exit|_Exit|quick_exit|at_quick_exit|atexit|__libc_start_main|on_exit|exit_group|kill|killpg|tgkill|raise|p?select|p?poll|_?_?sig(nal|action|\w*mask|\w*set|wait\w*|queue|altstack|pending|suspend|return|pause|hold|relse|ignore|interrupt|vec)|bsd_signal|_?_?(sig)?(set|long)jmp\w*",
            "ending the process or handling signals",
        ),
        (
            r"backtrace\w*|_Unwind_(Backtrace|GetIP|GetIPInfo|FindEnclosingFunction|Find_FDE|GetCFA)|_ZNSt\w*stacktrace\w*|__(de)?register_frame\w*",
            "looking at the caller",
        ),
    )
)
# What a CUDA kernel's host side may call: exactly what the recorder's runtime library (cudart.cpp) has.
CUDA_LIBRARY = "libcudart.so.13"
CUDA_RUNTIME = _words(
    """
    __cudaRegisterFatBinary __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction
    __cudaRegisterVar __cudaInitModule __cudaPushCallConfiguration __cudaPopCallConfiguration __cudaGetKernel
    __cudaLaunchKernel cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaGetKernel
    cudaFuncGetName cudaFuncGetParamInfo
    cudaFuncSetAttribute cudaFuncGetAttributes cudaFuncSetCacheConfig
    cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    cudaOccupancyAvailableDynamicSMemPerBlock cudaOccupancyMaxActiveClusters cudaOccupancyMaxPotentialClusterSize
    cudaMemset cudaMemsetAsync cudaMemset2D cudaMemset2DAsync cudaMemcpy cudaMemcpyAsync cudaMemcpy2D
    cudaMemcpy2DAsync cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaGetSymbolAddress cudaGetSymbolSize
    cudaMalloc cudaMallocAsync cudaFree cudaFreeAsync cudaMemGetInfo cudaPointerGetAttributes
    cudaGetDevice cudaSetDevice cudaGetDeviceCount cudaGetDeviceProperties cudaDeviceGetAttribute
    cudaDeviceSynchronize cudaDeviceGetStreamPriorityRange
    cudaStreamSynchronize cudaStreamQuery cudaStreamIsCapturing cudaStreamGetPriority cudaStreamGetFlags
    cudaStreamGetDevice
    cudaGetLastError cudaPeekAtLastError cudaGetErrorString cudaGetErrorName
    cudaDriverGetVersion cudaRuntimeGetVersion cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion
    """
)
_CUDA_FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.VERBOSE), f"{reason} is not accepted in a kernel")
    for pattern, reason in (
        (
            r"cuda(Stream\w*Capture\w*|Graph(?!ics)\w*|UserObject\w*|ThreadExchangeStreamCaptureMode)",
            "capturing a graph",
        ),
        (r"cuda(LaunchHostFunc|StreamAddCallback|Logs\w*|DeviceRegisterAsyncNotification)", "a callback on the host"),
        (r"cuda(Stream\w*|CtxResetPersistingL2Cache)", "making, joining or changing a stream"),
        (r"cudaEvent\w*", "an event, which reads a clock or joins streams,"),
        (
            r"cuda(Ipc\w*|\w*Peer\w*|MemPool\w*|MallocFromPoolAsync|\w*MemPool|\w*External\w*|DeviceGetP2P\w*)",
            "reaching other devices, other processes or their memory",
        ),
        (
            r"cuda(DeviceReset|\w*Limit|DeviceSet\w+|SetDeviceFlags|SetValidDevices|InitDevice|ChooseDevice)",
            "changing the device for everybody",
        ),
        (
            r"cuda(Host\w+|MallocHost|FreeHost|MallocManaged|MemPrefetch\w*|MemAdvise|MemRange\w*|MemDiscard\w*)"
            r"|__cudaRegisterManagedVar",
            "memory that host and device share",
        ),
        (r"cudaProfiler\w*|nvtx\w*", "driving a profiler"),
        (r"cudaMemcpyFromSymbol\w*|cudaMemcpy\w*FromArray\w*", "reading the device's memory on the host"),
        (
            r"cuda(Library\w*|Kernel\w*|GetExportTable)|cu[A-Z]\w*|nvrtc\w*|nvJitLink\w*",
            "calling the driver or loading other device code",
        ),
        (
            r"cuda(\w*Array\w*|\w*Texture\w*|\w*Surface\w*|Graphics\w*|\w*ChannelDesc|Memcpy3D\w*|Memset3D\w*|Malloc3D"
            r"|MallocPitch)|__cudaRegister(Texture|Surface)",
            "an array, a texture or a surface",
        ),
        (r"(cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|nccl|nvshmem)\w*", "calling a vendor's library"),
    )
)
_CUDA_NAME = re.compile(r"(__)?cuda[A-Z]\w*")
REGISTRATION = "_ZL24__sti____cudaRegisterAllv"  # the constructor that nvcc makes of a file's kernels and variables

# Names that code outside the candidate calls too. A kernel's own names may look like anything else, so this is exact.
_OTHERS_CALL = _C | _words(
    """
    dlopen dlsym dlclose syscall mmap munmap mprotect clock clock_gettime clock_nanosleep gettimeofday time
    nanosleep open openat close read write pread pwrite exit _exit _Exit getenv fork execve kill raise signal
    sigaction pthread_create pthread_kill sched_yield sched_setaffinity printf fprintf vfprintf fputs puts
    fflush fopen strcpy strncpy strdup _init _fini
    """
)
# Placement new and delete are inline in every object, so only the forms that allocate count.
_RUNTIME = re.compile(
    r"__cxa_\w+|__gxx_\w+|_Unwind_\w+|__libc_\w+|(_Zn[wa][mj]|_Zd[la]Pv[mj]?)(St11align_val_t)?(RKSt9nothrow_t)?"
)


def libraries(language: Language) -> tuple[str, ...]:
    return (*LIBRARIES, CUDA_LIBRARY) if language is Language.CUDA else LIBRARIES


def library_allowed(name: str, language: Language = Language.CPP) -> bool:
    return _LIBRARY.fullmatch(name) is not None or (language is Language.CUDA and name == CUDA_LIBRARY)


def objection(symbol: str, library: str | None, *, weak: bool, language: Language = Language.CPP) -> str | None:
    """Why an undefined symbol is not accepted; None when it is.

    `library` is where the linker found it, None for a symbol without a version.
    """
    if language is Language.CUDA:
        # nvcc gives every __device__ function a host side that does nothing but exit(1). Whoever calls it ends.
        if symbol in CUDA_RUNTIME or symbol == "exit":
            return None
        for pattern, reason in _CUDA_FORBIDDEN:
            if pattern.fullmatch(symbol):
                return reason
        if _CUDA_NAME.fullmatch(symbol):
            return "a kernel's host side may not call this part of CUDA"
    for pattern, reason in _FORBIDDEN:
        if pattern.fullmatch(symbol):
            return reason
    if weak and symbol in _TOOLCHAIN_WEAK:
        return None
    family = (library or "").partition(".so")[0]
    # Everything in the maths libraries is a function of its arguments.
    if (
        family in ("libm", "libmvec")
        or symbol in _C
        or _STDCXX.fullmatch(symbol)
        or (family == "libgcc_s" and _GCC.fullmatch(symbol))
    ):
        return None
    return "it is not on the list of what a kernel may import (memory, maths, C++ run-time support)"


def must_not_be_defined(symbol: str, language: Language = Language.CPP) -> bool:
    """Whether exporting this name could stand in for the process's own function of that name."""
    if language is Language.CUDA and _CUDA_NAME.fullmatch(symbol):
        return True
    return symbol in _OTHERS_CALL or _RUNTIME.fullmatch(symbol) is not None


def readable_type(mangled: str) -> str:
    """A type's name as the source has it, when c++filt can tell."""
    program = shutil.which("c++filt")
    if program is None or not re.fullmatch(r"\w+", mangled):
        return "of unknown type"
    told = subprocess.run([program, "-t", mangled], capture_output=True, text=True, timeout=10, check=False)
    return told.stdout.strip() or mangled


def readable_names(text: str) -> str:
    """A text with every mangled name in it as the source has it, when c++filt can tell."""
    program = shutil.which("c++filt")
    if program is None or "_Z" not in text:
        return text
    told = subprocess.run([program], input=text, capture_output=True, text=True, timeout=10, check=False)
    return told.stdout.strip() or text
