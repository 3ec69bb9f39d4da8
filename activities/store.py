"""The content-addressed store: large values live here, only their digests cross Temporal."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from activities.settings import Settings
from specs.errors import StoreError, UserError
from specs.outcomes import BlobRef

NAMED = "named"  # what has a name lies apart from what has a digest
ACCEPTED = "file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Store:
    """Blobs by sha256 under `<aa>/<sha256>`, in a folder or in an object store.

    Every read is checked against the digest. Every method raises StoreError when the store is full, unreachable,
    damaged or lacks the blob: all of them may be gone at the next attempt.
    """

    def __init__(self, backend: ObjectStore, url: str) -> None:
        self._backend = backend
        self.url = url

    @classmethod
    def open(cls, url: str) -> Store:
        """Raises UserError for an address that names no store."""
        try:
            if url.startswith("file://"):
                folder = Path(url.removeprefix("file://"))
                folder.mkdir(parents=True, exist_ok=True)
                return cls(LocalStore(folder), url)
            return cls(from_url(url), url)
        except (BaseError, ValueError, OSError) as error:
            raise UserError(
                f"FERRET_STORE is {url!r}, which cannot be used ({_first_line(error)}); accepted: {ACCEPTED}"
            ) from None

    @classmethod
    def of(cls, settings: Settings) -> Store:
        """The store of these settings; when it is a folder in home that cannot be made, home is what is named."""
        if settings.store == settings.store_in_home:
            with settings.writing_home():
                (settings.home / "store").mkdir(exist_ok=True)
        return cls.open(settings.store)

    async def put(self, content: bytes) -> BlobRef:
        """Store `content`; a blob that is already there and sound is left alone, a damaged one is replaced."""
        ref = BlobRef(sha256=await asyncio.to_thread(digest_of, content), size=len(content))
        if not await self.has(ref):
            with self._explained("write", ref):
                await obstore.put_async(self._backend, _key(ref), content)
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        with self._explained("read", ref):
            content = (await (await obstore.get_async(self._backend, _key(ref))).bytes_async()).to_bytes()
        return self._checked(ref, content)

    def put_now(self, content: bytes) -> BlobRef:
        """`put` for code that has no event loop."""
        ref = BlobRef(sha256=digest_of(content), size=len(content))
        try:
            self.get_now(ref)
        except StoreError:
            with self._explained("write", ref):
                obstore.put(self._backend, _key(ref), content)
        return ref

    def get_now(self, ref: BlobRef) -> bytes:
        """`get` for code that has no event loop."""
        with self._explained("read", ref):
            content = obstore.get(self._backend, _key(ref)).bytes().to_bytes()
        return self._checked(ref, content)

    async def has(self, ref: BlobRef) -> bool:
        """True when the blob is there with the content that its digest promises."""
        try:
            await self.get(ref)
        except StoreError:
            return False
        return True

    async def fetch(self, ref: BlobRef, path: Path) -> Path:
        """Bring a blob to `path`, at once or not at all; a sound file that is already there is kept."""
        await asyncio.to_thread(_keep_or_remove, path, ref)
        if not path.exists():
            await asyncio.to_thread(write_atomically, path, await self.get(ref))
        return path

    async def remember(self, name: str, content: bytes) -> None:
        """Keep `content` under a name (`journal/...`), at once or not at all; a later one replaces it."""
        with self._explained_name("write", name):
            await obstore.put_async(self._backend, _named(name), content)

    async def recall(self, name: str) -> bytes | None:
        """What was remembered under a name; None when nothing was."""
        try:
            with self._explained_name("read", name):
                return (await (await obstore.get_async(self._backend, _named(name))).bytes_async()).to_bytes()
        except FileNotFoundError:
            return None

    async def names(self, prefix: str) -> list[str]:
        """Every remembered name that begins with `prefix/`, sorted."""
        found: list[str] = []
        with self._explained_name("list", prefix):
            async for page in obstore.list(self._backend, prefix=_named(prefix)):
                found += [entry["path"].removeprefix(f"{NAMED}/") for entry in page]
        return sorted(found)

    def _checked(self, ref: BlobRef, content: bytes) -> bytes:
        if digest_of(content) != ref.sha256:
            raise StoreError(f"blob {ref.sha256} in {self.url} is damaged: its content has another digest")
        return content

    @contextmanager
    def _explained(self, verb: str, ref: BlobRef) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StoreError(
                f"blob {ref.sha256} is not in {self.url}; do client and workers use the same FERRET_STORE?"
            ) from None
        except (BaseError, OSError) as error:
            raise StoreError(
                f"cannot {verb} blob {ref.sha256[:12]} ({ref.size} bytes) in {self.url}: {_first_line(error)}"
            ) from None

    @contextmanager
    def _explained_name(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise StoreError(f"cannot {verb} {name!r} in {self.url}: {_first_line(error)}") from None


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write under a temporary name beside `path`, then rename; raises StoreError when the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from None


def _keep_or_remove(path: Path, ref: BlobRef) -> None:
    if path.exists() and digest_of(path.read_bytes()) != ref.sha256:
        path.unlink()


def _key(ref: BlobRef) -> str:
    return f"{ref.sha256[:2]}/{ref.sha256}"


def _named(name: str) -> str:
    return f"{NAMED}/{name}"


def _first_line(error: BaseException) -> str:
    # The library appends its internals after a blank line; the first line is the part for people.
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return re.sub(r"^Generic \w+ error: ", "", line)
