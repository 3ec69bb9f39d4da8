"""Whether a worker is there to do the work."""

from __future__ import annotations

import os
import socket
import time
from typing import Literal

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from activities.interpreter import command
from activities.process import has_ended

# A poll waits on the server for up to a minute, so a living worker was heard of at least this recently.
RECENT_S = 90

Kind = Literal["workflow", "activity"]
_TYPES = {"workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY}


async def polled(client: Client, queue: str, kind: Kind) -> bool:
    """True when a worker asks for tasks of this queue.

    The server remembers a poller for minutes after its death, so one of this machine must also be alive.
    """
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=_TYPES[kind]
        )
    )
    now = time.time()
    return any(
        now - poller.last_access_time.ToSeconds() < RECENT_S and may_live(poller.identity) for poller in answer.pollers
    )


def may_live(identity: str) -> bool:
    """False when `pid@host`, the SDK's default identity, names a process of this machine that has gone."""
    pid, _, host = identity.partition("@")
    if host != socket.gethostname() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not has_ended(int(pid))


def no_worker(*queues: str) -> str:
    return f"no worker is polling {' or '.join(queues)}; start one: {command('worker.py')}"
