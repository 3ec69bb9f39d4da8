"""The gate: locked by content, loaded from the bytes that were hashed, and never a malformed golden."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kernels.harness import gate
from kernels.harness.compare import Limits
from kernels.harness.gate import Gate
from kernels.harness.gate_files import MAX_FILE_BYTES
from kernels.harness.wording import Interrupted
from specs.errors import GateError, GateTampered
from specs.schema import Task
from tests.kernels.harness.tasks import task

YAML: dict[str, Any] = {
    "contract": "y = 2 x, top = the largest of each row; NaN propagates",
    "deterministic": True,
    "distributions": ["normal", "shifted"],
    "tensors": {"top": {"elementwise": 1e-6}, "y": {"elementwise": 1e-6, "rel_l2": 1e-6}},
    "edges": [{"name": "one_row", "args": {"M": 1, "N": 7}}],
    "held_out": [{"name": "odd", "args": {"M": 13, "N": 9}}],
}
REFERENCE = """
import numpy as np

def make_inputs(rng, args, distribution):
    x = rng.normal(size=(args["M"], args["N"])) + (5 if distribution == "shifted" else 0)
    return {"x": x.astype(np.float32)}

def reference(inputs, args):
    x = inputs["x"].astype(np.float64)
    return {"top": x.max(axis=1), "y": 2 * x, "y.scale": np.abs(x)}
"""


def folder(root: Path, reference: str = REFERENCE, **changes: Any) -> Path:
    """A gate folder; a field set to None is left out of gate.yaml."""
    path = root / "gate"
    path.mkdir(exist_ok=True)
    fields = {name: value for name, value in {**YAML, **changes}.items() if value is not None}
    (path / "gate.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    (path / "reference.py").write_text(reference)
    return path


def loaded(root: Path, reference: str = REFERENCE, for_task: Task | None = None, **changes: Any) -> Gate:
    path, judged = folder(root, reference, **changes), for_task or task()
    return gate.load(judged, path, gate.lock(judged, path))


def returning(inputs: str = 'return {"x": x}', golden: str = 'return {"top": x.max(axis=1), "y": 2 * x}') -> str:
    """A reference whose two functions end with the given statements."""
    return f"""
import numpy as np
def make_inputs(rng, args, distribution):
    x = rng.normal(size=(args["M"], args["N"])).astype(np.float32)
    {inputs}
def reference(inputs, args):
    x = inputs["x"].astype(np.float64)
    {golden}
"""


def use(root: Path, reference: str) -> None:
    made = loaded(root, reference)
    args = {"M": 2, "N": 3}
    made.golden(made.inputs(np.random.default_rng(1), args, "normal"), args)


# ---------------------------------------------------------------- what a gate gives


def test_a_gate_gives_what_its_folder_says(tmp_path: Path) -> None:
    """Contract, limits in checking order and cases come from gate.yaml."""
    made = loaded(tmp_path)

    assert made.contract.startswith("y = 2 x")
    assert made.deterministic
    assert made.distributions == ("normal", "shifted")
    assert list(made.limits) == ["top", "y"]
    assert made.limits["y"] == Limits(elementwise=1e-6, rel_l2=1e-6)
    assert [(case.name, case.args) for case in made.edges] == [("one_row", {"M": 1, "N": 7})]
    assert [case.name for case in made.held_out] == ["odd"]


def test_inputs_and_golden_have_the_interfaces_shapes(tmp_path: Path) -> None:
    """Inputs in the interface's dtype, the golden in float64, scales where the reference gives one."""
    made = loaded(tmp_path)
    args = {"M": 3, "N": 5}

    inputs = made.inputs(np.random.default_rng(1), args, "shifted")
    golden = made.golden(inputs, args)

    assert inputs["x"].shape == (3, 5)
    assert inputs["x"].dtype == np.float32
    assert golden.tensors["top"].shape == (3,)
    assert golden.tensors["y"].dtype == np.float64
    np.testing.assert_array_equal(golden.tensors["y"], 2 * inputs["x"].astype(np.float64))
    assert list(golden.scales) == ["y"]


def test_inputs_depend_on_the_generator_alone(tmp_path: Path) -> None:
    """The same seed gives the same bytes, another seed others."""
    made = loaded(tmp_path)

    def bytes_of(seed: int) -> bytes:
        return made.inputs(np.random.default_rng(seed), {"M": 2, "N": 2}, "normal")["x"].tobytes()

    assert bytes_of(1) == bytes_of(1)
    assert bytes_of(1) != bytes_of(2)


def test_the_tasks_shapes_lie_under_the_args(tmp_path: Path) -> None:
    """reference.py finds problem.shapes in its args, unless the case says otherwise."""
    shaped = task(
        problem={"description": "d", "shapes": {"M": 6, "N": 7}},
        configs=[{"name": "a", "args": {}}, {"name": "b", "args": {"N": 2}}],
    )
    made = loaded(tmp_path, for_task=shaped)

    assert made.inputs(np.random.default_rng(1), {}, "normal")["x"].shape == (6, 7)
    assert made.inputs(np.random.default_rng(1), {"N": 2}, "normal")["x"].shape == (6, 2)


def test_integer_tensors_may_have_an_integer_golden_and_no_limits(tmp_path: Path) -> None:
    """Counting kernels are exact, so their golden is too."""
    interface = task().model_dump(mode="json")["interface"]
    interface["arguments"] = [
        {"name": "x", "kind": "input", "dtype": "f32", "shape": ["M", "N"]},
        {"name": "y", "kind": "output", "dtype": "i32", "shape": []},
    ]
    counting = task(interface=interface)

    made = loaded(tmp_path, returning(golden='return {"y": np.array((x > 0).sum())}'), counting, tensors={"y": None})
    golden = made.golden(made.inputs(np.random.default_rng(1), {"M": 2, "N": 2}, "normal"), {"M": 2, "N": 2})

    assert golden.tensors["y"].dtype.kind == "i"
    assert golden.tensors["y"].shape == ()


# ---------------------------------------------------------------- the lock


def test_the_lock_names_every_file(tmp_path: Path) -> None:
    """Files in sub-folders count, byte code that Python leaves behind does not."""
    path = folder(tmp_path)
    (path / "data").mkdir()
    (path / "data" / "table.npy").write_bytes(b"1")
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "reference.pyc").write_bytes(b"2")

    assert list(gate.lock(task(), path).files) == ["data/table.npy", "gate.yaml", "reference.py"]


def test_the_same_content_elsewhere_has_the_same_digest(tmp_path: Path) -> None:
    """The digest is of content, never of place or time."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert gate.lock(task(), folder(tmp_path / "a")) == gate.lock(task(), folder(tmp_path / "b"))


@pytest.mark.parametrize(
    "changes",
    [
        {"configs": [{"name": "square", "args": {"M": 4, "N": 5}}]},
        {"build": {"flags": ["-O1"]}},
        {"build": {"production_flags": ["-O1"]}},
        {"baseline": {"source": "plain C++", "flags": ["-lm"]}},
        {"problem": {"description": "d", "shapes": {"K": 3}}},
        {"interface": {"entry": "other", "arguments": [{"name": "y", "kind": "output", "dtype": "f32", "shape": [1]}]}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_interface_configs_and_flags_are_locked_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A change of what is called, with what, or how it is built breaks the lock as a file would."""
    path = folder(tmp_path)
    lock = gate.lock(task(), path)

    with pytest.raises(GateTampered, match="interface, configs or flags were changed"):
        gate.load(task(**changes), path, lock)


def test_a_changed_file_is_named_with_both_digests(tmp_path: Path) -> None:
    """An edit of the reference after the lock is refused."""
    path = folder(tmp_path)
    lock = gate.lock(task(), path)
    (path / "reference.py").write_text(REFERENCE + "\n")

    with pytest.raises(GateTampered) as caught:
        gate.load(task(), path, lock)

    assert str(caught.value).startswith("gate file reference.py was changed after the lock: sha256 ")
    assert lock.files["reference.py"] in str(caught.value)


def test_a_file_that_is_new_or_gone_is_named(tmp_path: Path) -> None:
    """Adding or removing a file after the lock is refused."""
    path = folder(tmp_path)
    (path / "notes.md").write_text("notes")
    lock = gate.lock(task(), path)

    (path / "notes.md").unlink()
    with pytest.raises(GateTampered, match=r"gate file notes\.md is missing"):
        gate.load(task(), path, lock)

    (path / "notes.md").write_text("notes")
    (path / "sneaky.py").write_text("")
    with pytest.raises(GateTampered, match=r"gate file sneaky\.py was added after the lock"):
        gate.load(task(), path, lock)


def test_a_loaded_gate_does_not_read_its_folder_again(tmp_path: Path) -> None:
    """Between check and use there is no file left to swap."""
    path = folder(tmp_path)
    made = gate.load(task(), path, gate.lock(task(), path))
    (path / "reference.py").write_text("raise SystemExit")
    (path / "gate.yaml").unlink()

    assert made.inputs(np.random.default_rng(1), {"M": 2, "N": 2}, "normal")["x"].shape == (2, 2)


# ---------------------------------------------------------------- gates that cannot be used


def test_a_missing_gate_is_named(tmp_path: Path) -> None:
    """No folder, a file in its place and a folder without its two files each have their own line."""
    with pytest.raises(GateError, match=r"gate folder .*gate is missing"):
        gate.lock(task(), tmp_path / "gate")
    (tmp_path / "gate").write_text("")
    with pytest.raises(GateError, match=r"gate is not a folder"):
        gate.lock(task(), tmp_path / "gate")
    (tmp_path / "gate").unlink()
    path = folder(tmp_path)
    for name in ("reference.py", "gate.yaml"):
        (path / name).unlink()
        with pytest.raises(GateError, match=f"has no {name}"):
            gate.lock(task(), path)


def test_links_pipes_and_huge_files_are_refused(tmp_path: Path) -> None:
    """Only regular files of a sensible size can be part of a gate."""
    path = folder(tmp_path)
    extra = path / "extra"

    extra.symlink_to(path / "gate.yaml")
    with pytest.raises(GateError, match="extra is a symbolic link"):
        gate.lock(task(), path)
    extra.unlink()

    os.mkfifo(extra)
    with pytest.raises(GateError, match="extra is not a regular file"):
        gate.lock(task(), path)
    extra.unlink()

    with extra.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(GateError, match="extra is larger than 16 MiB"):
        gate.lock(task(), path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contract": None}, r"gate\.yaml: contract: missing"),
        ({"deterministic": "perhaps"}, r"gate\.yaml: deterministic: .*'perhaps' given"),
        ({"distributions": []}, r"gate\.yaml: distributions: "),
        ({"distributions": ["a", "a"]}, r"distributions: names must differ, given twice: a"),
        ({"tolerances": {}}, r"gate\.yaml: tolerances: unknown; accepted: contract, deterministic"),
        ({"tensors": {"top": {"elementwise": 1}}}, r"tensors\.y: missing; every stage tensor and output"),
        ({"tensors": {"top": {"elementwise": 1}, "y": {}}}, r"tensors\.y: no limit given; accepted: elementwise"),
        ({"tensors": {**YAML["tensors"], "z": {"max_abs": 1}}}, r"tensors\.z: not a stage tensor.*accepted: top, y"),
        ({"tensors": {"y": {"max_abs": 1}, "top": {"max_abs": 1}}}, r"tensors\.top: a stage tensor comes before"),
        ({"tensors": {**YAML["tensors"], "y": {"max_abs": -1}}}, r"tensors\.y\.max_abs: .*-1 given"),
        ({"tensors": {**YAML["tensors"], "y": {"max_abs": float("nan")}}}, r"tensors\.y\.max_abs: .*nan given"),
        ({"tensors": {**YAML["tensors"], "y": {"max_ab": 1}}}, r"tensors\.y\.max_ab: unknown; accepted: elementwise"),
        ({"edges": [{"name": "e", "args": {"M": 1}}]}, r"edges\[0\]\.args: x: 'N' names 'N'"),
        ({"edges": [{"name": "e", "args": {"M": 1, "N": -1}}]}, r"edges\[0\]\.args: x: 'N' is -1"),
        ({"edges": [{"name": "e", "args": {"M": 1, "N": 1}, "a": 1}]}, r"edges\[0\]\.a: unknown; accepted: name, args"),
        ({"edges": [{"name": "square", "args": {"M": 1, "N": 1}}]}, r"'square' is also the name of a config"),
        (
            {"held_out": [{"name": "one_row", "args": {"M": 1, "N": 7}}]},
            r"edges and held_out: names must differ, given twice: one_row",
        ),
    ],
)
def test_a_faulty_gate_yaml_names_file_and_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Each mistake is one line with the field, what was given and what is accepted."""
    with pytest.raises(GateError, match=message) as caught:
        loaded(tmp_path, **changes)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contract: [", r"gate\.yaml:1: "),
        ("- a\n- b\n", r"gate\.yaml: a mapping with contract.*list given"),
        ("", r"gate\.yaml: a mapping with .*NoneType given"),
        ("contract: a\ncontract: b\n", r"gate\.yaml:2: key 'contract' is given twice"),
        ("tensors:\n  y: {max_abs: 1}\n  y: {max_abs: 9}\n", r"gate\.yaml:3: key 'y' is given twice"),
    ],
)
def test_what_is_not_a_gate_yaml_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """Broken YAML, and a key given twice that would silently loosen a limit."""
    path = folder(tmp_path)
    (path / "gate.yaml").write_text(text)

    with pytest.raises(GateError, match=message):
        gate.load(task(), path, gate.lock(task(), path))


def test_a_limit_written_without_a_point_is_a_number(tmp_path: Path) -> None:
    """YAML reads 1e-6 as text; it still means the number."""
    path = folder(tmp_path)
    text = (path / "gate.yaml").read_text().replace("1.0e-06", "1e-6")
    assert "1e-6" in text
    (path / "gate.yaml").write_text(text)

    assert gate.load(task(), path, gate.lock(task(), path)).limits["y"].rel_l2 == 1e-6


def test_a_config_that_lacks_what_the_interface_needs_is_named(tmp_path: Path) -> None:
    """The config and the scalar are named before anything is judged."""
    with pytest.raises(GateError, match=r"config 'a': x: 'N' names 'N'"):
        loaded(tmp_path, for_task=task(configs=[{"name": "a", "args": {"M": 1}}]))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("def make_inputs(:", r"reference\.py cannot be loaded: SyntaxError: .*\(line 1\)"),
        ("import no_such_module_here", r"cannot be loaded: ModuleNotFoundError: .*\(line 1\)"),
        ("def make_inputs(rng, args, distribution): ...", r"reference\.py defines no function reference"),
        (returning(inputs="return [x]"), r"make_inputs for M=2, N=3, .*a dict of arrays is needed, list given"),
        (returning(inputs="return {}"), r"make_inputs .*gives no x"),
        (returning(inputs='return {"x": x, "z": x}'), r"make_inputs .*gives z; accepted: x"),
        (returning(inputs='return {"x": x.T}'), r"x has shape \[3, 2\]; \[2, 3\] is needed"),
        (returning(inputs='return {"x": x.astype(float)}'), r"x has dtype float64; float32 is needed"),
        (returning(inputs='return {"x": 3}'), r"x is a int; a numpy array is needed"),
        (returning(inputs="return {'x': 1 / 0}"), r"make_inputs .*ZeroDivisionError: division by zero \(line 5\)"),
        (returning(golden='return {"y": 2 * x}'), r"reference for M=2, N=3: gives no top"),
        (returning(golden='return {"top": x.max(), "y": x}'), r"top has shape \[\]; \[2\] is needed"),
        (returning(golden='return {"top": x.max(1), "y": x, "z": x}'), r"gives z; accepted: top, top\.scale, y"),
        (
            returning(golden='return {"top": x.max(1), "y": x.astype(np.float32)}'),
            r"y has dtype float32; float64 is needed",
        ),
        (returning(golden='return {"top": x.max(1), "y": x, "y.scale": -abs(x)}'), r"y\.scale must be finite and not"),
        (returning(golden='return {"top": x.max(1), "y": x, "y.scale": x[0]}'), r"y\.scale has shape \[3\]; \[2, 3\]"),
        (returning(golden='inputs["x"][0] = 0; return {}'), r"ValueError: .*read-only \(line 8\)"),
    ],
)
def test_a_faulty_reference_is_described(tmp_path: Path, reference: str, message: str) -> None:
    """What the reference did, for which arguments, on which tensor or line."""
    with pytest.raises(GateError, match=message):
        use(tmp_path, reference)


@pytest.mark.parametrize(
    "ends", ["raise SystemExit(0)", "import os; os._exit(0)", "import sys; sys.exit()", "raise GeneratorExit"]
)
def test_a_reference_cannot_end_the_gate(tmp_path: Path, ends: str) -> None:
    """An exit in place of an answer is the gate's fault, with the file's name, wherever it stands."""
    with pytest.raises(GateError, match=r"reference\.py cannot be loaded: (SystemExit|GeneratorExit)"):
        loaded(tmp_path, REFERENCE + ends)
    called = loaded(tmp_path, REFERENCE.replace("    x = inputs", f"    {ends}\n    x = inputs"))
    inputs = called.inputs(np.random.default_rng(1), {"M": 4, "N": 4}, "normal")
    with pytest.raises(GateError, match=r"reference\.py: .*(SystemExit|GeneratorExit)"):
        called.golden(inputs, {"M": 4, "N": 4})


def test_who_asks_the_gate_to_stop_is_not_the_reference(tmp_path: Path) -> None:
    """An interrupt that happens to arrive inside the reference stays an interrupt."""
    stop = "    import os, signal; os.kill(os.getpid(), signal.SIGUSR1)\n    x = inputs"
    called = loaded(tmp_path, REFERENCE.replace("    x = inputs", stop))
    before = signal.signal(signal.SIGUSR1, Interrupted.now)
    try:
        with pytest.raises(Interrupted):
            called.golden({}, {"M": 4, "N": 4})
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (returning(inputs='return {"x": x * np.float32("nan")}'), "make_inputs .*: x is NaN everywhere"),
        (returning(golden='return {"top": x.max(axis=1), "y": x * np.nan}'), "reference .*: y is NaN everywhere"),
    ],
    ids=["inputs", "golden"],
)
def test_a_gate_whose_answer_is_nan_everywhere_judges_nothing(tmp_path: Path, reference: str, told: str) -> None:
    """What no comparison can tell apart is refused before a run begins."""
    with pytest.raises(GateError, match=told):
        gate.rehearse(loaded(tmp_path, reference))


def test_a_case_too_large_for_the_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated, with what it needs and what there is; held-out cases are looked at too."""
    huge = loaded(tmp_path, held_out=[{"name": "absurd", "args": {"M": 1_000_000, "N": 1_000_000}}])
    with pytest.raises(
        GateError, match=r"case 'absurd' \(M=1000000, N=1000000\) .*: 48\d+ bytes are needed and \d+ are"
    ):
        gate.rehearse(huge)
    monkeypatch.setattr(gate, "available_bytes", lambda: 100)
    with pytest.raises(GateError, match="bytes are needed and 100 are available"):
        gate.rehearse(loaded(tmp_path))


# ---------------------------------------------------------------- what is made to hurt


def test_aliases_are_refused(tmp_path: Path) -> None:
    """Ten lines of them stand for more values than any memory holds; the line is named at once."""
    path = folder(tmp_path)
    lines = ["contract: x", "distributions:", "- &a0 [x]"]
    lines += [f"- &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (path / "gate.yaml").write_text("\n".join(lines))
    lock = gate.lock(task(), path)
    with pytest.raises(GateError) as caught:
        gate.load(task(), path, lock)
    assert str(caught.value) == "gate.yaml:4: alias *a0 given; aliases are not accepted, write the value out"


@pytest.mark.parametrize(
    "value", ["[" * 20 + "x" * 9999 + "]" * 20, "0x" + "f" * 9999, "[" + "z, " * 9999 + "z]", '"\\e[2J\\n\\n"']
)
def test_a_huge_or_odd_value_is_told_in_one_short_line(tmp_path: Path, value: str) -> None:
    """Nested, long or made for the terminal: the message stays one that can be read."""
    path = folder(tmp_path)
    (path / "gate.yaml").write_text((path / "gate.yaml").read_text() + f"deterministic2: {value}\n")
    lock = gate.lock(task(), path)
    with pytest.raises(GateError, match=r"deterministic2: unknown; accepted") as caught:
        gate.load(task(), path, lock)
    assert str(caught.value).isprintable()
    text = yaml.safe_dump({**YAML, "contract": None}).replace("contract: null", f"contract: [{value}]")
    (path / "gate.yaml").write_text(text)
    with pytest.raises(GateError, match=r"contract: .* given$") as caught:
        gate.load(task(), path, gate.lock(task(), path))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_file_of_many_mistakes_tells_the_first(tmp_path: Path) -> None:
    """And how many there are beyond them."""
    with pytest.raises(GateError, match=r"distributions\[19\]: .*; and \d+ more$"):
        loaded(tmp_path, distributions=[{"a": i} for i in range(100)])


def test_a_gate_yaml_beyond_its_size_is_refused(tmp_path: Path) -> None:
    """Before it is parsed, which takes long."""
    with pytest.raises(GateError, match=r"gate\.yaml: \d+ bytes; at most 1048576 are accepted"):
        loaded(tmp_path, contract="x" * 2**21)


UNPRINTABLE = """
class E(Exception):
    def __str__(self): raise RuntimeError("no")
raise E"""
NAMELESS = """
class M(type): __name__ = property(lambda self: 1 / 0)
class E(Exception, metaclass=M): pass
raise E"""
ODD_TEXT = """
class S(str):
    def __iter__(self): raise ValueError
class E(Exception):
    def __str__(self): return S("a")
raise E"""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (UNPRINTABLE, "E: it cannot be printed (line 4)"),
        (NAMELESS, "an exception: it cannot be printed (line 4)"),
        (ODD_TEXT, "E: it cannot be printed (line 6)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
        ("raise GeneratorExit", "GeneratorExit (line 1)"),
        (r"raise Exception('a\nb\x1b[2J\udc80')", r"Exception: a\nb\x1b[2J\udc80 (line 1)"),
        ("raise Exception('x' * 10**6)", f"Exception: {'x' * 499}\N{HORIZONTAL ELLIPSIS} (line 1)"),
    ],
)
def test_whatever_a_reference_raises_is_a_line_about_the_gate(tmp_path: Path, statement: str, told: str) -> None:
    """An exception made to break whoever reports it is reported all the same."""
    with pytest.raises(GateError) as caught:
        loaded(tmp_path, reference=statement)
    assert str(caught.value) == f"reference.py cannot be loaded: {told}"


def test_a_result_that_is_a_class_of_its_own_is_asked_nothing_later(tmp_path: Path) -> None:
    """A dict that raises when it is looked at, and a name for the terminal."""
    head = "class D(dict):\n        def items(self): raise ValueError('no')\n        __iter__ = keys = items\n    "
    with pytest.raises(GateError, match=r"reference for M=2, N=3: ValueError: no"):
        use(tmp_path, returning(golden=f"{head}return D(y=x)"))
    with pytest.raises(GateError, match=r"gives a\\x1b\[2J; accepted"):
        use(tmp_path, returning(golden='return {"top": x.max(axis=1), "y": x, "a\\x1b[2J": x}'))


def test_a_reference_cannot_take_the_streams_away(tmp_path: Path) -> None:
    """The verdict is printed where it would have been."""
    before = sys.stdout, sys.stderr
    loaded(tmp_path, reference=REFERENCE + "\nimport sys\nsys.stdout = sys.stderr = None\n")
    assert (sys.stdout, sys.stderr) == before
