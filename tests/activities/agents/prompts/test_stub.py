"""A task without a seed begins with the right signature."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

from activities.agents.prompts.stub import stub
from tests.activities.agents.prompts.values import make_task


def test_a_stub_in_cpp_compiles_and_has_the_entry(tmp_path: Path) -> None:
    source = tmp_path / "stub.cpp"
    source.write_text(stub(make_task(language="cpp", gpu="CPU")))
    command = ["g++", "-c", "-Wall", "-Werror", "-o", str(tmp_path / "stub.o"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    symbols = subprocess.run(["nm", str(tmp_path / "stub.o")], capture_output=True, text=True, check=True, timeout=60)
    assert " T rmsnorm\n" in symbols.stdout


def test_a_stub_in_cuda_names_its_types_and_the_stream() -> None:
    told = stub(make_task())
    assert "#include <cuda_bf16.h>\n" in told
    assert "const __nv_bfloat16* x" in told
    assert "cudaStream_t stream)" in told


def test_a_stub_in_triton_is_a_launcher_with_all_arguments() -> None:
    function = ast.parse(stub(make_task(language="triton"))).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "rmsnorm"
    assert [one.arg for one in function.args.args] == ["x", "rstd", "y", "scratch", "eps", "M", "N", "stream"]


def test_a_program_that_reports_on_itself_begins_with_nothing() -> None:
    assert stub(make_task(interface=None, harness="self_contained")) == "// Nothing is here yet.\n"
