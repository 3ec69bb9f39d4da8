"""Where ferret keeps its data and how strictly it isolates candidates: read from the environment in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from kernels.harness.requests import Sandbox
from specs.errors import UserError

_STRICTNESS: tuple[Sandbox, ...] = ("off", "preferred", "required")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a worker or a client needs to know that is not in a task file."""

    home: Path  # absolute
    store: str  # URL of the blob store
    sandbox: Sandbox = "preferred"
    build_id: str | None = None  # given: the worker takes part in Temporal's worker versioning under this id

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """FERRET_HOME, FERRET_STORE, FERRET_SANDBOX, FERRET_BUILD_ID; raises UserError for a value not accepted."""
        home = Path(environ.get("FERRET_HOME") or ".ferret").expanduser().absolute()
        if home.exists() and not home.is_dir():
            raise UserError(f"FERRET_HOME is {home}, which is not a folder; accepted: a folder, made when missing")
        sandbox = environ.get("FERRET_SANDBOX") or "preferred"
        if sandbox not in get_args(Sandbox):
            raise UserError(f"FERRET_SANDBOX is {sandbox!r}; accepted: {', '.join(get_args(Sandbox))}")
        return cls(
            home=home,
            store=environ.get("FERRET_STORE") or (home / "store").as_uri(),
            sandbox=cast(Sandbox, sandbox),
            build_id=environ.get("FERRET_BUILD_ID") or None,
        )

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


def folder_name(run_id: str) -> str:
    """A run id as one folder name: plain ids stay readable, any other character becomes %XX."""
    safe = re.sub(r"[^A-Za-z0-9._-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), run_id)
    safe = re.sub(r"^\.", "%2E", safe)
    if len(safe) > 200:  # file systems stop at 255 bytes
        import hashlib

        safe = f"{safe[:150]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
    return safe
