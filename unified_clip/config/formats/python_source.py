"""Read clip settings from Python source. The source is parsed, and never run."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from ..._kit.parse import UnreadableSourceError, parsed_nodes
from ..._kit.static_values import Target, UnknownValueError, evaluate
from ...errors import ConfigError
from ..documents import Document
from .base import OwnFormat

MAX_ALIASES = 10
"""The maximum length of a chain of assignments, such as a = b; b = 1.0."""

MAX_SHOWN = 60


class PythonFormat(OwnFormat):
    """A format of Python files. The `data` of a document is a `Source`."""

    kinds = ("python",)
    package: ClassVar[str]

    def parse(self, text: str, name: str) -> Document:
        return Document(name, text, "python", Source(textwrap.dedent(text), name))  # also an indented snippet

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, Source) and document.data.uses(self.package)


def nodes_of(source: str | bytes, name: str) -> list[ast.AST]:
    try:
        return parsed_nodes(source)
    except UnreadableSourceError as error:
        raise ConfigError(f"{name}: {error}", "UC102") from None


def statements(text: str, name: str) -> list[ast.stmt]:
    tree: Any = nodes_of(text, name)[0]
    return tree.body  # type: ignore[no-any-return]


def shortened(node: ast.AST) -> str:
    code = ast.unparse(node)
    if len(code) <= MAX_SHOWN:
        return code
    return f"{shortened(node.func)}(...)" if isinstance(node, ast.Call) else f"{code:.{MAX_SHOWN}}..."


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name, such as "optimizers" for `self.optimizers[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def runs_unknown_code(call: ast.Call) -> bool:
    """Return whether a call runs unknown code, as in `exec(open("config.py").read())`."""
    match call:
        case ast.Call(func=ast.Name(id="exec"), args=[code, *names], keywords=[]):
            return not isinstance(code, ast.Constant) and all(ast.unparse(each) == "globals()" for each in names)
    return False


class Source:
    """Parsed Python source, with the values of variables and the parents of nodes."""

    def __init__(self, source: str | bytes, name: str) -> None:
        self.name = name
        self.nodes = nodes_of(source, name)
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.imports = self._imports()
        self.bound = self._bound()
        self._follow_modules()

    def _imports(self) -> dict[str, str]:
        imports = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    imports[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return imports

    def _bound(self) -> dict[str, list[ast.expr | None]]:
        """Map each variable to its assigned expressions. For a loop variable or a parameter, the list contains None."""
        values: dict[ast.AST, ast.expr | None] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                values |= dict.fromkeys(node.targets, node.value)
            elif isinstance(node, ast.AnnAssign):
                values[node.target] = node.value
        bound: dict[str, list[ast.expr | None]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.setdefault(node.id, []).append(values.get(node))
            elif isinstance(node, ast.arg):
                bound.setdefault(node.arg, []).append(None)
        return bound

    def _follow_modules(self) -> None:
        before = -1
        while before < len(self.imports):
            before = len(self.imports)
            for name, values in self.bound.items():
                for value in values:
                    full = self.dotted(value) if value else ""
                    if full.partition(".")[0] in self.packages:
                        self.imports.setdefault(name, full)

    @property
    def packages(self) -> set[str]:
        return {module.partition(".")[0] for module in self.imports.values()}

    def wrong(self, node: ast.AST, message: str, code: str = "") -> ConfigError:
        return ConfigError(f"{self.name}, line {node.lineno}: {message}", code)  # type: ignore[attr-defined]

    def dotted(self, node: ast.AST) -> str:
        """Return the full name, such as 'optax.clip' for `ox.clip`, or '' if the node is not a dotted name."""
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def uses(self, package: str) -> bool:
        return any(self.dotted(node).partition(".")[0] == package for node in self.nodes)

    def named(self, package: str) -> Iterator[tuple[str, ast.expr]]:
        """Yield each used name of a package with its syntax node, in the order of the source.

        The expression `optax.tree.clip` uses two names, "tree" and "tree.clip".
        """
        uses = []
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                if not node.level and (node.module or "").partition(".")[0] == package:
                    raise self.wrong(
                        node,
                        f"cannot infer the names that * imports from {package}. Replace * by the names that you use.",
                    )
            elif isinstance(node, ast.Call) and self.dotted(node.func) == "getattr":
                if node.args and self.dotted(node.args[0]).partition(".")[0] == package:
                    raise self.wrong(
                        node, f"{ast.unparse(node)} is only known at run time. Write the name, as in {package}.NAME."
                    )
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                first, _, rest = self.dotted(node).partition(".")
                if first == package and rest:
                    uses.append((rest, node))
        yield from sorted(uses, key=lambda use: (use[1].lineno, use[1].col_offset))

    def call(self, node: ast.expr) -> ast.Call:
        parent = self.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            return parent
        name = ast.unparse(node)
        advice = f"Pass a file that calls {name}, or write a clip configuration."
        raise self.wrong(node, f"{name} is not called here. {advice}")

    def only(self, clips: Sequence[tuple[str, ast.Call]]) -> tuple[str, ast.Call] | None:
        if len(clips) > 1:
            lines = ", ".join(str(call.lineno) for _, call in clips)
            raise self.wrong(
                clips[1][1],
                f"the file has several clips (lines {lines}). Import a file with a single clip, or write a clip "
                "configuration.",
            )
        return clips[0] if clips else None

    def arguments(self, call: ast.Call, names: Sequence[str]) -> Document:
        """Return a document that maps the names of a call's arguments to their values."""
        arguments: dict[str, ast.expr] = {}
        for position, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                raise self._unpacked(argument, ast.unparse(argument), names)
            if position >= len(names):
                problem = f"{ast.unparse(call)} has {len(call.args)} positional arguments"
                raise self.wrong(call, f"{problem}. Pass only {', '.join(names)}.")
            arguments[names[position]] = argument
        for keyword in call.keywords:
            if keyword.arg is None:
                raise self._unpacked(call, f"**{ast.unparse(keyword.value)}", names)
            if keyword.arg not in names:
                problem = f"the argument {keyword.arg} of {ast.unparse(call)} is unknown"
                raise self.wrong(call, f"{problem}. Pass only {', '.join(names)}.")
            arguments[keyword.arg] = keyword.value
        data = {name: self.constant(value) for name, value in arguments.items()}
        return Document(f"{self.name}, line {call.lineno}", "", "python", data)

    def _unpacked(self, node: ast.AST, text: str, names: Sequence[str]) -> ConfigError:
        advice = f"Pass each argument by name: {', '.join(names)}."
        return self.wrong(node, f"the arguments in {text} are only known at run time. {advice}")

    def constant(self, node: ast.expr) -> Any:
        """Return the value of an expression, such as -1.0, `float("inf")` or a variable with a single assignment."""
        try:
            return evaluate(node, partial(self._value_of, depth=0), self.dotted)
        except UnknownValueError as unknown:
            raise self.wrong(
                unknown.node,
                f"The value of {unknown} is only known at run time. Write the number instead, or assign the number to "
                "the name only once.",
                "UC106",
            ) from None

    def _value_of(self, node: Target, depth: int) -> Any:
        values = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(values) != 1 or values[0] is None or depth == MAX_ALIASES or any(map(runs_unknown_code, self.calls)):
            raise UnknownValueError(node)
        return evaluate(values[0], partial(self._value_of, depth=depth + 1), self.dotted)

    def followed(self, node: ast.expr) -> ast.expr:
        for _ in range(MAX_ALIASES):
            values = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
            if len(values) != 1 or values[0] is None:
                break
            node = values[0]
        return node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST, kinds: tuple[type[ast.AST], ...] = FUNCTIONS) -> ast.AST | None:
        return next((outer for outer in self.around(node) if isinstance(outer, kinds)), None)

    def conditions(self, node: ast.AST) -> list[str]:
        """Return a note for each `if` statement around a node, because the node might not run."""
        tests = [outer.test for outer in self.around(node) if isinstance(outer, ast.If | ast.IfExp)]
        texts = [ast.unparse(test) for test in tests if "__name__" not in ast.unparse(test)]
        return [
            f"Whether the file clips depends on `{text}`. The import assumes that the file clips." for text in texts
        ]
