"""A desk with real parts: a task that copies a vector, its gate, a compiled baseline, and a kernel to work on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from activities.agents.session import Session
from activities.agents.tools.tool import Desk
from activities.build import build_baseline, compile_source
from activities.bundle import pack
from activities.harness import Harness, Refused, ResultT
from activities.workshop import Workshop
from kernels.harness import gate, requests
from kernels.harness.serve import answer
from specs.dialogue import Mode, Role, Workspace
from specs.history import Champion
from specs.outcomes import Stage
from tests.fakes import settings_at, write_task

HEAD = '#include <cstdint>\nextern "C" void copy(const float* x, float* y, int32_t N) {\n'
COPY = HEAD + "    for (int32_t i = 0; i < N; ++i) y[i] = x[i];\n}\n"
SLOW = HEAD + (
    "    volatile float sink = 0;\n    for (int k = 0; k < 20000; ++k) sink = sink + x[k % N];\n"
    "    for (int32_t i = 0; i < N; ++i) y[i] = x[i];\n}\n"
)
HALVES = HEAD + "    for (int32_t i = 0; i < N; ++i) y[i] = x[i] * 0.5f;\n}\n"
TYPO = HEAD + "    for (int32_t i = 0; i < N; ++i) y[i] = x[j];\n}\n"
VENDOR = COPY.replace("<cstdint>", "<cstdint>\n#include <cblas.h>")


class InThisProcess(Harness):
    """The real harness without a process for every question: starting one takes longer than most answers."""

    async def ask(self, request: requests.Request, expected: type[ResultT], folder: Path) -> ResultT:
        reply = answer(requests_of_file(request))
        if reply.refusal is not None:
            raise Refused(reply.refusal)
        assert isinstance(reply.result, expected)
        return reply.result


def requests_of_file(request: requests.Request) -> requests.Request:
    """As it comes out of a request's file."""
    return type(request).model_validate_json(request.model_dump_json())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One desk for all of these tests: runner, clock, baseline and honest kernels are compiled once."""
    folder = tmp_path_factory.mktemp("desk")
    settings = settings_at(folder / "home")
    workshop = Workshop(settings)
    workshop.harness = InThisProcess(settings)
    loaded = write_task(folder / "task", [COPY], build={"flags": ["-std=c++17", "-O2"]})
    (folder / "task" / "baseline.cpp").write_text(COPY)
    ref = await pack(loaded, workshop.store)
    bundle = await workshop.bundle(ref)
    with workshop.harness.folder() as work:
        baseline = await build_baseline(workshop, bundle, work)
    session = Session(
        run="run", place="iter-001/optimizer/0", role=Role.OPTIMIZER, mode=Mode.IMPROVE, stage=Stage.OPTIMIZE,
        language=bundle.task.language, model=bundle.task.model, system="", tools=(), bundle=ref, sandbox="off",
        lock=gate.lock(bundle.task, bundle.gate), baseline_library=baseline,
    )  # fmt: skip
    return Desk(workshop, session, bundle, Workspace())


@pytest.fixture
def desk(bench: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Its workspace holds no kernel yet; the device lock is the test's own."""
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))
    return bench


async def working_on(desk: Desk, source: str) -> Desk:
    return replace(desk, workspace=Workspace(kernel=await desk.workshop.store.put(source.encode())))


def in_session(desk: Desk, **changes: Any) -> Desk:
    return replace(desk, session=desk.session.model_copy(update=changes))


async def with_champion(desk: Desk, source: str) -> Desk:
    """The same desk in a run whose champion is `source`."""
    ref = await desk.workshop.store.put(source.encode())
    with desk.workshop.harness.folder() as folder:
        path = await desk.workshop.store.fetch(ref, folder / "kernel.cpp")
        library = (await compile_source(desk.workshop, desk.bundle.task, path, folder)).library
    assert library is not None
    champion = Champion(version="v001", index=1, source=ref, library=library, score=1.0, ratios={})
    return in_session(desk, champion=champion)
