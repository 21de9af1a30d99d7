from __future__ import annotations

import ast
import codecs
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress

import libcst as cst

MAX_CHAIN = 1000
"""The largest length of a chain, such as a + b + c, a.b().c(), or if ... elif ... elif."""

MAX_DEPTH = 200
"""The largest depth of nested brackets."""

MAX_TEXT = 100

TOO_DEEP = "The file has code that is nested too deep, or too long, to be read. Port the file by hand."

PYTHON_2 = re.compile(r"\s*(print\s+[^=(\s]|print\s*>>|except\s+[\w.()\s,]+,\s*\w+\s*:|raise\s+\w+\s*,|exec\s+['\"\w])")

TOKENS = re.compile(
    r"(?P<skipped>#[^\n]*|\\\n)"
    r"""|(?P<links>\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"|(?P<linked>\b(?:and|or|not|if|lambda|await|in|is)\b|\*\*|//|[-+*/%@<>=~^|&.:])"
    r"|(?P<opens>[(\[{])|(?P<closes>[)\]}])|(?P<parts>[,;])|(?P<begins>\n(?=[\w@]))|(?P<ends>\n)",
    re.DOTALL,
)
"""Matches the tokens that make an expression long or deep, in source that Python cannot parse."""


class UnreadableSourceError(Exception):
    """Python cannot parse a file. The message contains the reason."""


def identifiers(content: bytes) -> set[str] | None:
    """Return the names and the short strings in source, or None if Python cannot parse the source.

    The result contains `getattr` only if a getattr call looks up a computed name in a module.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(content)
    except (RecursionError, MemoryError):
        raise UnreadableSourceError(TOO_DEEP) from None
    except (SyntaxError, ValueError) as error:
        if "too many nested" in str(error) or _is_too_deep(content):
            raise UnreadableSourceError(TOO_DEEP) from None
        return None
    nodes = list(ast.walk(tree))
    names = {name for node in nodes for name in _names_in(node)}
    return names if "getattr" not in names or _looks_up_attributes(nodes) else names - {"getattr"}


def syntax_problem(error: cst.ParserSyntaxError, content: bytes) -> str:
    if _is_too_deep(content):
        return TOO_DEEP
    line, message = error.raw_line, error.message.splitlines()[0]
    if message.startswith("tokenizer error"):  # LibCST then has no line
        with suppress(ValueError):
            line, message = _python_problem(content) or (line, message)
    if any(map(PYTHON_2.match, codecs.decode(content, "utf-8", "replace").splitlines())):
        problem = f"Line {line} is not valid in Python 3, and the file seems to be Python 2."
        return f"{problem} Convert it with 2to3 or futurize, then port the result."
    return f"Line {line} is not valid Python: {message}. Correct it."


def _python_problem(content: bytes) -> tuple[int, str] | None:
    """Return (line, message) of the syntax error, or None if there is no error.

    Raise ValueError if the source contains NUL bytes.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(content)
    except SyntaxError as error:
        return (error.lineno, error.msg) if error.lineno else None
    return None


def _looks_up_attributes(nodes: Sequence[ast.AST]) -> bool:
    modules: set[str] = set()
    owners: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                modules |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Assign(targets=targets, value=ast.Attribute() | ast.Name()):
                modules |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]) if not isinstance(name, ast.Constant):
                while isinstance(owner, ast.Attribute):
                    owner = owner.value
                owners |= {owner.id} if isinstance(owner, ast.Name) else set()
    return bool(modules & owners)


def _names_in(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
            return name.split(".")
        case ast.Constant(value=str(text)) if len(text) < MAX_TEXT:
            return [text]
        case ast.BoolOp(values=values) if len(values) > MAX_CHAIN:
            raise UnreadableSourceError(TOO_DEEP)
    return ()


def _is_too_deep(content: bytes) -> bool:
    links = [0]
    for token in TOKENS.finditer(codecs.decode(content, "utf-8", "replace")):
        kind = token.lastgroup
        if kind == "begins" or (kind == "ends" and len(links) == 1):
            links = [0]
        elif kind == "parts":
            links[-1] = 0
        elif kind == "closes":
            links = links[:-1] or [0]
        elif kind in ("links", "linked", "opens"):
            links[-1] += 1
        if links[-1] > MAX_CHAIN or len(links) > MAX_DEPTH:
            return True
        if kind == "opens":
            links.append(0)
    return False
