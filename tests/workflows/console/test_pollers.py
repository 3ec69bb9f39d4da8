"""Whether a worker is there to do the work."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys

from activities.interpreter import command
from workflows.console.pollers import may_live, no_worker


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_worker_of_this_machine_that_has_ended_does_not_count() -> None:
    """The server remembers a poller for minutes; its process tells the truth at once."""
    assert not may_live(f"{ended_process()}@{socket.gethostname()}")


def test_a_worker_whose_exit_status_nobody_collects_does_not_count() -> None:
    """In a container without an init it keeps its number for ever."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    with os.fdopen(os.pidfd_open(process.pid)) as handle:
        assert select.select([handle], [], [], 60)[0]
    assert not may_live(f"{process.pid}@{socket.gethostname()}")
    process.wait()


def test_a_worker_of_this_machine_that_lives_counts() -> None:
    """The identity of a living process is believed."""
    assert may_live(f"{os.getpid()}@{socket.gethostname()}")


def test_a_worker_elsewhere_is_believed() -> None:
    """Nothing is known of processes of another machine, nor of identities of another form."""
    assert may_live(f"{ended_process()}@another-machine")
    assert may_live("worker of the night shift")
    assert may_live("")


def test_the_sentence_names_queues_and_remedy() -> None:
    """A person is told which queue is idle and what to type."""
    assert no_worker("ferret-cpu") == f"no worker is polling ferret-cpu; start one: {command('worker.py')}"
