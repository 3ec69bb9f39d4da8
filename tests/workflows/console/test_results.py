"""What a person hands in, and what a person takes home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from activities.agents.draft import Draft
from activities.bundle import MAX_SOURCE_BYTES
from activities.store import Store
from specs.errors import StoreError, UserError
from specs.outcomes import BlobRef, Ending, Question, Review
from tests.run_values import make_champion, make_delivery, make_history, make_line, make_plan, make_status
from workflows.console.results import (
    check_language,
    gate_files,
    read_source,
    source_of,
    submission_label,
    write_export,
    write_gate,
)
from workflows.state import Delivery, HistoryLine, Status, WrittenGate


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


async def a_run(store: Store) -> tuple[Status, list[HistoryLine]]:
    """Two iterations, the first the seed and champion, whose sources are in the store."""
    seed, attempt = await store.put(b"// seed\n"), await store.put(b"// attempt\n")
    lines = [
        make_history()[0].model_copy(update={"source": seed}),
        make_line(1, "a001", Ending.SLOWER, "01.cpp", "slower", source=attempt),
    ]
    return make_status(champion=make_champion().model_copy(update={"version": "v001", "source": seed})), lines


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_versions_are_found_by_name() -> None:
    """A version, the best and the seed each name one source."""
    refs = [BlobRef(sha256=digit * 64, size=1) for digit in "0123"]
    lines = [line.model_copy(update={"source": ref}) for line, ref in zip(make_history(), refs, strict=True)]

    assert [source_of(lines, name) for name in ("v001", "a002", "best", "seed")] == [refs[0], refs[2], refs[3], refs[0]]


def test_an_unknown_version_is_answered_with_those_there_are() -> None:
    """A typing error is answered with what can be typed."""
    with pytest.raises(
        UserError, match="no source of 'v009' in this run; accepted: v001, a001, a002, v002, best, seed"
    ):
        source_of(make_history(), "v009")


def test_a_run_without_iterations_has_no_version() -> None:
    """Before the first iteration even `best` names nothing."""
    with pytest.raises(UserError, match="accepted: nothing yet"):
        source_of([], "best")


def test_a_source_is_read_as_it_is(tmp_path: Path) -> None:
    """The bytes that are handed in are the bytes that are judged."""
    path = tmp_path / "kernel.cpp"
    path.write_bytes(b"int x;\r\n")

    assert read_source(path) == b"int x;\r\n"


@pytest.mark.parametrize("content", [b"", b" \n\t", b"\x7fELF\0", b"x" * (MAX_SOURCE_BYTES + 1)])
def test_what_is_no_source_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, binary and huge files are errors that name the file and what is accepted."""
    path = tmp_path / "kernel.cpp"
    path.write_bytes(content)

    with pytest.raises(UserError, match=r"kernel\.cpp .*accepted: "):
        read_source(path)


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    """A folder and a missing file are one clear sentence each."""
    with pytest.raises(UserError, match="is a directory"):
        read_source(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        read_source(tmp_path / "absent.cpp")


def test_a_label_stays_within_what_a_run_takes() -> None:
    """A long file name does not make the run refuse the kernel."""
    assert len(submission_label(Path("n" * 250 + ".cpp")).encode()) <= 200


async def test_an_export_during_a_run_holds_the_best_so_far(tmp_path: Path, store: Store) -> None:
    """Before anything was delivered the champion's source stands in for it."""
    status, lines = await a_run(store)
    said = await write_export(tmp_path / "out", status, lines, store)

    assert files(tmp_path / "out") == {
        "kernel.cpp",
        "history.json",
        "status.json",
        "iterations/v001.cpp",
        "iterations/a001.cpp",
    }
    assert (tmp_path / "out/kernel.cpp").read_bytes() == b"// seed\n"
    assert "the best so far (v001), 2 iterations" in said


async def test_an_export_holds_the_history(tmp_path: Path, store: Store) -> None:
    """The history can be read by any other program."""
    status, lines = await a_run(store)
    await write_export(tmp_path / "out", status, lines, store)

    read = json.loads((tmp_path / "out/history.json").read_text())
    assert [HistoryLine.model_validate(line) for line in read] == lines


async def test_an_export_of_an_ended_run_holds_what_was_delivered(tmp_path: Path, store: Store) -> None:
    """Delivered files come from the store, so any machine can fetch them."""
    status, lines = await a_run(store)
    delivered = {"kernel.cpp": await store.put(b"// final\n"), "result.json": await store.put(b"{}")}
    status.delivery = make_delivery().model_copy(update={"files": delivered})
    await write_export(tmp_path / "out", status, lines, store)

    assert (tmp_path / "out/kernel.cpp").read_bytes() == b"// final\n"
    assert (tmp_path / "out/result.json").read_bytes() == b"{}"


async def test_an_export_can_be_repeated(tmp_path: Path, store: Store) -> None:
    """A second export of a run that went on replaces the first."""
    status, lines = await a_run(store)
    await write_export(tmp_path / "out", status, lines[:1], store)
    await write_export(tmp_path / "out", status, lines, store)

    assert "iterations/a001.cpp" in files(tmp_path / "out")


async def test_an_export_never_mixes_with_other_files(tmp_path: Path, store: Store) -> None:
    """A folder that holds something else is refused and left as it was."""
    status, lines = await a_run(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kernel.cpp").write_text("my own")

    with pytest.raises(UserError, match="neither empty nor an earlier export"):
        await write_export(tmp_path / "mine", status, lines, store)
    assert files(tmp_path / "mine") == {"kernel.cpp"}
    assert (tmp_path / "mine/kernel.cpp").read_text() == "my own"


async def test_an_export_never_mixes_two_runs(tmp_path: Path, store: Store) -> None:
    """Another run's export is refused, named, and left as it was."""
    status, lines = await a_run(store)
    await write_export(tmp_path / "out", status, lines, store)
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")}
    other = status.model_copy(update={"run_id": "another"})

    with pytest.raises(UserError, match=f"out holds run {status.run_id}; choose another folder"):
        await write_export(tmp_path / "out", other, lines[:1], store)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")} == before


def test_a_submission_is_in_the_language_of_the_run() -> None:
    """By its name: the compiler would say it less well."""
    check_language(Path("own.cpp"), make_status())
    for name in ("own.cu", "own.txt", "own"):
        with pytest.raises(UserError, match=rf"{name} is no cpp source by its name; accepted: a file ending in \.cpp"):
            check_language(Path(name), make_status())


async def test_a_missing_blob_leaves_no_half_of_an_export(tmp_path: Path, store: Store) -> None:
    """When one source cannot be fetched, nothing is written."""
    status, lines = await a_run(store)
    lost = make_line(2, "a002", Ending.SLOWER, "02.cpp", "slower", source=BlobRef(sha256="d" * 64, size=3))

    with pytest.raises(StoreError, match="is not in"):
        await write_export(tmp_path / "out", status, [*lines, lost], store)
    assert not (tmp_path / "out").exists()


async def test_a_delivered_name_cannot_leave_the_folder(tmp_path: Path, store: Store) -> None:
    """A file name with a way out of the folder is refused."""
    status, lines = await a_run(store)
    blob = await store.put(b"x")
    status.delivery = make_delivery().model_copy(update={"files": {"../escaped": blob}})

    with pytest.raises(StoreError, match="outside of the folder"):
        await write_export(tmp_path / "out", status, lines, store)
    assert not (tmp_path / "escaped").exists()


def test_a_source_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A kernel goes into a report and a prompt; the first bad byte is named."""
    path = tmp_path / "own.cpp"
    path.write_bytes(b"int x; // \xff\n")
    with pytest.raises(UserError, match=r"own.cpp is no source \(byte 10 is not UTF-8\); accepted: text in UTF-8"):
        read_source(path)


async def test_an_export_without_a_kernel_says_so(store: Store, tmp_path: Path) -> None:
    """A report is delivered for a run that was cancelled early, too."""
    report = await store.put(b"report")
    status = make_status(champion=None).model_copy(
        update={"delivery": Delivery(folder="/x", files={"report.html": report}, record="/y"), "champion": None}
    )
    said = await write_export(tmp_path / "out", status, [], store)
    assert said == f"{tmp_path / 'out'}: no kernel, only the result and the report, 0 iterations"


async def test_a_written_gate_can_be_read_and_taken_home(tmp_path: Path, store: Store) -> None:
    """Before a person approves it; never over something else."""
    draft = Draft(files={"reference.py": await store.put(b"# maths"), "gate.yaml": await store.put(b"contract: c")})
    review = Review(question=Question.GATE, approved=True, summary="says what its source says")
    gate = await store.put(draft.model_dump_json().encode())
    status = make_status(written_gate=WrittenGate(bundle=gate, gate=gate, review=review, rounds=1))
    read = await gate_files(status, store)

    assert read == {"gate.yaml": b"contract: c", "reference.py": b"# maths"}
    assert write_gate(tmp_path / "out", read) == f"written to {tmp_path / 'out'}: gate.yaml, reference.py"
    assert files(tmp_path / "out") == {"gate.yaml", "reference.py"}
    with pytest.raises(UserError, match="out is there already; accepted: a new folder"):
        write_gate(tmp_path / "out", read)


async def test_a_gate_that_a_task_brings_was_not_written(store: Store) -> None:
    """The message says so, and says something else while one is still being written."""
    with pytest.raises(UserError, match=r"has written no gate \(its task brings one\)"):
        await gate_files(make_status(), store)
    unwritten = make_status(plan=make_plan(gated=False))
    with pytest.raises(UserError, match=r"has written no gate \(none is written yet\)"):
        await gate_files(unwritten, store)
