"""Where ferret keeps its data and how strictly it isolates candidates: read from the environment in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from kernels.harness.requests import Sandbox
from specs.errors import UserError

MOST_SAMPLING_S = 600.0  # the activity around it has fifteen minutes
_STRICTNESS: tuple[Sandbox, ...] = ("off", "preferred", "required")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a worker or a client needs to know that is not in a task file."""

    home: Path  # absolute
    store: str  # URL of the blob store
    sandbox: Sandbox = "preferred"
    sampling_s: float = 120.0  # in which one measurement has to come to its end
    build_id: str | None = None  # given: the worker takes part in Temporal's worker versioning under this id
    prices: Path | None = None  # absolute; a file of prices that win over the bundled ones

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The variables that README.md lists; raises UserError for a value that is not accepted."""
        home = Path(environ.get("FERRET_HOME") or ".ferret").expanduser().absolute()
        if home.exists() and not home.is_dir():
            raise UserError(f"FERRET_HOME is {home}, which is not a folder; accepted: a folder, made when missing")
        sandbox = environ.get("FERRET_SANDBOX") or "preferred"
        if sandbox not in get_args(Sandbox):
            raise UserError(f"FERRET_SANDBOX is {sandbox!r}; accepted: {', '.join(get_args(Sandbox))}")
        prices = Path(environ["FERRET_PRICES"]).expanduser().absolute() if environ.get("FERRET_PRICES") else None
        if prices is not None and not prices.is_file():
            raise UserError(f"FERRET_PRICES is {prices}, which is not a file; accepted: a YAML file of prices")
        return cls(
            home=home,
            store=environ.get("FERRET_STORE") or _store_in(home),
            sandbox=cast(Sandbox, sandbox),
            sampling_s=_seconds("FERRET_SAMPLING_S", environ, default=120.0, most=MOST_SAMPLING_S),
            build_id=environ.get("FERRET_BUILD_ID") or None,
            prices=prices,
        )

    @property
    def store_in_home(self) -> str:
        return _store_in(self.home)

    @contextmanager
    def writing_home(self) -> Iterator[None]:
        """Name FERRET_HOME when a folder or file in it cannot be made or opened; raises UserError."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            place = Path(os.fsdecode(error.filename)) if error.filename is not None else None
            # A parent of home too: it is what could not be made.
            if place is None or not (place.is_relative_to(self.home) or self.home.is_relative_to(place)):
                raise
            which = "it" if place == self.home else str(place)
            raise UserError(
                f"FERRET_HOME is {self.home}, but {which} cannot be written ({(error.strerror or '').lower()}); "
                f"accepted: a folder that this user may write to"
            ) from None

    @property
    def builds(self) -> Path:
        return self.home / "builds"

    @property
    def bundles(self) -> Path:
        return self.home / "bundles"

    @property
    def libraries(self) -> Path:
        """Shared objects brought in from the store, by digest."""
        return self.home / "libraries"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def work(self) -> Path:
        """Short-lived folders of requests in progress."""
        return self.home / "work"

    def run_folder(self, run_id: str) -> Path:
        return self.home / "runs" / folder_name(run_id)

    def isolation(self, asked: Sandbox) -> Sandbox:
        """The stricter of what the run asks for and what this worker insists on."""
        return max(asked, self.sandbox, key=_STRICTNESS.index)


def _seconds(name: str, environ: Mapping[str, str], *, default: float, most: float) -> float:
    given = environ.get(name)
    if not given:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= most:  # NaN fails it too
        raise UserError(f"{name} is {given!r}; accepted: 1 to {most:g} seconds")
    return seconds


def _store_in(home: Path) -> str:
    return (home / "store").as_uri()


def folder_name(run_id: str) -> str:
    """A run id as one folder name: plain ids stay readable, any other character becomes %XX."""
    safe = re.sub(r"[^A-Za-z0-9._-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), run_id)
    safe = re.sub(r"^\.", "%2E", safe)
    if len(safe) > 200:  # file systems stop at 255 bytes
        import hashlib

        safe = f"{safe[:150]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
    return safe
