"""What a task's `references` name: files and folders beside the task, in the repository, or vendored in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from specs.errors import UserError

ROOT = Path(__file__).parents[1]  # the repository
FOLDER = "resources"
MAX_FILES = 200  # of one reference
MAX_BYTES = 4 * 2**20  # of one reference
_SKIPPED = {"__pycache__"}


@dataclass(frozen=True, slots=True)
class Reference:
    """What there is to read of one reference."""

    name: str  # as the task writes it, without a comment
    path: Path | None  # None: there is no such thing where references may lie
    files: dict[str, bytes]  # by path inside the folder, or by the file's name
    trouble: str = ""  # why some or all of it is not to be read


def name_of(entry: str) -> str:
    """An entry without the comment that some tasks carry inside its text."""
    return re.sub(r"(^|\s+)#.*", "", entry, flags=re.DOTALL).strip()


def resolve(entry: str, task_folder: Path, root: Path = ROOT) -> Path | None:
    """Where the entry lies, links followed; None when nothing is there, or only beyond these roots.

    It is looked for from the task's folder, then in `resources/`. The roots are the task's folder and the repository;
    what is hidden in them (`.git`, `.env`) is out of bounds. A submodule that was never fetched is an empty folder:
    not there.
    """
    name = name_of(entry)
    if not name or PurePosixPath(name).is_absolute():
        return None
    vendored = root if PurePosixPath(name).parts[:1] == (FOLDER,) else root / FOLDER
    for place, within in ((task_folder / name, (task_folder, root)), (vendored / name, (root / FOLDER,))):
        try:
            found = place.resolve(strict=True)
            if _is_inside(found, within) and (found.is_file() or any(found.iterdir())):
                return found
        except (OSError, ValueError):  # not there, not to be entered, or a name that no file can bear
            continue
    return None


def source_of(path: Path, task_folder: Path, root: Path = ROOT) -> str:
    """Where a resolved reference comes from: a vendored source by its name, the task's folder or the repository."""
    vendored = (root / FOLDER).resolve()
    if path.is_relative_to(vendored):
        return path.relative_to(vendored).parts[0] if path != vendored else FOLDER
    return "task folder" if path.is_relative_to(task_folder.resolve()) else "repository"


def gather(entry: str, task_folder: Path, root: Path = ROOT, closed: Path | None = None) -> Reference:
    """Read a reference, as far as it is text and fits. Nothing inside `closed` is read: the gate is no reading matter.

    Raises UserError for a link out of the roots.
    """
    name, path = name_of(entry), resolve(entry, task_folder, root)
    if path is None:
        lost = f"{name!r} is neither beside the task nor in {FOLDER}/ (vendoring: {FOLDER}/README.md)"
        return Reference(name, None, {}, lost)
    if closed is not None and path.is_relative_to(closed.resolve()):
        return Reference(name, path, {}, f"{name!r} belongs to the gate, which the optimiser does not read")
    if path.is_file():
        content = _text(path)
        if content is None:
            return Reference(name, path, {}, f"{name!r} is no text in UTF-8 of at most {MAX_BYTES} bytes")
        return Reference(name, path, {path.name: content})
    return _folder(name, path, (task_folder, root), closed)


def _folder(name: str, folder: Path, roots: tuple[Path, ...], closed: Path | None) -> Reference:
    files: dict[str, bytes] = {}
    total, left_out = 0, 0
    # Near the top first: what a large source says of itself stands there.
    for path in sorted(_walk(folder), key=lambda path: (len(path.parts), path.as_posix())):
        real = path.resolve()
        if not _is_inside(real, roots):
            raise UserError(f"{name!r} holds the link {path.relative_to(folder)}, which leads out of the repository")
        if closed is not None and real.is_relative_to(closed.resolve()):
            continue
        if len(files) >= MAX_FILES or total + real.stat().st_size > MAX_BYTES:
            left_out += 1
        elif (content := _text(real)) is not None:
            files[path.relative_to(folder).as_posix()] = content
            total += len(content)
    if not files:
        return Reference(name, folder, {}, f"{name!r} holds no text")
    if left_out:
        taken = f"{len(files)} of its {len(files) + left_out} files are taken"
        most = f"at most {MAX_FILES} and {MAX_BYTES} bytes"
        return Reference(name, folder, files, f"{name!r} is large: {taken} ({most}); name a smaller folder")
    return Reference(name, folder, files)


def _walk(folder: Path) -> Iterator[Path]:
    """Every file that is not hidden; linked folders are not entered, so that no circle is walked."""
    for place, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in _SKIPPED]
        yield from (path for name in names if not name.startswith(".") and (path := Path(place, name)).is_file())


def _is_inside(path: Path, roots: tuple[Path, ...]) -> bool:
    for root in map(Path.resolve, roots):
        if path.is_relative_to(root):
            return not any(part.startswith(".") for part in path.relative_to(root).parts)
    return False


def _text(path: Path) -> bytes | None:
    """A file's content; None when it is too large, cannot be read, or is no text."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        content = path.read_bytes()
        content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in content else content
