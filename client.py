"""The command line: start a run, watch it, steer it, and fetch what it made."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from activities import interpreter
from specs.errors import FerretError, Problem, SpecError, UserError

try:
    import structlog
    import typer
except ModuleNotFoundError as missing:
    sys.stderr.write(f"error: {interpreter.lacking(missing)}\n")
    raise SystemExit(2) from None

# What a command needs is imported inside it: `--help` and `validate` answer at once, and on a machine without
# Temporal or numpy.
if TYPE_CHECKING:
    from workflows.console.session import Session
    from workflows.console.terminal import RunRow
    from workflows.state import Status

EXIT_MISSING, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_CODES = (
    "Exit code: 0 a kernel was accepted, or the command did what it says; 1 the run ended without a kernel, or a "
    "reference is missing; 2 a mistake, or no server or worker to talk to; 130 the run was cancelled, or watching it "
    "was interrupted."
)

app = typer.Typer(
    help="ferret writes kernels that are proven correct and measurably faster than the vendor's library. "
    "RUN is a run id or a unique beginning of one; left out, the only run at work is meant, and by commands that only "
    "read, else the most recent one."
    "\n\n" + EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def again(*words: str) -> str:
    """The line that calls this program with these words."""
    return interpreter.command("client.py", *words)


def argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, show_default=False)


RunArgument = Annotated[str | None, argument("[RUN]", "The run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the run remembers it.")]


# ---------------------------------------------------------------- starting and watching


@app.command()
def start(
    task: Annotated[Path, argument("TASK", "The task file.")],
    local: Annotated[
        bool, typer.Option("--local", help="On this machine's embedded server; starts it if needed.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Watch the run to its end.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once (the default).")] = False,
    run_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Default: task, digest and time.")] = None,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Instead of the task's.")] = None,
    max_wall_minutes: Annotated[float | None, typer.Option(metavar="MIN", help="Instead of the task's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Instead of the task's.")] = None,
    max_usd: Annotated[float | None, typer.Option(metavar="USD", help="Instead of the task's.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The optimiser's model, instead of the task's.")
    ] = None,
    sandbox: Annotated[
        str | None, typer.Option(metavar="required|preferred|off", help="Isolation of candidates.", show_default=False)
    ] = None,
) -> None:
    """Start a run of TASK: checks the task and every file it names, then returns; with --follow at the run's end."""
    from activities.runnable import need_compiler, need_device
    from activities.settings import Settings
    from workflows.console.local import bring_up
    from workflows.console.output import note
    from workflows.console.pollers import no_worker
    from workflows.console.starting import begin, checked, checked_id, estimated, isolation, planned
    from workflows.console.watching import watch_to_end

    if follow and detach:
        raise UserError("--follow and --detach exclude each other; give one")
    settings = Settings.from_env()
    checked_id(run_id)
    isolated = isolation(settings, sandbox)
    loaded = checked(settings, task)
    budget = {
        "max_iterations": max_iterations,
        "max_wall_minutes": max_wall_minutes,
        "max_tokens": max_tokens,
        "max_usd": max_usd,
    }
    plan = planned(loaded, budget, model)
    if plan.model.provider.is_model:
        note(f"estimate     {estimated(settings, loaded.task, plan)}")
    if local:
        need_compiler(loaded.task)
        need_device(loaded.task)
        bring_up(settings, plan.queue)
    watched: list[str] = []

    async def body(session: Session) -> int:
        begun = await begin(session, loaded, plan, run_id, isolated)
        watched.append(begun)
        note(f"run          {begun}")
        note(f"Temporal UI  {session.ui(begun)}")
        note(f"watch it     {again('watch', begun)}")
        note(f"steer it     {again('pause|resume|hint|extend|submit|stop|cancel', begun, '...')}")
        started = await session.describe(begun)
        if follow:
            return await watch_to_end(session, started)
        if missing := await session.unserved(started, plan):
            note(no_worker(*missing), warning=True)
        return 0

    finish(body, watched, local=local)


@app.command()
def watch(run: RunArgument = None) -> None:
    """Watch a run live to its end; Ctrl-C ends the watching, not the run."""
    from workflows.console.watching import watch_to_end

    watched: list[str] = []

    async def body(session: Session) -> int:
        found = await session.find(run)
        watched.append(found.id)
        return await watch_to_end(session, found)

    finish(body, watched)


def finish(body: Callable[[Session], Awaitable[int]], watched: list[str], *, local: bool = False) -> NoReturn:
    """Run `body` to its exit code; an interrupt ends the watching and leaves the run alone."""
    from workflows.console.output import note
    from workflows.console.session import talk

    try:
        code = talk(body)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        if watched:
            note(f"stopped watching; the run goes on. Watch it again: {again('watch', watched[0])}")
    if local:
        note(f"the embedded server and worker stay up, the Temporal UI with them; stop them: {again('down')}")
    raise typer.Exit(code)


# ---------------------------------------------------------------- looking


@app.command("list")
def list_runs(as_json: JsonOption = False) -> None:
    """List the runs, newest first."""
    from datetime import UTC, datetime

    from workflows.console.output import draw, note, out, say_json
    from workflows.console.session import talk
    from workflows.console.terminal import runs_table

    async def body(session: Session) -> list[RunRow]:
        return await session.rows()

    rows = talk(body)
    if as_json:
        say_json([{**asdict(row), "started": row.started.isoformat()} for row in rows])
    elif rows:
        draw(runs_table(rows, datetime.now(UTC), width=out.width))
    else:
        note(f"there is no run yet; start one: {again('start', 'TASK')}")


@app.command()
def status(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Show where a run stands."""
    from workflows.console.output import draw, out, say_json
    from workflows.console.session import talk
    from workflows.console.terminal import run_view
    from workflows.console.watching import show_end

    async def body(session: Session) -> None:
        found = await session.find(run)
        if found.state != "running" and not as_json:
            await show_end(session, found, [])
            return
        answer = await session.status(found)
        if as_json:
            say_json(answer.model_dump(mode="json"))
            return
        lines = await session.history(found)
        notice = await session.notice(found, answer)
        draw(run_view(answer, lines, elapsed=found.elapsed, notice=notice, width=out.width))

    talk(body)


@app.command()
def history(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Show every iteration of a run, how it ended and why."""
    from workflows.console.lines import history_line
    from workflows.console.output import draw, note, out, say, say_json
    from workflows.console.session import talk
    from workflows.console.terminal import history_table

    async def body(session: Session) -> None:
        lines = await session.history(await session.find(run))
        if as_json:
            say_json([line.model_dump(mode="json") for line in lines])
        elif not lines:
            note("no iteration has ended yet")
        elif out.is_terminal:
            draw(history_table(lines, width=out.width))
        else:
            for line in lines:
                say(history_line(line))

    talk(body)


@app.command()
def best(
    run: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the source here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the source of the best kernel so far, or write it to a file."""
    from activities.store import write_atomically
    from specs.outcomes import labelled
    from workflows.console.output import note, say_json, say_source
    from workflows.console.session import talk
    from workflows.state import Best

    if output is not None and output.is_dir():
        raise UserError(f"-o {output} is a folder; accepted: the name of a file to write")

    async def body(session: Session) -> None:
        found = await session.find(run)
        answer = await session.status(found)
        if as_json:
            say_json(Best(champion=answer.champion, acceptance=answer.acceptance).model_dump(mode="json"))
            return
        if answer.champion is None:
            raise UserError(f"run {found.id} has no champion yet; its history: {again('history', found.id)}")
        content = await session.store().get(answer.champion.source)
        searched = answer.champion.searched
        seen = f"; search {searched:.3f}" if searched is not None else ""
        told = f"{answer.champion.version}, score {answer.champion.score:.3f} ({answer.plan.scoring.value}{seen})"
        note(labelled(told, answer.champion.standing))
        if output is None:
            say_source(content)
        else:
            write_atomically(output, content)
            note(f"written to {output}")

    talk(body)


@app.command()
def diff(words: Annotated[list[str], argument("[RUN] A B", "Two versions: v001, a003, best or seed.")]) -> None:
    """Show how the sources of two versions differ."""
    from workflows.console.output import note, say
    from workflows.console.results import shown_version, source_of
    from workflows.console.session import talk
    from workflows.console.taskview import diff_lines

    run, (old, new) = split_words("diff", "A B", words, 2)

    async def body(session: Session) -> None:
        lines = await session.history(await session.find(run))
        refs = [source_of(lines, version) for version in (old, new)]
        before, after = [(await session.store().get(ref)).decode(errors="replace") for ref in refs]
        changes = diff_lines(before, after, *(shown_version(lines, version) for version in (old, new)))
        if not changes:
            note(f"{old} and {new} are the same source")
        for line in changes:
            say(line)

    talk(body)


@app.command()
def transcript(
    words: Annotated[
        list[str] | None, argument("[RUN] [ITERATION]", "A version (a003), an index (7) or `gate`; default: the last.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what was said between ferret and its models in an iteration: text, thinking, calls and their answers."""
    from workflows.console.conversation import chapters_of, conversation_lines, is_iteration, read_back
    from workflows.console.output import note, say, say_json
    from workflows.console.session import talk

    given = words or []
    if len(given) > 2:
        raise UserError(f"transcript takes [RUN] [ITERATION]; {len(given)} words given")
    if len(given) == 1:
        run, iteration = (None, given[0]) if is_iteration(given[0]) else (given[0], None)
    else:
        run, iteration = (given[0], given[1]) if given else (None, None)

    async def body(session: Session) -> None:
        found = await session.find(run)
        answer, lines = await session.status(found), await session.history(found)
        name, chapters = chapters_of(lines, answer.gate_chapters, iteration)
        read = [(chapter, await read_back(session.store(), chapter)) for chapter in chapters]
        if as_json:
            say_json([{"role": chapter.role.value, "messages": messages} for chapter, messages in read])
            return
        note(f"{'the gate' if name == 'gate' else f'iteration {name}'} of {found.id}")
        for chapter, messages in read:
            for line in conversation_lines(chapter, messages):
                say(line)
            say("")

    talk(body)


@app.command()
def recording(
    run: RunArgument = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Write it here.", show_default=False)],
) -> None:
    """Write every answer of a run's models into a file: a task's `model.recording` for provider `replay`."""
    from activities.store import write_atomically
    from workflows.console.output import say
    from workflows.console.session import talk

    if output.is_dir():
        raise UserError(f"-o {output} is a folder; accepted: the name of a file to write")

    async def body(session: Session) -> str:
        from activities.llm.replay import write_recording

        found = await session.find(run)
        content = await write_recording(session.store(), found.first_execution, found.task)
        write_atomically(output, content)
        return f"{output}: the answers of run {found.id}, {len(content)} bytes"

    say(talk(body))


@app.command()
def gate(
    run: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Write its files here instead.")
    ] = None,
) -> None:
    """Print the gate that a run has written for itself, and what the reviewer said of it."""
    from workflows.console.lines import clean
    from workflows.console.output import note, say, say_source
    from workflows.console.results import gate_files, write_gate
    from workflows.console.session import talk

    async def body(session: Session) -> None:
        found = await session.find(run)
        answer = await session.status(found)
        files = await gate_files(answer, session.store())
        review = answer.written_gate.review if answer.written_gate else None
        note(f"review: {clean(review.summary)}" if review else "no reviewer has looked at it")
        if output is not None:
            note(write_gate(output, files))
            return
        for name, content in files.items():
            say(f"# ---------------- {name}")
            say_source(content)

    talk(body)


def split_words(command: str, what: str, words: list[str], count: int) -> tuple[str | None, list[str]]:
    """`[RUN] WORD...` with exactly `count` words after the run; raises UserError otherwise."""
    if len(words) not in (count, count + 1):
        raise UserError(f"{command} takes [RUN] {what}; {len(words)} words given (a word with spaces needs quotes)")
    return (words[0] if len(words) > count else None), words[-count:]


# ---------------------------------------------------------------- steering


def steer(run: str | None, update: str, *arguments: Any, said: Callable[[Status], str]) -> None:
    """Send one update and say what the run made of it."""
    from workflows.console.output import say
    from workflows.console.session import talk

    async def body(session: Session) -> str:
        found = await session.find(run, steering=True)
        return f"{found.id}: {said(await session.update(found, update, *arguments))}"

    say(talk(body))


@app.command()
def pause(run: RunArgument = None) -> None:
    """Let the step at work end, then wait; paused time is not charged."""
    steer(run, "pause", said=lambda now: f"pausing after the step at work; go on: {again('resume', now.run_id)}")


@app.command()
def resume(run: RunArgument = None) -> None:
    """Go on after a pause."""
    steer(run, "resume", said=lambda _: "resumed")


@app.command()
def stop(run: RunArgument = None, reason: ReasonOption = None) -> None:
    """Finish the step at work, then accept and deliver the best kernel so far."""
    from workflows.state import StopRequest

    request = StopRequest(reason=reason) if reason else StopRequest()
    steer(run, "stop", request, said=stopping)


def stopping(now: Status) -> str:
    return (
        f"stopping ({now.stop_reason}); the measurement or other step at work is finished first, "
        f"and {again('cancel', now.run_id)} ends it now"
    )


@app.command()
def cancel(run: RunArgument = None, reason: ReasonOption = None) -> None:
    """End the run now, whatever it is doing; the best so far stays in its record, but is not accepted."""
    from workflows.console.output import say
    from workflows.console.session import talk

    async def body(session: Session) -> str:
        found = await session.find(run, steering=True)
        if found.state != "running":
            raise UserError(f"run {found.id} has ended ({found.state}); cancel needs a running one")
        if found.cancelling:
            return f"{found.id}: is being cancelled already"
        await found.handle.cancel(reason=reason or "cancelled by a person")
        return f"{found.id}: cancelling"

    say(talk(body))


@app.command()
def hint(words: Annotated[list[str], argument("[RUN] TEXT", "Advice, in quotes.")]) -> None:
    """Give the optimiser advice for its next proposals."""
    from specs.schema import Provider
    from workflows.state import Hint

    unheard = {Provider.SCRIPTED: "scripted", Provider.REPLAY: "replayed", Provider.TUNE: "tuning"}

    run, (text,) = split_words("hint", "TEXT", words, 1)

    def said(now: Status) -> str:
        deaf = unheard.get(now.plan.model.provider)
        unread = f"; the {deaf} optimiser reads no hints" if deaf else ""
        return f"hint {len(now.hints)} noted{unread}"

    steer(run, "add_hint", Hint(text=text), said=said)


@app.command("approve-gate")
def approve_gate(
    run: RunArgument = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="It is not good enough: write it anew.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; the gate writer reads it. Needed with --refuse.")
    ] = None,
) -> None:
    """Let a run that waits for it lock the gate it has written (see `gate`), or have the gate written anew."""
    from workflows.state import GateApproval

    if refuse and not (reason or "").strip():
        raise UserError("approve-gate --refuse needs --reason TEXT: what the gate writer has to do differently")
    given = GateApproval(approved=not refuse, reason=reason or "")
    steer(run, "approve_gate", given, said=lambda _: "gate refused; it is written anew" if refuse else "gate approved")


@app.command()
def extend(
    run: RunArgument = None,
    iterations: Annotated[int | None, typer.Option(metavar="N", help="More iterations.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="MIN", help="More wall minutes.")] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="More tokens.")] = None,
    usd: Annotated[float | None, typer.Option(metavar="USD", help="More money.")] = None,
) -> None:
    """Add to a run's budget."""
    from workflows.budget import unusable
    from workflows.console.lines import budget_text
    from workflows.state import BudgetExtension

    if iterations is None and minutes is None and tokens is None and usd is None:
        raise UserError("extend needs what to add; accepted: --iterations, --minutes, --tokens, --usd")
    given = {"iterations": iterations, "minutes": minutes, "tokens": tokens, "usd": usd}
    for option, value in given.items():
        # Here already: JSON has no NaN and no infinity, so the run would not see what was given.
        if value is not None and (problem := unusable("wall_minutes" if option == "minutes" else option, value)):
            raise UserError(f"extend: --{option} is {problem}")
    more = BudgetExtension(iterations=iterations, wall_minutes=minutes, tokens=tokens, usd=usd)
    steer(run, "extend_budget", more, said=lambda now: f"budget now {budget_text(now.budget)}")


@app.command()
def submit(words: Annotated[list[str], argument("[RUN] FILE", "The kernel's source.")]) -> None:
    """Hand in a kernel of your own; it is built, judged and measured like any other."""
    from workflows.console.output import say
    from workflows.console.results import check_language, read_source, submission_label
    from workflows.console.session import talk
    from workflows.state import CandidateSubmission

    run, (name,) = split_words("submit", "FILE", words, 1)
    content = read_source(Path(name))

    async def body(session: Session) -> str:
        found = await session.find(run, steering=True)
        session.need_running(found, "submit candidate")
        check_language(Path(name), await session.status(found))
        source = await session.store().put(content)
        given = CandidateSubmission(source=source, label=submission_label(Path(name)))
        now = await session.update(found, "submit_candidate", given)
        return f"{found.id}: {name} handed in ({now.waiting_submissions} waiting)"

    say(talk(body))


# ---------------------------------------------------------------- task files and results


@app.command()
def validate(files: Annotated[list[Path], argument("FILE...", "Task files.")]) -> None:
    """Print each parsed task, or all its problems with what is accepted; exit code 2 if any file has an error."""
    from activities.runnable import obstacles
    from specs.loader import load_task
    from workflows.console.output import complain, draw, note, out
    from workflows.console.taskview import task_view

    broken = 0
    for path in files:
        problems: list[Problem] = []
        try:
            loaded = load_task(path)
        except SpecError as error:
            problems = error.problems
        else:
            problems = [*loaded.warnings, *loaded.check_references()]
            # A file of another machine's or version's is a good file: only `start` refuses what cannot run here.
            unrunnable = [
                loaded.problem(at, text, "warning") for at, text in obstacles(loaded.task, loaded.path.parent)
            ]
            problems += [*unrunnable, *loaded.check_files()]
            draw(task_view(loaded.task, str(path)))
            out.print()
        for problem in problems:
            if problem.severity == "error":
                complain(str(problem))
            else:
                note(str(problem), warning=True)
        broken += any(problem.severity == "error" for problem in problems)
    if broken and len(files) > 1:
        note(f"{broken} of {len(files)} task files have errors")
    raise typer.Exit(EXIT_MISTAKE if broken else 0)


@app.command()
def refs(
    tasks: Annotated[list[Path] | None, argument("TASK", "Task files; default: those that ferret ships.")] = None,
) -> None:
    """Check that every reference of the tasks is there, and count them by source; exit code 1 if one is missing."""
    from specs.loader import load_task
    from specs.references import ROOT
    from workflows.console.output import complain, draw, note
    from workflows.console.taskview import counted_references, references_table

    files = tasks or sorted((ROOT / "specs" / "tasks").glob("*.yaml"))
    found, missing = counted_references([load_task(file) for file in files])
    draw(references_table(found))
    for problem in missing:
        complain(str(problem))
    if missing:
        note(f"{len(missing)} of {found.total() + len(missing)} references are not there")
    raise typer.Exit(EXIT_MISSING if missing else 0)


@app.command()
def export(
    run: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Default: export-RUN.")
    ] = None,
) -> None:
    """Write what was delivered (or the best so far), the history and every iteration's source into a folder."""
    from workflows.console.output import note, say
    from workflows.console.results import write_export
    from workflows.console.session import talk

    async def body(session: Session) -> str:
        found = await session.find(run)
        answer = await session.status(found)
        try:
            lines = await session.history(found)
        except UserError as error:
            if answer.delivery is None:
                raise
            note(f"only what was delivered: {error}", warning=True)
            lines = []
        return await write_export(output or Path(f"export-{found.id}"), answer, lines, session.store())

    say(talk(body))


@app.command()
def ui(
    run: RunArgument = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser, on a desktop.")] = False,
) -> None:
    """Print the address of a run in the Temporal UI."""
    from workflows.console.output import note, out, say
    from workflows.console.session import talk

    async def body(session: Session) -> str:
        return session.ui((await session.find(run)).id)

    address = talk(body)
    say(address)
    if open_it:
        desktop = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if not (desktop and out.is_terminal):
            note("not opened: this is no terminal on a desktop")
        elif not webbrowser.open(address):
            note("not opened: there is no browser")


# ---------------------------------------------------------------- the embedded server and worker


@app.command()
def up() -> None:
    """Start the embedded server and a worker in the background; both outlive this command."""
    from activities.settings import Settings
    from workflows.console.local import bring_up
    from workflows.console.output import say
    from workflows.console.session import talk

    settings = Settings.from_env()
    bring_up(settings)

    async def body(session: Session) -> str:
        return (
            f"up: {session.client.service_client.config.target_host}, Temporal UI {session.ui()}, logs {settings.logs}"
        )

    say(talk(body))


@app.command()
def down() -> None:
    """Stop the embedded server and the background worker; a run at work goes on after the next `up`."""
    from activities.settings import Settings
    from workflows.console.local import take_down
    from workflows.console.output import say

    settings = Settings.from_env()
    stopped = take_down(settings)
    say(f"stopped: {' and '.join(stopped)}" if stopped else f"nothing is running for {settings.home}")


# ---------------------------------------------------------------- the process


def main(words: list[str]) -> int:
    """Run one command and give its exit code; a mistake becomes one line on standard error."""
    try:
        from workflows.console.output import complain
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {interpreter.lacking(error)}\n")
        return EXIT_MISTAKE

    try:
        # In standalone mode typer would print a mistake as a box of many lines.
        code = app(args=words or ["--help"], prog_name="client.py", standalone_mode=False)
    except FerretError as error:
        complain(str(error))
        return EXIT_MISTAKE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_MISTAKE
    except ModuleNotFoundError as error:
        complain(interpreter.lacking(error))
        return EXIT_MISTAKE
    except Exception as error:
        # The class of usage errors has moved between releases of typer; this method has not.
        if not hasattr(error, "format_message"):
            raise
        complain(f"{' '.join(error.format_message().split())} (help: {again('--help')})")
        return EXIT_MISTAKE
    return code if isinstance(code, int) else 0


def leave(code: int) -> NoReturn:
    """End the process at once: a thread of the Temporal SDK can crash a Python that takes its time to finalise."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass  # the reader has gone: what it did not want is no error
    os._exit(code)


def log_to_stderr() -> None:
    """What the parts below log is for people; standard output is for what was asked."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


if __name__ == "__main__":
    log_to_stderr()
    leave(main(sys.argv[1:]))
