"""Read clip settings from Python source. The source is parsed, and never run."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..._kit.parse import UnreadableSourceError, parse_python
from ...errors import ConfigError
from ...source.constants import constant
from ...source.module import Module
from ..documents import Document
from .base import OwnFormat


class PythonFormat(OwnFormat):
    """A format of Python files. The `data` of a document is a `Source`."""

    kinds = ("python",)
    package: ClassVar[str]

    def parse(self, text: str, name: str) -> Document:
        return Document(name, text, "python", Source(textwrap.dedent(text), name))  # also an indented snippet

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, Source) and document.data.uses(self.package)


def statements(text: str, name: str) -> list[ast.stmt]:
    try:
        return parse_python(text).body
    except UnreadableSourceError as error:
        raise ConfigError(f"{name}: {error}", "UC102") from None


class Source(Module):
    """Python source with the errors of a configuration file."""

    def __init__(self, source: str, name: str) -> None:
        try:
            super().__init__(source)
        except UnreadableSourceError as error:
            raise ConfigError(f"{name}: {error}", "UC102") from None
        self.name = name

    def wrong(self, node: ast.AST, message: str, code: str = "") -> ConfigError:
        return ConfigError(f"{self.name}, line {node.lineno}: {message}", code)  # type: ignore[attr-defined]

    def uses(self, package: str) -> bool:
        return any(name.partition(".")[0] == package for name in self.used_names)

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
        try:
            return constant(self, node)
        except ConfigError as error:
            raise self.wrong(node, str(error), error.code) from None

    def conditions(self, node: ast.AST) -> list[str]:
        """Return a note for each `if` statement around a node, because the node might not run."""
        tests = [outer.test for outer in self.ancestors(node) if isinstance(outer, ast.If | ast.IfExp)]
        texts = [ast.unparse(test) for test in tests if "__name__" not in ast.unparse(test)]
        return [
            f"Whether the file clips depends on `{text}`. The import assumes that the file clips." for text in texts
        ]
