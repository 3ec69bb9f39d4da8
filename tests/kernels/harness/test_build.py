"""Builds: named by content, published whole, and a candidate's faults are results and not errors."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import leash, products, toolchain
from kernels.harness.build import build, compile_tool
from kernels.harness.requests import Build, Built
from specs.errors import GateError, MachineError, RunnerLost, UserError
from specs.outcomes import BuildStatus
from specs.schema import Language
from tests.kernels.harness.tasks import task

SIGNATURE = "const float* x, float* top, float* y, int M, int N"
GOOD = f'extern "C" void kernel({SIGNATURE}) {{ for (int i = 0; i < M * N; ++i) y[i] = 2 * x[i]; }}\n'
QUICK = {"flags": ["-std=c++17", "-O1"]}


def built(folder: Path, source: str = GOOD, *, changes: dict[str, Any] | None = None, **request: Any) -> Built:
    """Build `source` in this test's own folder of builds, with quick flags unless the task is changed."""
    path = folder / "candidate.cpp"
    path.write_text(source)
    fields: dict[str, Any] = {"build": QUICK, **(changes or {})}
    return build(Build(task=task(**fields), source=path, builds=folder / "builds", **request))


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in (folder / "builds").iterdir() if path.name.startswith(".")]


def test_a_built_kernel_can_be_loaded_and_called(tmp_path: Path) -> None:
    """The product is a shared object that exports the interface's entry."""
    done = built(tmp_path, changes={"build": {}})
    assert done.library is not None
    x, y = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 4)()

    ctypes.CDLL(str(done.library)).kernel(x, None, y, 2, 2)

    assert list(y) == [2, 4, 6, 8]
    assert done.result.status is BuildStatus.BUILT
    assert done.result.compiler.startswith("g++")


def test_a_build_folder_holds_object_record_and_log(tmp_path: Path) -> None:
    """Everything about a build is in the folder named by its key, and nothing is left beside it."""
    done = built(tmp_path)

    folder = tmp_path / "builds" / done.result.key
    assert sorted(path.name for path in folder.iterdir()) == ["build.json", "kernel.so", "log.txt"]
    assert done.library == folder / "kernel.so"
    assert leftovers(tmp_path) == []


def test_the_same_build_is_found_again(tmp_path: Path) -> None:
    """A second request is answered from the folder, with the same object."""
    first, second = built(tmp_path), built(tmp_path)

    assert (first.result.cached, second.result.cached) == (False, True)
    assert second.result.library == first.result.library


def test_whatever_can_change_the_object_changes_the_key(tmp_path: Path) -> None:
    """Source, flags, production flags, role and interface each make another build."""
    other = task().model_dump(mode="json")["interface"]
    other["arguments"] = other["arguments"][:3]
    keys = [
        built(tmp_path).result.key,
        built(tmp_path, GOOD + "\n").result.key,
        built(tmp_path, changes={"build": {"flags": ["-std=c++17", "-O2"]}}).result.key,
        built(tmp_path, changes={"build": {**QUICK, "production_flags": ["-g"]}}, production=True).result.key,
        built(tmp_path, role="baseline").result.key,
        built(tmp_path, changes={"interface": other}).result.key,
    ]

    assert len(set(keys)) == len(keys)


def test_another_cpu_makes_another_key_only_for_native_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-march=native means another object elsewhere; without it the object is the same everywhere."""
    native = {"build": {"flags": ["-O1", "-march=native"]}}
    here, plain = built(tmp_path, changes=native).result.key, built(tmp_path).result.key

    monkeypatch.setattr(toolchain, "_cpu", lambda: "another CPU")

    assert built(tmp_path, changes=native).result.key != here
    assert built(tmp_path).result.key == plain


@pytest.mark.parametrize("damage", ["missing object", "changed object", "missing record", "broken record", "a file"])
def test_a_damaged_build_is_made_again(tmp_path: Path, damage: str) -> None:
    """A product that is not what its record says is never handed out."""
    first = built(tmp_path)
    folder = tmp_path / "builds" / first.result.key
    match damage:
        case "missing object":
            (folder / "kernel.so").unlink()
        case "changed object":
            (folder / "kernel.so").write_bytes(b"something else")
        case "missing record":
            (folder / "build.json").unlink()
        case "broken record":
            (folder / "build.json").write_text("{")
        case "a file":
            shutil.rmtree(folder)
            folder.write_text("")

    again = built(tmp_path)

    assert not again.result.cached
    assert again.library is not None
    ctypes.CDLL(str(again.library))
    assert built(tmp_path).result.cached
    assert leftovers(tmp_path) == []


def test_builds_at_the_same_time_share_one_product(tmp_path: Path) -> None:
    """Whoever is first publishes; the others hand out that very product."""
    path = tmp_path / "candidate.cpp"
    path.write_text(GOOD)
    request = Build(task=task(build=QUICK), source=path, builds=tmp_path / "builds")
    done: list[Built] = []
    threads = [threading.Thread(target=lambda: done.append(build(request))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 3
    assert len({(one.library, one.result.library) for one in done}) == 1
    assert [path.name for path in (tmp_path / "builds").iterdir()] == [done[0].result.key]


def test_a_source_that_does_not_compile_is_a_result(tmp_path: Path) -> None:
    """The compiler's words come back, with the file's own name and no path of the build."""
    done = built(tmp_path, "int x = ;\n")

    assert done.result.status is BuildStatus.FAILED
    assert done.library is None
    assert done.result.log_tail.startswith("kernel.cpp:1:9: error: expected primary-expression before ';' token")
    assert str(tmp_path) not in done.result.log_tail


def test_a_failure_is_remembered(tmp_path: Path) -> None:
    """The same broken source is not compiled twice."""
    built(tmp_path, "int x = ;\n")

    again = built(tmp_path, "int x = ;\n")

    assert again.result.cached
    assert again.result.status is BuildStatus.FAILED


def test_a_missing_symbol_is_a_failed_build(tmp_path: Path) -> None:
    """A call to nothing fails when it is linked, not when it is loaded."""
    done = built(tmp_path, f'void nowhere();\nextern "C" void kernel({SIGNATURE}) {{ nowhere(); }}\n')

    assert done.result.status is BuildStatus.FAILED
    assert "undefined reference to `nowhere()'" in done.result.log_tail
    assert str(tmp_path) not in done.result.log_tail


def test_a_long_log_keeps_both_ends(tmp_path: Path) -> None:
    """The first error and the last word both survive, within 4096 characters."""
    done = built(tmp_path, "\n".join(f"int a{i} = unknown_name_{i};" for i in range(500)))

    assert "unknown_name_0" in done.result.log_tail
    assert done.result.log_tail.endswith("g++ ended with status 1")
    assert len(done.result.log_tail) <= 4096


@pytest.mark.parametrize("role", ["candidate", "baseline"])
def test_an_entry_without_c_linkage_is_explained(tmp_path: Path, role: str) -> None:
    """The message names what is missing, why, and what is there instead."""
    done = built(tmp_path, f"void kernel({SIGNATURE}) {{}}\n", role=role)

    assert done.result.status is BuildStatus.FAILED
    assert done.result.log_tail == (
        "exports no function 'kernel' (extern \"C\" is needed); it exports: _Z6kernelPKfPfS1_ii"
    )


def test_a_forbidden_import_is_refused_for_a_candidate_only(tmp_path: Path) -> None:
    """The audit is for candidates; a vendor's baseline may do as it likes."""
    source = f'#include <cstdlib>\nextern "C" void kernel({SIGNATURE}) {{ *y = *getenv("A"); }}\n'

    refused = built(tmp_path, source)

    assert refused.result.status is BuildStatus.REFUSED
    assert "imports getenv: looking at the environment" in refused.result.log_tail
    assert refused.library is None
    assert built(tmp_path, source, role="baseline").result.ok


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('#include "/etc/passwd"', "kernel.cpp:2: an absolute path is not accepted"),
        ("  #  include </etc/passwd>", "kernel.cpp:2: an absolute path is not accepted"),
        ('/* */ # /* */ include /* */ "/etc/passwd"', "kernel.cpp:2: an absolute path is not accepted"),
        ('%:include "/etc/passwd"', "kernel.cpp:2: an absolute path is not accepted"),
        ('#inc\\\nlude "/etc/passwd"', "kernel.cpp:2: an absolute path is not accepted"),
        ('#import "/etc/passwd"', "kernel.cpp:2: an absolute path is not accepted"),
        ('#include "../secret.h"', "kernel.cpp:2: a path with '..' is not accepted"),
        ("#include <../../../etc/passwd>", "kernel.cpp:2: a path with '..' is not accepted"),
        ('#define FILE "/etc/passwd"\n#include FILE', 'kernel.cpp:3: only a plain "file" or <file> is accepted'),
        ('#if __has_include("/etc/shadow")\n#endif', "kernel.cpp:2: an absolute path is not accepted"),
        ('asm(".incbin \\"/etc/passwd\\"");', "kernel.cpp:2: .incbin reads a file while assembling"),
        ('#line 1 "/etc/passwd"\nint x = ;', "kernel.cpp:2: an absolute path is not accepted"),
        ('# 1 "/etc/passwd"\nint x = ;', "kernel.cpp:2: an absolute path is not accepted"),
        ('#define FILE "/etc/passwd"\n#line 1 FILE', 'kernel.cpp:3: only a number and a plain "file" are accepted'),
        ('asm("#NO_APP\\n.inc" "bin \\"/etc/passwd\\"");', "asm statement: .incbin reads a file while assembling"),
        ('asm(".inc" "bin \\"/etc/passwd\\"");', "kernel.cpp: asm statement: .incbin reads a file while assembling"),
        ('asm(".include \\"/etc/passwd\\"");', "kernel.cpp: asm statement: .include reads a file while assembling"),
        ('asm(".macro m a b\\n.\\\\a\\\\b \\"/etc/passwd\\"\\n.endm\\nm inc bin");', "is an assembler macro"),
    ],
)
def test_reading_files_while_compiling_is_refused(tmp_path: Path, line: str, expected: str) -> None:
    """Every known spelling is refused with its line, and no byte of the file reaches the log."""
    done = built(tmp_path, f"#include <cmath>\n{line}\n{GOOD}")

    assert done.result.status is BuildStatus.REFUSED
    assert expected in done.result.log_tail
    assert "root:" not in done.result.log_tail


@pytest.mark.parametrize(
    "line",
    [
        "#include <immintrin.h>" if os.uname().machine == "x86_64" else "#include <cmath>",
        "#include <vector>",
        '#line 7\n#line 8 "generated.cpp"',
        '#ifdef __has_include\n#if __has_include("cblas.h")\n#endif\n#endif',
        '// #include "/etc/passwd" is what this must not do',
        'asm volatile("" ::: "memory");',
    ],
)
def test_honest_sources_are_not_refused(tmp_path: Path, line: str) -> None:
    """The compiler's own headers, feature tests, comments and plain inline assembly all build."""
    inside = line if line.startswith("asm") else ""
    before = "" if inside else line

    assert built(tmp_path, f"{before}\n{GOOD.replace('{ for', '{ ' + inside + ' for')}").result.ok


def test_the_compiler_sees_none_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that would change what the compiler reads does not reach it."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "secret.h").write_text("#define SECRET 1\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "planted"))

    done = built(tmp_path, f"#include <secret.h>\n{GOOD}")

    assert done.result.status is BuildStatus.FAILED
    assert "secret.h: No such file" in done.result.log_tail


def test_a_compilation_without_end_is_stopped_and_tried_again(tmp_path: Path) -> None:
    """A time-out is a result, leaves nothing behind and is not remembered."""
    loop = (
        "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i % 7; return s; }\n"
        'static_assert(f(1L << 40) != 1, "");\n'
    )
    changes = {
        "build": {"flags": ["-std=c++17", "-fconstexpr-ops-limit=9000000000000", "-fconstexpr-loop-limit=2147483647"]}
    }

    first = built(tmp_path, loop + GOOD, changes=changes, timeout_s=0.5)
    again = built(tmp_path, loop + GOOD, changes=changes, timeout_s=0.5)

    assert first.result.status is BuildStatus.TIMED_OUT
    assert "stopped after 0.5 s" in first.result.log_tail
    assert not again.result.cached
    assert list((tmp_path / "builds").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells only Linux processes of their parent's death")
def test_a_compiler_does_not_outlive_a_killed_harness(tmp_path: Path) -> None:
    """When the harness dies of SIGKILL in the middle of a build, the whole compiler goes with it."""
    pids = tmp_path / "pids"
    program = tmp_path / "compiler"
    # A compiler that has a child of its own, says so, and never ends.
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n")
    program.chmod(0o755)
    starter = (
        "import sys; from pathlib import Path; from kernels.harness import leash; folder = Path(sys.argv[1]);"
        "leash.run([sys.argv[2]], folder=folder, environment={'PATH': '/usr/bin:/bin'}, log=folder / 'log',"
        " timeout_s=600, limits=leash.Limits(600, 2**33, 2**20))"
    )
    harness = subprocess.Popen([sys.executable, "-c", starter, str(tmp_path), str(program)])
    try:
        _until(pids.exists)
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()

    for pid in map(int, pids.read_text().split()):
        _until(lambda pid=pid: not _alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a supervisor the orphans below it")
def test_nothing_that_a_compiler_started_is_left(tmp_path: Path) -> None:
    """Not even what left its session, its group and its parent, and holds no file of ours."""
    pid, program = tmp_path / "pid", tmp_path / "compiler"
    program.write_text(
        f"#!/bin/sh\nsetsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000' >&- 2>&- <&- &\n"
        f"while [ ! -e {pid} ]; do :; done\n"
    )
    program.chmod(0o755)
    limits = leash.Limits(600, 2**33, 2**20)
    environment = {"PATH": "/usr/bin:/bin"}
    log = tmp_path / "log"
    done = leash.run([str(program)], folder=tmp_path, environment=environment, log=log, timeout_s=60, limits=limits)
    left = _alive(int(pid.read_text()))
    if left:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (done.returncode, done.timed_out, left) == (0, False, False)


def test_a_compiler_killed_from_outside_is_not_the_candidates_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that something else killed is worth retrying, and is not remembered."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\ncase "$1" in --version|-dumpmachine) echo fake;; *) kill -9 $PPID;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/usr/bin:/bin")

    with pytest.raises(RunnerLost, match="killed from outside"):
        built(tmp_path)
    assert list((tmp_path / "builds").iterdir()) == []


def test_what_a_killed_build_left_is_swept_away_later(tmp_path: Path) -> None:
    """A temporary folder of yesterday goes with the next build; one of a moment ago may still be in use."""
    old, fresh = tmp_path / "builds" / ".build-old", tmp_path / "builds" / ".build-fresh"
    for path in (old, fresh):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))

    built(tmp_path)

    assert leftovers(tmp_path) == [".build-fresh"]


def test_a_missing_compiler_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without g++ the message names it and the package."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UserError, match=r"g\+\+ is not on PATH.*apt-get install g\+\+"):
        built(tmp_path)


def test_a_missing_source_is_the_users_mistake(tmp_path: Path) -> None:
    """A path that is no readable file is one line, for a folder too."""
    for path in (tmp_path / "absent.cpp", tmp_path):
        with pytest.raises(UserError, match="a readable file is needed"):
            build(Build(task=task(), source=path, builds=tmp_path / "builds"))


def test_a_language_without_a_toolchain_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be built is refused with what can."""
    monkeypatch.setattr(toolchain, "TOOLCHAINS", {Language.CPP: toolchain.Gxx()})
    with pytest.raises(UserError, match="language 'triton' cannot be built; accepted: cpp"):
        built(tmp_path, changes={"language": "triton"})


def test_a_full_disk_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for a build is worth retrying elsewhere, and leaves nothing half-written."""

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(products, "_sync", full)

    with pytest.raises(MachineError, match="disk full"):
        built(tmp_path)
    assert list((tmp_path / "builds").iterdir()) == []


def test_a_source_cannot_pretend_that_the_disk_is_full(tmp_path: Path) -> None:
    """The words alone do not turn a broken candidate into a machine's fault."""
    assert built(tmp_path, "#error No space left on device\n").result.status is BuildStatus.FAILED


def test_package_flags_name_the_folder_of_an_installed_package(tmp_path: Path) -> None:
    """`{package:NAME}` lets a baseline use the headers and libraries that came with a Python package."""
    source = f'#include <cblas.h>\nextern "C" void kernel({SIGNATURE}) {{ scipy_cblas_sscal(M, 2.0f, y, 1); }}\n'
    folder = "{package:scipy_openblas32}"
    flags = [f"-I{folder}/include", f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib", "-lscipy_openblas"]

    done = built(tmp_path, source, changes={"baseline": {"source": "OpenBLAS", "flags": flags}}, role="baseline")

    assert done.result.ok, done.result.log_tail
    ctypes.CDLL(str(done.library))
    record = json.loads((tmp_path / "builds" / done.result.key / "build.json").read_text())
    assert not any("{package" in word for command in record["commands"] for word in command)


@pytest.mark.parametrize("name", ["no_such_package", "", "os.path"])
def test_an_unknown_package_in_a_flag_is_the_users_mistake(tmp_path: Path, name: str) -> None:
    """The flag and the package are named."""
    with pytest.raises(UserError, match=f"package '{name}' is not installed"):
        built(tmp_path, changes={"build": {"flags": [f"-I{{package:{name}}}"]}})


def test_fast_maths_flags_do_not_change_the_process_that_loads_the_object(tmp_path: Path) -> None:
    """-ffast-math may shape the kernel's code, and adds no start-up code that flushes denormals everywhere."""
    assert built(tmp_path, changes={"build": {"flags": ["-O2", "-ffast-math"]}}).result.ok
    assert built(tmp_path, changes={"build": {"flags": ["-Ofast"]}}).result.ok


def test_a_tool_of_our_own_is_built_once(tmp_path: Path) -> None:
    """A program and its generated headers are compiled together, run, and are found again."""
    source = tmp_path / "tool.cpp"
    source.write_text('#include <cstdio>\n#include "generated.h"\nint main() { std::puts(WORD); }\n')

    def tool(word: str) -> Path:
        return compile_tool("tool", source, ["-O1"], tmp_path / "builds", {"generated.h": f'#define WORD "{word}"\n'})

    first = tool("one")

    assert subprocess.run([first], capture_output=True, text=True, check=True).stdout == "one\n"
    assert tool("one") == first
    assert subprocess.run([tool("two")], capture_output=True, text=True, check=True).stdout == "two\n"


def test_a_tool_can_be_a_library(tmp_path: Path) -> None:
    """The gate's own clock is a shared object that ctypes loads."""
    source = tmp_path / "clock.cpp"
    source.write_text('extern "C" int seven() { return 7; }\n')

    assert ctypes.CDLL(str(compile_tool("clock", source, [], tmp_path / "builds", shared=True))).seven() == 7


def test_a_tool_that_does_not_build_is_our_fault(tmp_path: Path) -> None:
    """The compiler's words come with a GateError, and the failure is not remembered."""
    source = tmp_path / "tool.cpp"
    source.write_text("int main() { return nothing; }\n")

    with pytest.raises(GateError, match=r"tool\.cpp does not build \(failed\):\n(.*\n)*tool\.cpp:1:21: error"):
        compile_tool("tool", source, [], tmp_path / "builds")
    assert list((tmp_path / "builds").iterdir()) == []


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(holds: Any) -> None:
    """Poll until `holds()`; the test's own timeout ends it when it never does."""
    pause = threading.Event()
    while not holds():
        pause.wait(0.01)
