"""A gate is written, tried with wrong answers and with the vendor's baseline, and only then handed in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from activities.agents.tools.gate_drafting import (
    AdmitGate,
    ReadGateFile,
    ReadGateFileArguments,
    SubmitGate,
    SubmitGateArguments,
    WriteGateFile,
    WriteGateFileArguments,
    draft_of,
)
from activities.agents.tools.tool import Answer, Desk, NoArguments
from activities.bundle import with_gate
from specs.dialogue import GateHandedIn, Role
from tests.desks import desk_at
from tests.fakes import GATE, REFERENCE

COPY = """
#include <cstdint>
extern "C" void copy(const float* x, float* y, int32_t n) {
    for (int32_t i = 0; i < n; ++i) y[i] = x[i] * 1.0f;
}
"""


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))


async def desk_of(tmp_path: Path, baseline: str = COPY) -> Desk:
    return await desk_at(
        tmp_path,
        role=Role.GATE_WRITER,
        task={"gate": None, "canonical": ["canon.py"]},
        files={"canon.py": "y = x", "baseline.cpp": baseline},
    )


async def written(desk: Desk, name: str, content: str) -> tuple[Desk, Answer]:
    given = WriteGateFileArguments.model_validate({"name": name, "content": content})
    answer = await WriteGateFile().use(desk, given)
    return (replace(desk, workspace=answer.workspace) if answer.workspace else desk), answer


async def drafted(desk: Desk, gate_yaml: str = GATE, reference: str = REFERENCE) -> Desk:
    desk, _ = await written(desk, "gate.yaml", gate_yaml)
    return (await written(desk, "reference.py", reference))[0]


async def test_a_draft_keeps_what_was_written(tmp_path: Path) -> None:
    """The last word on each file."""
    desk = await drafted(await desk_of(tmp_path))
    desk, answer = await written(desk, "gate.yaml", GATE + "# more\n")
    assert "gate.yaml, reference.py" in answer.text
    read = await ReadGateFile().use(desk, ReadGateFileArguments(name="gate.yaml"))
    assert read.text == GATE + "# more\n"


async def test_what_was_not_written_cannot_be_read(tmp_path: Path) -> None:
    """And the answer says what there is."""
    answer = await ReadGateFile().use(await desk_of(tmp_path), ReadGateFileArguments(name="reference.py"))
    assert (answer.error, answer.text) == (True, "reference.py is not written; the draft has: nothing yet")


@pytest.mark.parametrize("bad", ["import os\n" + REFERENCE, "def reference(:"])
async def test_a_reference_that_reaches_out_is_not_written(tmp_path: Path, bad: str) -> None:
    """The draft stays as it was; the answer has the line."""
    desk, answer = await written(await desk_of(tmp_path), "reference.py", bad)
    assert answer.error
    assert "line 1" in answer.text
    assert (await draft_of(desk)).files == {}


async def test_a_sound_draft_is_admitted_and_can_be_handed_in_as_it_was(tmp_path: Path) -> None:
    """Real mutants, real g++, real baseline; one that was changed since has to be admitted anew."""
    desk = await drafted(await desk_of(tmp_path))
    admitted = await AdmitGate().use(desk, NoArguments())
    assert not admitted.error, admitted.text
    assert admitted.workspace is not None
    desk = replace(desk, workspace=admitted.workspace)
    handed = await SubmitGate().use(desk, SubmitGateArguments(summary="copies"))
    assert handed.final == GateHandedIn(gate=desk.workspace.gate)
    desk, _ = await written(desk, "gate.yaml", GATE + "# later\n")
    late = await SubmitGate().use(desk, SubmitGateArguments(summary="copies"))
    assert (late.error, late.final) == (True, None)


async def test_a_weak_draft_is_refused_with_the_names_of_the_mutants(tmp_path: Path) -> None:
    """In words that the writer can act on; it cannot be handed in."""
    desk = await drafted(await desk_of(tmp_path), GATE.replace("elementwise: 1.0e-6", "cosine: 0.9"))
    answer = await AdmitGate().use(desk, NoArguments())
    assert answer.error
    assert "scaled(y)" in answer.text
    assert (await SubmitGate().use(desk, SubmitGateArguments(summary="copies"))).error


async def test_a_draft_that_the_baseline_fails_is_refused(tmp_path: Path) -> None:
    """Either the gate or the vendor is wrong about the maths, and the vendor is not."""
    desk = await drafted(await desk_of(tmp_path, COPY.replace("1.0f", "2.0f")))
    answer = await AdmitGate().use(desk, NoArguments())
    assert answer.error
    assert "baseline fails it: wrong in case" in answer.text


async def test_a_reference_that_breaks_is_told_as_it_is(tmp_path: Path) -> None:
    """A draft's own exception is its author's to mend, and no failure of a machine."""
    broken = REFERENCE.replace('return {"y"', 'return {"z"')
    answer = await AdmitGate().use(await drafted(await desk_of(tmp_path), reference=broken), NoArguments())
    assert answer.error
    assert "'y'" in answer.text or "y" in answer.text


async def test_half_a_draft_is_not_tried(tmp_path: Path) -> None:
    """Both files are needed."""
    desk, _ = await written(await desk_of(tmp_path), "gate.yaml", GATE)
    assert (await AdmitGate().use(desk, NoArguments())).error


async def test_the_task_with_its_written_gate_is_one_as_any_other(tmp_path: Path) -> None:
    """Laid out, the files lie where an author would have put them."""
    desk = await drafted(await desk_of(tmp_path))
    draft, store = await draft_of(desk), desk.workshop.store
    bundle = await desk.workshop.bundle(await with_gate(desk.session.bundle, draft.files, store))
    assert (bundle.gate / "reference.py").read_text() == REFERENCE
