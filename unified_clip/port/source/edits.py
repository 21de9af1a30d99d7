"""Collect the edits of a file, and apply all of them together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import libcst as cst

from .module import Module
from .syntax_tree import sorted_nodes

Lines = Sequence[str] | Callable[[Any], Sequence[str]]
"""New lines of code, or a function that returns them. Its argument is the old statement after all edits inside it."""

IMPORTS = (cst.Import, cst.ImportFrom)


@dataclass
class LineEdit:
    hoisted: dict[cst.BaseExpression, str] = field(default_factory=dict)
    """{value of an argument: name of the new variable for this value}"""

    before: list[str] = field(default_factory=list)
    replacement: Lines | None = None
    after: dict[str, None] = field(default_factory=dict)


class Edits(cst.CSTTransformer):
    """The edits of a file. A line with several statements is not edited."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self._module = module
        self._replaced: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._keywords: dict[cst.Arg, str] = {}
        self._removed: set[cst.Arg] = set()
        self._updated: dict[cst.CSTNode, Any] = {}

        self._lines: defaultdict[cst.CSTNode, LineEdit] = defaultdict(LineEdit)
        self._imports: set[str] = set()
        self._changed: set[cst.CSTNode] = set()

        self._gaps: set[cst.CSTNode] = set()

    # -- collecting

    def replace(self, node: cst.BaseExpression, code: str) -> None:
        self._replaced[node] = cst.parse_expression(code, config=self._module.tree.config_for_parsing)

    def pass_by_keyword(self, argument: cst.Arg, keyword: str) -> None:
        self._keywords[argument] = keyword

    def remove_argument(self, argument: cst.Arg) -> None:
        self._removed.add(argument)

    def insert(self, statement: cst.BaseSmallStatement, lines: Sequence[str]) -> None:
        before = self._lines[statement].before
        before += [line for line in lines if line not in before]

    def hoist(self, statement: cst.BaseSmallStatement, name: str, value: cst.BaseExpression) -> None:
        self._lines[statement].hoisted[value] = name

    def rewrite(self, statement: cst.BaseSmallStatement, lines: Lines) -> None:
        self._lines[statement].replacement = lines

    def needs_import(self, module: str) -> None:
        self._imports.add(module)

    def import_after(self, statement: cst.CSTNode, module: str) -> None:
        self._lines[statement].after[f"import {module}"] = None

    # -- applying

    def to_bytes(self) -> bytes:
        if not (self._replaced or self._keywords or self._removed or self._lines):
            return self._module.content  # LibCST drops form feeds
        for node in (*self._replaced, *self._keywords, *self._removed, *self._lines):
            around = self._module.ancestors(node)
            self._changed.add(next(outer for outer in around if isinstance(outer, cst.BaseStatement)))
        tree = self._module.tree.visit(self)
        for name in sorted(self._imports):
            tree = _with_import(tree, name)
        return tree.bytes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(original_node, cst.Arg) and original_node in self._removed:
            self._updated[original_node.value] = updated_node.value
            return cst.RemoveFromParent()
        if isinstance(original_node, cst.Arg) and original_node in self._keywords:
            no_space = cst.SimpleWhitespace("")
            return updated_node.with_changes(
                keyword=cst.Name(self._keywords[original_node]), equal=cst.AssignEqual(no_space, no_space)
            )
        if isinstance(original_node, cst.Call) and updated_node.args and original_node.args[-1] in self._removed:
            last = _as_last(updated_node.args[-1], original_node.args[-1])
            updated_node = updated_node.with_changes(args=[*updated_node.args[:-1], last])
        if (new := self._replaced.get(original_node)) is not None:
            parentheses = {"lpar": [*updated_node.lpar, *new.lpar], "rpar": [*new.rpar, *updated_node.rpar]}
            updated_node = new.with_changes(**parentheses)
        if isinstance(original_node, cst.SimpleStatementLine) and original_node in self._changed:
            return self._line(original_node, updated_node)
        if isinstance(updated_node, cst.IndentedBlock | cst.Module):
            updated_node = _without_gaps(updated_node, self._gaps)
        if isinstance(original_node, cst.BaseCompoundStatement) and original_node in self._changed:
            return _with_comments(updated_node, _lost_comments(original_node, [updated_node]))
        return updated_node

    def _line(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        lines = self._replacements(original, updated) if len(original.body) == 1 else [updated]
        if not lines:
            gap = _gap(original)
            self._gaps.add(gap)
            return gap
        return cst.FlattenSentinel([_with_comments(lines[0], _lost_comments(original, lines)), *lines[1:]])

    def _replacements(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> list[Any]:
        edit = self._lines[original.body[0]]
        code = self._module.tree.code_for_node
        hoisted = [f"{name} = {code(self._updated[value])}" for value, name in edit.hoisted.items()]
        lines = self._parsed([*hoisted, *edit.before])
        if edit.replacement is None:
            lines.append(updated)
        else:
            lines += self._parsed(edit.replacement(updated.body[0]) if callable(edit.replacement) else edit.replacement)
            if lines and isinstance(lines[-1], cst.SimpleStatementLine):
                lines[-1] = lines[-1].with_changes(trailing_whitespace=updated.trailing_whitespace)
        lines += self._parsed(list(edit.after))
        first = [line.with_changes(leading_lines=updated.leading_lines) for line in lines[:1]]
        return [*first, *(line.with_changes(leading_lines=()) for line in lines[1:])]

    def _parsed(self, lines: Sequence[str]) -> list[Any]:
        return [cst.parse_statement(line, config=self._module.tree.config_for_parsing) for line in lines]


def _as_last(argument: cst.Arg, removed: cst.Arg) -> cst.Arg:
    between = argument.comma.whitespace_after if isinstance(argument.comma, cst.Comma) else None
    end = removed.comma.whitespace_after if isinstance(removed.comma, cst.Comma) else removed.whitespace_after_arg
    end = end_with_comments(between, end)
    if isinstance(removed.comma, cst.Comma):
        return argument.with_changes(comma=removed.comma.with_changes(whitespace_after=end))
    return argument.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=end)


def end_with_comments(between: Any, end: Any) -> Any:
    if isinstance(between, cst.ParenthesizedWhitespace) and _comments(between):
        last = {"indent": False, "last_line": cst.SimpleWhitespace("")}
        if isinstance(end, cst.ParenthesizedWhitespace):
            last = {"indent": end.indent, "last_line": end.last_line}
        return between.with_changes(**last)
    if isinstance(end, cst.ParenthesizedWhitespace) and _comments(end):
        return end.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return end


def _lost_comments(original: cst.CSTNode, after: Sequence[cst.CSTNode]) -> list[str]:
    left = Counter(comment.value for line in after for comment in _comments(line))
    lost = []
    for comment in _comments(original):
        left[comment.value] -= 1
        if left[comment.value] < 0:
            lost.append(comment.value)
    return lost


def _with_comments(statement: Any, comments: Sequence[str]) -> Any:
    lines = [cst.EmptyLine(comment=cst.Comment(comment)) for comment in comments]
    return statement.with_changes(leading_lines=[*statement.leading_lines, *lines])


def _gap(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    comments = [comment.value for comment in _comments(line)]
    above = sum(len(_comments(empty_line)) for empty_line in line.leading_lines)
    gap = cst.SimpleStatementLine([cst.Pass()], leading_lines=line.leading_lines if comments else ())
    return cast(cst.SimpleStatementLine, _with_comments(gap, comments[above:]))


def _without_gaps(block: Any, gaps: set[cst.CSTNode]) -> Any:
    """Remove statements from a block, but keep their comments."""
    body: list[Any] = []
    above: list[cst.EmptyLine] = []
    for statement in block.body:
        if statement in gaps:
            above += statement.leading_lines
        else:
            lines = [*above, *statement.leading_lines]
            body.append(statement.with_changes(leading_lines=lines) if above else statement)
            above = []
    if len(body) == len(block.body):
        return block
    return block.with_changes(body=body, footer=[*above, *block.footer])


def _with_import(tree: cst.Module, name: str) -> cst.Module:
    """Add an import to a file. LibCST's AddImportsVisitor takes 20 times as long."""
    code = f"import {name}"
    body = list(tree.body)
    if any(tree.code_for_node(statement).strip() == code for statement in body):
        return tree
    place = _after_imports(body, name)
    line: Any = cst.parse_statement(code, config=tree.config_for_parsing)
    if place == 0 and body:  # comments above the first statement stay there
        first: Any = body[0]
        body[0] = first.with_changes(leading_lines=[cst.EmptyLine(), *first.leading_lines])
    body.insert(place, line)
    return tree.with_changes(body=body)


def _after_imports(body: Sequence[Any], name: str) -> int:
    package = name.partition(".")[0]
    place = 0
    for number, statement in enumerate(body):
        line = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_text = isinstance(line, cst.Expr) and isinstance(line.value, cst.SimpleString)
        if _imports(statement) or (number == 0 and is_text):
            place = number + 1
        elif any(isinstance(node, cst.Name) and node.value == package for node in sorted_nodes(statement)):
            break
    return place


def _imports(statement: cst.CSTNode) -> bool:
    """Return whether a statement is an import, or a `try` that begins with an import."""
    if isinstance(statement, cst.Try):
        first = next(iter(statement.body.body), None)
        return isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], IMPORTS)
    return isinstance(statement, cst.SimpleStatementLine) and any(isinstance(each, IMPORTS) for each in statement.body)


def _comments(node: cst.CSTNode) -> list[cst.Comment]:
    if isinstance(node, cst.Comment):
        return [node]
    return [comment for child in node.children for comment in _comments(child)]
