"""Collect the edits of a file, and apply all of them together.

An edit replaces a span of the text, so comments, blank lines and formatting outside of the span stay as they are.
Comments inside a replaced span are written above the statement.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .._kit.parse import UnreadableSourceError
from .module import Module
from .text import Span, Token
from .tree import Argument, names_in, sorted_nodes, text_of

IMPORTS = (ast.Import, ast.ImportFrom)

NO_TOKEN = Token(0, 0, "", 0)


class Edit(NamedTuple):
    start: int
    end: int
    text: str


class Edits:
    def __init__(self, module: Module) -> None:
        self._module, self._text = module, module.text
        self._edits: list[Edit] = []
        self._after: dict[ast.stmt, list[str]] = {}
        self._imports: set[str] = set()
        self._dropped: dict[ast.stmt, list[str]] = {}
        """{statement: comments inside its replaced code}"""

    def replace(self, node: ast.expr | ast.Import | ast.ImportFrom, code: str) -> None:
        """Replace an expression or an import. Parentheses around an expression stay."""
        self._add(node, self._text.span(node), code)

    def pass_by_keyword(self, argument: Argument, keyword: str) -> None:
        start, _ = self._module.span(argument.value)
        self._edits.append(Edit(start, start, f"{keyword}="))

    def rename_keyword(self, argument: Argument, keyword: str) -> None:
        start, _ = self._text.span(argument.node)
        self._edits.append(Edit(start, start + len(argument.keyword), keyword))

    def remove_names(self, statement: ast.Import | ast.ImportFrom, names: Sequence[ast.alias]) -> None:
        """Remove some names of an import. At least one name has to stay."""
        last = max(number for number, name in enumerate(statement.names) if name not in names)
        for name in statement.names[:last]:
            if name in names:
                self._remove_item(name, self._text.span(name))
        if at_end := statement.names[last + 1 :]:
            self._remove_item(at_end[0], (self._text.span(at_end[0])[0], self._text.span(at_end[-1])[1]))

    def insert_after(self, statement: ast.stmt, line: str) -> None:
        """Insert a line below a statement. The same line is inserted only once."""
        self._after.setdefault(statement, []).append(line)

    def add_import(self, module: str) -> None:
        """Import a module below the imports of the file."""
        self._imports.add(module)

    def _add(self, node: ast.AST, span: Span, code: str) -> None:
        if self._module.is_misplaced(node):
            remedy = "Run this command in Python 3.12 or later, or move the expression out of the f-string."
            raise UnreadableSourceError(f"Python does not know the column of {ast.unparse(node)}. {remedy}")
        self._dropped.setdefault(self._module.statement(node), []).extend(self._text.comments(*span))
        self._edits.append(Edit(*span, code))

    def _remove_item(self, node: ast.AST, span: Span) -> None:
        """Remove an item of a list with commas. If nothing else is in its lines, remove the lines."""
        start, end = span
        before, after = next(self._text.before(start), NO_TOKEN), next(self._text.after(end), NO_TOKEN)
        has_comma = after.text == ","
        if has_comma:
            end = after.end
        line_end = self._text.line_span(self._text.line_at(end))[1]
        rest = self._text.text[end:line_end].strip()
        starts_line = self._text.starts_line(start)
        line_start = self._text.line_span(self._text.line_at(start))[0]
        is_comment = rest.startswith("#")
        if not has_comma and before.text == ",":
            self._add(node, (before.start, before.end), "")
        if starts_line and (not rest or is_comment):
            start, end = line_start, self._text.next_line(end)
        elif starts_line and has_comma:
            end = next(self._text.after(end), NO_TOKEN).start
        elif self._text.comments(before.end, start):
            start = line_start
        elif before.text == "," or not rest or is_comment:
            start, end = before.end, line_end if is_comment else end
        elif has_comma:
            end = next(self._text.after(end), NO_TOKEN).start
        self._add(node, (start, end), "")

    # -- applying

    def to_bytes(self) -> bytes:
        edits = [*self._edits, *self._new_imports()]
        for statement, comments in self._dropped.items():
            start = self._start(statement)
            above = "".join(f"{comment}{self._text.newline}{self._text.indentation(start)}" for comment in comments)
            edits += [Edit(start, start, above)] * bool(comments)
        for statement, lines in self._after.items():
            start, end = self._text.span(statement)
            for line in dict.fromkeys(lines):
                edits.append(self._line_at(self._text.next_line(end), f"{self._text.indentation(start) or ''}{line}"))
        if not edits:
            content = self._module.content
            return content if isinstance(content, bytes) else content.encode()
        return self._text.to_bytes(self._applied(edits))

    def _applied(self, edits: Sequence[Edit]) -> str:
        """Return the text after all edits. An edit inside of a longer edit is dropped."""
        parts, place = [], 0
        for edit in sorted(edits, key=lambda each: (each.start, each.start != each.end, -each.end)):
            if place <= edit.start:
                parts += [self._text.text[place : edit.start], edit.text]
                place = edit.end
        return "".join([*parts, self._text.text[place:]])

    def _start(self, statement: ast.stmt) -> int:
        decorators = getattr(statement, "decorator_list", [])
        start = self._text.span(decorators[0] if decorators else statement)[0]
        return self._text.text.rindex("@", 0, start) if decorators else start

    def _line_at(self, place: int, line: str) -> Edit:
        newline, text = self._text.newline, self._text.text
        is_after_line = place == 0 or text[place - 1] in "\r\n"
        return Edit(place, place, f"{line}{newline}" if is_after_line else f"{newline}{line}")

    # -- imports

    def _new_imports(self) -> Iterator[Edit]:
        body = self._module.tree.body
        present = {self._module.source(each) for each in body if isinstance(each, ast.Import)}
        for name in sorted(self._imports):
            line = f"import {name}"
            if line in present:
                continue
            above = self._above_import(body, name)
            if above is not None:
                yield self._line_at(self._text.next_line(self._text.span(above)[1]), line)
            elif not body:
                yield self._line_at(len(self._text.text), line)
            else:
                first = self._text.line_span(self._text.line_at(self._start(body[0])))[0]
                yield self._line_at(first, f"{line}{self._text.newline}")

    def _above_import(self, body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
        """Return the last import of the file before the first use of the package, or None."""
        package = name.partition(".")[0]
        used = [edit.start for edit in self._edits if edit.text.startswith(package)]
        above = None
        for number, statement in enumerate(body):
            is_docstring = number == 0 and isinstance(statement, ast.Expr) and text_of(statement.value) is not None
            start, end = self._text.span(statement)
            if _imports(statement) or is_docstring:
                above = statement
            elif any(start <= each < end for each in used) or _names(statement, package):
                break
        return above


def _imports(statement: ast.stmt) -> bool:
    """Return whether a statement is an import, or a `try` that begins with an import."""
    first = statement.body[0] if isinstance(statement, ast.Try) else statement
    return isinstance(first, IMPORTS)


def _names(statement: ast.stmt, name: str) -> bool:
    return any(name in names_in(node) for node in sorted_nodes(statement))
