"""A Python file with resolved names: the full names of imported objects, and the values of variables."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import libcst as cst
from libcst.metadata import Assignment, BaseAssignment, ImportAssignment

from ..._kit.parse import parse_expression
from ..._kit.static_values import UnknownValueError, evaluate, is_number
from ...source.local_imports import file_of
from .syntax_tree import SyntaxTree, Target, first_name, is_name, sorted_nodes

SELF = ("self", "cls")

MAX_ALIASES = 10

MAX_NAMES = 100
"""A name with more than MAX_NAMES possible full names counts as unknown."""


@dataclass(frozen=True)
class BoundValue:
    value: cst.BaseExpression | None
    """None means a value without an expression, such as a parameter or a function."""

    path: Sequence[int | None] = ()
    """The indices that lead from `value` to the value of the name, such as (1, 0) for `b` in `a, (b, c) = value`. For
    the variable of a loop over `value`, the first index is None."""

    node: cst.CSTNode | None = None
    """The node that binds the value, such as an assignment or a loop. None for a parameter of a function."""


@dataclass(frozen=True)
class Binding:
    text: str

    bounds: Sequence[BoundValue]

    reads: Sequence[cst.CSTNode]

    key: object = None
    """A key that identifies the variable, or None if the file never binds the name."""

    @property
    def values(self) -> list[cst.BaseExpression] | None:
        if any(bound.path or bound.value is None for bound in self.bounds):
            return None
        return [cast(cst.BaseExpression, bound.value) for bound in self.bounds]


UNBOUND = Binding("", (), ())


class Module(SyntaxTree):
    def full_names(self, node: cst.CSTNode, depth: int = 0) -> set[str]:
        """Return the possible full names, according to imports and aliases. '' means an unknown name."""
        key = (node, depth)  # without this cache, code such as x = x.y takes exponential time
        if key not in self._known_names:
            self._known_names[key] = self._full_names(node, depth)
        return set(self._known_names[key])

    @cached_property
    def _known_names(self) -> dict[tuple[cst.CSTNode, int], set[str]]:
        return {}

    def _full_names(self, node: cst.CSTNode, depth: int) -> set[str]:
        rest: list[str] = []
        while isinstance(node, cst.Attribute):
            rest.insert(0, node.attr.value)
            node = node.value
        if not isinstance(node, cst.Name) or depth > MAX_ALIASES or node.value in self._captured:
            return {""}
        scope = self.scope(node)
        assignments = scope[node.value] if scope is not None else set()
        if not assignments or self._is_redefined(assignments):
            return {""}
        names: set[str] = set()
        for assignment in assignments:
            names |= self._names_of(assignment, node.value, rest, depth)
            if len(names) > MAX_NAMES:
                return {""}
        return names or {""}

    def _is_redefined(self, assignments: set[BaseAssignment]) -> bool:
        """Return whether one of the assignments is a function or class that the file itself defines.

        Ignore definitions inside an `if` or a `try`, because they often handle a failed import.
        """
        nodes = [assignment.node for assignment in assignments if isinstance(assignment, Assignment)]
        own = [node for node in nodes if isinstance(node, cst.FunctionDef | cst.ClassDef)]
        return any(isinstance(self.parents.get(node), cst.Module) for node in own)

    def _names_of(self, assignment: BaseAssignment, name: str, rest: Sequence[str], depth: int) -> set[str]:
        if isinstance(assignment, ImportAssignment):
            return {qualified.name for qualified in assignment.get_qualified_names_for(".".join([name, *rest]))} or {""}
        if not isinstance(assignment, Assignment):
            return {""}
        bound = self._bound_value(assignment.node)
        if is_name(bound.value, "None"):
            return set()  # after a failed import: it cannot be called
        if bound.path or not isinstance(bound.value, Target):
            return {""}
        return {".".join([base, *rest]) if base else "" for base in self.full_names(bound.value, depth + 1)}

    def full_name(self, node: cst.CSTNode) -> str:
        names = self.full_names(node)
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def used_names(self) -> frozenset[str]:
        return frozenset(self.full_name(node) for node in self.nodes if isinstance(node, Target)) - {""}

    @cached_property
    def _captured(self) -> set[str]:
        """The names in `case` patterns. LibCST's scopes do not contain these names."""
        captures = [pattern for pattern in self.nodes if isinstance(pattern, cst.MatchAs | cst.MatchStar)]
        return {pattern.name.value for pattern in captures if pattern.name is not None}

    def is_unbound(self, node: cst.CSTNode) -> bool:
        """Return whether nothing defines the first part of a name, such as `torch` in `torch.clamp`."""
        first = first_name(node)
        scope = self.scope(first) if first is not None else None
        is_bound = first is None or scope is None or first.value in self._captured or bool(scope[first.value])
        return not is_bound

    def is_in_project(self, package: str) -> bool:
        return self.path is not None and file_of(package, self.path)[0] is not None

    def only_target(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        parent = self.parents[node]
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            return parent.targets[0].target
        return parent.target if isinstance(parent, cst.AnnAssign) else None

    def binding(self, node: cst.CSTNode | None) -> Binding:
        if isinstance(node, cst.Name):
            return self._name_binding(node)
        if isinstance(node, cst.Attribute) and _is_of_self(node) and (owner := self.enclosing(node, cst.ClassDef)):
            same = self._attributes.get((owner, node.attr.value), [])
            bounds = [self._bound_value(attribute) for attribute in same if self.is_target(attribute)]
            reads = [attribute for attribute in same if not self.is_target(attribute)]
            return Binding(self.code(node), bounds, reads, (node.attr.value, owner)) if bounds else UNBOUND
        return UNBOUND

    def assigned(self, node: cst.CSTNode | None) -> Binding:
        parent = self.parents.get(node) if node is not None else None
        return self.binding(parent.targets[0].target) if isinstance(parent, cst.Assign) else UNBOUND

    def _name_binding(self, node: cst.Name) -> Binding:
        scope = self.scope(node)
        ordered = list(scope[node.value]) if scope is not None else []
        assignments = [assignment for assignment in ordered if isinstance(assignment, Assignment)]
        if not ordered or len(assignments) < len(ordered):
            return UNBOUND
        bounds = [self._bound_value(assignment.node) for assignment in assignments]
        reads = dict.fromkeys(access.node for assignment in assignments for access in assignment.references)
        return Binding(node.value, bounds, list(reads), (node.value, assignments[0].scope))

    @cached_property
    def _attributes(self) -> dict[tuple[cst.ClassDef, str], list[cst.CSTNode]]:
        """Map (class, attribute) to the nodes that set or read the attribute."""
        attributes: dict[tuple[cst.ClassDef, str], list[cst.CSTNode]] = {}
        for node in self.nodes:
            owner = self.enclosing(node, cst.ClassDef) if isinstance(node, Target) else None
            if owner is None:
                continue
            if isinstance(node, cst.Attribute) and _is_of_self(node):
                attributes.setdefault((owner, node.attr.value), []).append(node)
            elif isinstance(node, cst.Name) and self.enclosing_function(node) is None and self.is_target(node):
                attributes.setdefault((owner, node.value), []).append(node)  # in the class body
        return attributes

    def is_target(self, node: cst.CSTNode) -> bool:
        return self._bound_value(node).node is not None

    def _bound_value(self, node: cst.CSTNode) -> BoundValue:
        """Return the value that a statement binds to a target. Without a statement, the field `node` is None."""
        path: list[int | None] = []
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, cst.Tuple | cst.List):
                position = next((i for i, element in enumerate(outer.elements) if element is inner), None)
                path.insert(0, position)
            elif isinstance(outer, cst.AssignTarget):
                assign = cast(cst.Assign, self.parents[outer])
                return BoundValue(assign.value, path, assign)
            elif isinstance(outer, cst.AnnAssign | cst.NamedExpr) and outer.target is inner:
                return BoundValue(outer.value, path, outer)
            elif isinstance(outer, cst.For | cst.CompFor) and outer.target is inner:
                return BoundValue(outer.iter, [None, *path], outer)
            elif isinstance(outer, cst.AugAssign) and outer.target is inner:
                return BoundValue(None, path, outer)
            elif isinstance(outer, cst.WithItem) and outer.asname is inner:
                return BoundValue(outer.item, path, outer)
            elif not isinstance(outer, cst.Element | cst.AsName):
                break
            inner = outer
        return BoundValue(None, path)

    # -- the same expression elsewhere

    def has_same_value_at(self, node: cst.CSTNode, place: cst.CSTNode) -> bool:
        """Return whether an expression has the same value at `place`. Assume that equal calls return equal values."""
        here, there = self.scope(node), self.scope(place)
        for name in self._names_read(node):
            if here is None or there is None or here[name] != there[name] or not self._is_constant(here[name], node):
                return False
        nodes = sorted_nodes(node)
        if any(len(self.binding(inner).bounds) > 1 for inner in nodes if isinstance(inner, cst.Attribute)):
            return False
        uses_self = any(isinstance(inner, cst.Name) and inner.value in SELF for inner in nodes)
        owners = [self.enclosing(inner, cst.ClassDef) for inner in (node, place)]
        return not uses_self or (owners[0] is owners[1] and there is not None and any(there[name] for name in SELF))

    def _names_read(self, node: cst.CSTNode) -> list[str]:
        names = []
        for inner in sorted_nodes(node):
            if isinstance(inner, cst.Name) and inner.value not in SELF:
                parent = self.parents.get(inner)
                is_attribute = isinstance(parent, cst.Attribute) and parent.attr is inner
                if not is_attribute and not (isinstance(parent, cst.Arg) and parent.keyword is inner):
                    names.append(inner.value)
        return names

    def _is_constant(self, assignments: set[BaseAssignment], node: cst.CSTNode) -> bool:
        nodes = [assignment.node for assignment in assignments if isinstance(assignment, Assignment)]
        if not nodes:
            return True  # imported, or a builtin
        if len(assignments) > 1:
            return False
        loop = self.enclosing(nodes[0], cst.For, cst.While, cst.FunctionDef, cst.Lambda)
        return not isinstance(loop, cst.For | cst.While) or self._block(node) in (self._block(nodes[0]), loop.body)

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.enclosing(node, cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)

    # -- the same attribute on other objects

    def uses_on_other_objects(self, binding: Binding) -> list[cst.CSTNode]:
        if "." not in binding.text:
            return []
        name, owner = binding.text.rpartition(".")[2], cast(tuple[str, cst.ClassDef], binding.key)[1]
        own = set(map(id, self._attributes.get((owner, name), ())))
        uses: list[cst.CSTNode] = []
        for node in self.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value == name:
                if id(node) not in own and not self.full_name(node) and not self._is_of_other_class(node, owner):
                    uses.append(node)
            elif isinstance(node, cst.Call) and self.code(node.func) in ("getattr", "setattr"):
                texts = [text for text in sorted_nodes(node) if isinstance(text, cst.SimpleString)]
                uses += [node for text in texts if text.evaluated_value == name]
        return uses

    def _is_of_other_class(self, node: cst.Attribute, owner: cst.ClassDef) -> bool:
        other = self.enclosing(node, cst.ClassDef)
        if other is None or not _is_of_self(node):
            return False
        bases = {self.code(base.value) for definition in (other, owner) for base in definition.bases}
        has_own = any(self.is_target(attribute) for attribute in self._attributes.get((other, node.attr.value), ()))
        return has_own and not bases & {other.name.value, owner.name.value}

    def number(self, node: cst.BaseExpression) -> float | None:
        try:
            value = self._value(node, 0)
            return float(value) if is_number(value) else None
        except (UnknownValueError, SyntaxError, OverflowError):
            return None

    def _value(self, node: cst.BaseExpression, depth: int) -> Any:
        def target(name: ast.expr) -> Target:
            targets = (inner for inner in sorted_nodes(node) if isinstance(inner, Target))
            return next(inner for inner in targets if ast.unparse(self._expression(inner)) == ast.unparse(name))

        def value_of(name: ast.expr) -> Any:
            binding = self.binding(target(name))
            if not binding.values or len(binding.values) > 1 or depth == MAX_ALIASES or self._may_change(binding):
                raise UnknownValueError(name)
            return self._value(binding.values[0], depth + 1)

        return evaluate(self._expression(node), value_of, lambda name: self.full_name(target(name)))

    def _may_change(self, binding: Binding) -> bool:
        """Return whether other code, such as `exec` or a subclass, might set the variable."""
        if "." not in binding.text:
            return any(isinstance(node, cst.Call) and is_name(node.func, "exec") for node in self.nodes)
        if any(
            isinstance(bound.node, cst.AnnAssign) and self.enclosing_function(bound.node) is None
            for bound in binding.bounds
        ):
            return True
        uses = self.uses_on_other_objects(binding)
        name, owner = cast(tuple[str, cst.ClassDef], binding.key)
        subclasses = [other for other, attribute in self._attributes if attribute == name and other is not owner]
        derived = any(self.code(base.value) == owner.name.value for other in subclasses for base in other.bases)
        return derived or any(isinstance(use, cst.Call) or self.is_target(use) for use in uses)

    def _expression(self, node: cst.BaseExpression) -> ast.expr:
        return parse_expression(self.code(node))


def _is_of_self(node: cst.Attribute) -> bool:
    return isinstance(node.value, cst.Name) and node.value.value in SELF
