"""A reference that a model wrote: numpy, and no way to a file, a process or the interpreter."""

from __future__ import annotations

import pytest

from activities.agents.reference_rules import findings
from tests.fakes import REFERENCE


def test_an_honest_reference_has_nothing_against_it() -> None:
    """As the shipped gates are written."""
    assert findings(REFERENCE) == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("import os", "import of os"),
        ("from subprocess import run", "import from subprocess"),
        ("from . import x", "import from ."),
        ("import numpy.ctypeslib", "import of numpy.ctypeslib"),
        ("from numpy import ctypeslib", "import of ctypeslib"),
        ("from numpy import *", "import of *"),
        ("x = open('/etc/passwd')", "open"),
        ("x = __import__('os')", "__import__"),
        ("x = getattr(np, 'lo' + 'ad')", "getattr"),
        ("x = np.load('f')", ".load"),
        ("x = np.zeros(1).tofile('f')", ".tofile"),
        ("x = ().__class__.__mro__", ".__class__"),
        ("x = np._core", "._core"),
        ("np.ma.extras.warnings.sys.modules['os'].system('id')", ".warnings"),
        ("from numpy.ma import extras", "import from numpy.ma"),
        ("from numpy import warnings", "import of warnings"),
        ("x = __builtins__['eval']", "__builtins__"),
        ("x = __loader__", "__loader__"),
        ("x = (i for i in []).gi_frame.f_builtins", ".gi_frame"),
        ("match np:\n    case object(__class__=x): pass", "a class pattern"),
        ("x = '{0.__class__}'.format(np)", ".format"),
        ("x = (", "not Python"),
    ],
)
def test_a_way_out_is_named_with_its_line(line: str, named: str) -> None:
    """Wherever in the file it stands."""
    found = findings(f"{REFERENCE}\n{line}\n")
    assert any(named in one for one in found), found
    last = len(f"{REFERENCE}\n{line}".splitlines())
    assert any(one.startswith(f"line {last}: ") for one in found), found


def test_the_functions_that_the_gate_calls_are_there_with_their_arguments() -> None:
    """Found out before the gate process is asked."""
    assert findings("import numpy as np\n") == [
        "line 1: no function make_inputs; make_inputs and reference are needed",
        "line 1: no function reference; make_inputs and reference are needed",
    ]
    assert "takes 1 arguments; 2 are given" in findings(REFERENCE.replace("(inputs, args)", "(inputs)"))[0]


def test_a_text_that_overflows_the_parser_is_a_finding() -> None:
    """Or ends the process that reads it, which is why that is a process of its own."""
    assert "not Python" in findings("(" * 5_000)[0]
