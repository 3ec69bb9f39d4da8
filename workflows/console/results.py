"""Sources and files: what a person hands in, and what a person takes home from a run."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from activities.agents.draft import Draft
from activities.bundle import MAX_SOURCE_BYTES
from activities.store import Store, write_atomically
from specs.errors import StoreError, UserError
from specs.outcomes import BlobRef, Origin, labelled
from workflows.budget import counted
from workflows.console.lines import clean
from workflows.state import HistoryLine, Status

EXPORT_MARK = "status.json"  # written last: a folder that has it is a whole export


def source_of(lines: list[HistoryLine], version: str) -> BlobRef:
    """The source of `v001`, `a003`, `best` or `seed`; raises UserError that names what there is."""
    named = {line.version: line for line in lines if line.source is not None}
    if wins := [line for line in lines if line.is_win and line.source is not None]:
        named["best"] = wins[-1]
    if seeds := [line for line in lines if line.origin is Origin.SEED and line.source is not None]:
        named["seed"] = seeds[0]
    if version not in named:
        raise UserError(f"no source of {version!r} in this run; accepted: {', '.join(named) or 'nothing yet'}")
    source = named[version].source
    assert source is not None
    return source


def shown_version(lines: list[HistoryLine], version: str) -> str:
    """The version as a diff's heading has it, labelled when its numbers are the program's own."""
    source = source_of(lines, version)
    standing = next((line.standing for line in lines if line.source == source and line.standing), None)
    return labelled(version, standing)


def read_source(path: Path) -> bytes:
    """A source file's bytes; raises UserError for anything that cannot be one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{path} cannot be read ({reason}); accepted: a source file") from None
    if not content.strip():
        raise UserError(f"{path} is empty; accepted: a source file")
    if len(content) > MAX_SOURCE_BYTES or b"\0" in content:
        raise UserError(
            f"{path} ({len(content)} bytes) is no source; accepted: text of at most {MAX_SOURCE_BYTES} bytes"
        )
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no source (byte {error.start} is not UTF-8); accepted: text in UTF-8") from None
    return content


def check_language(path: Path, status: Status) -> None:
    """Raises UserError for a file that is not in the language of the run's task."""
    language = status.plan.language
    if path.suffix != language.suffix:
        raise UserError(
            f"{path} is no {language.value} source by its name; "
            f"accepted: a file ending in {language.suffix}, the language of run {status.run_id}"
        )


def submission_label(path: Path) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "a person"
    return f"{path.name[:80]} (submitted by {user[:40]})"  # a run takes 200 bytes at most


async def write_export(folder: Path, status: Status, lines: list[HistoryLine], store: Store) -> str:
    """Write delivered files or the best so far, sources, history and status into `folder`; gives a line that says what.

    An export may be repeated, but is never mixed into a folder that holds something else (UserError). Raises
    StoreError when a blob is missing.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"-o {folder} is a file; accepted: a folder, made when missing")
    if folder.is_dir() and any(folder.iterdir()):
        held = _exported(folder)
        if held is None:
            raise UserError(f"-o {folder} is neither empty nor an earlier export; accepted: a new folder")
        if held != status.run_id:
            raise UserError(f"-o {folder} holds run {clean(held)}; choose another folder")
    suffix = status.plan.language.suffix
    blobs = {f"iterations/{line.version}{suffix}": line.source for line in lines if line.source is not None}
    if status.delivery:
        what = "delivered files" if status.champion else "no kernel, only the result and the report"
        blobs.update(status.delivery.files)
    elif status.champion:
        what = f"the best so far ({status.champion.version})"
        blobs[f"kernel{suffix}"] = status.champion.source
    else:
        what = "no kernel yet"
    # Everything is fetched before anything is written: a missing blob leaves no half of an export.
    contents = {_inside(name): await store.get(ref) for name, ref in blobs.items()}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    history = json.dumps([line.model_dump(mode="json") for line in lines], indent=2)
    write_atomically(folder / "history.json", history.encode())
    write_atomically(folder / EXPORT_MARK, status.model_dump_json(indent=2).encode())
    return labelled(f"{folder}: {what}, {counted(len(lines), 'iteration')}", status.plan.standing)


async def gate_files(status: Status, store: Store) -> dict[str, bytes]:
    """What the gate that the run has written is made of, by name. Raises UserError without one, StoreError."""
    if status.written_gate is None:
        shipped = "its task brings one" if status.plan.gated else "none is written yet"
        raise UserError(f"run {status.run_id} has written no gate ({shipped})")
    draft = Draft.model_validate_json(await store.get(status.written_gate.gate))
    return {str(_inside(name)): await store.get(ref) for name, ref in sorted(draft.files.items())}


def write_gate(folder: Path, files: Mapping[str, bytes]) -> str:
    """Write a gate into a new folder; gives a line that says so. Raises UserError for one that holds something."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"-o {folder} is there already; accepted: a new folder")
    for name, content in files.items():
        write_atomically(folder / name, content)
    return f"written to {folder}: {', '.join(files)}"


def _exported(folder: Path) -> str | None:
    """Id of the run whose export the folder holds; None when it holds none."""
    try:
        found = json.loads((folder / EXPORT_MARK).read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise StoreError(f"the run delivered {name!r}, which lies outside of the folder")
    return path
