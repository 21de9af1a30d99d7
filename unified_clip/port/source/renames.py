"""Replace imported functions in the import statement, or at each use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import libcst as cst
from libcst.metadata import BaseAssignment, ImportAssignment

from .edits import Edits, end_with_comments
from .module import Module
from .syntax_tree import Target, first_name


class Renames:
    def __init__(self, module: Module, edits: Edits) -> None:
        self._module, self._edits = module, edits
        self._replacements: dict[cst.CSTNode, tuple[str, str]] = {}
        self._lines: dict[cst.ImportFrom | cst.Import, dict[str, str]] = {}
        """{import statement: {removed name: its replacement, or '' for none}}"""

        self._modules: dict[cst.ImportFrom | cst.Import, str] = {}

        self._beside: list[tuple[cst.CSTNode, str]] = []
        """(import statement, module to import below the statement)"""

        self._at_top: set[str] = set()

    def add(self, node: cst.CSTNode, module: str, name: str) -> None:
        if not isinstance(self._module.parents[node], cst.NameItem):  # global x: its import stays
            self._replacements[node] = module, name

    def apply(self) -> None:
        by_import: dict[ImportAssignment, list[cst.CSTNode]] = {}
        for node in self._replacements:
            assignment = self._assignment(node)
            if assignment is None:
                self._replace(node)
            else:
                by_import.setdefault(assignment, []).append(node)
        for assignment, nodes in by_import.items():
            self._by_import(assignment, nodes)
        for statement, changed in self._lines.items():
            self._change_import(statement, changed)
        for module in self._at_top:
            self._edits.needs_import(module)
        for node, module in self._beside:
            if self._at_top and self._module.enclosing_function(node) is not None:
                self._edits.needs_import(module)  # an import in the function would hide the import at the top
            else:
                self._edits.import_after(node, module)

    def _assignment(self, node: cst.CSTNode) -> ImportAssignment | None:
        """Return the import of a name, or None if its import statement cannot be edited."""
        assignments = self._assignments(node)
        only = assignments[0] if len(assignments) == 1 else None
        if not isinstance(only, ImportAssignment) or not self._is_own(only):
            return None
        is_guarded = self._module.enclosing(only.node, cst.Try, cst.If) is not None
        return only if not is_guarded and self._module.has_own_line(only.node) else None

    def _assignments(self, node: cst.CSTNode) -> list[BaseAssignment]:
        scope, first = self._module.scope(node), first_name(node)
        return list(scope[first.value]) if scope is not None and first is not None else []

    def _by_import(self, assignment: ImportAssignment, nodes: Sequence[cst.CSTNode]) -> None:
        statement = cast(cst.Import | cst.ImportFrom, assignment.node)
        alias = next(alias for alias in statement.names if _bound_name(alias) == assignment.name)  # type: ignore[union-attr]
        reads = {first_name(access.node) for access in assignment.references}
        all_change = reads == {first_name(node) for node in nodes}
        replacements = {self._replacements[node] for node in nodes}
        if all_change and len(replacements) == 1 and all(isinstance(node, cst.Name) for node in nodes):
            ((module, name),) = replacements
            new = f"{name} as {assignment.name}" if assignment.name != name else name
            self._lines.setdefault(statement, {})[alias.evaluated_name] = new
            self._modules[statement] = module
            return
        for node in nodes:
            self._replace(node)
        is_dotted = alias.evaluated_name.count(".") + (alias.asname is not None) > 0
        texts = (node.evaluated_value for node in self._module.nodes if isinstance(node, cst.SimpleString))
        if all_change and is_dotted and assignment.name not in texts:  # a text may name an import, as in __all__
            self._lines.setdefault(statement, {})[alias.evaluated_name] = ""

    def _replace(self, node: cst.CSTNode) -> None:
        module, name = self._replacements[node]
        self._edits.replace(cast(Target, node), f"{module}.{name}")
        imports = [assignment for assignment in self._assignments(node) if isinstance(assignment, ImportAssignment)]
        if not imports or any(map(self._is_at_top, imports)):
            self._at_top.add(module)
        else:
            self._beside += [(assignment.node, module) for assignment in imports]

    def _is_own(self, assignment: ImportAssignment) -> bool:
        return self._module.scope(assignment.node) is assignment.scope

    def _is_at_top(self, assignment: ImportAssignment) -> bool:
        statement = assignment.node
        if not self._is_own(assignment) or not self._module.has_own_line(statement):
            return True
        return isinstance(self._module.parents[self._module.parents[statement]], cst.Module)

    def _change_import(self, statement: cst.Import | cst.ImportFrom, changed: dict[str, str]) -> None:
        rest = [alias for alias in statement.names if alias.evaluated_name not in changed]  # type: ignore[union-attr]
        names = ", ".join(sorted({name for name in changed.values() if name}))
        new = [f"from {self._modules[statement]} import {names}"] if names else []

        def lines(updated: Any) -> Sequence[str]:
            return [self._module.tree.code_for_node(_with_names(updated, rest)), *new] if rest else new

        self._edits.rewrite(statement, lines)


def _with_names(statement: Any, names: Sequence[cst.ImportAlias]) -> cst.CSTNode:
    *others, last = names
    removed = statement.names[-1]
    if last.evaluated_name == removed.evaluated_name and last.evaluated_alias == removed.evaluated_alias:
        return cast(cst.CSTNode, statement.with_changes(names=names))
    between = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
    if isinstance(removed.comma, cst.Comma):
        comma = removed.comma.with_changes(whitespace_after=end_with_comments(between, removed.comma.whitespace_after))
        return cast(cst.CSTNode, statement.with_changes(names=[*others, last.with_changes(comma=comma)]))
    changed = statement.with_changes(names=[*others, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])
    if getattr(statement, "rpar", None) is not None:
        end = end_with_comments(between, statement.rpar.whitespace_before)
        changed = changed.with_changes(rpar=statement.rpar.with_changes(whitespace_before=end))
    return cast(cst.CSTNode, changed)


def is_name_taken(module: Module) -> bool:
    names = (node for node in module.nodes if isinstance(node, cst.Name) and node.value == "unified_clip")
    scopes = (scope for name in names if (scope := module.scope(name)) is not None)
    return not all(_is_unified_clip(assignment) for scope in scopes for assignment in scope["unified_clip"])


def _is_unified_clip(assignment: BaseAssignment) -> bool:
    if not isinstance(assignment, ImportAssignment) or not isinstance(assignment.node, cst.Import):
        return False
    aliases = [alias for alias in assignment.node.names if _bound_name(alias) == "unified_clip"]
    return all(alias.evaluated_name == "unified_clip" or alias.asname is None for alias in aliases)


def _bound_name(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
