"""What the Python of a Triton candidate may not say: a tripwire before anything of it runs, and not a wall.

Python can hide anything from a reader of its text. What holds a candidate is the sandbox that it runs in, and what is
judged is the memory that its kernels wrote; this only tells an author early, with a line, what will not be accepted.

Run as `python -I -S python_rules.py SOURCE OUT`: parsing hostile text can end the process that does it, so it is not
done in the gate. OUT gets findings and the functions that the file defines, as JSON. Nothing of SOURCE is run.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Modules that can be imported, and what may be taken from each; None: everything that no other rule refuses.
_IMPORTS: dict[str, frozenset[str] | None] = {
    "__future__": None,
    "math": None,
    "triton": frozenset(
        {"Config", "autotune", "cdiv", "constexpr_function", "heuristics", "jit", "language", "next_power_of_2"}
        | {"reinterpret"}
    ),
    "triton.language": None,
    "triton.language.extra": frozenset({"cuda", "libdevice"}),
    "triton.language.extra.cuda": None,
    "triton.language.extra.libdevice": None,
    "triton.language.extra.cuda.libdevice": None,
    "triton.language.math": None,
    "triton.language.standard": None,
    "triton.tools.tensor_descriptor": frozenset({"TensorDescriptor"}),
}
_ACCEPTED = "triton, triton.language (with extra.cuda and libdevice) and math are accepted"

_NAMES = {
    **dict.fromkeys(["exec", "eval", "compile"], "runs text that nobody has looked at"),
    **dict.fromkeys(["open", "input", "breakpoint", "help"], "reaches for files or a terminal; a launcher launches"),
    **dict.fromkeys(["globals", "locals", "vars", "dir"], "looks into namespaces"),
    **dict.fromkeys(["setattr", "delattr", "memoryview"], "changes what is not the candidate's"),
    **dict.fromkeys(["attrgetter", "methodcaller"], "takes attributes by names that are made up while it runs"),
    **dict.fromkeys(["exit", "quit"], "ends the process; a launcher returns"),
    "print": "prints from the device, which takes time and memory that are not the kernel's",
}
# Ways from an object to the interpreter behind it, and modules that Triton's own modules hold.
_FRAMES = "ag_frame cr_frame f_back f_builtins f_code f_globals f_locals gi_code gi_frame mro tb_frame tb_next"
_MODULES = """backends builtins compiler ctypes driver errors functools importlib inspect interpreter knobs np numpy os
    profiler runtime subprocess sys testing threading torch"""
_ATTRIBUTES = {
    **dict.fromkeys(_FRAMES.split(), "looks into the interpreter"),
    **dict.fromkeys(_MODULES.split(), "is a part of Triton or of Python that no kernel needs"),
    "device_print": "prints from the device, which takes time and memory that are not the kernel's",
    "format_map": "looks into objects by what a text says; write the attribute out",
    **dict.fromkeys(["attrgetter", "methodcaller"], "takes attributes by names that are made up while it runs"),
    **dict.fromkeys(
        ["add_pre_run_hook", "cache_hook", "device_caches", "pre_run_hooks", "preload", "set_active"],
        "changes how Triton launches",
    ),
}
_KEYWORDS = {
    **dict.fromkeys(["extern_libs", "ir_override"], "names a file that Triton would read"),
    **dict.fromkeys(["ptx_options", "instrumentation_mode", "launch_metadata"], "changes how Triton compiles"),
}
# A field of str.format with an attribute, "{0.name}", or a key that is one of the interpreter's.
_REACHING_FORMAT = re.compile(r"\{[^{}]*(?:\.\s*[A-Za-z_]|\[\s*__)")
_DUNDER = re.compile(r"__\w+__")
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_FINDINGS_LIMIT = 20
OUTLINE = "outline.json"


def source_text(source: bytes) -> str:
    """The text of a candidate. Raises SyntaxError for one that is not UTF-8, or says so of itself."""
    for number, line in enumerate(source.split(b"\n")[:2], 1):
        if (cookie := _COOKIE.match(line)) and cookie[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8"):
            raise SyntaxError(f"line {number}: coding {cookie[1].decode()}; only UTF-8 is accepted")
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = source.count(b"\n", 0, error.start) + 1
        raise SyntaxError(f"line {at}: byte {source[error.start]:#04x} is not UTF-8") from None
    if "\0" in text:
        raise SyntaxError("holds a zero byte")
    return text


def in_python(text: str, name: str) -> list[str]:
    """Findings in the source text, each with its line: `kernel.py:3: ...`. Raises SyntaxError."""
    found = sorted({(line, what) for line, what in _Rules().walk(ast.parse(text, name))})
    return [f"{name}:{line}: {what}" for line, what in found[:_FINDINGS_LIMIT]]


def functions(text: str, name: str) -> dict[str, tuple[int, int]]:
    """The plain functions at the top of the file: fewest and most positional arguments. Raises SyntaxError."""
    found = {}
    for node in ast.parse(text, name).body:
        if isinstance(node, ast.FunctionDef) and not any(_is_jit(decorator) for decorator in node.decorator_list):
            given = [*node.args.posonlyargs, *node.args.args]
            fewest = len(given) - len(node.args.defaults)
            if any(default is None for default in node.args.kw_defaults):
                continue  # cannot be called with positional arguments
            found[node.name] = (fewest, 1000 if node.args.vararg else len(given))
    return found


def missing_entry(known: dict[str, tuple[int, int]], entry: str, names: list[str]) -> str | None:
    """Why a file that defines these functions has no launcher for an interface; None when it has one."""
    wanted = f"def {entry}({', '.join(names)})"
    if entry not in known:
        shown = ", ".join(sorted(known)[:10]) or "no plain function"
        return f"defines no launcher {wanted}; it defines: {shown}"
    fewest, most = known[entry]
    if not fewest <= len(names) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"{entry} takes {takes} arguments; {len(names)} are needed: {wanted}"
    return None


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute | ast.Name) and ast.unparse(target).rpartition(".")[2] == "jit"


class _Rules:
    """One walk over a file; `modules` are the names under which it knows modules."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._loose: set[ast.expr] = set()

    def walk(self, tree: ast.AST) -> Iterator[tuple[int, str]]:
        nodes = list(ast.walk(tree))
        # Docstrings and the like, which nobody reads.
        self._loose = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from ((node.lineno, what) for what in self._imported(node))
        for node in nodes:
            yield from ((getattr(node, "lineno", 1), what) for what in self._looked_at(node))

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in _IMPORTS:
                    yield f"imports {alias.name}; {_ACCEPTED}"
                elif alias.asname:
                    self._modules[alias.asname] = alias.name
                else:
                    self._modules[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
            return
        module = "." * node.level + (node.module or "")
        if module not in _IMPORTS:
            yield f"imports from {module}; {_ACCEPTED}"
            return
        for alias in node.names:
            taken = f"{module}.{alias.name}"
            allowed = _IMPORTS[module]
            if alias.name == "*":
                yield f"imports everything from {module}; name what is needed"
            elif taken in _IMPORTS:
                self._modules[alias.asname or alias.name] = taken
            elif allowed is not None and alias.name not in allowed:
                yield f"imports {alias.name} from {module}; accepted there: {', '.join(sorted(allowed))}"
            elif problem := self._attribute(alias.name):
                yield f"imports {alias.name} from {module}, which {problem}"

    def _looked_at(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name):
            if node.id in _NAMES:
                yield f"{node.id} {_NAMES[node.id]}; it is not accepted"
            elif node.id.startswith("__") and node.id != "__name__":
                yield f"{node.id} looks into the interpreter; it is not accepted"
        elif isinstance(node, ast.Attribute):
            if problem := self._attribute(node.attr):
                yield f".{node.attr} {problem}; it is not accepted"
            elif (
                isinstance(node.value, ast.Name)
                and self._modules.get(node.value.id) == "triton"
                and node.attr not in (allowed := _IMPORTS["triton"] or frozenset())
                and not any(module.startswith(f"triton.{node.attr}") for module in _IMPORTS)
            ):
                yield f"triton.{node.attr}: accepted of triton: {', '.join(sorted(allowed))}"
            if node.attr == "format" and not isinstance(node.value, ast.Constant):
                yield ".format of a text that is made up while it runs; write the text out"
            if not isinstance(node.ctx, ast.Load):
                yield f"assigns to .{node.attr}; nothing of another module or object may be changed"
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                if problem := self._attribute(name):
                    yield f"case {ast.unparse(node.cls)}({name}=...) {problem}; it is not accepted"
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Constant) and node not in self._loose:
            yield from self._text(node.value)
        for name in self._bound(node):
            if name.startswith("__"):
                yield f"{name} looks into the interpreter; it is not accepted"

    def _call(self, node: ast.Call) -> Iterator[str]:
        for keyword in node.keywords:
            if keyword.arg in _KEYWORDS:
                yield f"{keyword.arg} {_KEYWORDS[keyword.arg]}; it is not accepted"
            elif keyword.arg and keyword.arg.startswith("__"):
                yield f"{keyword.arg}= looks into the interpreter; it is not accepted"
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                yield f"{node.func.id} with a name that is made up while it runs; write the attribute out"
            elif problem := self._attribute(name.value):
                yield f"{node.func.id} of {name.value!r}, which {problem}; it is not accepted"

    @staticmethod
    def _bound(node: ast.AST) -> list[str]:
        """The variables that a node binds or declares without an ast.Name."""
        name: str | None = None
        if isinstance(node, ast.Global | ast.Nonlocal):
            return node.names
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
            name = node.name
        elif isinstance(node, ast.MatchMapping):
            name = node.rest
        elif isinstance(node, ast.alias):
            name = node.asname
        return [name] if name else []

    @staticmethod
    def _text(value: object) -> Iterator[str]:
        """What a text says to str.format, or to whoever looks a name up by it."""
        if not isinstance(value, str):
            return
        if value in _KEYWORDS:
            yield f"{value!r} {_KEYWORDS[value]}; it is not accepted"
        elif _REACHING_FORMAT.search(value):
            yield "a format that looks into an object; write the attribute out"
        elif _DUNDER.fullmatch(value) and value != "__main__":
            yield f"{value!r} looks into the interpreter; it is not accepted"

    @staticmethod
    def _attribute(name: str) -> str | None:
        if name.startswith("_"):
            return "looks into an object"
        return _ATTRIBUTES.get(name)


def main(arguments: list[str]) -> int:
    source, out = Path(arguments[0]), Path(arguments[1])
    told: dict[str, Any]
    try:
        text = source_text(source.read_bytes())
        told = {"findings": in_python(text, source.name), "functions": functions(text, source.name)}
    except SyntaxError as error:
        where = f"{source.name}:{error.lineno}: " if error.lineno else f"{source.name}: "
        shown = f"\n    {error.text.strip()[:120]}" if error.text else ""
        sys.stdout.write(f"{where}{error.msg}{shown}\n")
        return 1
    except (RecursionError, MemoryError, ValueError) as error:
        sys.stdout.write(f"{source.name}: cannot be read: {type(error).__name__}: {error}\n")
        return 1
    out.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
