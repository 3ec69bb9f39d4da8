"""Loads a task file: every problem it has at once, each with its file, line, field, value and what is accepted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from specs import references
from specs.checks import cross_check
from specs.document import Location, dotted, read_document
from specs.errors import Problem, SpecError, UserError
from specs.near_miss import lift
from specs.schema import Task
from specs.wording import problems_of


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task that makes sense, and where it came from."""

    task: Task
    path: Path  # absolute
    digest: str  # sha256 of the file's bytes
    warnings: list[Problem] = field(default_factory=list)
    lines: dict[Location, int] = field(default_factory=dict, repr=False)  # of each key, 1-based
    file: str = ""  # as it was given: what messages call it

    def resolve(self, rel: str) -> Path:
        """A path that the task names, which is relative to the task file."""
        return self.path.parent / rel

    def check_files(self) -> list[Problem]:
        """What the task names and the disk has not, or has as something else; not `references`."""
        return [self.problem(at, message) for at, message in self._file_problems()]

    def reference(self, entry: str, root: Path = references.ROOT) -> references.Reference:
        """What there is to read of one of the task's references. Raises UserError for a link out of the repository."""
        closed = None if self.task.gate is None else self.resolve(self.task.gate)
        return references.gather(entry, self.path.parent, root, closed)

    def check_references(self, root: Path = references.ROOT) -> list[Problem]:
        """What the optimiser does without, a warning each: public tasks name sources that only their authors have."""
        found = []
        for index, entry in enumerate(self.task.references):
            at: Location = ("references", index)
            try:
                if trouble := self.reference(entry, root).trouble:
                    found.append(self.problem(at, trouble, "warning"))
            except UserError as error:
                found.append(self.problem(at, str(error)))
        return found

    def problem(self, at: Location, message: str, severity: Literal["error", "warning"] = "error") -> Problem:
        """One thing wrong with the field `at`, with the file as it was given and the nearest line."""
        return Problem(self.file or str(self.path), self._line(at), dotted(at), message, severity)

    def _line(self, at: Location) -> int | None:
        return next((self.lines[at[:end]] for end in range(len(at), -1, -1) if at[:end] in self.lines), None)

    def _file_problems(self) -> Iterator[tuple[Location, str]]:
        task = self.task
        if task.gate is not None and not _is_folder(self.resolve(task.gate)):
            yield ("gate",), f"{task.gate!r} is {self._kind(task.gate)}; a folder with gate.yaml is needed"
        if task.baseline.program is not None and not _is_file(self.resolve(task.baseline.program)):
            yield ("baseline", "program"), self._want_file(task.baseline.program)
        if task.seed is not None and not _is_file(self.resolve(task.seed)):
            yield ("seed",), self._want_file(task.seed)
        if task.model.script is not None:
            suffix, script = task.language.suffix, self.resolve(task.model.script)
            if not _is_folder(script):
                shown = f"{task.model.script!r} is {self._kind(task.model.script)}"
                yield ("model", "script"), f"{shown}; a folder of {suffix} candidates is needed"
            elif not any(entry.suffix == suffix for entry in _files(script)):
                yield ("model", "script"), f"{task.model.script!r} holds no {suffix} file; at least one is needed"
        if task.model.recording is not None and not _is_file(self.resolve(task.model.recording)):
            yield ("model", "recording"), self._want_file(task.model.recording)
        for index, entry in enumerate(task.canonical):
            found = references.resolve(entry, self.path.parent)
            if found is None:
                yield ("canonical", index), f"{entry!r} is neither beside the task nor in {references.FOLDER}/"
            elif not _is_file(found):
                yield ("canonical", index), f"{entry!r} is a folder; a file is needed"
        if task.acceptance is not None:
            yield from self._command_problems(task.acceptance.command[0])

    def _command_problems(self, command: str) -> Iterator[tuple[Location, str]]:
        at: Location = ("acceptance", "command", 0)
        if "/" not in command or Path(command).is_absolute():
            return  # found on PATH, or a matter of the machine that accepts
        if not _is_file(self.resolve(command)):
            yield at, self._want_file(command)
        elif not os.access(self.resolve(command), os.X_OK):
            yield at, f"{command!r} is not executable; chmod +x it, or name its interpreter first"

    def _want_file(self, rel: str) -> str:
        return f"{rel!r} is {self._kind(rel)}; a file is needed"

    def _kind(self, rel: str) -> str:
        path = self.resolve(rel)
        if _is_folder(path):
            return "a folder"
        return "a file" if _is_file(path) else f"not there ({os.path.normpath(path)!r})"


def load_task(path: Path | str) -> LoadedTask:
    """Read, understand and check one task file.

    Raises SpecError with all problems of the file, errors before warnings of the same line. What it names on disk is
    `LoadedTask.check_files`'s business.
    """
    document = read_document(Path(path))
    lifted = lift(document)
    problems = [*document.problems, *lifted.problems, *cross_check(lifted.data, document)]
    task: Task | None = None
    try:
        task = Task.model_validate({**lifted.data, "notes": lifted.notes})
    except ValidationError as error:
        problems += problems_of(error, document, lifted)
    problems = _in_order(problems)
    if task is None or any(problem.severity == "error" for problem in problems):
        raise SpecError(problems)
    return LoadedTask(task, Path(path).absolute(), document.digest, problems, document.lines, document.file)


def _in_order(problems: list[Problem]) -> list[Problem]:
    """By line; a place that is wrong in two ways is told once, by the check that saw it first."""
    first: dict[tuple[int | None, str, str], Problem] = {}
    for problem in problems:
        first.setdefault((problem.line, problem.field, problem.severity), problem)
    return sorted(first.values(), key=lambda problem: (problem.line or 0, problem.severity, problem.field))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, or a folder on the way that may not be entered
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if _is_file(entry)]
    except OSError:
        return []
