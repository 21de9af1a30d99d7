"""The syntax tree of a Python file. The code of the file is never run."""

from __future__ import annotations

import dataclasses
import functools
import io
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import libcst as cst
from libcst import metadata
from libcst.metadata import Scope
from libcst.metadata.expression_context_provider import ExpressionContextVisitor
from libcst.metadata.scope_provider import ScopeVisitor

from ..._kit.parse import TOO_DEEP, UnreadableSourceError

Target = cst.Name | cst.Attribute
Node = TypeVar("Node", bound=cst.CSTNode)

SPACES = ("whitespace", "leading_", "lines_after", "trailing_", "header", "footer", "indent", "newline")

PUNCTUATION = frozenset(
    "comma equal dot semicolon colon lpar rpar lbracket rbracket lbrace rbrace".split()  # noqa: SIM905
)


class _VisitorOfChildren(cst.CSTVisitor):
    """Visits the children of a node. LibCST's own visitor also copies the nodes, and is six times slower."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        if super().on_visit(node):
            for child in _children(node):
                child.visit(self)
        return False


class _ScopeVisitor(_VisitorOfChildren, ScopeVisitor):
    pass


class _ContextVisitor(_VisitorOfChildren, ExpressionContextVisitor):
    pass


class _MetadataWrapper(metadata.MetadataWrapper):
    def visit_batched(self, visitors: Iterable[Any], before_visit: Any = None, after_leave: Any = None) -> cst.CSTNode:
        with ExitStack() as stack:
            for provider in visitors:
                stack.enter_context(provider.resolve(self))
                if isinstance(provider, metadata.ScopeProvider):
                    visitor = _ScopeVisitor(provider)
                    self.module.visit(visitor)
                    visitor.infer_accesses()
                else:
                    self.module.visit(_ContextVisitor(provider, metadata.ExpressionContext.LOAD))
        return self.module


class SyntaxTree:
    def __init__(self, content: bytes, path: Path | None = None) -> None:
        self.content, self.path = content, path
        try:
            self.tree = cst.parse_module(content)
        except cst.ParserSyntaxError as error:
            problem = f"LibCST cannot parse line {error.raw_line}: {error.message.splitlines()[0]}"
            raise UnreadableSourceError(f"{problem}. Install a newer libcst, or port the file by hand.") from None
        except RecursionError:
            raise UnreadableSourceError(TOO_DEEP) from None
        self._wrapper = _MetadataWrapper(self.tree, unsafe_skip_copy=True)
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.nodes = sorted_nodes(self.tree, self.parents)  # 20 times as fast as ParentNodeProvider
        """All nodes except white space, comments and punctuation, in the order of the text."""

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return (line, column), both counted from 1."""
        start = self._range(node).start
        return start.line, start.column + 1

    def end(self, node: cst.CSTNode) -> int:
        return self._range(node).end.line

    def _range(self, node: cst.CSTNode) -> metadata.CodeRange:
        return self._wrapper.resolve(metadata.PositionProvider)[node]

    def code(self, node: cst.CSTNode) -> str:
        """Return the code of a node, joined into one line without comments. Line breaks in strings remain."""
        return _on_one_line(self.tree.code_for_node(node).strip())

    def line(self, node: cst.CSTNode) -> str:
        return self._lines[self.position(node)[0] - 1].strip()

    @cached_property
    def _lines(self) -> list[str]:
        return self.tree.code.splitlines()

    # -- surroundings

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing(self, node: cst.CSTNode, *kinds: type[Node]) -> Node | None:
        return next((outer for outer in self.ancestors(node) if isinstance(outer, kinds)), None)

    def enclosing_function(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Lambda | None:
        return next((outer for outer in self.ancestors(node) if isinstance(outer, cst.FunctionDef | cst.Lambda)), None)

    def call_of(self, node: cst.CSTNode | None) -> cst.Call | None:
        call = self.parents.get(node) if node is not None else None
        return call if isinstance(call, cst.Call) and call.func is node else None

    def method_call(self, node: cst.CSTNode) -> cst.Call | None:
        method = self.parents.get(node)
        return self.call_of(method) if isinstance(method, cst.Attribute) else None

    def small_statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """Return the simple statement that evaluates an expression exactly once, or None."""
        if isinstance(node, cst.BaseSmallStatement):
            return node
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, cst.BaseSmallStatement):
                return outer
            if isinstance(outer, cst.IfExp) and inner is not outer.test:
                return None
            if isinstance(outer, cst.Lambda | cst.BaseComp | cst.BooleanOperation | cst.BaseCompoundStatement):
                return None
            inner = outer
        return None

    def has_own_line(self, statement: cst.CSTNode) -> bool:
        line = self.parents[statement]
        return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1

    def scope(self, node: cst.CSTNode) -> Scope | None:
        scopes = self._wrapper.resolve(metadata.ScopeProvider)
        around = (scopes.get(outer) for outer in (node, *self.ancestors(node)))
        return next((scope for scope in around if scope is not None), None)

    def unused_name(self, name: str, within: cst.CSTNode | None = None) -> str:
        nodes = self.nodes if within is None else sorted_nodes(within)
        used = {inner.value for inner in nodes if isinstance(inner, cst.Name)}
        while name.rpartition(".")[2] in used:
            name += "_"
        return name

    @cached_property
    def calls(self) -> list[cst.Call]:
        return [node for node in self.nodes if isinstance(node, cst.Call)]

    @cached_property
    def function_names(self) -> frozenset[str]:
        return frozenset(inner.name.value for inner in self.nodes if isinstance(inner, cst.FunctionDef))


def first_name(node: cst.CSTNode) -> cst.Name | None:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None


def is_name(node: cst.CSTNode | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def keyword_of(argument: cst.Arg) -> str:
    return argument.keyword.value if argument.keyword else ""


def keywords_of(call: cst.Call) -> dict[str, cst.Arg]:
    return {argument.keyword.value: argument for argument in call.args if argument.keyword}


def method_of(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def owner_of(call: cst.Call) -> cst.BaseExpression:
    return cast(cst.Attribute, call.func).value


def sorted_nodes(node: cst.CSTNode, parents: dict[cst.CSTNode, cst.CSTNode] | None = None) -> list[cst.CSTNode]:
    """Return a node and all nodes inside it, in the order of the source. Add {node: parent} to `parents`."""
    nodes, stack = [], [node]
    while stack:
        current = stack.pop()
        nodes.append(current)
        children = list(_children(current))
        if parents is not None:
            parents.update(dict.fromkeys(children, current))
        stack.extend(reversed(children))
    return nodes


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the children except white space, comments and punctuation. `node.children` is ten times slower."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, list | tuple):
            yield from (child for child in value if isinstance(child, cst.CSTNode))


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> list[str]:
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if not name.startswith(SPACES) and name not in PUNCTUATION]


def _on_one_line(code: str) -> str:
    if "\n" not in code and "\r" not in code and "#" not in code:
        return code
    parts: list[str] = []
    end = (1, 1)
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({code}\n)").readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
                continue
            if parts and token.start != end and not parts[-1].endswith(("(", "[", "{")) and token.string not in ")]},":
                parts.append(" ")
            parts.append(token.string)
            end = token.end
    except (tokenize.TokenError, IndentationError):
        return " ".join(code.split())  # a statement
    return "".join(parts)[1:-1].strip()
