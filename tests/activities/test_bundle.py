"""A task travels with every file it names, and arrives unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities import bundle
from activities.bundle import pack, unpack, with_gate
from activities.store import Store
from specs.errors import StoreError, UserError
from tests.fakes import GATE, REFERENCE, write_task


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


async def test_every_file_the_task_names_arrives(tmp_path: Path, store: Store) -> None:
    """The gate, the baseline, the seed and the script in playing order, under paths of the machine it arrives at."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "start.cpp").write_text("// seed")
    loaded = write_task(tmp_path / "task", ["// one", "// two"], seed="start.cpp")
    (tmp_path / "task" / "script" / "README.md").write_text("no candidate")
    unpacked = await unpack(await pack(loaded, store), store, tmp_path / "bundles")
    assert (unpacked.gate / "reference.py").read_text() == REFERENCE
    assert unpacked.baseline.read_text() == "// baseline\n"
    assert unpacked.seed.read_text() == "// seed"
    assert [path.read_text() for path in unpacked.script()] == ["// one", "// two"]
    assert unpacked.digest == loaded.digest
    assert unpacked.task.configs == loaded.task.configs


async def test_the_same_files_make_the_same_bundle(tmp_path: Path, store: Store) -> None:
    """Wherever they lie."""
    one = await pack(write_task(tmp_path / "a", ["// one"]), store)
    assert await pack(write_task(tmp_path / "b", ["// one"]), store) == one
    assert await pack(write_task(tmp_path / "c", ["// two"]), store) != one


async def test_a_bundle_that_is_there_is_used_again(tmp_path: Path, store: Store) -> None:
    """Nothing is written twice, and nothing half-written is left."""
    ref = await pack(write_task(tmp_path / "task", ["// one"]), store)
    first = await unpack(ref, store, tmp_path / "bundles")
    before = first.root.stat().st_mtime_ns
    assert (await unpack(ref, store, tmp_path / "bundles")).root.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == [ref.sha256]


async def test_an_acceptance_script_keeps_its_permission_to_run(tmp_path: Path, store: Store) -> None:
    """Words of the command that are files beside the task travel; the others stay as they are."""
    (tmp_path / "task").mkdir()
    script = tmp_path / "task" / "accept.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    loaded = write_task(tmp_path / "task", ["// one"], acceptance={"command": ["./accept.sh", "--fast"]})
    unpacked = await unpack(await pack(loaded, store), store, tmp_path / "bundles")
    assert unpacked.task.acceptance is not None
    command, option = unpacked.task.acceptance.command
    assert Path(command).stat().st_mode & 0o111
    assert Path(command).is_relative_to(unpacked.root)
    assert option == "--fast"


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("gate", "no-gate", "gate: .*no-gate does not exist; accepted: a folder"),
        ("gate", "baseline.cpp", "gate: .*baseline.cpp is a file; accepted: a folder"),
        ("seed", "script", "seed: .*script is a folder; accepted: a file"),
        ("baseline", {"source": "x", "program": "none.cpp"}, "baseline.program: .*none.cpp does not exist"),
    ],
)
async def test_a_file_that_is_missing_is_named(
    tmp_path: Path, store: Store, field: str, given: object, message: str
) -> None:
    """With the field that names it and what is accepted."""
    loaded = write_task(tmp_path / "task", ["// one"], **{field: given})
    with pytest.raises(UserError, match=message):
        await pack(loaded, store)


async def test_a_source_that_is_too_large_is_refused_before_anything_runs(tmp_path: Path, store: Store) -> None:
    """With its size and the limit."""
    loaded = write_task(tmp_path / "task", ["x" * (bundle.MAX_SOURCE_BYTES + 1)])
    with pytest.raises(UserError, match=f"has {bundle.MAX_SOURCE_BYTES + 1} bytes; at most {bundle.MAX_SOURCE_BYTES}"):
        await pack(loaded, store)


async def test_too_many_files_are_refused(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder given by mistake must not be uploaded whole."""
    monkeypatch.setattr(bundle, "MAX_FILES", 3)
    with pytest.raises(UserError, match="more than 3 files"):
        await pack(write_task(tmp_path / "task", ["// one", "// two"]), store)


async def test_too_many_bytes_are_refused(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, even when each file is small."""
    monkeypatch.setattr(bundle, "MAX_TOTAL_BYTES", 20)
    with pytest.raises(UserError, match="more than 20 bytes together"):
        await pack(write_task(tmp_path / "task", ["// one", "// two"]), store)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "gate/../../x"])
async def test_a_bundle_cannot_write_outside_its_folder(tmp_path: Path, store: Store, name: str) -> None:
    """Whoever can write to the store must not thereby write to a worker's disk."""
    ref = await pack(write_task(tmp_path / "task", ["// one"]), store)
    manifest = bundle.Manifest.model_validate_json(await store.get(ref))
    evil = manifest.model_copy(update={"files": {name: manifest.files["gate/gate.yaml"]}})
    with pytest.raises(StoreError, match="outside"):
        await unpack(await store.put(evil.model_dump_json().encode()), store, tmp_path / "bundles")


async def test_references_travel_under_the_names_of_the_task(tmp_path: Path, store: Store) -> None:
    """A file and a folder's text; what is not there is missing, and named as such."""
    folder = tmp_path / "task"
    (folder / "papers").mkdir(parents=True)
    (folder / "notes.md").write_text("read me")
    (folder / "papers" / "tiling.md").write_text("tiles")
    (folder / "papers" / "figure.png").write_bytes(b"\x89PNG\0")
    vendored = tmp_path / "resources" / "cutlass"
    vendored.mkdir(parents=True)
    (vendored / "main.cu").write_text("// fmha")
    named = ["notes.md", "papers/", "resources/cutlass    # the baseline", "resources/absent", "notes.md"]
    loaded = write_task(folder, ["// one"], references=named)
    unpacked = await unpack(await pack(loaded, store, tmp_path), store, tmp_path / "bundles")
    assert list(unpacked.references) == ["notes.md", "papers/", "resources/cutlass"]
    assert unpacked.references["notes.md"].read_text() == "read me"
    assert [path.name for path in unpacked.references["papers/"].iterdir()] == ["tiling.md"]
    assert (unpacked.references["resources/cutlass"] / "main.cu").read_text() == "// fmha"
    assert all(path.is_relative_to(unpacked.root) for path in unpacked.references.values())
    assert unpacked.lost_references == ("resources/absent",)


async def test_a_reference_never_brings_the_gate_along(tmp_path: Path, store: Store) -> None:
    """A task that names its own folder shows neither cases nor reference to the optimiser."""
    loaded = write_task(tmp_path / "task", ["// one"], references=["."])
    unpacked = await unpack(await pack(loaded, store, tmp_path), store, tmp_path / "bundles")
    shown = {path.name for path in unpacked.references["."].rglob("*") if path.is_file()}
    assert shown == {"baseline.cpp", "task.yaml", "00.cpp"}


async def test_canonical_sources_and_the_recording_travel(tmp_path: Path, store: Store) -> None:
    """What a gate is written from, and what a run is replayed from."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "model.py").write_text("y = x")
    (folder / "run.jsonl").write_text("{}")
    model = {"provider": "replay", "recording": "run.jsonl"}
    loaded = write_task(folder, ["// one"], gate=None, canonical=["model.py"], model=model)
    unpacked = await unpack(await pack(loaded, store, tmp_path), store, tmp_path / "bundles")
    assert unpacked.canonical["model.py"].read_text() == "y = x"
    assert unpacked.recording.read_text() == "{}"


async def test_a_canonical_source_that_is_missing_is_named(tmp_path: Path, store: Store) -> None:
    """A gate must not be written from nothing."""
    loaded = write_task(tmp_path / "task", ["// one"], canonical=["absent.py"])
    with pytest.raises(UserError, match=r"canonical: 'absent.py' does not exist; accepted: a file in"):
        await pack(loaded, store, tmp_path)


async def test_a_written_gate_takes_the_place_of_the_old_one(tmp_path: Path, store: Store) -> None:
    """Only the gate changes; the same files give the same bundle."""
    ref = await pack(write_task(tmp_path / "task", ["// one"]), store)
    files = {"gate.yaml": await store.put(GATE.encode()), "reference.py": await store.put(b"# another")}
    changed = await with_gate(ref, files, store)
    old, new = [await unpack(one, store, tmp_path / "bundles") for one in (ref, changed)]
    assert {path.name for path in new.gate.iterdir()} == {"gate.yaml", "reference.py"}
    assert (new.gate / "reference.py").read_text() == "# another"
    assert new.baseline.read_text() == old.baseline.read_text()
    assert new.digest == old.digest
    assert await with_gate(ref, files, store) == changed


async def test_a_task_without_a_gate_can_be_given_one(tmp_path: Path, store: Store) -> None:
    """Which may not lie outside of its folder."""
    ref = await pack(write_task(tmp_path / "task", ["// one"], gate=None), store)
    blob = await store.put(b"x")
    given = await unpack(await with_gate(ref, {"gate.yaml": blob}, store), store, tmp_path / "bundles")
    assert (given.gate / "gate.yaml").read_text() == "x"
    with pytest.raises(StoreError, match="outside"):
        await with_gate(ref, {"../seed.cpp": blob}, store)


@pytest.mark.parametrize("field", ["seed", "recording", "program"])
@pytest.mark.parametrize("place", ["home/.ssh/id_ed25519", "home/.env", "link.cpp", "/proc/self/environ"])
async def test_a_task_cannot_name_what_is_hidden(tmp_path: Path, store: Store, field: str, place: str) -> None:
    """Strangers write tasks, and models and the store get what they name: a private key, a process's environment."""
    task = tmp_path / "work" / "task"
    task.mkdir(parents=True)
    (tmp_path / "work" / "home" / ".ssh").mkdir(parents=True)
    for name in (".ssh/id_ed25519", ".env"):
        (tmp_path / "work" / "home" / name).write_text("secret")
    (tmp_path / "work" / "link.cpp").symlink_to("home/.env")
    named = place if place.startswith("/") else f"../{place}"
    fields: dict[str, dict[str, Any]] = {
        "seed": {"seed": named},
        "recording": {"model": {"provider": "replay", "recording": named}},
        "program": {"baseline": {"source": "b", "program": named}},
    }
    with pytest.raises(UserError, match="is hidden or on no disk"):
        await pack(write_task(task, ["// one"], **fields[field]), store)


async def test_a_script_leads_to_nothing_that_is_hidden(tmp_path: Path, store: Store) -> None:
    """A link in it is followed; a hidden file of its own is the author's."""
    loaded = write_task(tmp_path / "task", ["// one"])
    (tmp_path / "task" / "script" / ".note").write_text("mine")
    await pack(loaded, store)
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "task" / "script" / "two.cpp").symlink_to(tmp_path / ".env")
    with pytest.raises(UserError, match="is hidden or on no disk"):
        await pack(loaded, store)
