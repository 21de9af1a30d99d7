from __future__ import annotations

import ast
import platform
import re
import tokenize
import warnings
from collections.abc import Sequence
from io import BytesIO

MAX_CHAIN = 1000

MAX_TEXT = 100

TOO_DEEP = "Some code in the file is too long or too deeply nested to be read. Port the file by hand."

PYTHON_2 = re.compile(r"\s*(print\s+[^=(\s]|print\s*>>|except\s+[\w.()\s,]+,\s*\w+\s*:|raise\s+\w+\s*,|exec\s+['\"\w])")


class UnreadableSourceError(Exception):
    """Python cannot parse a file."""


def identifiers(content: bytes) -> set[str]:
    """Return the names and short strings of a source file. Omit `getattr` if no call of getattr can return a clip."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(content)))
    except (RecursionError, MemoryError):
        raise UnreadableSourceError(TOO_DEEP) from None
    except (SyntaxError, ValueError) as error:
        raise UnreadableSourceError(_problem(error, content)) from None
    names = {name for node in nodes for name in _names_in(node)}
    return names if "getattr" not in names or _looks_up_attributes(nodes) else names - {"getattr"}


def _problem(error: SyntaxError | ValueError, content: bytes) -> str:
    try:
        text = content.decode(tokenize.detect_encoding(BytesIO(content).readline)[0])
    except (UnicodeDecodeError, SyntaxError) as failure:
        remedy = "Save the file as UTF-8, and remove a comment such as `# coding: latin-1` from its first two lines."
        return f"The text of the file cannot be decoded: {failure}. {remedy}"
    if "too many nested" in str(error):
        return TOO_DEEP
    if not isinstance(error, SyntaxError) or not error.lineno:
        return f"The file is not valid Python: {error}. Correct the file."
    if any(map(PYTHON_2.match, text.splitlines())):
        problem = f"Line {error.lineno} is not valid in Python 3, and the file seems to be Python 2."
        return f"{problem} Convert the file with 2to3 or futurize, then port the result."
    version = ".".join(platform.python_version_tuple()[:2])
    remedy = f"Correct the line. If the code needs a newer Python than {version}, run this command in that Python."
    return f"Line {error.lineno} is not valid Python: {error.msg}. {remedy}"


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
