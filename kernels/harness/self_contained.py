"""Runs a self-contained program, the original ferret's form, and takes down what it says about itself.

The program brings its own reference, its own baseline and its own clock. It is kept from doing harm, not from lying:
what comes of it is a SelfReported, from which no verdict and no measurement can be made.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from kernels.harness import device, kernel_result, leash, sandbox
from kernels.harness.kernel_result import Reading
from kernels.harness.requests import RunProgram
from specs.errors import RunnerLost, UserError
from specs.outcomes import SelfReported
from specs.schema import Language, Task
from specs.scoring import fold, geomean

log = structlog.get_logger(__name__)

PROGRAM = "/ferret/program"
OUTPUT_LIMIT = 2**20  # bytes of standard output that are read; 500 configs with every quantity take a tenth of it
FILE_LIMIT = 16 * 2**20  # bytes of any one file it writes, its output among them
SCRATCH_LIMIT = 2**30  # bytes of its private /tmp
GONE_S = 10.0  # for what a program left behind to be ended
TAIL = 700  # characters of each stream that are kept when something is wrong
# What selects a GPU for a process; everything else of our environment stays here.
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
DRIVER_LIBRARIES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")  # where containers put the driver's


@dataclass(frozen=True, slots=True)
class _Run:
    """How one run of a program ended."""

    trouble: str  # why nothing that it printed counts; empty when it ended by itself with status 0
    output: str
    errors: str
    seconds: float


def run_program(request: RunProgram) -> SelfReported:
    """Run a program once, alone on the device, and read its KERNEL_RESULT lines.

    A program that crashes, hangs, exits with another status than 0 or contradicts itself is a result, with ratio 0 for
    every config. Raises UserError when the machine cannot run it (no GPU, no bubblewrap where one is required),
    DeviceBusy when the device stays taken, and RunnerLost when the run is killed from outside.
    """
    task = request.task
    gpu = needs_gpu(task)
    if gpu and not gpus():
        raise UserError(
            f"task {task.name}: a {task.language.value} program must run to report; this machine has no GPU "
            "(no /dev/nvidia0)"
        )
    isolation = sandbox.choose(request.sandbox)
    content = request.program.read_bytes()
    where, machine = _gpu() if gpu else _cpu()
    # Nobody of ours judges or times meanwhile: the program's times are its own affair, ours are not.
    with device.lock(where, request.device_wait_s), tempfile.TemporaryDirectory(prefix="ferret-program-") as name:
        folder = Path(name)
        program = folder / "program"
        program.write_bytes(content)  # what runs is what is hashed, whatever becomes of the file
        program.chmod(0o555)
        run = _run(program, folder, isolation, gpu=gpu, timeout_s=request.timeout_s)
    names = [config.name for config in task.configs]
    reading = kernel_result.refused(run.trouble, names) if run.trouble else kernel_result.read(run.output, names)
    log.info("program", seconds=round(run.seconds, 3), refused=reading.refused, sandbox=isolation)
    return _report(task, hashlib.sha256(content).hexdigest(), reading, run, isolation, machine)


def needs_gpu(task: Task) -> bool:
    return task.language is not Language.CPP


def gpus() -> list[Path]:
    """Device files of the NVIDIA GPUs that this machine shows."""
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def _report(
    task: Task, digest: str, reading: Reading, run: _Run, isolation: sandbox.Isolation, machine: str
) -> SelfReported:
    ratios = {one.config: one.ratio for one in reading.configs}
    wrong = bool(reading.refused) or not all(ratios.values())
    tails = [text.strip()[-TAIL:] for text in (run.output, run.errors) if text.strip()]
    return SelfReported(
        program=digest,
        configs=reading.configs,
        score=fold(task.scoring, ratios, task.configs, task.focus_config),
        geomean=geomean(ratios, task.configs),
        refused=reading.refused,
        machine=machine,
        output_tail="\n--- standard error\n".join(tails) if wrong else "",
        sandbox=isolation,
        seconds=run.seconds,
    )


def _cpu() -> tuple[int, str]:
    """The core that timing takes, as the lock of the whole processor, and the processor's name."""
    cores = device.pick_cores()
    return cores.runner, device.describe(cores).name


def _gpu() -> tuple[str, str]:
    """The lock's name of the GPU that a program sees first, and what it is: as nvidia-smi has them."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "gpu", "a GPU"
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 4]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    seen = [row for row in rows if first and (row[0] == first or row[1].startswith(first))] or rows
    if not seen:
        return "gpu", "a GPU"
    _, uuid, name, driver = seen[0]
    return f"gpu-{uuid.lower().removeprefix('gpu-').replace('-', '')}", f"{name}, driver {driver}"


# ---------------------------------------------------------------- the process


def _run(program: Path, folder: Path, isolation: sandbox.Isolation, *, gpu: bool, timeout_s: float) -> _Run:
    output, errors = folder / "output", folder / "errors"
    environment = dict(sandbox.ENVIRONMENT)
    if gpu:
        environment |= {name: os.environ[name] for name in CUDA_VARIABLES if name in os.environ}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(DRIVER_LIBRARIES)
    command = [str(program)]
    if isolation == "bubblewrap":
        command = _walled(program, environment, gpu=gpu)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limits = leash.Limits(
        # The wall clock is to be first: with threads, processor time runs faster than it.
        cpu_s=int(timeout_s * (os.cpu_count() or 1)) + 60,
        # A GPU's driver maps far more addresses than there is memory.
        memory_bytes=hard if gpu else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        file_bytes=FILE_LIMIT,
    )
    scratch = folder / "scratch"
    scratch.mkdir()
    with _outlived() as thread:
        finished = leash.run(
            command,
            folder=scratch,
            environment=environment,
            log=output,
            errors=errors,
            timeout_s=timeout_s,
            limits=limits,
            pass_fds=(thread,),
        )
    said = _text(errors, OUTPUT_LIMIT)
    size = output.stat().st_size
    trouble = _trouble(finished, timeout_s)
    if finished.returncode < 0 and not finished.timed_out:
        # From inside a bubblewrap nobody can see the supervisor, let alone end it.
        if isolation == "bubblewrap":
            raise RunnerLost("the program's supervisor was killed from outside")
        trouble = "the process that watches the program was killed"
    if not trouble and size > OUTPUT_LIMIT:
        trouble = f"the program printed {size} bytes; at most {OUTPUT_LIMIT} are accepted"
    return _Run(trouble, _text(output, OUTPUT_LIMIT), said, finished.seconds)


@contextlib.contextmanager
def _outlived() -> Iterator[int]:
    """A descriptor for a program to inherit: after the block everything that still holds it has ended.

    A process group does not have those that started a session of their own, and a namespace takes a moment to go.
    """
    reading, writing = os.pipe()
    held = f"pipe:[{os.fstat(reading).st_ino}]"
    try:
        try:
            yield writing
        finally:
            os.close(writing)
        end = time.monotonic() + GONE_S
        # Nobody writes to it: it can be read once nobody holds it any more.
        while not select.select([reading], [], [], 0.02)[0] and time.monotonic() < end:
            for pid in _holders(held):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        os.close(reading)


def _holders(pipe: str) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(descriptor) for descriptor in (place / "fd").iterdir()]  # noqa: PTH115  a text is wanted
        except OSError:
            continue
        if pipe in links and int(place.name) != os.getpid():
            yield int(place.name)


def _trouble(finished: leash.Finished, timeout_s: float) -> str:
    """Why nothing counts that a program printed before it ended so."""
    if finished.timed_out:
        return f"the program ran longer than {timeout_s:g} s"
    code = finished.returncode
    if code == 128 + signal.SIGXFSZ:
        return f"the program wrote a file of more than {FILE_LIMIT} bytes"
    if code > 128 and code - 128 in signal.valid_signals():
        return f"the program was ended by {signal.Signals(code - 128).name}"
    return f"the program ended with status {code}" if code else ""


def _walled(program: Path, environment: dict[str, str], *, gpu: bool) -> list[str]:
    """The command inside a bubblewrap: no network, read-only root, a private /tmp that goes with it."""
    command = [*_walls(gpu=gpu), *_proc(gpu=gpu), "--clearenv"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    for place in sandbox.search_folders(program):
        command += ["--ro-bind", str(place), str(place)]
    # Last, since the files above are bound below it.
    return [*command, "--ro-bind", str(program), PROGRAM, "--remount-ro", "/", PROGRAM]


def _walls(*, gpu: bool) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL"]
    for place in (*sandbox.SYSTEM, *(["/sys"] if gpu else [])):  # a GPU's driver looks for its PCI device
        if os.path.exists(place):  # noqa: PTH110
            command += ["--ro-bind", place, place]
    command += ["--dev-bind", "/dev", "/dev"] if gpu else ["--dev", "/dev"]
    return [*command, "--size", str(SCRATCH_LIMIT), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108


@functools.cache
def _proc(*, gpu: bool) -> tuple[str, ...]:
    """A /proc of the program's own where the system lets us mount one; a GPU's driver cannot do without any."""
    own = ("--proc", "/proc")
    try:
        probe = [*_walls(gpu=gpu), *own, shutil.which("true") or "/usr/bin/true"]
        answer = subprocess.run(probe, capture_output=True, timeout=sandbox.PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if answer.returncode == 0:
        return own
    return ("--ro-bind", "/proc", "/proc") if gpu else ()


def _text(path: Path, limit: int) -> str:
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", errors="replace")
