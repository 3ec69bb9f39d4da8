"""The mutants themselves: each is wrong in the one way that its sentence says."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from kernels.harness import gate, mutants
from kernels.harness.gate import Case
from kernels.harness.mutants import Mutant, Specimen, Tensors
from tests.kernels.harness.conftest import Bench

CASE = Case(name="small", args={"M": 4, "N": 256})


@pytest.fixture
def specimen(bench: Bench) -> Specimen:
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    return mutants.specimen(loaded, CASE, "normal", 7)


def named(specimen: Specimen, name: str) -> Mutant:
    return next(mutant for mutant in mutants.mutants_of(specimen.gate) if mutant.name == name)


def made(specimen: Specimen, name: str) -> Tensors:
    tensors = named(specimen, name).make(specimen)
    assert tensors is not None
    return tensors


def test_names_differ_and_every_mutant_is_told_in_a_sentence(specimen: Specimen) -> None:
    """A mutant is refused, or admitted, by its name."""
    known = mutants.mutants_of(specimen.gate)
    names = [mutant.name for mutant in known]
    assert len(set(names)) == len(names) > 50
    assert all(mutant.told and mutant.name.startswith(mutant.family) for mutant in known)


def test_every_mutant_keeps_dtype_and_shape_and_leaves_the_right_answer_alone(specimen: Specimen) -> None:
    """What is compared is what a kernel could have written."""
    before = {name: array.copy() for name, array in specimen.right.items()}
    for mutant in mutants.mutants_of(specimen.gate):
        for name, array in (mutant.make(specimen) or {}).items():
            assert (array.dtype, array.shape) == (before[name].dtype, before[name].shape), mutant.name
    assert all(np.array_equal(specimen.right[name], before[name]) for name in before)


def test_a_mutant_of_one_tensor_changes_that_tensor(specimen: Specimen) -> None:
    """The others are right, so that it is refused for what it does."""
    for mutant in mutants.mutants_of(specimen.gate):
        if not mutant.costly and (tensors := mutant.make(specimen)) is not None:
            (name,) = tensors
            assert mutant.name.startswith(f"{mutant.family}({name}")
            assert not mutants.same(tensors[name], specimen.right[name]), mutant.name


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("tail_zero(y.0)", 256), ("tail_zero(y.1)", 4), ("tail_zero(y)", 1), ("one_wrong(y)", 1), ("one_inf(y)", 1)],
)
def test_a_part_that_is_wrong_is_as_small_as_it_can_be(specimen: Specimen, name: str, wrong: int) -> None:
    """One row, one column, one element: whoever sees these sees more of the same."""
    assert int((made(specimen, name)["y"] != specimen.right["y"]).sum()) == wrong


def test_what_is_not_written_is_not_a_number(specimen: Specimen) -> None:
    """As with the pattern that the arena puts there."""
    assert np.isnan(made(specimen, "tail_unwritten(y.1)")["y"]).sum() == 4


def test_the_bias_is_four_times_the_limit(specimen: Specimen) -> None:
    """So that a gate which admits it does not hold its own limits."""
    golden = specimen.golden.tensors["y"]
    off = np.abs(made(specimen, "biased(y)")["y"] - golden)
    limit = 1e-5 * (np.abs(golden) + np.sqrt(np.mean(golden**2)))
    assert np.all((off > 3.5 * limit) & (off < 4.5 * limit))


def test_a_dropped_stage_is_the_output_without_that_factor(specimen: Specimen) -> None:
    """y = x * rstd * g becomes x * g."""
    without = made(specimen, "dropped_stage(y without rstd)")["y"]
    assert np.allclose(without, specimen.inputs["x"] * specimen.inputs["g"], rtol=1e-5)


def test_an_ignored_block_is_the_references_own_answer_without_it(specimen: Specimen) -> None:
    """A sixteenth of the row left out of the sum, and zero in the output."""
    x = specimen.inputs["x"].astype(np.float64)
    x[:, -16:] = 0
    wanted = 1 / np.sqrt((x * x).mean(axis=1) + 1e-6)
    tensors = made(specimen, "ignores_tail(x.1)")
    assert np.allclose(tensors["rstd"], wanted, rtol=1e-6)
    assert not tensors["y"][:, -16:].any()


def test_where_there_is_nothing_to_leave_out_there_is_no_mutant(bench: Bench) -> None:
    """A single row has no last row that a kernel could forget while it writes the others."""
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    one = mutants.specimen(loaded, Case(name="one", args={"M": 1, "N": 7}), "normal", 7)
    for name in ("tail_zero(y.0)", "tail_unwritten(y.0)", "rolled(y.0)", "ignores_tail(x.0)"):
        assert named(one, name).make(one) is None


@pytest.mark.parametrize(("lower", "bits"), [("tf32", 10), ("f16", 10), ("bf16", 7), ("f8e4m3", 3), ("f8e5m2", 2)])
def test_lowering_keeps_as_many_bits_as_the_format_has(lower: str, bits: int) -> None:
    """Rounded to nearest: what has that many bits stays, and half a unit beyond is gone."""
    kept = np.float32(1 + 2.0**-bits)
    beyond = np.float32(1 + 2.0 ** -(bits + 2))
    assert list(mutants.lowered(np.array([kept, beyond, -kept]), lower)) == [kept, 1, -kept]


def test_tf32_rounds_ties_to_even_and_leaves_what_is_not_finite() -> None:
    """As the hardware does."""
    ties = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf, np.nan, 0.0], dtype=np.float32)
    rounded = mutants.lowered(ties, "tf32")
    assert list(rounded[:3]) == [1.0, 1 + 2.0**-9, np.inf]
    assert np.isnan(rounded[3])
    assert rounded[4] == 0


@pytest.mark.parametrize("lower", ["f16", "f8e4m3", "f8e5m2"])
def test_lowering_saturates(lower: str) -> None:
    """The mildest of what such a kernel may do with a number that is too large for the format."""
    values = np.array([1e30, -1e30], dtype=np.float32)
    assert np.isfinite(mutants.lowered(values, lower)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "i32", "i8"])
def test_mutants_exist_for_every_dtype(make_bench: Callable[..., Bench], dtype: str) -> None:
    """None of them falls over formats that numpy does not have, or that have no NaN and no sign to spare."""
    task = {
        "interface": {
            "entry": "f",
            "arguments": [
                {"name": "x", "kind": "input", "dtype": "f32", "shape": ["M", "N"]},
                {"name": "y", "kind": "output", "dtype": dtype, "shape": ["M", "N"]},
                {"name": "M", "kind": "scalar", "dtype": "i32"},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        }
    }
    reference = """
import numpy as np
def make_inputs(rng, args, distribution):
    return {"x": (8 * rng.standard_normal((args["M"], args["N"]))).astype(np.float32)}
def reference(inputs, args):
    return {"y": np.rint(2 * inputs["x"].astype(np.float64))}
"""
    limits = {} if dtype.startswith("i") else {"max_abs": 0.0}
    bench = make_bench(task=task, gate_yaml={"tensors": {"y": limits}}, reference=reference)
    loaded = gate.load(bench.task, bench.gate, bench.lock())
    one = mutants.specimen(loaded, CASE, "normal", 7)
    assert one.right["y"].dtype in (np.int32, np.int8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
    changed = [m for m in mutants.mutants_of(loaded) if m.make(one) is not None]
    assert {"zeros", "sign_flipped", "one_wrong", "tail_zero", "tail_unwritten", "biased", "scaled"} <= {
        mutant.family for mutant in changed
    }
