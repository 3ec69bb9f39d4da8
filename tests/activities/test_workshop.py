"""What a build made, brought in from the store under a name that tells what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle import Bundle, pack
from activities.lock_gate import GateLocking, LockGateInput
from activities.measure import measure_library
from activities.measure_baseline import BaselineMeasuring, MeasureBaselineInput
from activities.workshop import Workshop
from specs.schema import Language
from tests.fakes import FakeHarness, kernel, settings_at, write_task
from tests.kernels.harness.triton_kernels import needs_triton

COPY = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N), mask=at < N)


def copy(x, y, N):
    kernel[(triton.cdiv(N, 32),)](x, y, N, BLOCK=32)
"""


async def written(workshop: Workshop, folder: Path, baseline: str, text: str, **overrides: Any) -> tuple[Any, Bundle]:
    folder.mkdir(parents=True)
    (folder / baseline).write_text(text)
    more = {"gpu": "H200", "baseline": {"source": "somebody's", "program": baseline}, **overrides}
    if more["language"] == "triton":
        (folder / "script").mkdir()
        (folder / "script" / "00.py").write_text("# one")
    bundle = await pack(write_task(folder, ["// one"], **more), workshop.store)
    return bundle, await workshop.bundle(bundle)


@pytest.mark.parametrize(
    ("language", "baseline", "suffix"),
    [("cuda", "baseline.py", ".py"), ("cuda", "baseline.cu", ".so"), ("triton", "baseline.cu", ".so")],
)
async def test_a_python_baseline_is_told_from_a_shared_object(
    tmp_path: Path, language: str, baseline: str, suffix: str
) -> None:
    """In every request: the harness goes by the suffix, and the store keeps no names."""
    fake = FakeHarness(tmp_path / "control")
    workshop = Workshop(settings_at(tmp_path / "home"), harness=fake.command)
    ref, bundle = await written(workshop, tmp_path / "task", baseline, "# baseline", language=language)
    lock = (await ActivityEnvironment().run(GateLocking(workshop).lock_gate, LockGateInput(bundle=ref))).lock
    given = MeasureBaselineInput(bundle=ref, lock=lock, sandbox="off")
    measured = await ActivityEnvironment().run(BaselineMeasuring(workshop).measure_baseline, given)
    candidate = await workshop.store.put(kernel("ratio 1.5").encode())
    await measure_library(workshop, bundle, lock, "off", measured.library, candidate, candidate)
    judged, alone, beside = (entry["request"] for entry in fake.log() if entry["kind"] in ("judge", "measure"))
    assert [Path(path).suffix for path in (judged["library"], alone["baseline"], beside["baseline"])] == [suffix] * 3
    other = ".py" if language == "triton" else ".so"
    assert [Path(beside[name]).suffix for name in ("candidate", "champion")] == [other] * 2


async def test_one_content_can_be_of_two_languages(tmp_path: Path) -> None:
    """Each under a name of its own."""
    workshop = Workshop(settings_at(tmp_path))
    ref = await workshop.store.put(b"anything")
    places = {language: await workshop.library(ref, language) for language in Language}
    assert {language.value: place.suffix for language, place in places.items()} == {
        "cpp": ".so", "cuda": ".so", "triton": ".py",
    }  # fmt: skip
    assert {place.read_bytes() for place in places.values()} == {b"anything"}


@needs_triton
async def test_a_python_baseline_goes_through_the_real_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built, stored, fetched and judged; without a GPU all that is left to refuse is its time, in one line."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))
    workshop = Workshop(settings_at(tmp_path / "home"))
    ref, _ = await written(workshop, tmp_path / "task", "baseline.py", COPY, language="triton")
    lock = (await ActivityEnvironment().run(GateLocking(workshop).lock_gate, LockGateInput(bundle=ref))).lock
    given = MeasureBaselineInput(bundle=ref, lock=lock, sandbox="off")
    with pytest.raises(Exception, match=r"^UserError: Triton kernels are timed on a GPU; this machine has none"):
        await ActivityEnvironment().run(BaselineMeasuring(workshop).measure_baseline, given)
