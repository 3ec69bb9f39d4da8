"""What the processes of one test run have in common. No more is imported here than a machine with a GPU has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def one_for_all(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share: what is kept in it by its content need be made once only."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
