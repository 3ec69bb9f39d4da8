"""The consumer's own acceptance command: what it may print, and what counts as a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.accept import run_command
from activities.bundle import Bundle, pack, unpack
from activities.store import Store
from tests.fakes import is_alive, write_task


async def bundle_with(tmp_path: Path, script: str) -> Bundle:
    (tmp_path / "task").mkdir()
    file = tmp_path / "task" / "accept.sh"
    file.write_text("#!/bin/sh\n" + script)
    file.chmod(0o755)
    loaded = write_task(tmp_path / "task", ["// one"], acceptance={"command": ["./accept.sh"]})
    store = Store.open((tmp_path / "store").as_uri())
    return await unpack(await pack(loaded, store), store, tmp_path / "bundles")


def kernel_file(tmp_path: Path) -> Path:
    (tmp_path / "kernel.cpp").write_text("// champion")
    return tmp_path / "kernel.cpp"


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("""echo building; echo 'ACCEPT_RESULT {"accepted": true, "reason": "links"}'""", "passed", "accept.sh: links"),
        ("""grep -q champion "$1" && echo 'ACCEPT_RESULT {"accepted": true}'""", "passed", "accepted by accept.sh"),
        ("""echo 'ACCEPT_RESULT {"accepted": false, "reason": "too big"}'""", "failed", "refused: too big"),
        ("echo fine", "failed", "printed 0 ACCEPT_RESULT lines; exactly one is accepted"),
        (
            """for i in 1 2; do echo 'ACCEPT_RESULT {"accepted": true}'; done""",
            "failed",
            "printed 2 ACCEPT_RESULT lines",
        ),
        ("echo 'ACCEPT_RESULT yes'", "failed", "printed 'ACCEPT_RESULT yes'; accepted:"),
        ("""echo 'ACCEPT_RESULT {"accepted": "perhaps"}'""", "failed", "accepted: ACCEPT_RESULT"),
        ("""echo 'ACCEPT_RESULT {"accepted": true}'; echo broken >&2; exit 3""", "failed", "status 3: broken"),
    ],
)
async def test_what_the_command_prints_decides(tmp_path: Path, script: str, outcome: str, reason: str) -> None:
    """It gets the kernel's path; only one well-formed line and status 0 count as a yes."""
    got, said = await run_command(await bundle_with(tmp_path, script), kernel_file(tmp_path))
    assert (got, reason in said) == (outcome, True), said


async def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Time running out is a refusal with a reason."""
    bundle = await bundle_with(tmp_path, f"setsid sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000")
    got, said = await run_command(bundle, kernel_file(tmp_path), timeout_s=1)
    assert (got, said) == ("failed", "acceptance command accept.sh ran longer than 1 s")
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_without_a_command_there_is_nothing_to_refuse(tmp_path: Path) -> None:
    """The judge's word stands alone."""
    store = Store.open((tmp_path / "store").as_uri())
    bundle = await unpack(await pack(write_task(tmp_path / "task", ["// one"]), store), store, tmp_path / "bundles")
    assert await run_command(bundle, kernel_file(tmp_path)) == ("none", "")
