"""Write a comment above each flagged clip, and remove the comments of an earlier run."""

from __future__ import annotations

import ast
import re
import textwrap
import tokenize
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from .. import _files
from .._parse import UnreadableSourceError, parse_python
from .port_file import port
from .ported_clip import PortedFile, Target

MARK = "# unified-clip: "
MORE = "#   "

WIDTH = 100
OLD_MARK = re.compile(rb"^[ \t]*# unified-clip: .*\r?\n(?:[ \t]*#   \S.*\r?\n)*", re.MULTILINE)


def mark(file: PortedFile, target: Target, native: bool, *, rewritten: bool) -> PortedFile:
    before = file.before or _files.read_bytes(file.path)  # `port_all` keeps no content of files without clips
    content = OLD_MARK.sub(b"", file.after if rewritten and file.after else before)
    marks = {
        site.line: site.reason for site in port(file.path, content, target, native).sites if site.verdict == "flagged"
    }
    return PortedFile(file.path, before, _insert(file.path, content, marks), file.sites)


def count(files: Sequence[PortedFile]) -> int:
    return sum(len(OLD_MARK.findall(file.after)) for file in files)


def _insert(path: Path, content: bytes, marks: dict[int, str]) -> bytes:
    """Insert each comment above the innermost statement that contains the clip, but never inside a string."""
    encoding = tokenize.detect_encoding(BytesIO(content).readline)[0].removesuffix("-sig")
    tree = parse_python(content)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for line, reason in sorted(marks.items(), reverse=True):  # so earlier lines keep their numbers
        starts = {node.lineno for node in statements if node.lineno <= line <= (node.end_lineno or node.lineno)}
        candidates = (_above(content, start, reason, encoding) for start in sorted(starts, reverse=True))
        content = next((new for new in candidates if _same_code(new, tree)), content)
    return content


def _above(content: bytes, line: int, reason: str, encoding: str) -> bytes:
    lines = content.splitlines(keepends=True)
    code = lines[line - 1]
    indent, end = code[: len(code) - len(code.lstrip())].decode("ascii", "ignore"), "\r\n" if b"\r\n" in code else "\n"
    comment = textwrap.wrap(reason, WIDTH, initial_indent=indent + MARK, subsequent_indent=indent + MORE)
    lines.insert(line - 1, "".join(text + end for text in comment).encode(encoding, "backslashreplace"))
    return b"".join(lines)


def _same_code(content: bytes, tree: ast.Module) -> bool:
    try:
        return ast.dump(parse_python(content)) == ast.dump(tree)
    except UnreadableSourceError:
        return False
