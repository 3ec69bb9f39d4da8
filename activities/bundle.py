"""A task and every file it names, packed into the store by the client and laid out on disk by each worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import BaseModel

from activities.store import Store, write_atomically
from specs import references
from specs.errors import StoreError, UserError
from specs.loader import LoadedTask
from specs.outcomes import BlobRef
from specs.schema import Language, Task

MAX_FILES = 2_000
MAX_FILE_BYTES = 16 * 2**20
MAX_TOTAL_BYTES = 64 * 2**20
MAX_SOURCE_BYTES = 2**20  # one candidate source
GATE = "gate"  # its folder in the bundle
_SKIPPED = {"__pycache__", ".git"}


class Entry(BaseModel):
    blob: BlobRef
    executable: bool = False


class Manifest(BaseModel):
    """What the bundle's own blob holds."""

    task: Task  # paths relative to the bundle
    digest: str  # of the task file's bytes
    files: dict[str, Entry]
    references: dict[str, str] = {}  # as the task names them -> file or folder of the bundle
    canonical: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on this machine's disk."""

    task: Task  # paths absolute, inside `root`
    digest: str  # of the task file's bytes
    root: Path
    # As the task names them; a reference that was not there when the run began is missing here.
    references: Mapping[str, Path] = field(default_factory=dict)
    canonical: Mapping[str, Path] = field(default_factory=dict)

    @property
    def gate(self) -> Path:
        return self._named(self.task.gate, "gate")

    @property
    def baseline(self) -> Path:
        return self._named(self.task.baseline.program, "baseline.program")

    @property
    def baseline_language(self) -> Language:
        """What the baseline's suffix says, as the harness builds it; the task's where it says nothing."""
        return next((one for one in Language if one.suffix == self.baseline.suffix), self.task.language)

    @property
    def seed(self) -> Path:
        return self._named(self.task.seed, "seed")

    @property
    def recording(self) -> Path:
        return self._named(self.task.model.recording, "model.recording")

    @property
    def lost_references(self) -> tuple[str, ...]:
        """Names of what the optimiser has to do without."""
        names = map(references.name_of, self.task.references)
        return tuple(name for name in dict.fromkeys(names) if name not in self.references)

    def script(self) -> list[Path]:
        """The scripted optimiser's sources in the order they are played."""
        folder = self._named(self.task.model.script, "model.script")
        suffix = self.task.language.suffix
        return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix == suffix)

    def _named(self, path: str | None, field: str) -> Path:
        if path is None:
            raise UserError(f"task '{self.task.name}' gives no {field}; this step needs one")
        return Path(path)


async def pack(loaded: LoadedTask, store: Store, root: Path = references.ROOT) -> BlobRef:
    """Store the task and its files; the same content gives the same bundle. Raises UserError, StoreError.

    `root` is the repository whose `resources/` the task may name.
    """
    task, files = await asyncio.to_thread(_collect, loaded, root)
    entries = {
        name: Entry(blob=await store.put(content), executable=executable)
        for name, (content, executable) in sorted(files.content.items())
    }
    manifest = Manifest(
        task=task, digest=loaded.digest, files=entries, references=files.references, canonical=files.canonical
    )
    return await _stored(manifest, store)


async def with_gate(ref: BlobRef, files: Mapping[str, BlobRef], store: Store) -> BlobRef:
    """The same task with another gate: `files` by their path in its folder. Raises StoreError."""
    manifest = Manifest.model_validate_json(await store.get(ref))
    kept = {name: entry for name, entry in manifest.files.items() if not name.startswith(f"{GATE}/")}
    gate = {f"{GATE}/{_inside(name)}": Entry(blob=blob) for name, blob in files.items()}
    task = manifest.task.model_copy(update={"gate": GATE})
    changed = {"task": task, "files": dict(sorted((kept | gate).items()))}
    return await _stored(manifest.model_copy(update=changed), store)


async def _stored(manifest: Manifest, store: Store) -> BlobRef:
    return await store.put(manifest.model_dump_json(exclude_defaults=True).encode())


async def unpack(ref: BlobRef, store: Store, root: Path) -> Bundle:
    """Lay a bundle out under `root/<digest>/` at once or not at all; one that is there already is reused."""
    manifest = Manifest.model_validate_json(await store.get(ref))
    place = root / ref.sha256
    if not place.exists():
        root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=root, prefix=f".{ref.sha256[:16]}."))
        try:
            for name, entry in manifest.files.items():
                path = building / _inside(name)
                await asyncio.to_thread(
                    write_atomically, path, await store.get(entry.blob), 0o555 if entry.executable else 0o444
                )
            _rename(building, place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return Bundle(
        task=_placed(manifest.task, place),
        digest=manifest.digest,
        root=place,
        references={name: place / _inside(packed) for name, packed in manifest.references.items()},
        canonical={name: place / _inside(packed) for name, packed in manifest.canonical.items()},
    )


def _rename(building: Path, place: Path) -> None:
    building.chmod(0o755)
    try:
        building.rename(place)
    except OSError as error:
        if not place.is_dir():  # else another activity laid the same bundle out first
            raise StoreError(f"cannot lay out the bundle at {place}: {error.strerror}") from None


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise StoreError(f"the bundle names {name!r}, which is outside of it")
    return path


def _placed(task: Task, place: Path) -> Task:
    def at(relative: str | None) -> str | None:
        return None if relative is None else str(place / relative)

    command = task.acceptance and tuple(
        str(place / word) if word.startswith("acceptance/") else word for word in task.acceptance.command
    )
    return task.model_copy(
        update={
            "gate": at(task.gate),
            "seed": at(task.seed),
            "baseline": task.baseline.model_copy(update={"program": at(task.baseline.program)}),
            "model": task.model.model_copy(
                update={"script": at(task.model.script), "recording": at(task.model.recording)}
            ),
            "acceptance": task.acceptance and task.acceptance.model_copy(update={"command": command}),
        }
    )


# ---------------------------------------------------------------- reading the task's files


def _collect(loaded: LoadedTask, root: Path) -> tuple[Task, _Collected]:
    """The task with paths inside the bundle, and the content of every file it names."""
    task, files = loaded.task, _Collected(loaded.path.parent.resolve())

    def one(relative: str | None, name: str, field: str, most: int = MAX_SOURCE_BYTES) -> str | None:
        if relative is None:
            return None
        source = loaded.resolve(relative)
        packed = f"{name}{source.suffix}"
        files.add(source, packed, field, most)
        return packed

    def folder(relative: str | None, name: str, field: str) -> str | None:
        if relative is None:
            return None
        files.add_folder(
            loaded.resolve(relative), name, field, MAX_SOURCE_BYTES if name == "script" else MAX_FILE_BYTES
        )
        return name

    packed = task.model_copy(
        update={
            "gate": folder(task.gate, GATE, "gate"),
            "seed": one(task.seed, "seed", "seed"),
            "baseline": task.baseline.model_copy(
                update={"program": one(task.baseline.program, "baseline", "baseline.program")}
            ),
            "model": task.model.model_copy(
                update={
                    "script": folder(task.model.script, "script", "model.script"),
                    "recording": one(task.model.recording, "recording", "model.recording", MAX_FILE_BYTES),
                }
            ),
            "acceptance": task.acceptance
            and task.acceptance.model_copy(update={"command": _acceptance(loaded, task.acceptance.command, files)}),
        }
    )
    for entry in task.canonical:
        files.add_canonical(entry, references.resolve(entry, loaded.path.parent, root))
    for entry in task.references:
        files.add_reference(loaded.reference(entry, root))
    return packed, files


def _acceptance(loaded: LoadedTask, command: tuple[str, ...], files: _Collected) -> tuple[str, ...]:
    """Words of the command that are files beside the task travel with it; all others stay as they are."""
    words = []
    for position, word in enumerate(command):
        source = loaded.resolve(word)
        if not Path(word).is_absolute() and "/" in word and source.is_file():
            packed = f"acceptance/{position}/{source.name}"
            files.add(source, packed, "acceptance.command")
            words.append(packed)
        elif word.startswith("./"):
            raise UserError(f"acceptance.command: {word} is not a file beside the task; accepted: a program or a file")
        else:
            words.append(word)
    return tuple(words)


_NO_DISKS = ("proc", "sys", "dev")  # a process's environment is a file, too


class _Collected:
    def __init__(self, beside: Path) -> None:
        self._beside = beside  # the task's folder
        self.content: dict[str, tuple[bytes, bool]] = {}  # by path in the bundle; True: executable
        self.references: dict[str, str] = {}  # by the task's name for it: a path in the bundle
        self.canonical: dict[str, str] = {}
        self._bytes = 0

    def add(self, source: Path, name: str, field: str, most: int = MAX_FILE_BYTES) -> None:
        if not source.is_file():
            what = "is a folder" if source.is_dir() else "does not exist"
            raise UserError(f"{field}: {source} {what}; accepted: a file")
        self._refuse_private(source, field)
        size = source.stat().st_size
        if size > most:
            raise UserError(f"{field}: {source} has {size} bytes; at most {most} are accepted")
        try:
            self._keep(name, source.read_bytes(), field, executable=os.access(source, os.X_OK))
        except OSError as error:
            raise UserError(f"{field}: {source} cannot be read ({error.strerror})") from None

    def _refuse_private(self, source: Path, field: str) -> None:
        """Tasks come from strangers, and models see what they name: nothing of `~/.ssh` may be a seed."""
        real = source.resolve()
        if real.is_relative_to(self._beside):
            return
        beyond = real.relative_to(os.path.commonpath([real, self._beside])).parts
        if real.parts[1] in _NO_DISKS or any(part.startswith(".") for part in beyond):
            raise UserError(f"{field}: {source} is hidden or on no disk; accepted: a file that is neither")

    def add_canonical(self, entry: str, source: Path | None) -> None:
        if source is None:
            kept = f"the task's folder or {references.FOLDER}/"
            raise UserError(f"canonical: {entry!r} does not exist; accepted: a file in {kept}")
        packed = f"canonical/{len(self.canonical)}/{source.name}"
        self.add(source, packed, "canonical", MAX_SOURCE_BYTES)
        self.canonical[references.name_of(entry)] = packed

    def add_reference(self, taken: references.Reference) -> None:
        if taken.path is None or not taken.files or taken.name in self.references:
            return  # the client has warned of it, and the optimiser is told
        place = f"references/{len(self.references)}"
        for inner, content in taken.files.items():
            inside = inner if taken.path.is_file() else f"{taken.path.name}/{inner}"
            self._keep(f"{place}/{inside}", content, "references")
        self.references[taken.name] = f"{place}/{taken.path.name}"

    def _keep(self, name: str, content: bytes, field: str, *, executable: bool = False) -> None:
        self._bytes += len(content)
        if self._bytes > MAX_TOTAL_BYTES:
            raise UserError(
                f"{field}: the task's files have more than {MAX_TOTAL_BYTES} bytes together, the most accepted"
            )
        if len(self.content) >= MAX_FILES:
            raise UserError(f"{field}: the task names more than {MAX_FILES} files, the most accepted")
        self.content[name] = (content, executable)

    def add_folder(self, source: Path, name: str, field: str, most: int) -> None:
        if not source.is_dir():
            what = "is a file" if source.exists() else "does not exist"
            raise UserError(f"{field}: {source} {what}; accepted: a folder")
        # Sorted, so that the same folder gives the same bundle; a link out of the folder is followed once, here.
        for path in sorted(source.rglob("*")):
            inner = path.relative_to(source)
            if path.is_file() and not _SKIPPED.intersection(inner.parts):
                self.add(path, f"{name}/{inner.as_posix()}", field, most)
