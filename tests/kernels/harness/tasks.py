"""Small tasks for the harness's tests."""

from __future__ import annotations

from typing import Any

from specs.schema import Task

F32 = {"dtype": "f32", "shape": ["M", "N"]}


def task(**changes: Any) -> Task:
    """`kernel(x, rstd, y, M, N)` on two configs; any field of the task can be replaced."""
    fields: dict[str, Any] = {
        "name": "small",
        "gpu": "CPU",
        "arch": "x86-64",
        "precision": "f32",
        "problem": {"description": "y = 2 x, and the largest of each row"},
        "baseline": {"source": "plain C++"},
        "configs": [
            {"name": "square", "args": {"M": 4, "N": 4}},
            {"name": "wide", "args": {"M": 2, "N": 8}, "weight": 2},
        ],
        "interface": {
            "entry": "kernel",
            "arguments": [
                {"name": "x", "kind": "input", **F32},
                {"name": "top", "kind": "stage", "dtype": "f32", "shape": ["M"]},
                {"name": "y", "kind": "output", **F32},
                {"name": "M", "kind": "scalar", "dtype": "i32"},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        },
    }
    return Task.model_validate({**fields, **changes})
