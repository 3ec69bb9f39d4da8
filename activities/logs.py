"""One log format for everything: coloured lines on a terminal, JSON otherwise, Temporal's context as plain fields."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from temporalio import activity, workflow

# Without local variables: they hold whole sources, and may hold secrets.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
_SHOWN = ("workflow_id", "workflow_type", "activity_type", "activity_id", "attempt", "task_queue")


def configure(*, stream: TextIO | None = None, json: bool | None = None, level: int = logging.INFO) -> None:
    """Send structlog's and the standard library's records through one formatter to `stream` (standard error)."""
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = (
        [_TRACEBACKS, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, lift_temporal],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    # The context travels as fields; without this every message would repeat it as text.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False


def lift_temporal(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Copy workflow and activity context from the log record to the event."""
    record = event.get("_record")
    for source in ("temporal_workflow", "temporal_activity"):
        context = getattr(record, source, None) or {}
        event.update({key: context[key] for key in _SHOWN if key in context})
    return event
