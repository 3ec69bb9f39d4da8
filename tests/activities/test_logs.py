"""Logs: one JSON object a line when not on a terminal, with Temporal's context as fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from activities import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    target = io.StringIO()
    logs.configure(stream=target)
    yield target
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_own_records_are_json(stream: io.StringIO) -> None:
    """With level, logger and time."""
    structlog.get_logger("ferret.test").info("worker ready", devices=["cpu"])
    (line,) = lines(stream)
    assert (line["event"], line["devices"], line["level"], line["logger"]) == (
        "worker ready",
        ["cpu"],
        "info",
        "ferret.test",
    )
    assert "timestamp" in line


def test_temporals_context_becomes_fields(stream: io.StringIO) -> None:
    """Which run, which activity, which attempt."""
    context = {"workflow_id": "run-1", "activity_type": "build", "attempt": 2, "task_token": "long"}
    logging.getLogger("temporalio.activity").info("built", extra={"temporal_activity": context})
    (line,) = lines(stream)
    assert (line["workflow_id"], line["activity_type"], line["attempt"]) == ("run-1", "build", 2)
    assert "task_token" not in line


def test_a_traceback_is_part_of_its_line(stream: io.StringIO) -> None:
    """So that a log collector keeps it together."""
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = lines(stream)
    assert line["event"] == "failed"
    assert "ValueError" in json.dumps(line)
