"""Running a program: its whole family ends with it, with a cancel, and with a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from activities.process import TAIL_BYTES, clean_environment, run_process
from tests.fakes import is_alive, until

# Starts a child in a session of its own, and that one an orphan by a double fork; writes all their ids, then waits.
FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
place = Path(sys.argv[1])
orphan = f"(setsid sleep 1000 & echo $! > {place}/orphan)"
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.run(["sh", "-c", orphan], check=True)
(place / "pids.tmp").write_text(f"{os.getpid()} {child.pid} {(place / 'orphan').read_text()}")
(place / "pids.tmp").rename(place / "pids")
time.sleep(float(sys.argv[2]))
"""


def family(folder: Path, seconds: float = 1000) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(folder), str(seconds)]


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


async def test_the_exit_status_and_the_end_of_the_output_come_back(tmp_path: Path) -> None:
    """Of a lot of output the last part is kept, standard error with it."""
    code = f"import sys; print('x' * {3 * TAIL_BYTES}, end='', flush=True); sys.exit('end')"
    done = await run_process([sys.executable, "-c", code], cwd=tmp_path)
    assert done.code == 1
    assert len(done.tail) == TAIL_BYTES
    assert done.tail.endswith("xend\n")


async def test_a_program_that_is_missing_is_an_exit_status(tmp_path: Path) -> None:
    """With the shell's own number for it, and its name."""
    done = await run_process(["no-such-program-here"], cwd=tmp_path)
    assert done.code == 127
    assert "no-such-program-here" in done.tail


async def test_a_signal_is_told_as_128_plus_its_number(tmp_path: Path) -> None:
    """As a shell would."""
    done = await run_process(["sh", "-c", "kill -9 $$"], cwd=tmp_path)
    assert done.code == 128 + signal.SIGKILL


async def test_nothing_is_left_when_the_program_ends_by_itself(tmp_path: Path) -> None:
    """Its children of other sessions and its orphans end with it."""
    done = await run_process(family(tmp_path, 0), cwd=tmp_path)
    assert done.code == 0
    assert len(pids(tmp_path)) == 3
    assert not any(is_alive(pid) for pid in pids(tmp_path))


async def test_nothing_is_left_after_a_cancel(tmp_path: Path) -> None:
    """When the cancel has been answered, everything is gone already."""
    task = asyncio.create_task(run_process(family(tmp_path), cwd=tmp_path))
    await until(lambda: pids(tmp_path), "the family is complete")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(is_alive(pid) for pid in pids(tmp_path))


async def test_nothing_is_left_after_a_timeout(tmp_path: Path) -> None:
    """And the result says that time ran out."""
    done = await run_process(family(tmp_path), cwd=tmp_path, timeout_s=2)
    assert done.timed_out
    assert not any(is_alive(pid) for pid in pids(tmp_path))


async def test_nothing_is_left_when_the_gate_process_is_killed(tmp_path: Path) -> None:
    """The out-of-memory killer picks one process; its family goes too."""
    task = asyncio.create_task(run_process(family(tmp_path), cwd=tmp_path))
    await until(lambda: pids(tmp_path), "the family is complete")
    os.kill(pids(tmp_path)[0], signal.SIGKILL)
    assert (await task).code == 128 + signal.SIGKILL
    assert not any(is_alive(pid) for pid in pids(tmp_path))


@pytest.mark.parametrize("victim", ["worker", "guard"])
async def test_nothing_is_left_when_the_worker_or_the_guard_is_killed(tmp_path: Path, victim: str) -> None:
    """SIGKILL runs no cleanup code; the family ends all the same, or, without its guard, at least the gate process."""
    code = (
        "import asyncio, sys; from pathlib import Path; from activities.process import run_process; "
        "asyncio.run(run_process(sys.argv[1:], cwd=Path.cwd()))"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, *family(tmp_path)], cwd=Path(__file__).parents[2])
    try:
        await until(lambda: pids(tmp_path), "the family is complete")
        parent = int(Path(f"/proc/{pids(tmp_path)[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker.pid if victim == "worker" else parent, signal.SIGKILL)
        doomed = pids(tmp_path) if victim == "worker" else pids(tmp_path)[:1]
        await until(lambda: not any(is_alive(pid) for pid in doomed), "they are gone")
    finally:
        for pid in pids(tmp_path):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        worker.kill()
        worker.wait()


async def test_programs_get_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sounds like one is left out of the environment."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "s3cret")
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret")
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    done = await run_process(["env"], cwd=tmp_path)
    assert "s3cret" not in done.tail
    assert "CUDA_HOME=/cuda" in done.tail
    assert "TEMPORAL_API_KEY" not in clean_environment({"TEMPORAL_API_KEY": "s3cret"})
    # It does not sound like one, but is where a key for a proxy goes.
    assert clean_environment({"ANTHROPIC_CUSTOM_HEADERS": "authorization: s3cret", "PATH": "/bin"}) == {"PATH": "/bin"}
