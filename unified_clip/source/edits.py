"""Collect the edits of a file, and apply all of them together.

An edit replaces a span of the text, so comments, blank lines and formatting outside of the span stay as they are.
Comments inside a replaced span are written above the statement.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .._kit.parse import UnreadableSourceError
from .module import Module
from .text import Span, Token, indented
from .tree import Argument, names_in, sorted_nodes, text_of

Lines = Sequence[str] | Callable[[], Sequence[str]]
"""New lines of code, or a function that returns them. The function is called after all edits are known."""

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
        self._before: dict[ast.stmt, list[Lines]] = {}
        self._after: dict[ast.stmt, list[str]] = {}
        self._rewritten: dict[ast.stmt, Lines] = {}
        self._imports: set[str] = set()
        self._dropped: dict[ast.stmt, list[str]] = {}
        """{statement: comments inside its removed or replaced code}"""

    # -- collecting

    def replace(self, node: ast.expr, code: str) -> None:
        """Replace an expression. Parentheses around it stay."""
        self._add(node, self._text.span(node), code)

    def pass_by_keyword(self, argument: Argument, keyword: str) -> None:
        start, _ = self._module.span(argument.value)
        self._edits.append(Edit(start, start, f"{keyword}="))

    def rename_keyword(self, argument: Argument, keyword: str) -> None:
        start, _ = self._text.span(argument.node)
        self._edits.append(Edit(start, start + len(argument.keyword), keyword))

    def remove_argument(self, argument: Argument) -> None:
        self._remove_item(argument.node, self._module.span(argument.node))

    def remove_names(self, statement: ast.Import | ast.ImportFrom, names: Sequence[ast.alias]) -> None:
        """Remove some names of an import. At least one name has to stay."""
        last = max(number for number, name in enumerate(statement.names) if name not in names)
        for name in statement.names[:last]:
            if name in names:
                self._remove_item(name, self._text.span(name))
        if at_end := statement.names[last + 1 :]:
            self._remove_item(at_end[0], (self._text.span(at_end[0])[0], self._text.span(at_end[-1])[1]))

    def insert_before(self, statement: ast.stmt, lines: Lines) -> None:
        """Insert lines above a statement. Lines that are there already are not inserted again."""
        self._before.setdefault(statement, []).append(lines)

    def insert_after(self, statement: ast.stmt, line: str) -> None:
        self._after.setdefault(statement, []).append(line)

    def rewrite(self, statement: ast.stmt, lines: Lines) -> None:
        """Replace a statement. Without lines, the statement is removed."""
        self._rewritten[statement] = lines

    def add_import(self, module: str) -> None:
        """Import a module below the imports of the file."""
        self._imports.add(module)

    def updated(self, node: ast.AST) -> str:
        """Return the code of a node after the edits inside it."""
        return self._applied(*self._module.span(node), self._edits)

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
        edits = [*self._edits]
        for statement in {**self._before, **self._after, **self._rewritten, **self._dropped}:
            edits += self._of_statement(statement)
        edits += self._new_imports()
        content = self._module.content
        if not edits:
            return content if isinstance(content, bytes) else content.encode()
        return self._text.to_bytes(self._applied(0, len(self._text.text), edits))

    def _applied(self, start: int, end: int, edits: Sequence[Edit]) -> str:
        """Return a part of the text after the edits inside it. An edit inside of a longer edit is dropped."""
        parts, place = [], start
        for edit in sorted(edits, key=lambda each: (each.start, each.start != each.end, -each.end)):
            if place <= edit.start and edit.end <= end:
                parts += [self._text.text[place : edit.start], edit.text]
                place = edit.end
        return "".join([*parts, self._text.text[place:end]])

    def _of_statement(self, statement: ast.stmt) -> Iterator[Edit]:
        start, end = self._start(statement), self._text.span(statement)[1]
        before = [*dict.fromkeys(line for lines in self._before.get(statement, ()) for line in _called(lines))]
        comments = self._dropped.get(statement, [])
        lines = _called(self._rewritten.get(statement, ()))
        if statement in self._rewritten:
            comments = self._text.comments(start, end)
        above = [*_lost(comments, "\n".join([*before, *lines])), *before]
        if statement in self._rewritten and not lines:
            yield self._removal(statement, start, end, above)
        elif statement in self._rewritten:
            yield Edit(start, end, self._joined(statement, [*above, *lines]))
        elif above:
            yield Edit(start, start, self._joined(statement, [*above, ""]))
        for line in dict.fromkeys(self._after.get(statement, ())):
            yield self._line_at(self._text.next_line(end), f"{self._text.indentation(start) or ''}{line}")

    def _start(self, statement: ast.stmt) -> int:
        decorators = getattr(statement, "decorator_list", [])
        start = self._text.span(decorators[0] if decorators else statement)[0]
        return self._text.text.rindex("@", 0, start) if decorators else start

    def _joined(self, statement: ast.stmt, lines: Sequence[str]) -> str:
        before = self._text.indentation(self._start(statement))
        if before is None or not self._module.has_own_line(statement):
            if any("\n" in line or line.startswith("#") for line in lines):
                raise ValueError(f"line {statement.lineno} contains several statements")
            return "; ".join(lines)
        code = [indented(line, before, self._text.indent, self._text.newline) for line in lines]
        return f"{self._text.newline}{before}".join(code)

    def _removal(self, statement: ast.stmt, start: int, end: int, above: Sequence[str]) -> Edit:
        """Remove the lines of a statement, and the blank lines above it. The comment beside it gets its own line."""
        outer, field = self._module.block(statement)
        if getattr(outer, field) == [statement] or not self._module.has_own_line(statement):
            return Edit(start, end, self._joined(statement, [*above, "pass"]))
        next_line = self._text.next_line(end)
        beside = next(
            (token for token in self._text.tokens if end <= token.start < next_line and token.text[0] == "#"), None
        )
        if beside is not None:
            return Edit(start, beside.start, self._joined(statement, [*above, ""]))
        if above:
            return Edit(start, end, self._joined(statement, above))
        number = line = self._text.line_at(start)
        while number > 1 and self._text.line(number - 1).lstrip()[:1] in ("", "#"):
            number -= 1
        has_comment = any(self._text.line(each).strip() for each in range(number, line))
        return Edit(self._text.line_span(line if has_comment else number)[0], next_line, "")

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
        used += [self._text.span(statement)[0] for statement in (*self._before, *self._rewritten)]
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


def _called(lines: Lines) -> Sequence[str]:
    return lines() if callable(lines) else lines


def _lost(comments: Sequence[str], code: str) -> list[str]:
    """Return the comments that new code does not contain."""
    left = Counter({comment: code.count(comment) for comment in comments})
    lost = []
    for comment in comments:
        left[comment] -= 1
        if left[comment] < 0:
            lost.append(comment)
    return lost
