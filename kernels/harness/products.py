"""The folder of builds: each named by its key, published all at once, and believed only while its content is intact."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from pydantic import ValidationError

from specs.errors import MachineError
from specs.outcomes import BuildResult, BuildStatus, Value

log = structlog.get_logger(__name__)

RECORD = "build.json"
LOG = "log.txt"
STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a process that was killed

Commands = tuple[tuple[str, ...], ...]
Make = Callable[[Path, Path], tuple[BuildResult, Commands]]  # (work folder, folder to publish) -> what came of it


class _Record(Value):
    """build.json: the result, and for people how it came about."""

    result: BuildResult
    product: str | None  # file name beside this one
    compiler: dict[str, str]
    commands: tuple[tuple[str, ...], ...]


def cached_or_made(
    builds: Path, key: str, make: Make, *, compiler: dict[str, str], keep_failures: bool = True
) -> tuple[BuildResult, Path | None]:
    """The result under this key, and its folder when it is one that stays."""
    builds = builds.absolute()
    with _machine_errors(builds):
        if found := _find(builds, key):
            return found, builds / key
        builds.mkdir(parents=True, exist_ok=True)
        _sweep(builds)
        root = Path(tempfile.mkdtemp(prefix=".build-", dir=builds))
        try:
            product = root / "product"
            product.mkdir()
            result, commands = make(root, product)
            if result.status is BuildStatus.TIMED_OUT or not (result.ok or keep_failures):
                return result, None
            name = next((path.name for path in product.iterdir() if path.name != LOG), None)
            record = _Record(result=result, product=name, compiler=compiler, commands=commands)
            (product / RECORD).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
            return _publish(product, builds, key) or result, builds / key
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _find(builds: Path, key: str) -> BuildResult | None:
    """The build under this key; None when there is none or when it is no longer what its record says."""
    folder = builds / key
    if not folder.exists():
        return None
    try:
        record = _Record.model_validate_json((folder / RECORD).read_bytes())
        library = record.result.library
        sound = record.result.key == key and (
            library is None or file_digest(folder / (record.product or RECORD)) == library.sha256
        )
    except (OSError, ValidationError) as error:
        log.warning("build is damaged and is made again", key=key[:12], reason=str(error))
        return None
    if not sound:
        log.warning("build is damaged and is made again", key=key[:12], reason="its sha256 is not the recorded one")
        return None
    return record.result.model_copy(update={"cached": True, "seconds": 0.0})


def _publish(product: Path, builds: Path, key: str) -> BuildResult | None:
    """Rename a finished folder into place; the other build's result when another process was first."""
    for path in (*product.iterdir(), product):
        _sync(path)
    while True:
        try:
            product.rename(builds / key)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            if found := _find(builds, key):
                return found
            _set_aside(builds / key)
        else:
            _sync(builds)
            return None


def _set_aside(damaged: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=damaged.parent))
    try:
        damaged.rename(aside / damaged.name)
    except FileNotFoundError:
        pass  # another process was quicker
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(builds: Path) -> None:
    for path in (*builds.glob(".build-*"), *builds.glob(".damaged-*")):
        try:
            if time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _machine_errors(builds: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(f"disk full: no room for a build under {builds}") from error
        raise MachineError(f"build folder {builds}: {error.strerror or error}") from error
