"""The harness on its own: `python -m kernels.harness verify TASK KERNEL`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import structlog
import typer

from kernels.harness import shown
from kernels.harness.requests import Build, GateLock, Judge, Measure, Measured
from kernels.harness.wording import Interrupted, described, one_line, printable
from specs.errors import MachineError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specs.loader import LoadedTask
    from specs.outcomes import BuildResult, Verdict

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


class _Session:
    """A task file and what every command does with it first."""

    def __init__(self, task_file: Path, builds: Path, sandbox: Policy) -> None:
        from specs.loader import load_task

        self.loaded: LoadedTask = load_task(task_file)
        self.task = self.loaded.task
        self.builds = builds.absolute()
        self.sandbox = sandbox
        if self.task.harness.value == "self_contained":
            raise UserError(f"{task_file}: harness: 'self_contained' has no gate to be judged by; use self-report")
        if self.task.gate is None:
            raise UserError(f"{task_file}: gate: none given; a folder with gate.yaml and reference.py is needed")
        self.gate = self.loaded.resolve(self.task.gate).absolute()

    def need_device(self) -> None:
        """Before anything is built: raises UserError where what the task needs to be judged is not there."""
        language = self.task.language.value
        if (reason := self.no_device()) is not None:
            raise UserError(f"task {self.task.name}: language {language!r} needs a GPU to be judged on: {reason}")

    def no_device(self) -> str | None:
        """Why the task's kernels cannot be judged on this machine; None when they can."""
        language = self.task.language.value
        if language == "cpp":
            return None
        from kernels.harness import triton_host
        from kernels.harness.gpu.machine import unusable

        reason = unusable()
        # Triton's interpreter judges where there is no GPU.
        return reason if reason is None or language == "cuda" else triton_host.available()

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

        _need_file("kernel", source, "; a source file is needed")
        if role == "candidate" and source.suffix != self.task.language.suffix:
            language = self.task.language
            told = f"language {language.value} takes {language.suffix}"
            raise UserError(f"kernel {source}: suffix {source.suffix!r}; {told}")
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
        session.need_device()
        lock = session.lock()
        result, library = session.build(kernel)
        verdict = session.judge(library, lock, kernel, held_out=held_out) if library is not None else None
        if as_json:
            shown.print_json({"build": result, "verdict": verdict})
        else:
            shown.show_verdict(result, verdict)
        return PASSED if verdict is not None and verdict.passed else REFUSED

    _run(work, as_json=as_json)


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
        session.need_device()
        lock = session.lock()
        rival = _proven(session, lock, champion, as_json=as_json) if champion is not None else None
        if champion is not None and rival is None:
            return REFUSED
        candidate = _proven(session, lock, kernel, as_json=as_json)
        if candidate is None:
            return REFUSED
        with tempfile.TemporaryDirectory() as folder:
            where = samples.absolute() if samples is not None else Path(folder) / "samples.json"
            outcome = session.measure(lock, candidate, rival, session.baseline(), where, max_seconds).outcome
        if as_json:
            shown.print_json({"outcome": outcome})
        elif outcome.failure is not None:
            shown.show_failure(outcome.failure)
        elif outcome.measurement is not None:
            shown.show_measurement(session.task, outcome.measurement)
        return PASSED if outcome.failure is None else REFUSED

    _run(work, as_json=as_json)


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
        session.need_device()
        if config is not None:
            session.only(config)
        lock = session.lock()
        source = kernel or (session.loaded.resolve(session.task.seed) if session.task.seed else None)
        if source is None:
            raise UserError(f"{task}: seed: none given, so --kernel must name a source")
        library = _proven(session, lock, source, as_json=as_json)
        if library is None:
            return REFUSED
        rival = library if against is None else _proven(session, lock, against, as_json=as_json)
        if rival is None:
            return REFUSED
        baseline = session.baseline()
        gains = []
        for trial in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                where = Path(folder) / "samples.json"
                outcome = session.measure(lock, library, rival, baseline, where, max_seconds).outcome
            if outcome.measurement is None or outcome.measurement.gain is None:
                if as_json:
                    shown.print_json({"trials": trial, "outcome": outcome})
                elif outcome.failure is not None:
                    shown.show_failure(outcome.failure)
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
            shown.print_json({"trials": trials, "wins": wins, "gains": gains})
        else:
            needed = 1 + session.task.search.min_gain
            whom = "itself" if against is None else against.name
            typer.echo(f"won against {whom} {wins} of {trials} times (a win needs a gain over {needed:g})")
        return PASSED if wins == 0 or against is not None else REFUSED

    _run(work, as_json=as_json)


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

        _need_file("program", program, "; a source file is needed")
        # Task files of the original form do not say so: whoever uses this command knows what it shows.
        loaded = load_task(task).task.model_copy(update={"harness": Harness.SELF_CONTAINED})
        built = build.build(Build(task=loaded, source=program.absolute(), builds=builds.absolute()))
        report = None
        if built.library is not None:
            request = RunProgram(task=loaded, program=built.library, sandbox=sandbox, timeout_s=max_seconds)
            report = run_program(request)
        if as_json:
            shown.print_json({"build": built.result, "self_reported": report})
        elif report is None:
            told = f"{built.result.status.value.upper()}: the program was not built"
            typer.echo(f"{told}\n{printable(built.result.log_tail)}".rstrip())
        else:
            shown.show_report(loaded, report)
        return PASSED if report is not None and report.score > 0 else REFUSED

    _run(work, as_json=as_json)


@app.command()
def lock(task: TaskFile, builds: BuildsOption = BUILDS, as_json: JsonOption = False) -> None:
    """Hash a task's gate and print the digest."""

    def work() -> int:
        locked = _Session(task, builds, "preferred").lock()
        if as_json:
            shown.print_json({"lock": locked})
        else:
            typer.echo(locked.digest)
            for name, digest in sorted(locked.files.items()):
                typer.echo(f"  {digest}  {name}")
            typer.echo("hashed and loaded; whether wrong answers get through it is what admit tells")
        return PASSED

    _run(work, as_json=as_json)


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
            shown.print_json({"peaks": found})
        else:
            shown.show_peaks(found)
        return PASSED

    _run(work, as_json=as_json)


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
            shown.print_json({"ok": total.ok, "seconds": total.seconds, "rows": rows})
        else:
            console = Console() if sys.stdout.isatty() else Console(width=200)
            suite.show(rows, total, console, verbose=verbose)
        return PASSED if total.ok else REFUSED

    _run(work, as_json=as_json)


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
        if session.task.baseline.program is not None and session.no_device() is None:
            verdict = admission.judged_baseline(
                loaded, locked, session.gate, session.baseline(), session.builds, sandbox
            )
            found = found.model_copy(update={"baseline": verdict})
        if as_json:
            shown.print_json({"admitted": found.admitted, "admission": found})
        else:
            shown.show_admission(session.task, found, session.no_device())
        return PASSED if found.admitted else REFUSED

    _run(work, as_json=as_json)


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

        _need_file("library", library, "; a shared object is needed")
        findings = audit(library, Language(language))
        if as_json:
            shown.print_json({"findings": findings})
        else:
            typer.echo("\n".join(findings) or f"nothing found in {library.name}")
        return REFUSED if findings else PASSED

    _run(work, as_json=as_json)


@app.command()
def serve(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="A request as JSON.")],
    reply: Annotated[Path, typer.Argument(metavar="REPLY", help="Where the reply goes.")],
) -> None:
    """Answer one request of an activity: the gate process."""

    def work() -> int:
        from kernels.harness.serve import serve as answer

        # Whoever ends a gate process asks politely first: time enough to remove a half-made build.
        Interrupted.on(signal.SIGTERM)
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
        shown.print_json({"build": result, "verdict": verdict})
    else:
        shown.show_verdict(result, verdict)
    return None


_KINDS = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISSOCK, "is a socket"),
)


def _need_file(what: str, path: Path, needed: str) -> None:
    """Raises UserError that says what stands there instead of a regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        told = "is a link to nothing" if path.is_symlink() else "no such file"
    except OSError as error:
        told = error.strerror or "cannot be looked at"
    else:
        if stat.S_ISREG(mode):
            return
        told = next((kind for is_one, kind in _KINDS if is_one(mode)), "is no regular file")
    raise UserError(f"{what} {path}: {told}{needed}")


# ---------------------------------------------------------------- how a command ends


def _run(work: Callable[[], int], *, as_json: bool = False) -> None:
    from specs.errors import FerretError, GateError

    try:
        code = work()
    except MachineError as error:
        code = _ended(MACHINE_ERROR, "machine", type(error).__name__, str(error), as_json=as_json)
    except GateError as error:
        # A gate that cannot be used is a mistake in the task's own files, for its author to mend.
        code = _ended(USER_ERROR, "error", type(error).__name__, one_line(str(error), 5000), as_json=as_json)
    except FerretError as error:
        code = _ended(USER_ERROR, "error", type(error).__name__, str(error), as_json=as_json)
    except Interrupted as interrupted:
        code = int(interrupted.args[0])
    except KeyboardInterrupt:
        code = 130
    except (Exception, SystemExit) as error:
        code = _unexpected(error, as_json=as_json)
    raise typer.Exit(code)


def _ended(code: int, what: str, kind: str, message: str, *, as_json: bool) -> int:
    """Say why there is no verdict, to a person and to a program; `code` again, or MACHINE_ERROR when nobody listens."""
    try:
        typer.echo(f"{what}: {printable(message)}", err=True)
        if as_json:
            shown.print_json({"error": {"kind": kind, "message": printable(message)}})
    except OSError:
        return MACHINE_ERROR
    return code


def _unexpected(error: BaseException, *, as_json: bool) -> int:
    """Tell of an error that is ours, or that nobody thought of, with its place; never the status of a verdict."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, OSError):
        error = error.__context__  # how libraries end a process whose output nobody reads
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    place = one_line(f" ({Path(frames[-1][0]).name}:{frames[-1][1]})") if frames else ""
    what, kind = ("machine", "MachineError") if isinstance(error, OSError) else ("internal", "InternalError")
    return _ended(MACHINE_ERROR, what, kind, described(error) + place, as_json=as_json)


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
    """Run one command and give its exit code.

    A mistake in the words becomes one line on standard error and USER_ERROR, anything unexpected MACHINE_ERROR.
    """
    as_json = "--json" in words
    try:
        code = app(args=words or ["--help"], prog_name="python -m kernels.harness", standalone_mode=False)
    except Interrupted as interrupted:
        return int(interrupted.args[0])
    except (Exception, SystemExit) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            return 130
        # The class of usage errors has moved between releases of typer; this method has not.
        asked = getattr(error, "format_message", None)
        if asked is None:
            return _unexpected(error, as_json=as_json)
        told = f"{' '.join(asked().split())} (help: python -m kernels.harness --help)"
        return _ended(USER_ERROR, "error", "UsageError", told, as_json=as_json)
    return code if isinstance(code, int) else PASSED


def _leave(code: int, leave: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """End now: threads, exit handlers and children of a gate's code have no say once the answer is out."""
    try:
        sys.stdout.flush()
    except Exception as error:
        if code in (PASSED, REFUSED):  # an answer that nobody received is none
            code = _unexpected(error, as_json=False)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    leave(code)


if __name__ == "__main__":
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  for as long as the process lives
    _log_to_stderr()
    if sys.stdout is None:
        typer.echo("machine: standard output is closed; an answer needs one", err=True)
        _leave(MACHINE_ERROR)
    Interrupted.on(signal.SIGINT)
    if "--json" in sys.argv:
        shown.keep_stdout_for_json()
    _leave(main(sys.argv[1:]))
