"""What the tests of the task language share: a small sound task, and a way to write one down with a mistake in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specs.errors import Problem, SpecError
from specs.loader import load_task

SMALL = """\
name: add-one
gpu: CPU
arch: x86-64
precision: FP32
problem:
  description: y = x + 1
baseline:
  source: a loop
configs:
  - name: small
    args: {N: 64}
  - name: large
    args: {N: 4096}
"""

INTERFACE = """\
interface:
  entry: add_one
  arguments:
    - {name: x, kind: input, dtype: f32, shape: [N]}
    - {name: y, kind: output, dtype: f32, shape: [N]}
    - {name: N, kind: scalar, dtype: i32}
"""

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a task file and give its path."""

    def put(content: str | bytes) -> Path:
        path = tmp_path / "task.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put


def refused(path: Path) -> list[Problem]:
    """The errors of a file that must not load."""
    with pytest.raises(SpecError) as caught:
        load_task(path)
    return [problem for problem in caught.value.problems if problem.severity == "error"]


def the_error(path: Path) -> Problem:
    """The one error of a file that must not load."""
    errors = refused(path)
    assert len(errors) == 1, "\n".join(map(str, errors))
    return errors[0]
