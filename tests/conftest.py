"""One Temporal server for the whole session, on a port of its own and in memory."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from workflows import visibility

# A CI that starts us in the background has the interrupt ignored, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest, so that no process is left with one of them when the others are done.
LONGEST = (
    "test_crash_real.py", "test_main_job.py", "test_self_contained.py", "test_agents_crash.py", "test_agents.py",
    "workflows/test_optimization.py", "test_crash.py", "test_client.py", "exploits/test_cpp_correctness.py",
    "kernels/test_shipped_kernels.py", "kernels/harness/test_measure.py", "exploits/test_cpp_timing.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    place = {f"tests/{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a real dev server that knows ferret's search attributes."""
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        search_attributes=visibility.KEYS,
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        dev_server_extra_args=["--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000"],
        dev_server_startup_timeout=timedelta(seconds=60),
    ) as environment:
        yield environment.client
