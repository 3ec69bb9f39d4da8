"""A GPU to judge and to time on: which one, its trusted device code, its lock, and contestants on it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernels.harness import calibrate, cubin, device, sandbox, trial
from kernels.harness.arena import CandidateFault
from kernels.harness.cubin import DeviceCode
from kernels.harness.gate import Case, Gate
from kernels.harness.gpu import checked, counters
from kernels.harness.gpu.arena import DeviceArena, DeviceFilled, GateDevice, bytes_needed
from kernels.harness.gpu.checked import MakeRecorder
from kernels.harness.gpu.counters import Kernel
from kernels.harness.gpu.process import Executor, descendants
from kernels.harness.gpu.runner import GpuRunner, Parts
from kernels.harness.gpu_state import State, Watch, watching
from kernels.harness.machine import Cases
from kernels.harness.recorder import Recorder
from kernels.harness.requests import Sandbox
from kernels.harness.roofline import Peaks
from kernels.harness.runner import Tools
from kernels.harness.trial import Question
from kernels.harness.triton_host import TritonRecorder
from specs.errors import MachineError, UserError
from specs.outcomes import Device, FailureKind
from specs.schema import Language, Task

KERNELS = Path(__file__).parent / "kernels.cu"
COMPILE_TIMEOUT_S = 120
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # the last is the driver's under WSL
CHECKED_CASES = 4  # watched code runs many times slower


class Gpu:
    """One GPU, by its number."""

    # A set of processes takes as long to start as some twenty rounds of a small config; beyond those it is the spread
    # between processes, and not the number of rounds, that an interval is made of.
    rounds_per_process = 20
    processes_differ = True
    watched = True
    checker_core: int | None = None

    def __init__(
        self, task: Task, tools: Tools | None, parts: Parts, gate: GateDevice, watch: Watch, builds: Path
    ) -> None:
        """`tools` are what CUDA candidates are recorded with."""
        self._watch = watch
        self._builds = builds
        self.task = task
        self.isolation = parts.isolation
        self._tools = tools
        self._parts = parts
        self._gate = gate
        self._started: list[Executor] = []

    def memory(self, cases: Cases) -> DeviceArena:
        return DeviceArena(self._gate, bytes_needed(cases))

    def expect(self, memory: DeviceArena, contestants: int, trusted: Path | None) -> None:
        """Start that many executors side by side; `contestant` takes them."""
        self._started += [self._start(memory, trusted) for _ in range(contestants - len(self._started))]

    def _start(self, memory: DeviceArena, trusted: Path | None) -> Executor:
        parts = self._parts
        return Executor(
            parts.isolation, parts.ordinal, parts.kernels,
            arena_fd=memory.fd, arena_bytes=memory.size, program=trusted, home=self._home(),
        )  # fmt: skip

    def _home(self) -> Path:
        """Where a vendor's library finds again what it compiled for an earlier process."""
        home = self._builds.absolute() / "baseline-home"
        home.mkdir(parents=True, exist_ok=True)
        return home

    def flush_by(self, mode: str) -> None:
        """How contestants that start from now on flush the L2 cache: `read`, `memset` or `memset+read`."""
        self._parts = replace(self._parts, flush_mode=mode)

    def forget(self) -> None:
        """End the executors that were expected and not taken."""
        for executor in self._started:
            executor.close()
        self._started.clear()

    def contestant(
        self, memory: DeviceArena, *, candidate: bytes | None = None, trusted: Path | None = None
    ) -> GpuRunner:
        """Start one; raises CandidateFault when it cannot be loaded, MachineError when the device has no room."""
        executor = self._started.pop() if self._started else self._start(memory, trusted)
        runner = GpuRunner(self._parts, memory, executor)
        try:
            if trusted is not None:
                runner.begin_trusted(trusted)
            else:
                assert candidate is not None
                self._begin(runner, candidate)
        except BaseException:
            runner.close()
            raise
        return runner

    def _begin(self, runner: GpuRunner, candidate: bytes) -> None:
        runner.begin_candidate(*self.recording(candidate))

    def recording(self, candidate: bytes) -> tuple[MakeRecorder, DeviceCode | None]:
        """How a candidate is recorded, and the device code it brings; Triton's is made as it is called.

        Raises CandidateFault for an object whose device code cannot be read.
        """
        if self._tools is None:
            parts = self._parts
            return (lambda facts: TritonRecorder(candidate, parts.interface, facts, parts.isolation)), None
        tools = self._tools
        try:
            code = cubin.read(candidate)
        except ValueError as error:
            raise CandidateFault(FailureKind.NOT_LOADED, f"could not be loaded: {error}") from None
        return (lambda facts: Recorder(tools, candidate, facts)), code

    def check_memory(self, gate: Gate, library: bytes, source: Path | None) -> str:
        """Let compute-sanitizer watch the smallest cases; a sentence about what was watched. Raises CandidateFault."""
        configs = [Case(name=config.name, args=config.args) for config in self.task.configs]
        by_size = sorted([*gate.edges, *configs], key=lambda case: trial.case_bytes(self.task, case))
        rng = trial.secret_rng()
        asked = [trial.ask(gate, self.task, case, gate.distributions[0], rng) for case in by_size[:CHECKED_CASES]]
        make_recorder, code = self.recording(library)
        return checked.check(self._parts, code, make_recorder, asked)

    def counted(self, question: Question, library: bytes, rng: np.random.Generator) -> list[Kernel] | str:
        """One call of a candidate under Nsight Compute: its kernels, or why nothing could be counted."""
        memory = self.memory([question.buffers])
        try:
            make_recorder, code = self.recording(library)
            return counters.count(self._parts, self.task, memory, code, make_recorder, question, rng)
        except CandidateFault as fault:
            return str(fault)
        finally:
            memory.close()

    def host_us(self, contestant: GpuRunner, filled: DeviceFilled, slots: np.ndarray, timeout_s: float) -> float:
        """Microseconds from the first launch until the caller knows that all is done, with nothing hidden."""
        return contestant.host_us(filled, slots, timeout_s)

    def peaks(self, *, again: bool = False) -> Peaks:
        if again:
            _peaks.cache_clear()
            return calibrate.peaks("cuda", self._builds, locked=True, ordinal=self._parts.ordinal, again=True)
        return _peaks(self._builds, self._parts.ordinal)

    def state(self) -> State:
        return self._watch.state()

    def lock(self, wait_s: float, *, shared: bool = False) -> AbstractContextManager[float]:
        return device.lock(f"gpu-{identity(self._parts.ordinal)}", wait_s, shared=shared)

    def describe(self) -> Device:
        """With the clocks of this moment, and who else computes on the device."""
        found = describe(self._parts.ordinal)
        others = self._watch.foreign_processes({os.getpid(), *descendants(os.getpid())})
        company = "" if others is None else f", {len(others)} other process(es) on it"
        return found.model_copy(update={"detail": f"{found.detail}, {self._watch.state().told}{company}"})


@contextlib.contextmanager
def opened(task: Task, builds: Path, policy: Sandbox) -> Iterator[Gpu]:
    """The first GPU that this process may use. Raises UserError when there is none."""
    if (reason := unusable()) is not None:
        raise UserError(f"task {task.name}: language {task.language.value!r} needs a GPU: {reason}")
    with _tools(task, builds, policy) as tools:
        isolation = sandbox.choose(policy) if tools is None else tools.isolation
        parts = Parts(trial.interface_of(task), isolation, 0, trusted_code(builds, 0))
        with watching(identity(parts.ordinal)) as watch:
            gpu = Gpu(task, tools, parts, GateDevice(parts.ordinal, parts.kernels), watch, builds)
            try:
                yield gpu
            finally:
                gpu.forget()


@contextlib.contextmanager
def _tools(task: Task, builds: Path, policy: Sandbox) -> Iterator[Tools | None]:
    if task.language is Language.TRITON:
        with trial.unreadable():
            yield None
    else:
        with trial.tools(task, builds, policy) as tools:
            yield tools


@functools.cache
def _peaks(builds: Path, ordinal: int) -> Peaks:
    """Once a process: to know the device takes a CUDA process of its own."""
    return calibrate.peaks("cuda", builds, locked=True, ordinal=ordinal)


@functools.cache
def unusable() -> str | None:
    """Why no GPU can be used here; None when one can."""
    if not any(Path(place).exists() for place in DEVICE_FILES):
        return "this machine has no NVIDIA GPU"
    try:
        from cuda.bindings import driver
    except ImportError:
        return "the package cuda-bindings is not installed (pip install 'ferret[cuda]')"
    try:
        if int(driver.cuInit(0)[0]) != 0:
            return "the CUDA driver does not start"
        count = int(driver.cuDeviceGetCount()[1])
    except Exception as error:  # the bindings raise what they like where there is no libcuda
        return f"no CUDA driver ({type(error).__name__}: {error})"
    return None if count else "there is no GPU that this process may use"


def capability(ordinal: int) -> tuple[int, int]:
    """Compute capability, (9, 0) for an H200."""
    from cuda.bindings import driver

    attribute = driver.CUdevice_attribute
    found = [
        int(driver.cuDeviceGetAttribute(which, ordinal)[1])
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    ]
    return found[0], found[1]


def identity(ordinal: int) -> str:
    """The device's UUID, as hexadecimal digits: the same whatever process counts the devices."""
    from cuda.bindings import driver

    return bytes(driver.cuDeviceGetUuid(driver.cuDeviceGet(ordinal)[1])[1].bytes).hex()


def describe(ordinal: int) -> Device:
    """Name, compute capability, memory, driver and toolkit."""
    from cuda.bindings import driver

    which = driver.cuDeviceGet(ordinal)[1]
    name = driver.cuDeviceGetName(128, which)[1].split(b"\0")[0].decode().strip()
    attribute = driver.CUdevice_attribute
    l2 = int(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, which)[1])
    processors = int(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, which)[1])
    major, minor = capability(ordinal)
    version = int(driver.cuDriverGetVersion()[1])
    detail = f"sm_{major}{minor}, {processors} multiprocessors, L2 cache {l2 >> 20} MiB"
    return Device(
        name=name,
        detail=f"{detail}, CUDA driver {version // 1000}.{version % 1000 // 10}",
        toolkit=_nvcc_version(),
    )


def _nvcc_version() -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return ""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return next((line.strip() for line in said.splitlines() if "release" in line), "")


def trusted_code(builds: Path, ordinal: int) -> Path:
    """The gate's and the executor's own kernels for this device; compiled once. Raises UserError without nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise UserError("nvcc is not on PATH; judging on a GPU needs the CUDA toolkit")
    major, minor = capability(ordinal)
    source = KERNELS.read_bytes()
    key = hashlib.sha256(source + _nvcc_version().encode() + f"{major}{minor}".encode()).hexdigest()
    product = builds.absolute() / f"gpu-{key[:32]}.cubin"
    if product.exists():
        return product
    product.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=product.parent, prefix=".gpu-") as folder:
        made = Path(folder) / "kernels.cubin"
        flags = ["-cubin", f"-arch=sm_{major}{minor}", "-std=c++17", "-O3"]
        try:
            answer = subprocess.run(
                [nvcc, *flags, str(KERNELS), "-o", str(made)],
                capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"nvcc: {error}") from None
        if answer.returncode != 0:
            raise MachineError(f"nvcc does not compile {KERNELS.name}: {answer.stderr.strip()[:500]}")
        os.replace(made, product)  # noqa: PTH105
    return product
