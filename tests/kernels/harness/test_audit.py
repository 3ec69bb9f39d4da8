"""The binary audit: honest kernels pass, the well-known ways out are named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.harness.audit import DATA_LIMIT, audit, exported_functions
from specs.schema import Language

HONEST = {
    "plain loop": "for (int i = 0; i < n; ++i) y[i] = 2 * x[i];",
    "vectors": "std::vector<float> v(x, x + n); v.push_back(1); for (int i = 0; i < n; ++i) y[i] = v.at(i);",
    "maths": "for (int i = 0; i < n; ++i) y[i] = std::exp(std::tanh(x[i])) + std::fma(std::erf(x[i]), 2.f, 1.f);",
    "lambdas": "auto f = [&](float v) { return v + x[0]; }; std::function<float(float)> g = f; y[0] = g(x[1]);",
    "exceptions": 'try { if (n) throw std::runtime_error("n"); } catch (const std::exception& e) { y[0] = *e.what(); }',
    "strings and maps": 'std::map<int, std::string> m; m[n] = "long enough for the heap, surely"; y[0] = m[n][0];',
    "hash maps": "std::unordered_map<int, int> m; m[n] = 1; y[0] = m.at(n);",
    "sorting": "std::vector<int> o(n); std::iota(o.begin(), o.end(), 0); std::sort(o.begin(), o.end()); y[0] = o[0];",
    "static table": "static const float table[1024] = {1, 2, 3}; y[0] = table[n & 1023];",
    "function static": "static const std::vector<float> once(16, 1.5f); y[0] = once[n & 15];",
    "thread_local": "static thread_local std::vector<float> scratch; scratch.resize(n); y[0] = scratch[0];",
    "alignas": "alignas(64) float tile[64]; for (int i = 0; i < 64; ++i) tile[i] = x[i]; y[0] = tile[n & 63];",
    "memory": "auto* p = static_cast<float*>(std::malloc(512)); std::memcpy(p, x, 8); y[0] = *p; std::free(p);",
    "virtual calls": "std::unique_ptr<Base> b = std::make_unique<Derived>(); y[0] = b->f(x[0]);",
    "templates": "y[0] = dot<4>(x, x) + dot<8>(x, x);",
    "intrinsics": "VECTORS",
    "inline assembly": 'float r = x[0]; asm volatile("" : "+m"(r)); y[0] = r;',
    "assertions": "assert(n > 0); y[0] = x[0];",
}
PRELUDE = """
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>
#ifdef __SSE__
#include <immintrin.h>
#define VECTORS _mm_storeu_ps(y, _mm_mul_ps(_mm_loadu_ps(x), _mm_set1_ps(2.0f)));
#else
#define VECTORS y[0] = x[0];
#endif
struct Base { virtual ~Base() = default; virtual float f(float) const = 0; };
struct Derived final : Base { float f(float v) const override { return v * 3; } };
template <int W> float dot(const float* a, const float* b) {
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += a[i] * b[i];
  return sum;
}
"""

IMPORTS = {
    "dlsym": ("#include <dlfcn.h>", 'dlsym(nullptr, "x");', "dlsym: loading or searching other code"),
    "fork": ("#include <unistd.h>", "fork();", "fork: starting another program"),
    "system": ("#include <cstdlib>", 'if (system("true")) y[0] = 1;', "system: starting another program"),
    "socket": ("#include <sys/socket.h>", "socket(1, 1, 0);", "socket: networking"),
    "ptrace": ("#include <sys/ptrace.h>", "ptrace(PTRACE_TRACEME);", "ptrace: reaching the operating system"),
    "syscall": ("#include <unistd.h>", "syscall(39);", "syscall: reaching the operating system"),
    "mprotect": ("#include <sys/mman.h>", "mprotect(y, 1, 0);", "mprotect: changing memory maps"),
    "thread": ("#include <thread>", "std::thread([] {}).detach();", "_M_start_thread"),
    "pthread": ("#include <pthread.h>", "pthread_create(0, 0, 0, 0);", "pthread_create: threading"),
    "clock": ("#include <time.h>", "timespec t; clock_gettime(0, &t);", "clock_gettime: reading a clock"),
    "chrono": (
        "#include <chrono>",
        "y[0] = std::chrono::steady_clock::now().time_since_epoch().count();",
        "steady_clock",
    ),
    "getenv": ("#include <cstdlib>", 'y[0] = *getenv("HOME");', "getenv: looking at the environment"),
    "fopen": ("#include <cstdio>", 'fopen("a", "r");', "fopen: reading or writing files"),
    "printf": ("#include <cstdio>", 'printf("%d", n);', "printf: reading or writing files"),
    "read": ("#include <unistd.h>", "if (read(0, y, 1)) y[0] = 1;", "read: reading or writing files"),
    "affinity": (
        "#include <sched.h>",
        "cpu_set_t s; sched_setaffinity(0, 8, &s);",
        "sched_setaffinity: looking at or changing",
    ),
    "exit": ("#include <unistd.h>", "_exit(0);", "_exit: ending the process"),
    "atexit": ("#include <cstdlib>", "std::quick_exit(0);", "quick_exit: ending the process"),
    "signal": ("#include <signal.h>", "signal(11, SIG_IGN);", "signal: ending the process or handling signals"),
    "raise": ("#include <signal.h>", "raise(9);", "raise: ending the process or handling signals"),
    "backtrace": ("#include <execinfo.h>", "void* p; backtrace(&p, 1);", "backtrace: looking at the caller"),
    "unlisted": ("#include <ctype.h>", "y[0] = toupper_l(n, nullptr);", "not on the list of what a kernel may import"),
}


def library(folder: Path, body: str, before: str = "", flags: tuple[str, ...] = ()) -> Path:
    """A shared object with one exported function, built by g++ without any check."""
    source, output = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(f'{before}\nextern "C" void kernel(const float* x, float* y, int n) {{\n{body}\n}}\n')
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", source, "-o", output, *flags], check=True, capture_output=True)
    return output


def findings(folder: Path, body: str, before: str = "", flags: tuple[str, ...] = ()) -> str:
    return "\n".join(audit(library(folder, body, before, flags), Language.CPP))


def together(*names: str) -> str:
    return "\n".join(f"{{ {HONEST[name]} }}" for name in names)


def test_honest_kernels_pass(tmp_path: Path) -> None:
    """What ordinary C++ kernels use, all of it in one object, raises nothing."""
    assert audit(library(tmp_path, together(*HONEST), PRELUDE), Language.CPP) == []


@pytest.mark.parametrize("flags", [("-O3", "-march=native"), ("-s",), ("-O0", "-g"), ("-flto", "-O2")], ids=str)
def test_honest_kernels_pass_whatever_the_flags(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Optimised, stripped, debug and link-time-optimised objects are read alike."""
    assert findings(tmp_path, together("plain loop", "exceptions", "thread_local"), PRELUDE, flags) == ""


@pytest.mark.parametrize("name", IMPORTS)
def test_a_way_out_of_the_kernel_is_named_with_its_reason(tmp_path: Path, name: str) -> None:
    """Each forbidden import is refused by name, and the reason says what it would do."""
    include, body, expected = IMPORTS[name]

    found = findings(tmp_path, body, include)

    assert expected in found


def test_iostream_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """A header that a kernel only has out of habit is named, since the symbol alone would puzzle."""
    assert "leave that header out" in findings(tmp_path, "y[0] = n;", "#include <iostream>")


def test_another_library_is_refused(tmp_path: Path) -> None:
    """A library beyond the runtime's own is named, needed or not."""
    found = findings(tmp_path, "", flags=("-Wl,--no-as-needed", "-lgomp"))

    assert "needs library libgomp.so.1; accepted: libc, libm" in found


def test_a_constructor_is_refused(tmp_path: Path) -> None:
    """A function that runs at load time is named."""
    found = findings(tmp_path, "", "__attribute__((constructor)) static void sneak() { static volatile int a; a = 1; }")

    assert "sneak()" in found
    assert "runs when the object is loaded" in found


def test_a_constructor_named_like_the_toolchains_own_is_refused(tmp_path: Path) -> None:
    """Borrowing the name frame_dummy hides nothing."""
    found = findings(
        tmp_path,
        "",
        'extern "C" { __attribute__((constructor)) static void frame_dummy() { static volatile int a; a = 1; } }',
    )

    assert "frame_dummy runs when the object is loaded" in found


def test_a_constructor_in_a_stripped_object_is_refused(tmp_path: Path) -> None:
    """Without symbol names the address is named instead."""
    source = "__attribute__((constructor)) static void sneak() { static volatile int a; a = 1; }"

    assert "runs when the object is loaded" in findings(tmp_path, "", source, ("-s",))


def test_a_destructor_is_refused(tmp_path: Path) -> None:
    """A function that would have the last word at unload time is named."""
    found = findings(tmp_path, "", "__attribute__((destructor)) static void last() { static volatile int a; a = 1; }")

    assert "last()" in found
    assert "runs when the object is unloaded" in found


def test_a_global_with_a_constructor_is_refused(tmp_path: Path) -> None:
    """A global object that is built at load time is code at load time."""
    found = findings(tmp_path, "y[0] = table[n];", "#include <vector>\nstatic std::vector<float> table(100, 1.5f);")

    assert "_GLOBAL__sub_I" in found


def test_code_in_the_init_section_is_refused(tmp_path: Path) -> None:
    """Instructions slipped into .init run at load time without any table of constructors."""
    found = findings(tmp_path, "", 'asm(".section .init,\\"ax\\",@progbits\\n nop\\n nop\\n .text");')

    assert "section .init holds" in found


def test_an_ifunc_is_refused(tmp_path: Path) -> None:
    """A resolver is code that runs while symbols are bound."""
    found = findings(
        tmp_path,
        "y[0] = twice(n);",
        'extern "C" { static int one(int a) { return a; } void* pick() { return (void*)one; } '
        'int twice(int) __attribute__((ifunc("pick"))); }',
    )

    assert "twice is an IFUNC" in found


def test_embedded_data_over_the_limit_is_refused_and_named(tmp_path: Path) -> None:
    """A table too large for a look-up table is named with its size."""
    numbers = ",".join(str(i % 97 + 1) for i in range(DATA_LIMIT // 4 + 1))
    found = findings(tmp_path, "y[0] = answers[n];", f"static const int answers[] = {{{numbers}}};")

    assert "bytes of initialised data, most of it in .rodata, the largest object is answers" in found


def test_embedded_data_in_a_section_of_its_own_is_counted(tmp_path: Path) -> None:
    """Another section name does not hide a blob."""
    numbers = ",".join(str(i % 97 + 1) for i in range(DATA_LIMIT // 4 + 1))
    before = f'__attribute__((section("notes"))) static const int answers[] = {{{numbers}}};'

    assert "most of it in notes" in findings(tmp_path, "y[0] = answers[n];", before)


def test_data_under_the_limit_passes(tmp_path: Path) -> None:
    """A table of half the limit is an ordinary table."""
    numbers = ",".join(str(i % 97 + 1) for i in range(DATA_LIMIT // 8))

    assert findings(tmp_path, "y[0] = table[n];", f"static const int table[] = {{{numbers}}};") == ""


@pytest.mark.parametrize("instruction", ["syscall", "int $0x80", "rdtsc", "rdtscp"])
def test_an_instruction_that_leaves_the_kernel_is_refused(tmp_path: Path, instruction: str) -> None:
    """System calls and clock reads by instruction are found in the disassembly."""
    found = findings(tmp_path, f'asm volatile("{instruction}" ::: "memory");')

    assert f"kernel holds the instruction '{instruction}'" in found


def test_the_bytes_of_a_system_call_inside_a_constant_are_no_system_call(tmp_path: Path) -> None:
    """An honest constant that happens to hold 0f 05 is not flagged."""
    built = library(tmp_path, "*reinterpret_cast<int*>(y) = n + 0x050f050f;")

    assert b"\x0f\x05" in built.read_bytes()
    assert audit(built, Language.CPP) == []


@pytest.mark.parametrize("name", ["malloc", "clock_gettime", "memcpy", "_Znwm"])
def test_standing_in_for_the_processs_own_functions_is_refused(tmp_path: Path, name: str) -> None:
    """Exporting a name of the C library or the C++ runtime is refused."""
    found = findings(tmp_path, "", f'extern "C" int {name}(long, void*) {{ return 0; }}', ("-fno-builtin",))

    assert f"{name}" in found
    assert "a name of the C library or the C++ runtime" in found


def test_an_executable_stack_is_refused(tmp_path: Path) -> None:
    """Code on the stack is not for kernels."""
    assert "executable stack" in findings(tmp_path, "", flags=("-Wl,-z,execstack",))


def test_a_file_that_is_no_shared_object_is_refused(tmp_path: Path) -> None:
    """Anything but ELF is a finding and not a crash of the harness."""
    path = tmp_path / "kernel.so"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(40))

    assert audit(path, Language.CPP) != []


def test_exported_functions_are_listed(tmp_path: Path) -> None:
    """The names that others can look up, and no others."""
    built = library(
        tmp_path, "y[0] = helper(n);", "static int helper(int a) { return a; }\nint other(int a) { return a; }"
    )

    assert exported_functions(built) == ["_Z5otheri", "kernel"]


# ---------------------------------------------------------------- CUDA

CALLS = {
    "cudaStreamCreate": "making, joining or changing a stream",
    "cudaStreamWaitEvent": "making, joining or changing a stream",
    "cudaEventRecord": "an event, which reads a clock or joins streams,",
    "cudaStreamBeginCapture": "capturing a graph",
    "cudaGraphLaunch": "capturing a graph",
    "cudaLaunchHostFunc": "a callback on the host",
    "cudaStreamAddCallback": "a callback on the host",
    "cudaIpcOpenMemHandle": "reaching other devices, other processes or their memory",
    "cudaDeviceEnablePeerAccess": "reaching other devices, other processes or their memory",
    "cudaMallocFromPoolAsync": "reaching other devices, other processes or their memory",
    "cudaDeviceSetLimit": "changing the device for everybody",
    "cudaDeviceReset": "changing the device for everybody",
    "cudaHostRegister": "memory that host and device share",
    "cudaMallocManaged": "memory that host and device share",
    "cudaProfilerStart": "driving a profiler",
    "cudaMemcpyFromSymbolAsync": "reading the device's memory on the host",
    "cuLaunchKernel": "calling the driver or loading other device code",
    "cudaLibraryLoadData": "calling the driver or loading other device code",
    "cudaCreateTextureObject": "an array, a texture or a surface",
    "cublasCreate_v2": "calling a vendor's library",
}


def cuda_findings(folder: Path, body: str, before: str = "", flags: tuple[str, ...] = ()) -> list[str]:
    return audit(library(folder, body, before, flags), Language.CUDA)


def test_every_forbidden_part_of_cuda_is_named_with_its_reason(tmp_path: Path) -> None:
    """Import by import; what the recorder serves passes."""
    honest = ("cudaLaunchKernel", "__cudaRegisterFatBinary", "cudaMemsetAsync", "cudaGetLastError")
    declared = "\n".join(f'extern "C" int {name}(...);' for name in (*CALLS, *honest))
    called = "\n".join(f"y[0] += {name}(n);" for name in (*CALLS, *honest))
    expected = [f"imports {name}: {why} is not accepted in a kernel" for name, why in CALLS.items()]
    assert sorted(cuda_findings(tmp_path, called, declared)) == sorted(expected)


def test_a_part_of_cuda_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Also the forms for another default stream, which would launch there in silence."""
    for name in ("cudaSomethingNew", "cudaLaunchKernel_ptsz", "__cudaGetProcAddress"):
        (finding,) = cuda_findings(tmp_path, f"y[0] = {name}(n);", f'extern "C" int {name}(...);')
        assert finding == f"imports {name}: a kernel's host side may not call this part of CUDA"


def test_cuda_is_nothing_for_a_kernel_of_the_cpu(tmp_path: Path) -> None:
    """Neither its calls nor its registration."""
    body, before = "y[0] = cudaGetLastError();", 'extern "C" int cudaGetLastError();'
    assert "imports cudaGetLastError: it is not on the list" in findings(tmp_path, body, before)
    registers = '__attribute__((constructor)) static void __sti____cudaRegisterAll() { asm volatile(""); }'
    assert "__sti____cudaRegisterAll" in findings(tmp_path, "", registers)


def test_names_of_cuda_are_not_a_candidates_to_define(tmp_path: Path) -> None:
    """They could stand in for the recorder's own."""
    (finding,) = cuda_findings(tmp_path, "", 'extern "C" int cudaLaunchKernel() { return 0; }')
    assert finding == "defines cudaLaunchKernel, a name of the C library, the C++ runtime or CUDA"


def test_only_the_constructor_that_nvcc_makes_is_accepted(tmp_path: Path) -> None:
    """By its name, once; a second one and one in a namespace are named."""
    own = '__attribute__((constructor)) static void __sti____cudaRegisterAll() { asm volatile(""); }'
    assert cuda_findings(tmp_path, "", own) == []
    for before in (
        f'{own} __attribute__((constructor)) static void more() {{ asm volatile(""); }}',
        f"namespace n {{ {own} }}",
    ):
        (finding,) = cuda_findings(tmp_path, "", before)
        assert "runs when the object is loaded" in finding


def test_bytes_beside_the_device_code_are_named(tmp_path: Path) -> None:
    """The section of the device code is no place for a candidate's own data."""
    before = '__attribute__((section(".nv_fatbin"), used)) static const char hidden[100000] = {1};'
    (finding,) = cuda_findings(tmp_path, "", before)
    assert finding == "section .nv_fatbin holds 100000 bytes that are no fatbin"


def test_a_vendors_library_is_not_a_candidates_to_need(tmp_path: Path) -> None:
    """The runtime is all of CUDA that it may be linked to."""
    for name in ("libcudart.so.13", "libcuda.so.1"):
        stub = tmp_path / name
        flags = ("-x", "c++", "/dev/null", f"-Wl,-soname,{name}")
        subprocess.run(["g++", "-shared", "-fPIC", "-o", stub, *flags], check=True, capture_output=True)
    linked = ("-Wl,--no-as-needed", *(str(tmp_path / name) for name in ("libcudart.so.13", "libcuda.so.1")))
    (finding,) = cuda_findings(tmp_path, "", flags=linked)
    assert finding.startswith("needs library libcuda.so.1; accepted: libc, ")
    assert finding.endswith("libcudart.so.13")
