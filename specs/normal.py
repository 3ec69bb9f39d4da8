"""A source with comments and white space folded: two sources of one normal form are the same idea."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize

from specs.schema import Language

# In this order: whatever starts first wins, so `//` inside a string is no comment and a quote in a comment no string.
TOKEN = re.compile(
    r"""
    (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?(?:\)(?P=fence)"|\Z))
  | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<literal>(?:u8|[uUL])?(?:"(?:\\\r?\n|\\.|[^"\\\n])*"?|'(?:\\\r?\n|\\.|[^'\\\n])*'?))
  | (?P<number>\.?\d(?:'?[A-Za-z0-9_]|[eEpP][+-]|\.)*)
  | (?P<word>[A-Za-z_$\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
  | (?P<splice>\\\r?\n)
  | (?P<newline>\n)
  | (?P<space>[^\S\n]+)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SOLID = {"raw", "literal", "number", "word"}
LONGEST_LINE = 4_000  # of a Python source: its tokenizer takes time by the square of a line that is no Python


def normal_digest(source: bytes, language: Language) -> str:
    """sha256 of the normal form. Sources that a compiler could tell apart differ, line numbers and spaces
    inside stringified macro arguments aside."""
    text = source.decode(errors="surrogateescape")
    folded = _fold_python(text) if language is Language.TRITON else _fold_c(text)
    return hashlib.sha256(folded.encode(errors="surrogateescape")).hexdigest()


def _fold_c(text: str) -> str:
    """One space where white space may matter, none elsewhere; preprocessor lines keep their ends and their spaces."""
    out: list[str] = []
    previous = "newline"  # kind of the last token written
    gap = False  # white space or a comment came after it
    directive = False
    fresh = True  # nothing but white space and comments on this line yet
    for match in TOKEN.finditer(text):
        kind = str(match.lastgroup if match.lastgroup != "fence" else "raw")
        text_of = match[0]
        if kind in ("space", "comment", "splice"):
            gap = True
            continue
        if kind == "newline":
            fresh = True
            if directive:
                out.append("\n")
                directive, previous, gap = False, "newline", False
            else:
                gap = True
            continue
        starts_line, fresh = fresh, False
        if kind == "mark" and text_of == "#" and starts_line:
            if previous != "newline":
                out.append("\n")
            directive, previous, gap = True, "newline", False
        # `#define F (x)` is not `#define F(x)`; elsewhere a space only matters between two tokens that could merge.
        mergeable = (
            (kind in _SOLID) == (previous in _SOLID)
            or "literal" in (kind, previous)
            or "raw" in (kind, previous)
            or (previous == "number" and text_of in ("+", "-", "."))  # `0x1e +1` is a sum, `0x1e+1` one odd number
        )
        if gap and previous != "newline" and (directive or mergeable):
            out.append(" ")
        out.append(text_of)
        previous, gap = kind, False
    return "".join(out)


def _fold_python(text: str) -> str:
    """Tokens of each logical line, comments and blank lines left out; indentation keeps its depth only."""
    out: list[str] = []
    if too_wide(text):
        return text
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
                out.append(tokenize.tok_name[token.type])
            else:
                out.append(token.string)
    except (tokenize.TokenError, SyntaxError):
        return text  # not Python: let it be its own normal form
    return "\x00".join(out)


def too_wide(text: str) -> bool:
    return any(len(line) > LONGEST_LINE for line in text.split("\n"))
