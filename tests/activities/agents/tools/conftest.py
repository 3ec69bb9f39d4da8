"""The desk with real parts, made once for all of these tests."""

from __future__ import annotations

from tests.activities.agents.tools.bench import bench, desk

__all__ = ["bench", "desk"]
