"""References are found where they may lie, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs import references
from specs.errors import UserError
from specs.loader import load_task
from specs.references import gather, name_of, resolve, source_of
from tests.specs.conftest import SMALL


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a vendored source, a task in its tasks/ folder, and a secret on either side of its wall."""
    root = tmp_path / "repository"
    for name in (
        "tasks/notes.md",
        "docs/roofline.md",
        "resources/cutlass/examples/77/main.cu",
        "resources/cutlass/examples/77/sub/detail.cuh",
        ".git/config",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.mark.parametrize(
    ("entry", "found", "source"),
    [
        ("notes.md", "tasks/notes.md", "task folder"),
        ("./notes.md   # the author's own", "tasks/notes.md", "task folder"),
        ("../docs/roofline.md", "docs/roofline.md", "repository"),
        ("resources/cutlass/examples/77/", "resources/cutlass/examples/77", "cutlass"),
        ("resources/cutlass/examples/77/main.cu     # FMHA", "resources/cutlass/examples/77/main.cu", "cutlass"),
        ("cutlass/examples/77", "resources/cutlass/examples/77", "cutlass"),
    ],
)
def test_a_reference_is_found(root: Path, entry: str, found: str, source: str) -> None:
    """From the task's folder, else among the vendored sources; comments and last slashes are no part of a name."""
    path = resolve(entry, root / "tasks", root)
    assert path == root / found
    assert source_of(path, root / "tasks", root) == source


def test_the_tasks_own_file_comes_first(root: Path) -> None:
    """A task that brings its own resources/ means that one."""
    own = root / "tasks" / "resources" / "cutlass"
    own.mkdir(parents=True)
    (own / "mine.cu").touch()
    assert resolve("resources/cutlass", root / "tasks", root) == own


@pytest.mark.parametrize(
    "entry",
    [
        "absent.cu",
        "resources/cutlass/absent",
        "../../secret",
        "resources/../../secret",
        "resources/../docs/roofline.md",
        "../.git/config",
        "resources/cutlass/../../.git/config",
        "linked-secret",
        "linked-folder/secret",
        "/etc/passwd",
        "",
        "# only a comment",
        "a\0b",
        "x" * 5000,
        "resources/never-fetched",
    ],
)
def test_what_lies_elsewhere_is_not_found(root: Path, entry: str) -> None:
    """Neither by `..` nor by a link nor by a full path, and nothing hidden; an empty submodule is not there."""
    (root / "tasks" / "linked-secret").symlink_to(root.parent / "secret")
    (root / "tasks" / "linked-folder").symlink_to(root.parent)
    (root / "resources" / "never-fetched").mkdir()
    assert resolve(entry, root / "tasks", root) is None
    assert gather(entry, root / "tasks", root).files == {}


def test_a_folder_is_read_with_its_text(root: Path) -> None:
    """By path inside it; what is hidden, compiled or no text stays behind, and so does a link to nowhere."""
    folder = root / "resources" / "cutlass"
    (folder / ".git").write_text("gitdir: elsewhere")
    (folder / "image.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.txt").write_text("x")
    (folder / "dangling").symlink_to(folder / "gone")
    (folder / "circle").symlink_to(folder)
    (folder / "again.cu").symlink_to(folder / "examples/77/main.cu")
    taken = gather("resources/cutlass", root / "tasks", root)
    assert list(taken.files) == ["again.cu", "examples/77/main.cu", "examples/77/sub/detail.cuh"]
    assert taken.files["examples/77/main.cu"] == b"resources/cutlass/examples/77/main.cu"
    assert taken.trouble == ""


def test_a_link_out_of_the_repository_is_refused(root: Path) -> None:
    """Loudly: an honest source holds none."""
    (root / "resources/cutlass/key.h").symlink_to(root.parent / "secret")
    with pytest.raises(UserError, match=r"holds the link key\.h, which leads out of the repository"):
        gather("resources/cutlass", root / "tasks", root)


def test_a_large_folder_is_taken_from_its_top(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it fits, with a word on what is left out."""
    monkeypatch.setattr(references, "MAX_FILES", 1)
    taken = gather("resources/cutlass", root / "tasks", root)
    assert list(taken.files) == ["examples/77/main.cu"]
    assert "1 of its 2 files are taken" in taken.trouble


def test_many_bytes_are_bounded_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder together, in a file alone."""
    monkeypatch.setattr(references, "MAX_BYTES", 50)
    assert len(gather("resources/cutlass", root / "tasks", root).files) == 1
    (root / "tasks" / "notes.md").write_text("x" * 51)
    taken = gather("notes.md", root / "tasks", root)
    assert (taken.files, taken.trouble) == ({}, "'notes.md' is no text in UTF-8 of at most 50 bytes")


def test_the_gate_is_no_reading_matter(root: Path) -> None:
    """Held-out cases stay out of sight, however the reference is written."""
    gate = root / "tasks" / "gate"
    gate.mkdir()
    (gate / "gate.yaml").write_text("held_out: []")
    assert "belongs to the gate" in gather("gate/gate.yaml", root / "tasks", root, gate).trouble
    assert list(gather(".", root / "tasks", root, gate).files) == ["notes.md"]


def test_a_missing_reference_is_a_warning_with_its_line(root: Path) -> None:
    """The run can do without; a link out of the repository is an error."""
    path = root / "tasks" / "task.yaml"
    path.write_text(f"{SMALL}references:\n  - notes.md\n  - absent.cu\n  - resources/cutlass\n")
    (root / "resources/cutlass/key.h").symlink_to(root.parent / "secret")
    lost, leaving = load_task(path).check_references(root)
    assert (lost.severity, lost.field, lost.line) == ("warning", "references[1]", 16)
    assert lost.message.startswith("'absent.cu' is neither beside the task nor in resources/")
    assert (leaving.severity, leaving.field) == ("error", "references[2]")


def test_a_name_keeps_its_slash_and_loses_its_comment() -> None:
    """It is the name that the optimiser asks for."""
    assert name_of("examples/tcgen05-gemm/       # patterns # and more") == "examples/tcgen05-gemm/"
    assert name_of("a#b.cu") == "a#b.cu"
