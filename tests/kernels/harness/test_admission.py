"""Admission: a gate that lets a wrong answer through is refused by name, and a sound one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import admission, gate
from kernels.harness.admission import Admission
from kernels.harness.requests import LockGate
from kernels.harness.serve import answer
from specs.errors import GateError, UserError
from specs.loader import load_task
from tests.kernels.harness.conftest import REFERENCE, Bench, kernel

ROOT = Path(__file__).parents[3]
TASKS = sorted((ROOT / "specs" / "tasks").glob("*.yaml"))
MakeBench = Callable[..., Bench]

LIMITS = {"rstd": {"elementwise": 1e-5}, "y": {"elementwise": 1e-5, "rel_l2": 1e-5}}


def admitted(bench: Bench) -> Admission:
    lock = bench.lock()
    return admission.admit(gate.load(bench.task, bench.gate, lock), lock)


def with_limits(**y: float) -> dict[str, Any]:
    return {"tensors": {"rstd": {"elementwise": 1e-5}, "y": y}}


def test_a_sound_gate_is_admitted(bench: Bench) -> None:
    """Every mutant is refused, and it is told where and by which limit."""
    found = admitted(bench)
    assert found.admitted, found.why_not
    assert {one.fate for one in found.mutants} == {"refused"}
    assert all(one.where and one.by and one.told for one in found.mutants)
    assert found.gate == bench.lock().digest
    assert found.limits["y"] == {"elementwise": 1e-5, "rel_l2": 1e-5}


def test_admission_says_the_same_whenever_it_is_asked(bench: Bench) -> None:
    """No gate is admitted on one day and refused on the next."""
    assert admitted(bench).mutants == admitted(bench).mutants


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_every_shipped_gate_is_admitted(path: Path) -> None:
    """What ferret ships is what it asks of others."""
    loaded = load_task(path)
    assert loaded.task.gate is not None
    folder = loaded.resolve(loaded.task.gate)
    lock = gate.lock(loaded.task, folder)
    found = gate.load(loaded.task, folder, lock)
    if not found.uncalibrated:
        assert admission.admit(found, lock).why_not == ""


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        # A cosine has no size: anything in the right direction passes, and so does one wrong element of many.
        ({"cosine": 0.9}, {"scaled(y)", "reduced_precision(y.bf16)", "one_wrong(y)"}),
        ({"rel_l2": 5e-3}, {"reduced_precision(y.bf16)", "reduced_precision(y.f16)"}),
        ({"elementwise": 1e-3}, {"reduced_precision(y.tf32)", "reduced_precision(y.f16)"}),
        ({"max_abs": 50.0}, {"zeros(y)", "constant(y)", "tail_zero(y.1)"}),
        ({"mean_abs": 0.01}, {"one_wrong(y)", "tail_zero(y)"}),
    ],
)
def test_limits_that_let_a_mutant_through_refuse_the_gate(
    make_bench: MakeBench, limits: dict[str, float], names: set[str]
) -> None:
    """Loose limits are told by what they admit; the stage tensor's own limits do not cover for the output's."""
    found = admitted(make_bench(gate_yaml=with_limits(**limits)))
    assert not found.admitted
    assert names <= set(found.let_through)
    assert "\n" not in found.why_not
    assert found.let_through[0] in found.why_not


def test_an_input_that_the_reference_ignores_refuses_the_gate(make_bench: MakeBench) -> None:
    """A kernel that never looks at it would pass."""
    found = admitted(make_bench(reference=REFERENCE.replace(' * inputs["g"].astype(np.float64)', "")))
    assert "ignores(g)" in found.let_through
    assert "never looks at g" in found.why_not or "ignores(g)" in found.why_not


def test_a_part_of_an_input_that_the_reference_ignores_refuses_the_gate(make_bench: MakeBench) -> None:
    """The last columns do not count, so a kernel may leave them out."""
    cut = 'x = inputs["x"].astype(np.float64)\n    x[:, -(-x.shape[1] * 7 // 8):] = 0'
    found = admitted(make_bench(reference=REFERENCE.replace('x = inputs["x"].astype(np.float64)', cut)))
    assert "ignores_tail(x.1)" in found.let_through


def test_a_constant_of_the_contract_that_never_matters_refuses_the_gate(make_bench: MakeBench) -> None:
    """Eps changes nothing in inputs of size one: a distribution of tiny ones has to be added."""
    task = {
        "problem": {"description": "RMSNorm", "shapes": {"eps": 1.0e-6}},
        "interface": {
            "entry": "rmsnorm",
            "arguments": [
                {"name": "x", "kind": "input", "dtype": "f32", "shape": ["M", "N"]},
                {"name": "y", "kind": "output", "dtype": "f32", "shape": ["M", "N"]},
                {"name": "eps", "kind": "scalar", "dtype": "f32"},
                {"name": "M", "kind": "scalar", "dtype": "i32"},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        },
    }
    reference = """
import numpy as np

def make_inputs(rng, args, distribution):
    return {"x": rng.standard_normal((args["M"], args["N"]), dtype=np.float32) * np.float32(SCALES[distribution])}

def reference(inputs, args):
    x = inputs["x"].astype(np.float64)
    return {"y": x / np.sqrt((x * x).mean(axis=1, keepdims=True) + args["eps"])}
"""
    yaml = {"tensors": {"y": {"elementwise": 1e-5}}, "distributions": ["normal", "tiny"]}
    blind = make_bench(task=task, gate_yaml=yaml, reference=reference + 'SCALES = {"normal": 1, "tiny": 2}\n')
    assert admitted(blind).let_through == ("ignores(eps)",)
    path = blind.gate / "reference.py"
    path.write_text(path.read_text().replace('"tiny": 2', '"tiny": 1e-3'))
    assert admitted(blind).admitted


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"shifted":', '"never":', "the same inputs for distributions 'normal' and 'shifted'"),
        ("    x = rng.", "    rng = np.random.default_rng(1)\n    x = rng.", "the same inputs whatever the rng"),
        ("rng.uniform(0.5", "np.random.default_rng().uniform(0.5", "gives other inputs to the same rng"),
        ("rng.uniform(0.5", "0 * rng.uniform(0.5", "only zeros for g in 'normal'"),
        ("    rstd = 1", "    x = x * np.random.default_rng().uniform()\n    rstd = 1", "two different y for the same"),
    ],
)
def test_inputs_and_reference_have_to_be_sound(make_bench: MakeBench, old: str, new: str, said: str) -> None:
    """What is drawn differs between distributions and calls, is not all zero, and has one golden."""
    assert REFERENCE.count(old) == 1
    assert said in admitted(make_bench(reference=REFERENCE.replace(old, new))).why_not


def test_one_golden_for_all_inputs_refuses_the_gate(make_bench: MakeBench) -> None:
    """Nothing that is computed would be judged."""
    constant = 'return {"rstd": np.ones(x.shape[0]), "y": np.arange(1.0, x.size + 1).reshape(x.shape)}'
    reference = REFERENCE[: REFERENCE.index('return {"rstd"')] + constant + "\n"
    assert "the same golden for all inputs" in admitted(make_bench(reference=reference)).why_not


def test_a_gate_that_no_kernel_can_pass_is_refused(make_bench: MakeBench) -> None:
    """Its limits are finer than the tensor's own dtype."""
    said = admitted(make_bench(gate_yaml=with_limits(elementwise=1e-12))).why_not
    assert "no kernel can pass small (normal)" in said
    assert "elementwise 1e-12" in said


def test_an_answer_that_is_right_is_no_mutant(make_bench: MakeBench) -> None:
    """Where the contract is a copy, a copy is no cheat."""
    task = {
        "interface": {
            "entry": "copy",
            "arguments": [
                {"name": "x", "kind": "input", "dtype": "f32", "shape": ["N"]},
                {"name": "y", "kind": "output", "dtype": "f32", "shape": ["N"]},
                {"name": "N", "kind": "scalar", "dtype": "i32"},
            ],
        }
    }
    yaml = {"tensors": {"y": {"elementwise": 0.0}}, "distributions": ["normal"], "edges": [], "held_out": []}
    reference = """
import numpy as np
def make_inputs(rng, args, distribution):
    return {"x": rng.standard_normal(args["N"]).astype(np.float32)}
def reference(inputs, args):
    return {"y": inputs["x"].astype(np.float64)}
"""
    found = admitted(make_bench(task=task, gate_yaml=yaml, reference=reference))
    assert found.admitted, found.why_not
    assert [one.mutant for one in found.mutants if one.fate == "no_case"] == ["copy(y from x)"]


TEN_BITS = ("reduced_precision(y.tf32)", "reduced_precision(y.f16)")


@pytest.mark.parametrize("names", [("reduced_precision",), TEN_BITS], ids=["family", "names"])
def test_a_mutant_is_admitted_on_purpose_only_with_a_reason(make_bench: MakeBench, names: tuple[str, ...]) -> None:
    """By its name or by its family; the reason is shown, and is part of the gate's digest."""
    reason = "the contract allows TF32 in the output"
    yaml = with_limits(elementwise=3e-4) | {"admits": dict.fromkeys(names, reason)}
    bench = make_bench(gate_yaml=yaml)
    found = admitted(bench)
    assert found.admitted, found.why_not
    shown = [(one.mutant, one.reason) for one in found.mutants if one.fate == "admitted"]
    assert shown == [(name, reason) for name in TEN_BITS]
    before = bench.lock().digest
    text = (bench.gate / "gate.yaml").read_text()
    (bench.gate / "gate.yaml").write_text(text.replace(reason, reason + " alone"))
    assert bench.lock().digest != before


@pytest.mark.parametrize(
    ("admits", "said"),
    [
        (
            {"half_precision": "the contract allows it"},
            "admits.half_precision: no such mutant; accepted: a family (zeros",
        ),
        ({"zeros": "no"}, "gate.yaml: admits.zeros"),
        (["zeros"], "gate.yaml: admits"),
    ],
)
def test_an_exception_that_names_nothing_or_gives_no_reason_is_refused(
    make_bench: MakeBench, admits: Any, said: str
) -> None:
    """A misspelt exception would be lost in silence."""
    with pytest.raises(GateError) as caught:
        admitted(make_bench(gate_yaml={"admits": admits}))
    assert said in str(caught.value)


def test_a_weak_gate_is_not_locked(make_bench: MakeBench) -> None:
    """A run asks for the lock first, and ends here, with one line that names the mutants."""
    bench = make_bench(gate_yaml=with_limits(cosine=0.9))
    refusal = answer(LockGate(task=bench.task, gate=bench.gate)).refusal
    assert refusal is not None
    assert (refusal.error, refusal.retryable) == ("GateError", False)
    assert "scaled(y)" in refusal.message
    assert "\n" not in refusal.message


def test_a_baseline_that_fails_refuses_the_gate(bench: Bench) -> None:
    """The vendor's own kernel has to pass, held-out cases included."""
    lock = bench.lock()
    loaded = gate.load(bench.task, bench.gate, lock)
    for source, passes in ((kernel(), True), (kernel(after="if (M == 5) y[0] += 1;"), False)):
        library = bench.library(source)
        verdict = admission.judged_baseline(loaded, lock, bench.gate, library, bench.builds)
        found = admission.admit(loaded, lock).model_copy(update={"baseline": verdict})
        assert found.admitted is passes
        assert ("the baseline does not pass the gate in case 'odd'" in found.why_not) is not passes


def test_the_task_of_a_gate_folder_is_found(bench: Bench) -> None:
    """Under specs/tasks, or beside the folder; with none, it is told where was looked."""
    assert admission.task_of(bench.gate) == bench.folder / "task.yaml"
    assert admission.task_of(ROOT / "kernels" / "skinny_gemm_f32" / "gate").name == "skinny-gemm-f32-cpu.yaml"
    with pytest.raises(UserError, match="no task names it"):
        admission.task_of(bench.folder)
