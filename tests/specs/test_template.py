"""The template loads as it is and shows every key; so does the guide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specs.loader import load_task
from specs.near_miss import block_of, known_keys
from specs.schema import Block, Scoring, Task
from tests.specs.conftest import Write

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "specs" / "template.yaml"
GUIDE = ROOT / "docs" / "authoring-a-task.md"


def _keys(block: type[Block] = Task, prefix: str = "") -> Iterator[str]:
    for name in known_keys(block):
        inner = block_of(block.model_fields[name].annotation)
        listed = "[]" if "tuple" in str(block.model_fields[name].annotation) else ""
        if inner is None:
            yield prefix + name
        else:
            yield from _keys(inner, f"{prefix}{name}{listed}.")


def test_the_template_loads_without_a_warning() -> None:
    """As it is, and every file that it names is there."""
    loaded = load_task(TEMPLATE)
    assert loaded.warnings == []
    assert loaded.check_files() == []


@pytest.mark.parametrize("key", list(_keys()))
def test_the_template_shows_every_key(key: str) -> None:
    """A key that the schema learns must be explained here too."""
    assert re.search(rf"(?m)[\s{{#]{key.split('.')[-1]}:", TEMPLATE.read_text())


@pytest.mark.parametrize("key", list(_keys()))
def test_the_guide_lists_every_key(key: str) -> None:
    """In its table, by dotted path."""
    assert f"| `{key}` |" in GUIDE.read_text()


def test_the_guide_lists_no_key_that_is_not_there() -> None:
    """A key that the schema forgets must go from the table too."""
    table = GUIDE.read_text().split("## Every key")[1]
    assert set(re.findall(r"(?m)^\| `([a-z_.\[\]]+)` \|", table)) == set(_keys())


def test_the_commented_keys_of_the_template_load_too(write: Write) -> None:
    """Taking the comment sign away is all that it needs."""
    text = TEMPLATE.read_text().replace("scoring: min_ratio", "scoring: focus")
    text = re.sub(r"(?m)^( *)# (focus_config: |base_url: |acceptance:$|  command: )", r"\1\2", text)
    task = load_task(write(text)).task
    assert task.scoring is Scoring.FOCUS
    assert task.focus_config == "wide"
    assert task.acceptance is not None
    assert task.model.base_url is not None


@pytest.mark.parametrize("block", re.findall(r"(?s)```yaml\n((?!# gate/).*?)```", GUIDE.read_text()))
def test_every_task_in_the_guide_loads(write: Write, block: str) -> None:
    """A reader will copy it."""
    if block.startswith("name:"):
        assert load_task(write(block)).warnings == []
    else:
        smallest = re.search(r"(?s)```yaml\n(name:.*?)```", GUIDE.read_text())
        assert smallest is not None
        replaced = {line.split(":")[0] for line in block.splitlines() if re.match(r"[a-z]", line)}
        kept = re.split(r"(?m)^(?=[a-z])", smallest.group(1))
        assert (
            load_task(write("".join(part for part in kept if part.split(":")[0] not in replaced) + block)).warnings
            == []
        )
