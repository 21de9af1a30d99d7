"""The scopes of a Python file: which lines bind a name, and which code reads it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from .tree import COMPREHENSIONS, FUNCTIONS, SYMBOLS

BUILTINS = frozenset(dir(builtins))


@dataclass(eq=False)
class Assignment:
    """A place that binds a name: an import, a function, a class, a parameter, or the target of an assignment."""

    name: str
    node: ast.AST
    """The target, the parameter, the definition, or the statement of an import."""

    scope: Scope
    alias: ast.alias | None = None
    """The imported name, if the place is an import."""

    reads: list[ast.AST] = field(default_factory=list)
    """All reads that may get this value. Assignments to the same name in one scope share their reads."""


@dataclass(eq=False)
class Scope:
    node: ast.AST
    outer: Scope | None
    names: dict[str, list[Assignment]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)
    """The names that the scope declares as global or nonlocal, and their scopes."""

    def find(self, name: str) -> list[Assignment]:
        """Return the assignments of a name as code in this scope sees it. The list is empty for a builtin."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.elsewhere:
                return scope.elsewhere[name].names.get(name, [])
            if name in scope.names and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope.names[name]
            scope = scope.outer
        return []

    def is_bound(self, name: str) -> bool:
        return bool(self.find(name)) or name in BUILTINS


class Scopes:
    def __init__(self, tree: ast.Module) -> None:
        self.top = Scope(tree, None)
        self._of: dict[ast.AST, Scope] = {}
        self._reads: list[tuple[ast.AST, str, Scope]] = []
        self._declarations: list[tuple[str, Scope, bool]] = []
        self._bindings: list[Assignment] = []
        self._visit_all(tree.body, self.top)
        for name, scope, is_global in self._declarations:
            scope.elsewhere[name] = self.top if is_global else self._nonlocal(name, scope)
        for binding in self._bindings:
            target = binding.scope.elsewhere.get(binding.name, binding.scope)
            target.names.setdefault(binding.name, []).append(binding)
        for node, name, scope in self._reads:
            for assignment in scope.find(name):
                assignment.reads.append(node)

    def of(self, node: ast.AST) -> Scope:
        """Return the scope that evaluates a node."""
        return self._of.get(node, self.top)

    def _nonlocal(self, name: str, scope: Scope) -> Scope:
        bound = {id(each.scope) for each in self._bindings if each.name == name}
        outer = scope.outer
        while outer is not None and (id(outer) not in bound or isinstance(outer.node, ast.ClassDef)):
            outer = outer.outer
        return outer or self.top

    def _visit_all(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _bind(self, name: str | None, node: ast.AST, scope: Scope, alias: ast.alias | None = None) -> None:
        if name is not None:
            self._bindings.append(Assignment(name, node, scope, alias))

    def _visit(self, root: ast.AST, scope: Scope) -> None:
        stack = [(root, scope)]
        while stack:
            node, scope = stack.pop()
            self._of[node] = scope
            self._record(node, scope)
            stack += reversed(list(self._inner(node, scope)))

    def _record(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                self._bind(name, node, scope)
            case ast.NamedExpr(target=target):
                self._of[target] = scope
                while isinstance(scope.node, COMPREHENSIONS) and scope.outer is not None:
                    scope = scope.outer
                self._bind(target.id, target, scope)
            case ast.Name(id=name):
                self._reads.append((node, name, scope))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._declarations += [(name, scope, isinstance(node, ast.Global)) for name in names]
            case ast.Import(names=aliases):
                for alias in aliases:
                    self._bind(alias.asname or alias.name.partition(".")[0], node, scope, alias)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bind(None if alias.name == "*" else alias.asname or alias.name, node, scope, alias)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._bind(name, node, scope)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                self._bind(name, node, scope)
            case ast.MatchMapping(rest=name):
                self._bind(name, node, scope)

    def _inner(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        """Yield the children of a node, each with the scope that evaluates it."""
        if isinstance(node, FUNCTIONS):
            inner = Scope(node, scope)
            outside = [*getattr(node, "decorator_list", ()), *node.args.defaults, *filter(None, node.args.kw_defaults)]
            parameters = all_parameters(node.args)
            outside += [each.annotation for each in parameters if each.annotation is not None]
            outside += [node.returns] if not isinstance(node, ast.Lambda) and node.returns is not None else []
            self._of[node.args] = inner
            for parameter in parameters:
                self._of[parameter] = inner
                self._bind(parameter.arg, parameter, inner)
            for each in getattr(node, "type_params", ()):
                self._bind(each.name, each, inner)
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            yield from ((each, scope) for each in outside)
            yield from ((each, inner) for each in body)
        elif isinstance(node, ast.ClassDef):
            inner = Scope(node, scope)
            yield from ((each, scope) for each in (*node.decorator_list, *node.bases, *node.keywords))
            yield from ((each, inner) for each in node.body)
        elif isinstance(node, COMPREHENSIONS):
            inner = Scope(node, scope)
            first = node.generators[0].iter
            yield first, scope
            for generator in node.generators:
                self._of[generator] = inner
                parts = [generator.target, *([] if generator.iter is first else [generator.iter]), *generator.ifs]
                yield from ((each, inner) for each in parts)
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            yield from ((each, inner) for each in parts)
        else:
            children = [node.value] if isinstance(node, ast.NamedExpr) else ast.iter_child_nodes(node)
            yield from ((each, scope) for each in children if not isinstance(each, SYMBOLS))


def all_parameters(arguments: ast.arguments) -> list[ast.arg]:
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]
