"""What the text of a Triton candidate is refused for, before anything of it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.harness import python_rules
from kernels.harness.python_rules import in_python

HEAD = "import triton\nimport triton.language as tl\n"


def findings(text: str) -> list[str]:
    return in_python(text, "kernel.py")


@pytest.mark.parametrize(
    "text",
    [
        HEAD,
        "from triton import language as tl, jit, cdiv",
        "from triton.language.extra import libdevice",
        "import triton.language.extra.cuda as cuda",
        "from math import sqrt\nfrom __future__ import annotations",
        HEAD
        + "@triton.heuristics({'B': lambda given: triton.next_power_of_2(given['N'])})\n@triton.jit\ndef k(x): pass",
        HEAD + "if __name__ == '__main__': pass",
        HEAD + "HAS = hasattr(tl, 'make_tensor_descriptor')\ndot = getattr(tl, 'dot')",
        HEAD + "seen = {}\nseen['a'] = 1\n",
        "from triton.tools.tensor_descriptor import TensorDescriptor",
        HEAD + "def f(n):\n    match n:\n        case {'a': 1, **rest} | [1, *rest]: return rest",
        HEAD + "def f(x):\n    'Takes {x.shape}.'\n    return f'{x.shape}' + '{:.3f} of {0}'.format(1, 2)",
        HEAD + "class Shape:\n    def __init__(self, n): pass",
    ],
)
def test_what_kernels_are_written_with_is_accepted(text: str) -> None:
    assert findings(text) == []


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("import torch", 1, "torch"),
        (HEAD + "import os, math", 3, "imports os"),
        (HEAD + "from subprocess import run", 3, "subprocess"),
        (HEAD + "from . import tape", 3, "imports from ."),
        (HEAD + "from kernels.harness import tape", 3, "kernels.harness"),
        (HEAD + "from triton.language import *", 3, "everything"),
        (HEAD + "import triton.testing", 3, "triton.testing"),
        (HEAD + "from triton import runtime", 3, "runtime"),
        (HEAD + "from triton.language import core as c\nc.builtins", 4, ".builtins"),
        (HEAD + "triton.runtime.driver.active", 3, ".runtime"),
        ("import triton as t\nt.knobs", 2, "knobs"),
        ("import triton as t\nt.compile", 2, "triton.compile"),
        (HEAD + "eval('1')", 3, "eval"),
        (HEAD + "run = exec", 3, "exec"),
        (HEAD + "open('/etc/passwd')", 3, "open"),
        (HEAD + "__import__('os')", 3, "__import__"),
        (HEAD + "x = __builtins__", 3, "__builtins__"),
        (HEAD + "print(__file__)", 3, "__file__"),
        (HEAD + "globals()['tl']", 3, "globals"),
        (HEAD + "().__class__.__base__.__subclasses__()", 3, "__subclasses__"),
        (HEAD + "getattr(tl, 'a' + 'b')", 3, "made up"),
        (HEAD + "getattr(tl, '__dict__')", 3, "__dict__"),
        (HEAD + "hasattr(tl, name)", 3, "made up"),
        (HEAD + "tl.load = None", 3, "assigns to .load"),
        (HEAD + "del tl.load", 3, "assigns to .load"),
        (HEAD + "for tl.x in (1,): pass", 3, "assigns to .x"),
        (HEAD + "def f():\n    yield\nf().gi_frame.f_back", 5, "gi_frame"),
        (HEAD + "@triton.jit\ndef k(x):\n    tl.device_print('', x)", 5, "device_print"),
        (HEAD + "@triton.jit\ndef k(x):\n    print('', x)", 5, "print"),
        (HEAD + "k[(1,)](x, ir_override='k.ttir')", 3, "ir_override"),
        (HEAD + "k[(1,)](x, **{'ir_override': 'k.ttir'})", 3, "ir_override"),
        (HEAD + "match k:\n    case object(__globals__=g): pass", 4, "__globals__"),
        (HEAD + "match k:\n    case tl.dtype(runtime=r) | [*_]: pass", 4, "runtime"),
        (HEAD + "match k:\n    case {'__builtins__': b}: pass", 4, "__builtins__"),
        (HEAD + "match k:\n    case {**__rest}: pass", 4, "__rest"),
        (HEAD + "match k:\n    case __whole: pass", 4, "__whole"),
        (HEAD + "names['__import__']('os')", 3, "__import__"),
        (HEAD + "f(__class__=1)", 3, "__class__"),
        (HEAD + "def f():\n    global __builtins__", 4, "__builtins__"),
        (HEAD + "'{0.__class__}'.format(tl)", 3, "a format that looks into an object"),
        (HEAD + "'{0[__name__]}'.format(tl)", 3, "a format that looks into an object"),
        (HEAD + "'{x!r:{y.z}}'.format(x=1, y=tl)", 3, "a format that looks into an object"),
        (HEAD + "text.format(tl)", 3, ".format of a text that is made up"),
        (HEAD + "('{0.__cl' + 'ass__}').format(tl)", 3, ".format of a text that is made up"),
        (HEAD + "str.format('{}', tl)", 3, ".format of a text that is made up"),
        (HEAD + "'{a}'.format_map(tl)", 3, ".format_map"),
        (HEAD + "attrgetter('a')(tl)", 3, "attrgetter"),
    ],
)
def test_each_finding_names_line_and_thing(text: str, line: int, named: str) -> None:
    found = findings(text)
    assert any(each.startswith(f"kernel.py:{line}: ") and named in each for each in found), found


def test_a_text_that_python_would_read_otherwise_is_refused() -> None:
    """A coding cookie could make Python see what this reader does not."""
    assert python_rules.source_text(b"# -*- coding: utf-8 -*-\nx = 1\n")
    with pytest.raises(SyntaxError, match="line 1: coding utf-7"):
        python_rules.source_text(b"# -*- coding: utf-7 -*-\n+AGkAbQBwAG8AcgB0-\n")
    with pytest.raises(SyntaxError, match="line 2: byte 0xff"):
        python_rules.source_text(b"x = 1\n\xff")
    with pytest.raises(SyntaxError, match="zero byte"):
        python_rules.source_text(b"x = 1\0")


def test_the_launcher_is_a_plain_function_that_takes_every_argument() -> None:
    text = """
import triton

@triton.jit
def kernel(a, b): pass

def two(a, b): pass

def some(a, b, c=None): pass

def any_number(*all): pass

def by_name(a, *, b): pass
"""
    known = python_rules.functions(text, "kernel.py")
    assert set(known) == {"two", "some", "any_number"}

    def missing(entry: str, count: int) -> str | None:
        return python_rules.missing_entry(known, entry, ["a", "b", "c"][:count])

    assert missing("two", 2) is None
    assert missing("some", 2) is None
    assert missing("some", 3) is None
    assert missing("any_number", 3) is None
    assert missing("two", 3) == "two takes 2 arguments; 3 are needed: def two(a, b, c)"
    assert missing("kernel", 2) == "defines no launcher def kernel(a, b); it defines: any_number, some, two"


def test_the_check_is_a_program_that_runs_nothing_of_the_source(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\ndef entry(): pass\n")
    command = [sys.executable, "-I", "-S", python_rules.__file__, str(source), str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode == 0
    told = json.loads((tmp_path / "out").read_text())
    assert told["functions"] == {"entry": [0, 0]}
    assert told["findings"][0].startswith("kernel.py:1: imports os")
    assert not (tmp_path / "ran").exists()

    source.write_text("def entry(:\n")
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    assert broken.returncode == 1
    assert broken.stdout.startswith("kernel.py:1: invalid syntax")


def test_a_source_that_is_too_deep_to_parse_is_no_crash_of_ours(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("x = " + "(" * 5000 + ")" * 5000)
    command = [sys.executable, "-I", "-S", python_rules.__file__, str(source), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert not (tmp_path / "out").exists()
