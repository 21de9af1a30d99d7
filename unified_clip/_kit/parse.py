"""Parse TOML, and Python source, whose code is never run."""

from __future__ import annotations

import ast
import platform
import re
import sys
import tokenize
import warnings
from io import BytesIO
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    import tomli as tomllib  # noqa: F401

MAX_DEPTH = 200
"""CPython allows the same number of nested parentheses. Deeper trees would exceed Python's limit of 1,000 calls in
functions that call themselves for each level, such as ast.unparse."""

TOO_DEEP = "Some code in the file is too long or too deeply nested to be read. Split the code."

PYTHON_2 = re.compile(r"\s*(print\s+[^=(\s]|print\s*>>|except\s+[\w.()\s,]+,\s*\w+\s*:|raise\s+\w+\s*,|exec\s+['\"\w])")


class UnreadableSourceError(Exception):
    """Python cannot parse a file. The message is a sentence without the name of the file."""


def parse_python(source: str | bytes) -> ast.Module:
    tree: Any = parsed_nodes(source)[0]
    return tree  # type: ignore[no-any-return]


def parse_expression(code: str) -> ast.expr:
    tree: Any = parsed_nodes(code, "eval")[0]
    return tree.body  # type: ignore[no-any-return]


def parsed_nodes(source: str | bytes, mode: str = "exec") -> list[ast.AST]:
    """Return all nodes of Python source, in the order of ast.walk. The first node is the whole tree."""
    text = source if isinstance(source, str) else decoded(source)
    try:
        with warnings.catch_warnings():  # such as of invalid escapes
            warnings.simplefilter("ignore")
            level: list[ast.AST] = [ast.parse(text, mode=mode)]
    except (RecursionError, MemoryError):
        raise UnreadableSourceError(TOO_DEEP) from None
    except (SyntaxError, ValueError) as error:
        raise UnreadableSourceError(_problem(error, text)) from None
    nodes: list[ast.AST] = []
    for _ in range(MAX_DEPTH):
        nodes += level
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return nodes
    raise UnreadableSourceError(TOO_DEEP)


def decoded(source: bytes) -> str:
    """Decode Python source, also its comments. ast.parse does not decode comments, but LibCST does."""
    try:
        return source.decode(tokenize.detect_encoding(BytesIO(source).readline)[0])
    except (SyntaxError, ValueError, LookupError) as error:
        remedy = "Save the file as UTF-8, and remove a comment such as `# coding: latin-1` from its first two lines."
        raise UnreadableSourceError(f"The text of the file cannot be decoded: {error}. {remedy}") from None


def _problem(error: SyntaxError | ValueError, text: str) -> str:
    if "too many nested" in str(error):
        return TOO_DEEP
    if not isinstance(error, SyntaxError) or not error.lineno:
        return f"The file is not valid Python: {error}. Correct the file."
    if any(map(PYTHON_2.match, text.splitlines())):
        problem = f"Line {error.lineno} is not valid in Python 3, and the file seems to be Python 2."
        return f"{problem} Convert the file with 2to3 or futurize."
    version = ".".join(platform.python_version_tuple()[:2])
    remedy = f"Correct the line. If the code needs a newer Python than {version}, run this command in that Python."
    return f"Line {error.lineno} is not valid Python: {error.msg}. {remedy}"
