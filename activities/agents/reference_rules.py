"""What the reference.py of a written gate may say: numpy, and no way to a file, a process or the interpreter.

A gate's reference is trusted code that runs in the gate process. One that a person ships is that person's business; one
that a model wrote is looked at first. The reviewer, and a person where the task asks for one, look at it too.

Run as `python -I -S reference_rules.py SOURCE OUT`: parsing a text can end the process that does it. OUT gets the
findings as a JSON list. Nothing of SOURCE is run.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

IMPORTS = ("__future__", "math", "ml_dtypes", "numpy", "numpy.typing")
_NAMES = frozenset({
    "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "help", "input",
    "locals", "memoryview", "open", "print", "quit", "setattr", "vars",
})  # fmt: skip
_ATTRIBUTES = frozenset({
    "DataSource", "core", "ctypes", "ctypeslib", "distutils", "dump", "dumps", "f2py", "fromfile", "fromregex",
    "genfromtxt", "lib", "load", "loadtxt", "memmap", "open_memmap", "save", "savetxt", "savez", "savez_compressed",
    "testing", "tofile",
})  # fmt: skip
# Modules lie about in numpy's own (`np.ma.extras.warnings.sys`); these are names of its functions too.
_MODULES = frozenset(sys.stdlib_module_names) - {
    "array", "copy", "math", "random", "select", "trace", "typing",
} | {"modules", "popen", "system"}  # fmt: skip
# Frames lead to all that the interpreter knows, and a format can read any attribute.
_INNER = frozenset({"format", "format_map", "mro", "with_traceback"})
_INNER_PREFIXES = ("_", "ag_", "co_", "cr_", "f_", "gi_", "tb_")
FUNCTIONS = {"make_inputs": 3, "reference": 2}


def findings(source: str) -> list[str]:
    """Each with its line: `line 3: ...`. Empty when there is nothing to object to."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        return [f"line {line}: not Python: {getattr(error, 'msg', None) or error}"]
    found = sorted(set(_found(tree)))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in FUNCTIONS if name not in functions]
    told = [f"line {line}: {what}" for line, what in found]
    told += [f"line 1: no function {name}; make_inputs and reference are needed" for name in missing]
    for name, count in FUNCTIONS.items():
        if name in functions and (given := len(functions[name].args.args)) != count:
            told.append(f"line {functions[name].lineno}: {name} takes {given} arguments; {count} are given to it")
    return told


def _found(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in IMPORTS:
                    yield node.lineno, f"import of {alias.name}; accepted: {', '.join(IMPORTS)}"
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module not in IMPORTS:
                yield node.lineno, f"import from {node.module or '.'}; accepted: {', '.join(IMPORTS)}"
            for alias in node.names:
                if alias.name == "*" or _reaches_out(alias.name):
                    yield node.lineno, f"import of {alias.name}, which is not accepted in a reference"
        elif isinstance(node, ast.Name) and (node.id in _NAMES or node.id.startswith("__")):
            yield node.lineno, f"{node.id}, which reaches outside of a reference"
        elif isinstance(node, ast.Attribute) and _reaches_out(node.attr):
            yield node.lineno, f".{node.attr}, which reaches outside of a reference"
        elif isinstance(node, ast.MatchClass):
            yield node.lineno, "a class pattern, which reads attributes"


def _reaches_out(attribute: str) -> bool:
    return (
        attribute.startswith(_INNER_PREFIXES)
        or attribute in _ATTRIBUTES
        or attribute in _MODULES
        or attribute in _INNER
    )


if __name__ == "__main__":
    _text = Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")
    Path(sys.argv[2]).write_text(json.dumps(findings(_text)), encoding="utf-8")
