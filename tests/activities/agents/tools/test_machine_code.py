"""The assembly tool: what the compiler made of the kernel, through the real harness."""

from __future__ import annotations

import shutil

import pytest

from activities.agents.tools.machine_code import Assembly
from activities.agents.tools.tool import Desk, NoArguments
from tests.activities.agents.tools.bench import COPY, working_on


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump")
async def test_the_object_of_the_kernel_is_counted(desk: Desk) -> None:
    there = await working_on(desk, COPY)
    answer = await Assembly().use(there, NoArguments())
    assert not answer.error, answer.text
    assert answer.text.startswith("copy: ")
    assert len(answer.text) < 2_500
    assert answer.workspace is not None
    assert answer.workspace.compiled == there.workspace.kernel
