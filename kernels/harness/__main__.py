"""The harness on its own: `python -m kernels.harness verify TASK KERNEL`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
import typer

from kernels.harness.requests import Build, GateLock, Judge, Measure, Measured
from specs.errors import MachineError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernels.harness.admission import Admission
    from kernels.harness.roofline import Peaks
    from specs.loader import LoadedTask
    from specs.outcomes import BuildResult, Failure, Measurement, Metrics, SelfReported, Verdict
    from specs.schema import Task

# Set before any command loads numpy: its idle BLAS threads would spin on the very core that is being timed.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

PASSED, REFUSED, USER_ERROR, MACHINE_ERROR = 0, 1, 2, 3

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK", help="Task file.", show_default=False)]
KernelFile = Annotated[Path, typer.Argument(metavar="KERNEL", help="Source of the candidate.", show_default=False)]
Policy = Literal["required", "preferred", "off"]
SandboxOption = Annotated[
    Policy, typer.Option(envvar="FERRET_SANDBOX", help="Whether a runner needs bubblewrap around it.")
]
BuildsOption = Annotated[Path, typer.Option(help="Folder of content-addressed builds.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")]
BUILDS = Path(".ferret/builds")


class _Terminated(KeyboardInterrupt):
    """Asked to end. No SystemExit: of those a reference.py may raise as many as it likes."""

    @classmethod
    def now(cls, number: int, frame: object) -> None:
        raise cls(128 + number)


class _Session:
    """A task file and what every command does with it first."""

    def __init__(self, task_file: Path, builds: Path, sandbox: Policy) -> None:
        from specs.loader import load_task

        self.loaded: LoadedTask = load_task(task_file)
        self.task = self.loaded.task
        self.builds = builds.absolute()
        self.sandbox = sandbox
        if self.task.gate is None:
            raise UserError(f"{task_file}: gate: none given; a folder with gate.yaml and reference.py is needed")
        self.gate = self.loaded.resolve(self.task.gate).absolute()

    def only(self, config: str) -> None:
        """Leave one config of the task. Raises UserError for a name that it does not have."""
        from specs.schema import Scoring

        names = [one.name for one in self.task.configs]
        if config not in names:
            known = ", ".join(names)
            raise UserError(f"config {config!r}: task {self.task.name} has none of that name; it has {known}")
        left = {"configs": (self.task.config(config),), "focus_config": None, "scoring": Scoring.MIN_RATIO}
        self.task = self.task.model_copy(update=left)

    def lock(self) -> GateLock:
        """With the limits that the baseline's own error gives, where the gate asks for them: then the baseline runs."""
        from kernels.harness import gate

        locked = gate.lock(self.task, self.gate)
        loaded = gate.load(self.task, self.gate, locked)
        if not loaded.uncalibrated:
            return locked
        from kernels.harness.tolerances import calibrate as calibrated

        return calibrated(loaded, self.gate, self.baseline(), self.builds, self.sandbox)

    def build(
        self, source: Path, role: Literal["candidate", "baseline"] = "candidate"
    ) -> tuple[BuildResult, Path | None]:
        from kernels.harness import build

        if not source.is_file():
            given = "is a folder" if source.is_dir() else "no such file"
            raise UserError(f"kernel {source}: {given}; a source file is needed")
        built = build.build(Build(task=self.task, source=source.absolute(), role=role, builds=self.builds))
        return built.result, built.library

    def baseline(self) -> Path:
        program = self.task.baseline.program
        if program is None:
            raise UserError(
                f"{self.loaded.path}: baseline.program: none given; a source file is needed to time against"
            )
        result, library = self.build(self.loaded.resolve(program), "baseline")
        if library is None:
            raise UserError(f"{self.loaded.path}: baseline.program: {program} does not build:\n{result.log_tail}")
        return library

    def judge(self, library: Path, lock: GateLock, source: Path, *, held_out: bool = False) -> Verdict:
        from kernels.harness import judge

        return judge.judge(
            Judge(
                task=self.task, gate=self.gate, lock=lock, library=library, source=source.absolute(),
                builds=self.builds, held_out=held_out, sandbox=self.sandbox,
            )
        )  # fmt: skip

    def measure(
        self, lock: GateLock, candidate: Path, champion: Path | None, baseline: Path, samples: Path, max_seconds: float
    ) -> Measured:
        from kernels.harness import measure

        answer = measure.measure(
            Measure(
                task=self.task, gate=self.gate, lock=lock, baseline=baseline, candidate=candidate, champion=champion,
                builds=self.builds, samples=samples, sandbox=self.sandbox, max_seconds=max_seconds,
            )
        )  # fmt: skip
        assert isinstance(answer, Measured)
        return answer


@app.command()
def verify(
    task: TaskFile,
    kernel: KernelFile,
    held_out: Annotated[bool, typer.Option(help="Also the gate's held-out cases.")] = False,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Build a kernel and prove it right or wrong."""

    def work() -> int:
        session = _Session(task, builds, sandbox)
        lock = session.lock()
        result, library = session.build(kernel)
        verdict = session.judge(library, lock, kernel, held_out=held_out) if library is not None else None
        if as_json:
            _print_json({"build": result, "verdict": verdict})
        else:
            _show_verdict(result, verdict)
        return PASSED if verdict is not None and verdict.passed else REFUSED

    _run(work)


@app.command()
def bench(
    task: TaskFile,
    kernel: KernelFile,
    champion: Annotated[Path | None, typer.Option(help="Another kernel to time in the same rounds.")] = None,
    max_seconds: Annotated[float, typer.Option(min=1, help="Sampling stops here at the latest.")] = 120,
    samples: Annotated[Path | None, typer.Option(help="Where to put every raw sample, as JSON.")] = None,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Verify a kernel, then time it against the baseline."""

    def work() -> int:
        session = _Session(task, builds, sandbox)
        lock = session.lock()
        rivals = [_proven(session, lock, champion, as_json=as_json)] if champion is not None else []
        candidate = _proven(session, lock, kernel, as_json=as_json)
        if candidate is None or None in rivals:
            return REFUSED
        with tempfile.TemporaryDirectory() as folder:
            where = samples.absolute() if samples is not None else Path(folder) / "samples.json"
            rival = rivals[0] if rivals else None
            outcome = session.measure(lock, candidate, rival, session.baseline(), where, max_seconds).outcome
        if as_json:
            _print_json({"outcome": outcome})
        elif outcome.failure is not None:
            _show_failure(outcome.failure)
        elif outcome.measurement is not None:
            _show_measurement(session, outcome.measurement)
        return PASSED if outcome.failure is None else REFUSED

    _run(work)


@app.command()
def aa(
    task: TaskFile,
    kernel: Annotated[Path | None, typer.Option(help="Kernel to use; the task's seed without it.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another kernel in the champion's place.")] = None,
    config: Annotated[str | None, typer.Option(help="Time one config of the task alone.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Measurements to make.")] = 20,
    max_seconds: Annotated[float, typer.Option(min=1, help="Longest time of one measurement.")] = 60,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Time a kernel against itself: how often would it win, where it never should?

    With --against: how often is a kernel found to be faster than another one?
    """

    def work() -> int:
        session = _Session(task, builds, sandbox)
        if config is not None:
            session.only(config)
        lock = session.lock()
        source = kernel or (session.loaded.resolve(session.task.seed) if session.task.seed else None)
        if source is None:
            raise UserError(f"{task}: seed: none given, so --kernel must name a source")
        library = _proven(session, lock, source, as_json=as_json)
        rival = library if against is None else _proven(session, lock, against, as_json=as_json)
        if library is None or rival is None:
            return REFUSED
        baseline = session.baseline()
        gains = []
        for trial in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                where = Path(folder) / "samples.json"
                outcome = session.measure(lock, library, rival, baseline, where, max_seconds).outcome
            if outcome.measurement is None or outcome.measurement.gain is None:
                if outcome.failure is not None:
                    _show_failure(outcome.failure)
                return REFUSED
            gains.append(outcome.measurement.gain)
            if not as_json:
                gain = gains[-1]
                interval = f"{gain.low:.4f} to {gain.high:.4f}"
                typer.echo(
                    f"{trial + 1:4d}/{trials}  gain {gain.value:.4f} ({interval})  {outcome.measurement.seconds:.1f} s"
                )
        wins = sum(gain.low > 1 + session.task.search.min_gain for gain in gains)
        if as_json:
            _print_json({"trials": trials, "wins": wins, "gains": gains})
        else:
            needed = 1 + session.task.search.min_gain
            whom = "itself" if against is None else against.name
            typer.echo(f"won against {whom} {wins} of {trials} times (a win needs a gain over {needed:g})")
        return PASSED if wins == 0 or against is not None else REFUSED

    _run(work)


@app.command("self-report")
def self_report(
    task: TaskFile,
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="Source with a main of its own.")],
    max_seconds: Annotated[float, typer.Option(min=1, help="Longest time of the whole program.")] = 600,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Build and run a self-contained program and show what it says of itself; nothing is verified."""

    def work() -> int:
        from kernels.harness import build
        from kernels.harness.requests import RunProgram
        from kernels.harness.self_contained import run_program
        from specs.loader import load_task
        from specs.schema import Harness

        if not program.is_file():
            raise UserError(f"program {program}: {'is a folder' if program.is_dir() else 'no such file'}")
        # Task files of the original form do not say so: whoever uses this command knows what it shows.
        loaded = load_task(task).task.model_copy(update={"harness": Harness.SELF_CONTAINED})
        built = build.build(Build(task=loaded, source=program.absolute(), builds=builds.absolute()))
        report = None
        if built.library is not None:
            request = RunProgram(task=loaded, program=built.library, sandbox=sandbox, timeout_s=max_seconds)
            report = run_program(request)
        if as_json:
            _print_json({"build": built.result, "self_reported": report})
        elif report is None:
            told = f"{built.result.status.value.upper()}: the program was not built"
            typer.echo(f"{told}\n{built.result.log_tail}".rstrip())
        else:
            _show_report(loaded, report)
        return PASSED if report is not None and report.score > 0 else REFUSED

    _run(work)


@app.command()
def lock(task: TaskFile, builds: BuildsOption = BUILDS, as_json: JsonOption = False) -> None:
    """Hash a task's gate and print the digest."""

    def work() -> int:
        locked = _Session(task, builds, "preferred").lock()
        if as_json:
            _print_json({"lock": locked})
        else:
            typer.echo(locked.digest)
            for name, digest in sorted(locked.files.items()):
                typer.echo(f"  {digest}  {name}")
        return PASSED

    _run(work)


@app.command()
def calibrate(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="The timed core, or the first GPU.")] = "cpu",
    again: Annotated[bool, typer.Option("--again", help="Measure anew; the higher of each rate is kept.")] = False,
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Measure what the device can do at most: the physics floor under every time."""

    def work() -> int:
        from kernels.harness.calibrate import peaks

        found = peaks(device, builds.absolute(), again=again)
        if as_json:
            _print_json({"peaks": found})
        else:
            _show_peaks(found)
        return PASSED

    _run(work)


@app.command()
def exploits(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Cheats and controls; this checkout's own without it.")
    ] = None,
    language: Annotated[Literal["cpp", "cuda", "triton"] | None, typer.Option(help="Only files of it.")] = None,
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Only the file of this name.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Judges side by side; as many as cores by default.")] = None,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for every file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Try every known cheat on the judge: 0 when all are refused and no honest kernel is."""

    def work() -> int:
        import time

        from rich.console import Console

        from kernels.harness import exploits as suite
        from specs.schema import Language

        begin = time.monotonic()
        rows = suite.run_suite(
            folder or suite.default_folder(),
            suite.Settings(builds=builds.absolute(), sandbox=sandbox),
            language=Language(language) if language else None,
            only=only,
            jobs=jobs or suite.usual_jobs(),
        )
        total = suite.tally(rows, time.monotonic() - begin)
        if as_json:
            _print_json({"ok": total.ok, "seconds": total.seconds, "rows": rows})
        else:
            console = Console() if sys.stdout.isatty() else Console(width=200)
            suite.show(rows, total, console, verbose=verbose)
        return PASSED if total.ok else REFUSED

    _run(work)


@app.command()
def admit(
    where: Annotated[Path, typer.Argument(metavar="GATE", help="A gate folder, or a task file.")],
    task: Annotated[Path | None, typer.Option(help="The task of a gate folder; looked for without it.")] = None,
    sandbox: SandboxOption = "preferred",
    builds: BuildsOption = BUILDS,
    as_json: JsonOption = False,
) -> None:
    """Try every mutant on a gate, and the baseline: 0 when no wrong answer gets through."""

    def work() -> int:
        from kernels.harness import admission, gate

        session = _Session(task or (admission.task_of(where) if where.is_dir() else where), builds, sandbox)
        if where.is_dir() and not session.gate.samefile(where):
            raise UserError(f"--task {task}: its gate is {session.gate}; a task that names {where} is needed")
        locked = session.lock()
        loaded = gate.load(session.task, session.gate, locked)
        gate.rehearse(loaded)
        found = admission.admit(loaded, locked)
        if session.task.baseline.program is not None:
            verdict = admission.judged_baseline(
                loaded, locked, session.gate, session.baseline(), session.builds, sandbox
            )
            found = found.model_copy(update={"baseline": verdict})
        if as_json:
            _print_json({"admitted": found.admitted, "admission": found})
        else:
            _show_admission(session, found)
        return PASSED if found.admitted else REFUSED

    _run(work)


@app.command("audit")
def audit_object(
    library: Annotated[Path, typer.Argument(metavar="SO", help="A shared object.")],
    language: Annotated[Literal["cpp", "cuda"], typer.Option(help="Whose allow-list holds.")] = "cpp",
    as_json: JsonOption = False,
) -> None:
    """What a candidate's object holds that is not allowed: libraries, symbols, start-up code, data."""

    def work() -> int:
        from kernels.harness.audit import audit
        from specs.schema import Language

        if not library.is_file():
            raise UserError(f"library {library}: {'is a folder' if library.is_dir() else 'no such file'}")
        findings = audit(library, Language(language))
        if as_json:
            _print_json({"findings": findings})
        else:
            typer.echo("\n".join(findings) or f"nothing found in {library.name}")
        return REFUSED if findings else PASSED

    _run(work)


@app.command()
def serve(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="A request as JSON.")],
    reply: Annotated[Path, typer.Argument(metavar="REPLY", help="Where the reply goes.")],
) -> None:
    """Answer one request of an activity: the gate process."""

    def work() -> int:
        from kernels.harness.serve import serve as answer

        # Whoever ends a gate process asks politely first: time enough to remove a half-made build.
        signal.signal(signal.SIGTERM, _Terminated.now)
        answer(request, reply)
        return PASSED

    _run(work)


def _proven(session: _Session, lock: GateLock, source: Path, *, as_json: bool) -> Path | None:
    """The built object of a kernel that passed the judge; None, and the reason printed, when it did not."""
    result, library = session.build(source)
    verdict = session.judge(library, lock, source) if library is not None else None
    if verdict is not None and verdict.passed:
        return library
    if as_json:
        _print_json({"build": result, "verdict": verdict})
    else:
        _show_verdict(result, verdict)
    return None


# ---------------------------------------------------------------- what a person sees


def _show_verdict(result: BuildResult, verdict: Verdict | None) -> None:
    if verdict is None:
        typer.echo(f"{result.status.value.upper()}: the kernel was not built\n{result.log_tail}".rstrip())
        return
    if verdict.failure is not None:
        _show_failure(verdict.failure)
    else:
        typer.echo(f"PASSED: {verdict.cases} calls checked")
    for metrics in verdict.worst:
        typer.echo(f"  {metrics.tensor}: {_told(metrics)}")
    if verdict.memory_check:
        typer.echo(f"  memory {verdict.memory_check}")
    what = f"library {verdict.library[:12]}, gate {verdict.gate[:12]}"
    typer.echo(f"  {what}, sandbox {verdict.sandbox}, {verdict.seconds:.1f} s")


def _show_failure(failure: Failure) -> None:
    stage = f", tensor {failure.first_failing_stage}" if failure.first_failing_stage else ""
    typer.echo(f"REFUSED ({failure.kind.value}) in stage {failure.verification.value}{stage}")
    typer.echo(f"  {failure.message}")
    if failure.metrics is not None:
        typer.echo(f"  {failure.metrics.tensor}: {_told(failure.metrics)}")


def _told(metrics: Metrics) -> str:
    shown = ("max_abs", "max_rel", "rel_l2", "cosine", "mismatch_fraction")
    known = [(name, getattr(metrics, name)) for name in shown]
    return ", ".join(f"{name} {value:.4g}" for name, value in known if value is not None) or "no finite distance"


def _show_report(task: Task, report: SelfReported) -> None:
    """The table of a self-contained program, headed and footed by what it is worth."""
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(f"{report.label}, nothing verified: {task.name} against {task.baseline.source}", soft_wrap=True)
    if report.refused:
        typer.echo(f"REFUSED: {report.refused}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    times = ("kernel us", "baseline us", "kernel TFLOPS", "baseline TFLOPS")
    for heading in ("config", f"{report.label} ratio", "target", *times):
        table.add_column(heading, justify="left" if heading == "config" else "right", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for one in report.configs:
        table.add_row(
            one.config,
            f"{one.ratio:.3f}",
            f"{task.config(one.config).target_ratio:g}",
            *(number(value) for value in (one.ours_us, one.reference_us, one.ours_tflops, one.reference_tflops)),
            "" if report.refused else one.reason,
        )
    console.print(table)
    console.print(
        f"{report.label} score {report.score:.3f} ({task.scoring.value}), geomean {report.geomean:.3f}", soft_wrap=True
    )
    console.print(f"{report.machine}; sandbox {report.sandbox}, {report.seconds:.1f} s", soft_wrap=True)
    if report.output_tail:
        tail = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in report.output_tail)
        typer.echo(f"--- what it printed\n{tail}")


def _show_peaks(peaks: Peaks) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("rate", "best", "median", "at top clock", "unit"):
        table.add_column(heading, justify="left" if heading in ("rate", "unit") else "right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for unit, rates in (("GB/s", peaks.bandwidth), ("GFLOP/s", peaks.flops)):
        for name, rate in rates.items():
            top = "" if rate.at_top_clock is None else f"{rate.at_top_clock / 1e9:,.1f}"
            told = unit if not name.startswith("i") else "GOP/s"
            table.add_row(name, f"{rate.best / 1e9:,.1f}", f"{rate.median / 1e9:,.1f}", top, told, rate.how)
    for name, reason in peaks.missing.items():
        table.add_row(name, "", "", "", "", f"not measured: {reason}")
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    console.print(f"{peaks.device}; last-level cache {peaks.cache_bytes >> 20} MiB", soft_wrap=True)
    times = f"{peaks.runs} calibration" + ("s" if peaks.runs > 1 else "")
    console.print(f"{peaks.measured_at}, {times}, the last took {peaks.seconds:.1f} s", soft_wrap=True)


def _show_admission(session: _Session, found: Admission) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("mutant", "fate", "where", "by"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for one in found.mutants:
        told = f"{one.told}; admitted: {one.reason}" if one.reason else one.told
        table.add_row(one.mutant, one.fate.replace("_", " "), one.where, one.by, told)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(table)
    for name, limits in found.limits.items():
        console.print(f"{name}: {', '.join(f'{metric} {limit:g}' for metric, limit in limits.items()) or 'equal'}")
    if found.baseline is None:
        console.print("baseline: none given, not judged")
    else:
        told = "passes" if found.baseline.passed else "REFUSED"
        console.print(f"baseline: {told}, {found.baseline.cases} calls, {found.baseline.seconds:.1f} s")
    counts = Counter(one.fate.replace("_", " ") for one in found.mutants)
    console.print(", ".join(f"{count} {fate}" for fate, count in counts.items()) + f" in {found.seconds:.1f} s")
    what = f"gate {found.gate[:12]} of {session.task.name}"
    console.print(f"ADMITTED: {what}" if found.admitted else f"REFUSED: {what}: {found.why_not}", soft_wrap=True)


def _show_measurement(session: _Session, measurement: Measurement) -> None:
    from rich.console import Console
    from rich.table import Table

    with_champion = any(config.champion is not None for config in measurement.configs)
    champion = ["champion us"] if with_champion else []
    headings = ["config", "baseline us", *champion, "kernel us", "ratio", "95% interval", "spread", "rounds", "target"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "config" else "right", no_wrap=True)
    for config in measurement.configs:
        rival = [f"{config.champion.median_us:.1f}"] if config.champion is not None else []
        table.add_row(
            config.config,
            f"{config.baseline.median_us:.1f}",
            *rival,
            f"{config.candidate.median_us:.1f}",
            f"{config.ratio.value:.3f}",
            f"{config.ratio.low:.3f} to {config.ratio.high:.3f}",
            f"{config.baseline.spread:.1%} / {config.candidate.spread:.1%}",
            str(config.candidate.samples),
            f"{session.task.config(config.config).target_ratio:g}",
        )
    # A pipe has no width; the usual guess of 80 columns would break every cell.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(f"{session.task.name} against {session.task.baseline.source}", soft_wrap=True)
    console.print(table)
    score, gain, device = measurement.score, measurement.gain, measurement.device
    interval = f"{score.low:.3f} to {score.high:.3f}"
    console.print(
        f"score {score.value:.3f} ({interval}, {session.task.scoring.value}), geomean {measurement.geomean:.3f}"
    )
    if gain is not None:
        needed = 1 + session.task.search.min_gain
        console.print(
            f"gain over the champion {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}), over {needed:g} wins"
        )
    console.print(f"{device.name}; {device.detail}; {device.toolkit}", soft_wrap=True)
    console.print(f"sandbox {measurement.sandbox}, {measurement.seconds:.1f} s")


def _print_json(content: dict[str, Any]) -> None:
    import json

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else value

    typer.echo(json.dumps({name: plain(value) for name, value in content.items()}))


# ---------------------------------------------------------------- how a command ends


def _run(work: Callable[[], int]) -> None:
    from specs.errors import FerretError

    try:
        code = work()
    except MachineError as error:
        typer.echo(f"machine: {error}", err=True)
        code = MACHINE_ERROR
    except FerretError as error:
        # A gate that cannot be used is a mistake in the task's own files, for its author to mend.
        typer.echo(f"error: {error}", err=True)
        code = USER_ERROR
    except _Terminated as terminated:
        code = int(terminated.args[0])
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING if sys.stderr.isatty() else logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main(words: list[str]) -> int:
    """Run one command and give its exit code; a mistake in the words becomes one line on standard error."""
    try:
        code = app(args=words or ["--help"], prog_name="python -m kernels.harness", standalone_mode=False)
    except Exception as error:
        # The class of usage errors has moved between releases of typer; this method has not.
        if not hasattr(error, "format_message"):
            raise
        told = " ".join(error.format_message().split())
        typer.echo(f"error: {told} (help: python -m kernels.harness --help)", err=True)
        return USER_ERROR
    return code if isinstance(code, int) else PASSED


if __name__ == "__main__":
    _log_to_stderr()
    sys.exit(main(sys.argv[1:]))
