"""The syntax tree of a Python file: its nodes in the order of the text, their parents and their code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from .._kit.parse import UnreadableSourceError, parse_expression, parse_python
from .text import Span, Text, on_one_line

Target = ast.Name | ast.Attribute
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SYMBOLS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.type_ignore)
"""Nodes without a place: Python shares them between trees."""


class Argument(NamedTuple):
    """An argument of a call. `node` is the whole argument, as in `x=1` or `*x`."""

    node: ast.expr | ast.keyword
    value: ast.expr
    keyword: str = ""
    star: str = ""
    """"*", "**" or ''."""


class SyntaxTree:
    def __init__(self, source: str | bytes, path: Path | None = None) -> None:
        self.content, self.path = source, path
        self.text = Text(source)
        self.tree = parse_python(self.text.text)
        self._expressions: dict[ast.AST, str] = {}

    @cached_property
    def _walked(self) -> tuple[list[ast.AST], dict[ast.AST, ast.AST]]:
        parents: dict[ast.AST, ast.AST] = {}
        return sorted_nodes(self.tree, parents), parents

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes except SYMBOLS, in the order of the text."""
        return self._walked[0]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return self._walked[1]

    def position(self, node: ast.AST) -> tuple[int, int]:
        """Return (line, column), both counted from 1."""
        place: ast.expr = node  # type: ignore[assignment]
        return place.lineno, self.text.column(place.lineno, place.col_offset)

    def end(self, node: ast.AST) -> int:
        return node.end_lineno  # type: ignore[attr-defined, no-any-return]

    def span(self, node: ast.AST) -> Span:
        """Return the span of a node, with the parentheses around it."""
        start, end = self.text.span(node)
        parent = self.parents.get(node)
        call_end = self.text.span(parent)[1] if isinstance(parent, ast.Call) and parent.func is not node else None
        if isinstance(node, ast.GeneratorExp) and end == call_end:
            return start + 1, end - 1  # these are the parentheses of the call, as in `list(x for x in y)`
        if not isinstance(node, ast.expr) or not self.text.may_be_parenthesized(start):
            return start, end
        spans = [(start, end)]
        for before, after in zip(self.text.before(start), self.text.after(end), strict=False):
            if (before.text, after.text) != ("(", ")") or after.end == call_end:
                break
            spans.append((before.start, after.end))
        is_base = isinstance(parent, ast.ClassDef) and node in parent.bases and len(spans) > 1
        return spans[-2 if is_base else -1]

    def is_misplaced(self, node: ast.AST) -> bool:
        """Return whether Python does not know the place of a node. Before 3.12, this happens inside of f-strings."""
        if sys.version_info >= (3, 12) or self.enclosing(node, ast.JoinedStr) is None:
            return False
        try:
            written = parse_expression(self.text.text[slice(*self.text.span(node))].strip())
        except UnreadableSourceError:
            return True
        return ast.dump(written) != ast.dump(node)

    def source(self, node: ast.AST) -> str:
        return ast.unparse(node) if self.is_misplaced(node) else self.text.text[slice(*self.span(node))]

    def code(self, node: ast.AST) -> str:
        """Return the code of a node, joined into one line without comments. Line breaks in strings remain."""
        if node in self._expressions:
            return self._expressions[node]
        return on_one_line(self.source(node)) if hasattr(node, "lineno") else ast.unparse(node)

    def expression(self, code: str) -> ast.expr:
        """Return an expression that the file does not contain, such as the default of a function's argument."""
        expression = parse_expression(code)
        self._expressions[expression] = code
        return expression

    def line(self, node: ast.AST) -> str:
        return self.text.line(self.position(node)[0]).strip()

    # -- surroundings

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        return next((outer for outer in self.ancestors(node) if isinstance(outer, kinds)), None)

    def enclosing_function(self, node: ast.AST) -> Function | ast.Lambda | None:
        return self.enclosing(node, *FUNCTIONS)  # type: ignore[return-value]

    def enclosing_definition(self, node: ast.AST) -> Function | None:
        return self.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)  # type: ignore[return-value]

    def call_of(self, node: ast.AST | None) -> ast.Call | None:
        call = self.parents.get(node) if node is not None else None
        return call if isinstance(call, ast.Call) and call.func is node else None

    def method_call(self, node: ast.AST) -> ast.Call | None:
        method = self.parents.get(node)
        return self.call_of(method) if isinstance(method, ast.Attribute) else None

    def argument(self, node: ast.AST | None) -> tuple[ast.Call, Argument] | None:
        """Return (call, argument) if a node is the value of an argument, or the whole argument."""
        outer = self.parents.get(node) if node is not None else None
        if isinstance(outer, ast.keyword | ast.Starred):
            node, outer = outer, self.parents[outer]
        if not isinstance(outer, ast.Call):
            return None
        return next(((outer, each) for each in arguments_of(outer) if each.node is node), None)

    def statement(self, node: ast.AST) -> ast.stmt:
        return node if isinstance(node, ast.stmt) else self.enclosing(node, ast.stmt)  # type: ignore[return-value]

    def simple_statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the simple statement that evaluates an expression exactly once, or None."""
        inner = node
        for outer in (node, *self.ancestors(node)):
            if isinstance(outer, ast.stmt):
                return outer if is_simple(outer) else None
            may_skip = isinstance(outer, ast.IfExp) and inner is not outer.test
            if outer is not node and (may_skip or isinstance(outer, (ast.Lambda, ast.BoolOp, *COMPREHENSIONS))):
                return None
            inner = outer
        return None

    def has_own_line(self, statement: ast.AST) -> bool:
        """Return whether a statement shares its lines with no other statement."""
        start, end = self.text.span(statement)
        rest = self.text.text[end : self.text.line_span(self.text.line_at(end))[1]].lstrip(" \t\f;")
        return self.text.starts_line(start) and (not rest or rest.startswith("#"))

    @cached_property
    def calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def annotated(self) -> frozenset[tuple[int, int]]:
        """The positions of the names in annotations of types."""
        annotations = (getattr(node, name, None) for node in self.nodes for name in ("annotation", "returns"))
        inner = (each for annotation in annotations if annotation is not None for each in ast.walk(annotation))
        return frozenset(self.position(each) for each in inner if isinstance(each, ast.Name | ast.Attribute))

    @cached_property
    def function_names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes if isinstance(node, Function))


def is_simple(node: ast.AST) -> bool:
    """Return whether a node is a statement without other statements inside."""
    return isinstance(node, ast.stmt) and not hasattr(node, "body") and not isinstance(node, ast.Match)


def names_in(node: ast.AST) -> list[str]:
    """Return the identifiers that a node itself contains, such as the names of a parameter and of a keyword."""
    texts = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname", "rest")]
    return [text for text in texts if isinstance(text, str)]


def arguments_of(call: ast.Call) -> list[Argument]:
    """Return the arguments in the order of the text."""
    positional = [
        Argument(each, each.value, star="*") if isinstance(each, ast.Starred) else Argument(each, each)
        for each in call.args
    ]
    named = [Argument(each, each.value, each.arg or "", "" if each.arg else "**") for each in call.keywords]
    return sorted([*positional, *named], key=lambda each: _place(each.node))


def keywords_of(call: ast.Call) -> dict[str, Argument]:
    return {argument.keyword: argument for argument in arguments_of(call) if argument.keyword}


def method_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def is_name(node: ast.AST | None, name: str) -> bool:
    """Return whether a node is a name, or one of the constants None, True and False."""
    if isinstance(node, ast.Constant):
        return repr(node.value) == name and not isinstance(node.value, str)
    return isinstance(node, ast.Name) and node.id == name


def first_name(node: ast.AST) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name, such as "optimizers" for `self.optimizers[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def sorted_nodes(node: ast.AST, parents: dict[ast.AST, ast.AST] | None = None) -> list[ast.AST]:
    """Return a node and all nodes inside it, in the order of the text. Add {node: parent} to `parents`."""
    nodes, stack = [], [node]
    while stack:
        current = stack.pop()
        nodes.append(current)
        children = _children(current)
        if parents is not None:
            parents.update(dict.fromkeys(children, current))
        stack.extend(reversed(children))
    return nodes


def _children(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returns = [node.returns] if node.returns is not None else []
            return [*node.decorator_list, *getattr(node, "type_params", ()), node.args, *returns, *node.body]
        case ast.ClassDef():
            bases = sorted([*node.bases, *node.keywords], key=_place)
            return [*node.decorator_list, *getattr(node, "type_params", ()), *bases, *node.body]
    children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, SYMBOLS)]
    if isinstance(node, ast.Call | ast.arguments | ast.Dict | ast.IfExp | ast.MatchMapping):
        children.sort(key=_place)
    return children


def _place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


MAX_SHOWN = 60


def shortened(node: ast.AST) -> str:
    code = ast.unparse(node)
    if len(code) <= MAX_SHOWN:
        return code
    return f"{shortened(node.func)}(...)" if isinstance(node, ast.Call) else f"{code:.{MAX_SHOWN}}..."
