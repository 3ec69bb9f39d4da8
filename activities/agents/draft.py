"""A gate in the making: its files by name, each by digest."""

from __future__ import annotations

from pydantic import Field

from specs.outcomes import BlobRef, Value


class Draft(Value):
    files: dict[str, BlobRef] = Field(default_factory=dict)  # `gate.yaml`, `reference.py`
