"""Find calls that have no effect, because no code uses the result."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..errors import ConfigError
from .frameworks import FRAMEWORKS
from .module import Module
from .tree import FUNCTIONS

UNUSED = (
    "No code uses the result of this call, so the call clips nothing. To train as before, remove the call. To clip, "
    "use the clipped gradients, as in gradients = clip(gradients), or pass the clip to the optimizer."
)
NOT_UPDATED = (
    "This file calls init of the transformation with this clip, but never calls update, so the clip has no effect, "
    "unless another file calls update. Call update, or remove the transformation."
)
REPLACED = (
    "Line {line} assigns another value to {name} before any code uses this clip, so this clip has no effect. Remove "
    "one of the two lines."
)
CONTAINERS = ("dict", "list", "tuple", "zip")
PASSES = (ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Starred, ast.Subscript)


def check(module: Module, call: ast.Call) -> None:
    """Raise ConfigError if no code uses the result of a clip, or if code replaces the result before it is read.

    An unused variable of the module is no error, because other files can import it. The variable `_` is an exception.
    """
    node: ast.AST = call
    if isinstance(module.parents[node], ast.Expr):
        raise ConfigError(UNUSED)
    _check_updates(module, [call])
    while isinstance(module.parents[node], PASSES):
        node = module.parents[node]
        if isinstance(node, ast.Call) and module.dotted(node.func).partition(".")[0] not in (*FRAMEWORKS, *CONTAINERS):
            return  # the function that is called may use the clip
    statement = module.parents[node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target = statement.targets[0]
    target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if not isinstance(target, ast.Name):
        return
    _check_next(module, statement, target.id)
    scope = module.scope(target)
    owner = scope.elsewhere.get(target.id, scope).node
    reads = scope.find(target.id)[0].reads
    _check_updates(module, [read for read in reads if isinstance(read, ast.Name)])
    is_local = isinstance(owner, FUNCTIONS)
    if not (_is_read(module, owner, statement, reads) if is_local else target.id != "_" or reads):
        raise ConfigError(UNUSED)


def _check_updates(module: Module, transformations: Sequence[ast.expr]) -> None:
    methods = [module.parents[node] for node in transformations]
    names = [each.attr if isinstance(each, ast.Attribute) else "" for each in methods]
    updates = [module.parents[each] for each, name in zip(methods, names, strict=True) if name == "update"]
    if "optax" not in module.packages or {*names} - {"init", "update"}:
        return
    unused = ConfigError(NOT_UPDATED)
    for call in updates:
        try:
            if isinstance(call, ast.Call):
                check(module, call)
            return
        except ConfigError as error:
            unused = error
    if names:
        raise unused


def _check_next(module: Module, statement: ast.stmt, name: str) -> None:
    parent = module.parents[statement]
    blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list) and statement in block]
    for following in blocks[0][blocks[0].index(statement) + 1 :] if blocks else ():
        if isinstance(following, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if _reads(following, name):
            return
        if isinstance(following, ast.Assign) and any(ast.unparse(each) == name for each in following.targets):
            raise ConfigError(REPLACED.format(line=following.lineno, name=name))


def _is_read(module: Module, function: ast.AST, statement: ast.stmt, reads: Sequence[ast.AST]) -> bool:
    """Return whether code reads a variable below an assignment, in the next round of its loop, or later."""
    loops = {outer for outer in module.ancestors(statement) if isinstance(outer, ast.For | ast.While)}
    return any(
        module.enclosing_function(node) is not function
        or module.position(node)[0] > module.end(statement)
        or loops.intersection(module.ancestors(node))
        for node in reads
    )


def _reads(node: ast.AST, name: str) -> list[ast.Name]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return [inner for inner in names if inner.id == name and isinstance(inner.ctx, ast.Load)]
