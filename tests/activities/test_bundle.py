"""A task travels with every file it names, and arrives unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities import bundle
from activities.bundle import pack, unpack
from activities.store import Store
from specs.errors import StoreError, UserError
from tests.fakes import REFERENCE, write_task


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
