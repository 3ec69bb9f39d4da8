"""The blob store: what comes out is what went in, or an error says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from activities.settings import Settings
from activities.store import Store, digest_of, write_atomically
from specs.errors import StoreError, UserError
from specs.outcomes import BlobRef


def blob_file(folder: Path, ref: BlobRef) -> Path:
    return folder / ref.sha256[:2] / ref.sha256


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


async def test_a_blob_comes_back_by_its_digest(store: Store) -> None:
    """Its reference is its digest and its size."""
    ref = await store.put(b"kernel")
    assert ref == BlobRef(sha256=digest_of(b"kernel"), size=6)
    assert await store.get(ref) == b"kernel"


async def test_putting_twice_is_putting_once(store: Store, tmp_path: Path) -> None:
    """The file of the first time is left alone."""
    ref = await store.put(b"kernel")
    before = blob_file(tmp_path / "store", ref).stat().st_mtime_ns
    assert await store.put(b"kernel") == ref
    assert blob_file(tmp_path / "store", ref).stat().st_mtime_ns == before


async def test_a_damaged_blob_is_never_handed_out_and_the_next_put_mends_it(store: Store, tmp_path: Path) -> None:
    """A power cut may leave a file of the right name and the wrong content."""
    ref = await store.put(b"kernel")
    blob_file(tmp_path / "store", ref).write_bytes(b"kerne\0")
    with pytest.raises(StoreError, match="damaged"):
        await store.get(ref)
    await store.put(b"kernel")
    assert await store.get(ref) == b"kernel"


async def test_a_missing_blob_is_named(store: Store) -> None:
    """And the likeliest reason with it."""
    with pytest.raises(StoreError, match="FERRET_STORE"):
        await store.get(BlobRef(sha256="ab" * 32, size=1))


async def test_fetch_replaces_a_file_of_other_content(store: Store, tmp_path: Path) -> None:
    """A sound one is kept."""
    ref = await store.put(b"kernel")
    path = tmp_path / "here" / "kernel.so"
    await store.fetch(ref, path)
    path.write_bytes(b"tampered")
    assert (await store.fetch(ref, path)).read_bytes() == b"kernel"


def test_the_blocking_twins_share_the_store(store: Store) -> None:
    """For code without an event loop."""
    assert store.get_now(store.put_now(b"kernel")) == b"kernel"


async def test_a_refused_write_is_a_store_error(store: Store, tmp_path: Path) -> None:
    """Here a file stands where the folder should be."""
    digest = digest_of(b"kernel")
    (tmp_path / "store" / digest[:2]).write_text("in the way")
    with pytest.raises(StoreError, match="cannot write blob"):
        await store.put(b"kernel")


FULL = """
import asyncio, sys
from activities.store import Store, write_atomically
from pathlib import Path
from specs.errors import StoreError
store = Store.open(Path(sys.argv[1]).as_uri())
async def main():
    small = await store.put(b"small")
    file, large = Path(sys.argv[1]) / "f", b"x" * 10**6
    for attempt in (lambda: store.put(large), lambda: asyncio.to_thread(write_atomically, file, large)):
        try:
            await attempt()
        except StoreError as error:
            print(error)
    assert await store.get(small) == b"small"
    print("left:", sorted(path.name for path in Path(sys.argv[1]).rglob("*") if path.is_file()) == [small.sha256])
asyncio.run(main())
"""


def test_a_full_disk_is_one_clear_message_and_nothing_is_lost(tmp_path: Path) -> None:
    """On a real file system of 128 kB; what was stored before is still there, and no half file is left."""
    small = tmp_path / "small"
    small.mkdir()
    bwrap = ["bwrap", "--dev-bind", "/", "/", "--size", "131072", "--tmpfs", str(small)]
    try:
        subprocess.run([*bwrap, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("bubblewrap cannot make a small file system here")
    done = subprocess.run(
        [*bwrap, sys.executable, "-c", FULL, str(small)],
        cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True,
    )  # fmt: skip
    first, second, left = done.stdout.splitlines()
    assert first.startswith("cannot write blob")
    assert "No space left on device" in first
    assert "No space left on device" in second
    assert left == "left: True"


@pytest.mark.parametrize("url", ["nosuch://x", "relative/folder", "file:///dev/null/store"])
def test_an_address_of_no_store_is_the_users_mistake(url: str) -> None:
    """What was given and what is accepted."""
    with pytest.raises(UserError, match="accepted: file:///folder, s3://") as caught:
        Store.open(url)
    assert url in str(caught.value)


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    """Here the name is taken by a folder."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreError):
        write_atomically(tmp_path / "taken", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_store_in_a_home_that_cannot_be_made_names_home(tmp_path: Path) -> None:
    """Nobody set FERRET_STORE, so nobody is told to mend it."""
    (tmp_path / "file").touch()
    settings = Settings.from_env({"FERRET_HOME": str(tmp_path / "file" / "home")})
    with pytest.raises(UserError, match=r"^FERRET_HOME is "):
        Store.of(settings)
