"""Serve ferret's task queues: connect, one list of workflows, one of activities for each queue, poll."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from activities import interpreter

try:
    import structlog
    from temporalio.client import Client
    from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
    from temporalio.worker import Worker, WorkerDeploymentConfig
except ModuleNotFoundError as missing:
    sys.stderr.write(f"worker.py: {interpreter.lacking(missing)}\n")
    raise SystemExit(2) from None

from activities import logs
from activities.accept import Accepting
from activities.accept_program import ProgramAccepting
from activities.adopt_gate import GateAdopting
from activities.build import Building
from activities.check_gate import GateChecking
from activities.claim_device import DeviceClaiming
from activities.connect import connect
from activities.deliver import Delivering
from activities.devices import Claims, LocalDevice, detect
from activities.devserver import start_server
from activities.harness import sweep_work_folders
from activities.judge import Judging
from activities.lock_gate import GateLocking
from activities.measure import Measuring
from activities.measure_baseline import BaselineMeasuring
from activities.model_turn import ModelTurning
from activities.open_session import SessionOpening
from activities.propose import Proposing
from activities.record import Recording
from activities.release_device import DeviceReleasing
from activities.remember import Remembering
from activities.run_program import ProgramRunning
from activities.settings import Settings
from activities.use_tool import ToolUsing
from activities.workshop import Workshop
from specs.errors import FerretError
from workflows import visibility
from workflows.gate import GateWorkflow
from workflows.iteration import IterationWorkflow
from workflows.optimization import OptimizationWorkflow
from workflows.state import WORKFLOW_QUEUE

WORKFLOWS = [OptimizationWorkflow, GateWorkflow, IterationWorkflow]

# A build or a judgement may end in this time and keep its result; a longer one starts again on another worker.
GRACE = timedelta(seconds=10)
# Cancellation travels with the answer to a heartbeat; the SDK would otherwise hold beats back for most of the timeout.
BEAT = timedelta(seconds=1)
# Model calls, builds and hashing; builds share the machine, so no more of them than a small machine bears.
PLAN_SLOTS = 8

log = structlog.get_logger("ferret.worker")


def plan_activities(workshop: Workshop, claims: Claims) -> Sequence[Callable[..., Any]]:
    """What any machine with the right kind of device may do."""
    return [
        GateLocking(workshop).lock_gate,
        GateChecking(workshop).check_gate,
        DeviceClaiming(claims).claim_device,
        SessionOpening(workshop).open_session,
        ModelTurning(workshop).model_turn,
        ToolUsing(workshop).use_tool,
        GateAdopting(workshop).adopt_gate,
        Proposing(workshop).propose,
        Building(workshop).build,
        Remembering(workshop).remember,
        Recording(workshop).record,
        Delivering(workshop).deliver,
    ]


def device_activities(workshop: Workshop, claims: Claims) -> Sequence[Callable[..., Any]]:
    """What needs the claimed device for itself."""
    return [
        BaselineMeasuring(workshop).measure_baseline,
        ToolUsing(workshop).use_device_tool,
        Judging(workshop).judge,
        Measuring(workshop).measure,
        Accepting(workshop).accept,
        ProgramRunning(workshop).run_program,
        ProgramAccepting(workshop).accept_program,
        DeviceReleasing(claims).release_device,
    ]


def workers(
    client: Client, settings: Settings, devices: tuple[LocalDevice, ...], workshop: Workshop, *, workflows: bool = True
) -> list[Worker]:
    """One worker for workflows, one for each kind of device, one with a single slot for each device."""
    claims = Claims(settings, devices)
    common: dict[str, Any] = {
        "graceful_shutdown_timeout": GRACE,
        "max_heartbeat_throttle_interval": BEAT,
        "deployment_config": _deployment(settings),
    }
    made = [Worker(client, task_queue=WORKFLOW_QUEUE, workflows=WORKFLOWS, **common)] if workflows else []
    for queue in sorted({device.plan_queue for device in devices}):
        activities = plan_activities(workshop, claims)
        made.append(
            Worker(client, task_queue=queue, activities=activities, max_concurrent_activities=PLAN_SLOTS, **common)
        )
    for device in devices:
        activities = device_activities(workshop, claims)
        made.append(
            Worker(client, task_queue=device.queue, activities=activities, max_concurrent_activities=1, **common)
        )
    return made


async def serve(settings: Settings, arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if arguments.dev:
        server = await start_server(
            settings, port=arguments.port, ui_port=arguments.ui_port, search_attributes=visibility.KEYS
        )
        log.info("temporal server", address=server.address, ui=server.ui, pid=server.pid)
    client = await connect(settings)
    if not await visibility.register(client):
        log.warning("search attributes not registered: not allowed here", names=[key.name for key in visibility.KEYS])
    sweep_work_folders(settings)
    devices = await asyncio.to_thread(detect)  # a driver may take its time
    workshop = Workshop(settings, devices=devices)
    async with AsyncExitStack() as stack:
        for worker in workers(client, settings, devices, workshop, workflows=not arguments.no_workflows):
            await stack.enter_async_context(worker)
        log.info("worker ready", address=client.service_client.config.target_host, devices=[d.queue for d in devices])
        await stop.wait()
        log.info("worker draining", grace_s=GRACE.total_seconds())
    await close_connections()
    log.info("worker stopped")


async def close_connections() -> None:
    """To models' servers; a worker that asked none has not even loaded their client."""
    if (client := sys.modules.get("activities.llm.client")) is not None:
        await client.close_all()


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Worker versioning only when a build id is given: on a plain dev server a versioned worker would get no work."""
    if settings.build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name="ferret", build_id=settings.build_id),
        use_worker_versioning=True,
        # Runs last hours: each stays with the code it began with.
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worker.py", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="start the embedded Temporal server, or use the running one")
    parser.add_argument("--port", type=int, help="port of the embedded server (default 7233, or a free one)")
    parser.add_argument("--ui-port", type=int, help="port of its web UI (default 8233, or a free one)")
    parser.add_argument("--no-workflows", action="store_true", help="serve this machine's devices only")
    parsed = parser.parse_args(argv)
    if not parsed.dev and (parsed.port is not None or parsed.ui_port is not None):
        parser.error("--port and --ui-port belong to the embedded server; give --dev too")
    return parsed


async def _main(argv: Sequence[str] | None) -> int:
    arguments = _arguments(argv)
    logs.configure()
    try:
        settings = Settings.from_env()
        with settings.writing_home():
            await serve(settings, arguments)
    except FerretError as error:
        print(f"worker.py: {error}", file=sys.stderr)
        return 2
    finally:
        # Threads of the SDK's core may still be letting go of Python objects when the interpreter shuts down, which
        # ends in a crash now and then; a moment is enough for them.
        await asyncio.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(None)))
