"""A Python file with resolved names: the full names of imported objects, and the values of variables."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from .scopes import Assignment, Scope, Scopes
from .tree import DEFINITIONS, SyntaxTree, Target, first_name, is_name

SELF = ("self", "cls")

MAX_ALIASES = 10

MAX_NAMES = 100
"""A name with more than MAX_NAMES possible full names counts as unknown."""


@dataclass(frozen=True)
class BoundValue:
    value: ast.expr | None
    """None means a value without an expression, such as a parameter or a function."""

    path: Sequence[int | None] = ()
    """The indices that lead from `value` to the value of the name, such as (1, 0) for `b` in `a, (b, c) = value`. For
    the variable of a loop over `value`, the first index is None."""

    node: ast.AST | None = None
    """The node that binds the value, such as an assignment or a loop. None for a parameter of a function."""


@dataclass(frozen=True)
class Binding:
    text: str

    bounds: Sequence[BoundValue]

    reads: Sequence[ast.AST]

    key: object = None
    """A key that identifies the variable, or None if the file never binds the name."""

    assignments: Sequence[Assignment] = ()
    """The places that bind a name. Empty for an attribute."""

    @property
    def values(self) -> list[ast.expr] | None:
        if any(bound.path or bound.value is None for bound in self.bounds):
            return None
        return [cast(ast.expr, bound.value) for bound in self.bounds]


UNBOUND = Binding("", (), ())


class Module(SyntaxTree):
    @cached_property
    def scopes(self) -> Scopes:
        return Scopes(self.tree)

    def scope(self, node: ast.AST) -> Scope:
        return self.scopes.of(node)

    def full_names(self, node: ast.AST, depth: int = 0) -> set[str]:
        """Return the possible full names, according to imports and aliases. '' means an unknown name."""
        key = (node, depth)  # without this cache, code such as x = x.y takes exponential time
        if key not in self._known_names:
            self._known_names[key] = self._full_names(node, depth)
        return set(self._known_names[key])

    @cached_property
    def _known_names(self) -> dict[tuple[ast.AST, int], set[str]]:
        return {}

    def _full_names(self, node: ast.AST, depth: int) -> set[str]:
        rest: list[str] = []
        while isinstance(node, ast.Attribute):
            rest.insert(0, node.attr)
            node = node.value
        assignments = self.scope(node).find(node.id) if isinstance(node, ast.Name) and depth <= MAX_ALIASES else []
        if any(isinstance(each.node, DEFINITIONS) and self.parents[each.node] is self.tree for each in assignments):
            return {""}  # a function of the file. One inside an `if` or a `try` often handles a failed import
        names: set[str] = set()
        for assignment in assignments:
            names |= self._names_of(assignment, rest, depth)
            if len(names) > MAX_NAMES:
                return {""}
        return names or {""}

    def _names_of(self, assignment: Assignment, rest: Sequence[str], depth: int) -> set[str]:
        if assignment.alias is not None:
            return {".".join([imported_name(assignment), *rest])}
        bound = self.bound_value(assignment.node)
        if is_name(bound.value, "None"):
            return set()  # after a failed import: it cannot be called
        if bound.path or not isinstance(bound.value, Target):
            return {""}
        return {".".join([base, *rest]) if base else "" for base in self.full_names(bound.value, depth + 1)}

    def full_name(self, node: ast.AST) -> str:
        names = self.full_names(node)
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def used_names(self) -> frozenset[str]:
        return frozenset(self.full_name(node) for node in self.nodes if isinstance(node, Target)) - {""}

    @cached_property
    def packages(self) -> frozenset[str]:
        """The first parts of all imported names. A relative import has the part ''."""
        names = [alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names]
        names += ["." * node.level + (node.module or "") for node in self.nodes if isinstance(node, ast.ImportFrom)]
        return frozenset(name.partition(".")[0] for name in names)

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of an object, or the name as it is written if the file does not import it."""
        return self.full_name(node) or (ast.unparse(node) if first_name(node) is not None else "")

    @cached_property
    def stars(self) -> list[str]:
        """The modules in statements such as `from module import *`."""
        imports = [node for node in self.nodes if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
        return ["." * node.level + (node.module or "") for node in imports]

    def is_unbound(self, node: ast.AST) -> bool:
        """Return whether nothing defines the first part of a name, such as `torch` in `torch.clamp`."""
        first = first_name(node)
        return first is not None and not self.scope(first).is_bound(first.id)

    def binding(self, node: ast.AST | None) -> Binding:
        if isinstance(node, ast.Name):
            assignments = self.scope(node).find(node.id)
            if not assignments:
                return UNBOUND
            bounds = [self.bound_value(each.node) for each in assignments]
            return Binding(node.id, bounds, assignments[0].reads, (node.id, assignments[0].node), assignments)
        if isinstance(node, ast.Attribute) and is_of_self(node) and (owner := self.enclosing(node, ast.ClassDef)):
            same = self.attributes.get((owner, node.attr), [])
            bounds = [self.bound_value(attribute) for attribute in same if self.is_target(attribute)]
            reads = [attribute for attribute in same if not self.is_target(attribute)]
            return Binding(self.code(node), bounds, reads, (node.attr, owner)) if bounds else UNBOUND
        return UNBOUND

    def assigned(self, node: ast.AST | None) -> Binding:
        parent = self.parents.get(node) if node is not None else None
        return self.binding(parent.targets[0]) if isinstance(parent, ast.Assign) else UNBOUND

    @cached_property
    def attributes(self) -> dict[tuple[ast.ClassDef, str], list[ast.AST]]:
        """Map (class, attribute) to the nodes that set or read the attribute."""
        attributes: dict[tuple[ast.ClassDef, str], list[ast.AST]] = {}
        for node in self.nodes:
            owner = self.enclosing(node, ast.ClassDef) if isinstance(node, Target) else None
            if owner is None:
                continue
            if isinstance(node, ast.Attribute) and is_of_self(node):
                attributes.setdefault((owner, node.attr), []).append(node)
            elif isinstance(node, ast.Name) and self.enclosing_function(node) is None and self.is_target(node):
                attributes.setdefault((owner, node.id), []).append(node)  # in the class body
        return attributes

    def is_target(self, node: ast.AST) -> bool:
        return self.bound_value(node).node is not None

    def bound_value(self, node: ast.AST) -> BoundValue:
        """Return the value that a statement binds to a target. Without a statement, the field `node` is None."""
        path: list[int | None] = []
        inner = node
        for outer in self.ancestors(node):
            match outer:
                case ast.Tuple(elts=elements) | ast.List(elts=elements):
                    path.insert(0, elements.index(inner))  # type: ignore[arg-type]
                case ast.Assign(targets=targets) if inner in targets:
                    return BoundValue(outer.value, path, outer)
                case ast.AnnAssign(target=target) | ast.NamedExpr(target=target) if target is inner:
                    return BoundValue(outer.value, path, outer)
                case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target) if (
                    target is inner
                ):
                    return BoundValue(outer.iter, [None, *path], outer)
                case ast.AugAssign(target=target) if target is inner:
                    return BoundValue(None, path, outer)
                case ast.withitem(optional_vars=target) if target is inner:
                    return BoundValue(outer.context_expr, path, outer)
                case _:
                    break
            inner = outer
        return BoundValue(None, path)


def is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in SELF


def imported_name(assignment: Assignment) -> str:
    """Return the full name that an import binds. A relative import begins with dots."""
    alias, statement = assignment.alias, assignment.node
    assert alias is not None
    if isinstance(statement, ast.ImportFrom):
        package = "." * statement.level + (statement.module or "")
        return f"{package}{alias.name}" if package.endswith(".") else f"{package}.{alias.name}"
    return alias.name if alias.asname else alias.name.partition(".")[0]
