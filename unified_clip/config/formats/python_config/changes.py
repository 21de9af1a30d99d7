"""Find statements that might change a setting, apart from plain assignments such as `a = 1`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Set

BASES = "_base_"
"""A file assigns the paths of its base files to `_base_`. Expressions such as `_base_.model` read these files."""

ROOTS = {"optim_wrapper", "optimizer_config", BASES}
"""The variables that affect clipping."""

WRITERS = frozenset({"globals", "locals", "vars", "exec"})
"""Builtin functions that can change a variable without an assignment."""


def reads_base(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.With) and "read_base" in ast.unparse(statement.items[0])


def assigned_names(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def unread_statements(body: list[ast.stmt], understood: Set[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """Return each statement with an unknown effect on clipping, and the variable that the statement might change."""
    relevant = _relevant_names(body)
    sets_wrapper = any("optim_wrapper" in assigned_names(statement) for statement in body)
    not_understood: list[tuple[str, ast.stmt]] = []
    for statement in body:
        if statement in understood:
            continue
        names = _changed_names(statement) & relevant
        if "*" in names:
            names = {"optim_wrapper" if sets_wrapper else "_base_"}
        if names:
            not_understood += [(name, statement) for name in sorted(names & ROOTS) or ["optim_wrapper"]]
    return not_understood


def _relevant_names(body: list[ast.stmt]) -> set[str]:
    """Return the variables that can affect clipping, including aliases of a dict."""
    relevant = {*ROOTS, *WRITERS, "*"}
    assignments = [(assigned_names(node), node.value) for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    assignments += [
        ([node.target.id], node.value)
        for node in body
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    ]
    assigned = {name for names, _ in assignments for name in names}
    mutable = {name for names, value in assignments if not isinstance(value, ast.Constant | None) for name in names}
    before = 0
    while before < len(relevant):
        before = len(relevant)
        for targets, value in assignments:
            used = _names(value) & assigned if value else set()
            if relevant.intersection(targets):
                relevant |= used
            if relevant & used & (mutable | ROOTS):
                relevant.update(targets)
    return relevant


def _changed_names(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement might change. '*' means every variable."""
    if reads_base(statement) or (isinstance(statement, ast.AnnAssign) and statement.value is None):
        return set()
    plain = assigned_names(statement)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not plain or len(plain) < len(targets):
        return _names(statement)
    nodes = list(ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_builtin(node.func)]
    walrus = [node.target for node in nodes if isinstance(node, ast.NamedExpr)]
    return {name for node in [*calls, *walrus] for name in _names(node)}


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and hasattr(builtins, function.id) and function.id not in WRITERS


def _names(node: ast.AST) -> set[str]:
    names: set[str] = set()
    nodes = list(ast.walk(node))
    irrelevant = [inner.value for inner in nodes if isinstance(inner, ast.Attribute) and inner.attr not in ROOTS]
    other_keys = {id(inner) for inner in irrelevant if isinstance(inner, ast.Name) and inner.id == BASES}
    for inner in nodes:
        if isinstance(inner, ast.Name) and not _is_builtin(inner) and id(inner) not in other_keys:
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add(inner.asname or inner.name.partition(".")[0])
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            names.add(inner.name)
    return names
