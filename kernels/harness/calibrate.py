"""A device's peaks, measured by the harness itself and kept: once for each device, driver, compiler and calibrator."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from kernels.harness import device, products, toolchain
from kernels.harness.build import compile_tool
from kernels.harness.roofline import COPY, DRAM_READ, L2_READ, WIDTHS, Kind, Peaks, Rate
from specs.errors import GateError, MachineError, UserError
from specs.outcomes import BlobRef, BuildResult, BuildStatus

log = structlog.get_logger(__name__)

HERE = Path(__file__).parent
CPU_SOURCE, CUDA_SOURCE = HERE / "calibrate.cpp", HERE / "calibrate.cu"
# Contraction is what the rates are about: without it a multiply-add would be two instructions.
CPU_FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=fast")
# Machine code for Hopper, whose matrix instructions exist for sm_90a alone, and PTX for all others. 177: a function
# that only one of the two uses.
CUDA_FLAGS = (
    "-std=c++17", "-O3", "-diag-suppress=177",
    "-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_80,code=compute_80",
)  # fmt: skip
NAMES: Mapping[Kind, tuple[str, ...]] = {
    "cpu": (DRAM_READ, COPY, "f64", "f32", "f16", "bf16", "i16", "i8"),
    "cuda": (DRAM_READ, COPY, L2_READ, "f64", "f32", "tf32", "f16", "bf16", "f8", "i8", "f4"),
}
IDENTITY = "identity"

COMPILE_TIMEOUT_S = 300.0
ATTEMPT_S = 20.0  # of one process; a calibration takes two to five seconds, so this is a hang
BUDGET_S = 60.0  # of all processes of one calibration
DEVICE_WAIT_S = 600.0
CONTEXT_LOST, NO_DEVICE = 3, 4  # statuses of the calibrator for GPUs

_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_CACHE_PATH", "LD_LIBRARY_PATH", "HOME")
_DRIVER = Path("/proc/driver/nvidia/version")


def peaks(
    kind: Kind,
    builds: Path,
    folder: Path | None = None,
    *,
    again: bool = False,
    locked: bool = False,
    ordinal: int = 0,
    wait_s: float = DEVICE_WAIT_S,
) -> Peaks:
    """The peaks of this machine's timed core, or of GPU number `ordinal`: kept ones, else measured in seconds.

    `folder` (default `builds/peaks`) keeps them as JSON. `again` measures anew and keeps the higher of each rate, so
    that a ceiling only ever rises: a calibration beside a busy neighbour is mended by the next, and a floor that is
    about to refuse a kernel can be measured again first. `locked` says that the caller holds the device's lock;
    otherwise it is taken, after `wait_s` seconds at most. A rate that cannot be measured is left out, with the reason.

    Raises UserError when there is no compiler, MachineError when there is no such device, and DeviceBusy when it stays
    held.
    """
    source = _Cpu(builds) if kind == "cpu" else _Cuda(builds, ordinal)
    path = (folder or builds / "peaks").absolute() / f"{kind}-{source.key[:32]}.json"
    kept = _read(path, source.key)
    if kept is not None and not again:
        return kept
    with contextlib.nullcontext() if locked else source.lock(wait_s):
        found = _read(path, source.key)
        if found is not None and not again:  # another process was quicker
            return found
        fresh = source.measure()
        result = fresh if found is None else merged(found, fresh)
        _write(path, result)
    log.info(
        "calibrated", device=result.device, runs=result.runs, seconds=fresh.seconds, missing=sorted(result.missing)
    )
    return result


def merged(old: Peaks, new: Peaks) -> Peaks:
    """Two calibrations of one device as one: of each rate the higher, and missing only what neither could measure."""
    assert old.key == new.key
    bandwidth = _higher(old.bandwidth, new.bandwidth)
    flops = _higher(old.flops, new.flops)
    missing = {
        name: reason for name, reason in {**old.missing, **new.missing}.items() if name not in {**bandwidth, **flops}
    }
    return new.model_copy(
        update={"bandwidth": bandwidth, "flops": flops, "missing": missing, "runs": old.runs + new.runs}
    )


def _higher(old: Mapping[str, Rate], new: Mapping[str, Rate]) -> dict[str, Rate]:
    both = {}
    for name in [*new, *(name for name in old if name not in new)]:
        rates = [side[name] for side in (new, old) if name in side]
        best = max(rates, key=lambda rate: rate.best)
        tops = [rate.at_top_clock for rate in rates if rate.at_top_clock is not None]
        both[name] = best.model_copy(update={"at_top_clock": max(tops, default=None)})
    return both


# ---------------------------------------------------------------- the devices


class _Cpu:
    """The core that the runner is timed on."""

    def __init__(self, builds: Path) -> None:
        self._program = compile_tool("calibrate", CPU_SOURCE, CPU_FLAGS, builds)
        self._cores = device.pick_cores()
        tools = toolchain.Gxx()
        self.identity = {
            **tools.identity(tools.find(), CPU_FLAGS),
            "host": platform.node(),
            "system": platform.release(),
            "core": str(self._cores.runner),
        }
        self.key = _key(self.identity, CPU_SOURCE)

    def lock(self, wait_s: float) -> AbstractContextManager[float]:
        return device.lock(self._cores.runner, wait_s)

    def measure(self) -> Peaks:
        with device.pinned(self._cores.runner):
            answers, seconds = ask([str(self._program)], NAMES["cpu"])
        name = device.describe(self._cores).name
        return _peaks("cpu", name, self.key, self.identity, answers, device.cache_bytes(self._cores.runner)[0], seconds)


class _Cuda:
    """One GPU, by its number."""

    def __init__(self, builds: Path, ordinal: int) -> None:
        program = compile_cuda(builds)
        self._argv = [str(program), str(ordinal)]
        answers, _ = ask(self._argv, [IDENTITY])
        told = answers[IDENTITY]
        if "uuid" not in told:
            raise MachineError(f"GPU {ordinal} does not say what it is: {told.get('missing', 'no answer')}")
        self.identity = {name: str(value) for name, value in told.items() if name != "rate"}
        with contextlib.suppress(OSError):
            self.identity["driver"] = _DRIVER.read_text(errors="replace").partition("\n")[0].strip()
        self.identity["compiler"] = _nvcc()[1]
        self.key = _key(self.identity, CUDA_SOURCE)

    def lock(self, wait_s: float) -> AbstractContextManager[float]:
        return device.lock(f"gpu-{self.identity['uuid']}", wait_s)

    def measure(self) -> Peaks:
        answers, seconds = ask(self._argv, NAMES["cuda"])
        cache = int(self.identity.get("l2_bytes", "0"))
        return _peaks("cuda", self.identity["name"], self.key, self.identity, answers, cache, seconds)


def _key(identity: Mapping[str, str], source: Path) -> str:
    parts = {
        "identity": dict(identity),
        "calibrator": [products.file_digest(path) for path in (source, Path(__file__))],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _peaks(
    kind: Kind,
    name: str,
    key: str,
    identity: Mapping[str, str],
    answers: Mapping[str, Mapping[str, Any]],
    cache_bytes: int,
    seconds: float,
) -> Peaks:
    rates: dict[str, Rate] = {}
    missing: dict[str, str] = {}
    for rate, answer in answers.items():
        if "absent" in answer:
            continue
        if "missing" in answer:
            missing[rate] = str(answer["missing"])
            continue
        try:
            rates[rate] = Rate.model_validate({field: value for field, value in answer.items() if field != "rate"})
        except ValidationError as error:
            missing[rate] = f"the calibrator's answer is no rate: {error.errors()[0]['msg']}"
    return Peaks(
        kind=kind,
        device=name,
        key=key,
        identity=dict(identity),
        bandwidth={rate: value for rate, value in rates.items() if rate not in WIDTHS},
        flops={rate: value for rate, value in rates.items() if rate in WIDTHS},
        missing=missing,
        cache_bytes=cache_bytes,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )


# ---------------------------------------------------------------- the calibrator's processes


@dataclass
class _Heard:
    """What one process of the calibrator said before it ended."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int | None = None  # None: stopped at its time limit
    error: str = ""


def ask(
    argv: Sequence[str], names: Sequence[str], *, attempt_s: float = ATTEMPT_S, budget_s: float = BUDGET_S
) -> tuple[dict[str, dict[str, Any]], float]:
    """Run a calibrator until every name is answered; the answers by name, and the seconds it took.

    A name whose measurement crashes, hangs or says nothing is answered with the reason, and the rest are asked of a
    fresh process. Raises MachineError when there is no device.
    """
    begin = time.monotonic()
    answers: dict[str, dict[str, Any]] = {}
    left = list(names)
    while left:
        remaining = budget_s - (time.monotonic() - begin)
        if remaining <= 0:
            answers.update({name: _missing(name, f"no time left of {budget_s:g} s") for name in left})
            break
        heard = _listen([*argv, *left], min(attempt_s, remaining))
        if heard.status == NO_DEVICE:
            raise MachineError(f"no usable GPU: {heard.error or 'the calibrator does not say why'}")
        told = {name: heard.answers[name] for name in left if name in heard.answers}
        answers.update(told)
        left = [name for name in left if name not in told]
        if heard.status == CONTEXT_LOST and told:
            continue  # the last one told has its reason; nobody else is to blame
        if left:
            guilty = left.pop(0)  # they are measured in order
            answers[guilty] = _missing(guilty, _why(heard, min(attempt_s, remaining)))
    return {name: answers[name] for name in names}, time.monotonic() - begin


def _missing(name: str, reason: str) -> dict[str, Any]:
    return {"rate": name, "missing": reason}


def _why(heard: _Heard, limit_s: float) -> str:
    said = f": {heard.error}" if heard.error else ""
    if heard.status is None:
        return f"no answer within {limit_s:.0f} s"
    if heard.status < 0:
        return f"the calibrator was ended by {_signal(-heard.status)}{said}"
    return f"the calibrator ended with status {heard.status}{said}" if heard.status else f"no answer{said}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _listen(argv: Sequence[str], timeout_s: float) -> _Heard:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C"}
    environment |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    heard = _Heard()
    try:
        ended = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        output, heard.status = ended.stdout, ended.returncode
        heard.error = ended.stderr.decode(errors="replace").strip()[-300:]
    except subprocess.TimeoutExpired as late:
        output = late.output or b""
    except OSError as error:
        raise MachineError(f"calibrator {argv[0]}: {error.strerror}") from None
    for line in output.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and isinstance(answer.get("rate"), str):
                heard.answers[answer["rate"]] = answer
    return heard


# ---------------------------------------------------------------- building the one for GPUs


def compile_cuda(builds: Path) -> Path:
    """The calibrator for GPUs, under `builds`. Raises UserError without nvcc, GateError when it does not compile."""
    nvcc, version = _nvcc()
    identity = {"path": str(Path(nvcc).resolve()), "version": version}
    content = CUDA_SOURCE.read_bytes()
    parts = {"source": hashlib.sha256(content).hexdigest(), "flags": CUDA_FLAGS, "compiler": identity}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def make(root: Path, product: Path) -> tuple[BuildResult, products.Commands]:
        (root / CUDA_SOURCE.name).write_bytes(content)
        argv = (nvcc, *CUDA_FLAGS, CUDA_SOURCE.name, "-o", str(product / "calibrate_cuda"))
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C", "TMPDIR": str(root)}
        begin = time.monotonic()
        status, said = BuildStatus.TIMED_OUT, f"nvcc was stopped after {COMPILE_TIMEOUT_S:g} s"
        library = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(
                argv, cwd=root, env=environment, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
            said = (ended.stdout + ended.stderr).decode(errors="replace")
            status = BuildStatus.FAILED if ended.returncode else BuildStatus.BUILT
        if status is BuildStatus.BUILT:
            built = (product / "calibrate_cuda").read_bytes()
            library = BlobRef(sha256=hashlib.sha256(built).hexdigest(), size=len(built))
        (product / products.LOG).write_text(said, encoding="utf-8")
        result = BuildResult(
            status=status, key=key, library=library, log_tail=said[-4096:], compiler=version,
            seconds=time.monotonic() - begin,
        )  # fmt: skip
        return result, (argv,)

    result, folder = products.cached_or_made(builds, key, make, compiler=identity, keep_failures=False)
    if folder is None or not result.ok:
        raise GateError(f"{CUDA_SOURCE.name} does not build ({result.status.value}):\n{result.log_tail}")
    return folder / "calibrate_cuda"


def _nvcc() -> tuple[str, str]:
    """Where nvcc is and its version line."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise UserError("nvcc is not on PATH; calibrating a GPU needs the CUDA toolkit")
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{nvcc} --version: {error}") from None
    return nvcc, next((line.strip() for line in said.splitlines() if "release" in line), said.strip())


# ---------------------------------------------------------------- the file they are kept in


def _read(path: Path, key: str) -> Peaks | None:
    try:
        found = Peaks.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("kept peaks are damaged and are measured again", path=str(path), reason=str(error))
        return None
    return found if found.key == key else None


def _write(path: Path, content: Peaks) -> None:
    """Under a temporary name first, then renamed: nobody ever sees half of it. Raises MachineError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as part:
            part.write_text(content.model_dump_json(indent=2) + "\n", encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise MachineError(f"peaks cannot be kept in {path.parent}: {error.strerror}") from None


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
