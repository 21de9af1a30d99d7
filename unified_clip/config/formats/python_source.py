"""Python source as a configuration: read as a syntax tree, and never run."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ..._static_values import Target, UnknownValueError, evaluate
from ...errors import ConfigError
from ..documents import Document

MAX_ALIASES = 10
"""How many names that stand for other names are followed."""


class Source:
    """Parsed Python source, a file or an expression, with the bindings of names and the parents of nodes."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is odd in it
                self.tree = ast.parse(textwrap.dedent(text))
        except SyntaxError as error:
            raise ConfigError(f"{name}, line {error.lineno}: it is no Python: {error.msg}") from None
        except (RecursionError, ValueError) as error:
            raise ConfigError(f"{name}: it is no Python: {error}") from None
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.imports = self._imports()
        self.bound = self._bound()
        self._follow_modules()

    def _imports(self) -> dict[str, str]:
        """What imported names stand for: np for numpy."""
        found = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def _bound(self) -> dict[str, list[ast.expr | None]]:
        """What is assigned to each name, everywhere; None for what is not a plain assignment."""
        values: dict[ast.AST, ast.expr | None] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                values |= dict.fromkeys(node.targets, node.value)
            elif isinstance(node, ast.AnnAssign):
                values[node.target] = node.value
        found: dict[str, list[ast.expr | None]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(values.get(node))
            elif isinstance(node, ast.arg):
                found.setdefault(node.arg, []).append(None)
        return found

    def _follow_modules(self) -> None:
        """nn = paddle.nn is as good as an import."""
        before = -1
        while before < len(self.imports):
            before = len(self.imports)
            for name, values in self.bound.items():
                for value in values:
                    full = self.dotted(value) if value else ""
                    if full.partition(".")[0] in self.imports.values():
                        self.imports.setdefault(name, full)

    def wrong(self, node: ast.AST, message: str) -> ConfigError:
        """An error that says where."""
        return ConfigError(f"{self.name}, line {node.lineno}: {message}")  # type: ignore[attr-defined]

    def dotted(self, node: ast.AST) -> str:
        """The full name of what is imported, 'optax.clip'; '' for anything else."""
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def uses(self, package: str) -> bool:
        """Whether anything of a package is named."""
        return any(self.dotted(node).partition(".")[0] == package for node in self.nodes)

    def named(self, package: str) -> Iterator[tuple[str, ast.expr]]:
        """Everything of a package that is named, in order: 'clip' for optax.clip.

        Raises ConfigError where that cannot be known.
        """
        found = []
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                if (node.module or "").partition(".")[0] == package:
                    raise self.wrong(node, f"what {package} has under which name cannot be told; import it by name")
            elif isinstance(node, ast.Call) and self.dotted(node.func) == "getattr":
                if node.args and self.dotted(node.args[0]).partition(".")[0] == package:
                    raise self.wrong(node, f"{ast.unparse(node)} cannot be read without running it; write the name")
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                first, _, rest = self.dotted(node).partition(".")
                if first == package and rest:
                    found.append((rest, node))
        yield from sorted(found, key=lambda each: (each[1].lineno, each[1].col_offset))

    def call(self, node: ast.expr) -> ast.Call:
        """The call of what is named."""
        parent = self.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            return parent
        raise self.wrong(node, f"{ast.unparse(node)} is not called here; only a call with its number can be read")

    def arguments(self, call: ast.Call, names: Sequence[str]) -> Document:
        """The arguments of a call as a document, whose values are constants."""
        given: dict[str, ast.expr] = {}
        for position, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred) or position >= len(names):
                raise self.wrong(call, f"the arguments of {ast.unparse(call)} cannot be told; give {', '.join(names)}")
            given[names[position]] = argument
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg not in names:
                raise self.wrong(call, f"{ast.unparse(call)} has an argument that is not known: {keyword.arg or '**'}")
            given[keyword.arg] = keyword.value
        data = {name: self.constant(value) for name, value in given.items()}
        return Document(f"{self.name}, line {call.lineno}", "", "python", data)

    def constant(self, node: ast.expr) -> Any:
        """Return the value of a constant, or of a name that is assigned one once."""
        try:
            return evaluate(node, partial(self._value_of, depth=0), self.dotted)
        except UnknownValueError as unknown:
            raise self.wrong(
                unknown.node,
                f"The value of {unknown} is only known at run time. Write the number, or assign it to the name once.",
            ) from None

    def _value_of(self, node: Target, depth: int) -> Any:
        values = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(values) != 1 or values[0] is None or depth == MAX_ALIASES:
            raise UnknownValueError(node)
        return evaluate(values[0], partial(self._value_of, depth=depth + 1), self.dotted)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What stands around a node, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def conditions(self, node: ast.AST) -> list[str]:
        """What has to be true for a node to be reached, as notes."""
        tests = [each.test for each in self.around(node) if isinstance(each, ast.If | ast.IfExp)]
        texts = [ast.unparse(test) for test in tests if "__name__" not in ast.unparse(test)]
        return [f"whether it clips depends on `{text}`; it is read as if it does" for text in texts]


def parse(text: str, name: str) -> Document:
    """A file of Python as a document, whose data is a `Source`."""
    return Document(name, text, "python", Source(text, name))
