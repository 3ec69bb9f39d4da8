"""Claims: runs spread over a machine's devices, and keep the one they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.devices import Claims, LocalDevice, detect
from tests.fakes import settings_at

TWO = tuple(LocalDevice(kind="h200", queue=f"ferret-host-gpu{n}", description="") for n in range(2))


def test_this_machine_offers_its_processor() -> None:
    """On queues named as the tasks and the design name them."""
    (device,) = detect()
    assert (device.kind, device.plan_queue) == ("cpu", "ferret-cpu")
    assert device.queue.startswith("ferret-")
    assert device.queue.endswith("-cpu")


def test_runs_spread_over_the_devices(tmp_path: Path) -> None:
    """The least claimed one is next."""
    claims = Claims(settings_at(tmp_path), TWO)
    assert {claims.claim(run, "h200").queue for run in ("a", "b")} == {device.queue for device in TWO}


def test_a_retry_gets_the_same_device(tmp_path: Path) -> None:
    """Even from another worker process of the same home."""
    first = Claims(settings_at(tmp_path), TWO).claim("a", "h200")
    Claims(settings_at(tmp_path), TWO).claim("b", "h200")
    assert Claims(settings_at(tmp_path), TWO).claim("a", "h200") == first


def test_a_silent_device_is_left_for_another(tmp_path: Path) -> None:
    """Unless there is no other: it may have come back."""
    claims = Claims(settings_at(tmp_path), TWO)
    first = claims.claim("a", "h200")
    assert claims.claim("a", "h200", avoid=first.queue) != first
    only = Claims(settings_at(tmp_path / "one"), TWO[:1])
    assert only.claim("a", "h200", avoid=TWO[0].queue) == TWO[0]


def test_a_released_device_is_free_again(tmp_path: Path) -> None:
    """Releasing twice does no harm."""
    claims = Claims(settings_at(tmp_path), TWO)
    first = claims.claim("a", "h200")
    claims.release("a", first.queue)
    claims.release("a", first.queue)
    assert claims.claim("b", "h200") == first


def test_a_kind_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    """A run for another device must not get this one."""
    with pytest.raises(LookupError):
        Claims(settings_at(tmp_path), TWO).claim("a", "b200")
