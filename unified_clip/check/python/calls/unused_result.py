"""Find clip calls that have no effect, because no code uses the result."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ....config.formats.python_source import FUNCTIONS, Source, last_name, shortened
from ....errors import ConfigError
from ..configuration_uses import is_local, scope_of
from ..steps.value_flow import Flow

UNUSED = (
    "No code uses the result of this call, so the call clips nothing. Use the clipped gradients, as in gradients = "
    "clip(gradients), or pass the clip to the optimizer. Or remove the call."
)
NOT_UPDATED = (
    "This file calls init of the transformation with this clip, but never calls update, so the clip has no effect. "
    "Call update, or remove the transformation. If another file calls update, add the clip to check.ignore with a "
    "reason."
)
REPLACED = (
    "Line {line} assigns another value to {name} before any code uses this clip, so this clip has no effect. Remove "
    "one of the two lines."
)
IGNORED = "Paddle's LBFGS in line {line} ignores grad_clip, so this clip clips nothing. Use another optimizer."
CONDITIONAL = (
    "The optimizer gets this clip only if {test}, which is only known at run time. Pass the clip in both cases, or add "
    "the clip to check.ignore with a reason."
)
LBFGS = ("paddle.optimizer.LBFGS", "paddle.incubate.optimizer.LBFGS")
PASSES = (ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Starred, ast.Subscript)


def check(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if no code uses the result of a clip, or if code replaces the result before it is read.

    An unused variable of the module is no error, because other files can import it.
    """
    node: ast.AST = call
    if isinstance(source.parents[node], ast.Expr):
        raise ConfigError(UNUSED)
    _check_updates(source, [call])
    while isinstance(source.parents[node], PASSES):
        node = source.parents[node]
    statement = source.parents[node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target = statement.targets[0]
    target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if not isinstance(target, ast.Name):
        return
    _check_next(source, statement, target.id)
    scope = scope_of(source, target, target.id)
    nodes = source.nodes if scope is None else ast.walk(scope)
    _check_updates(
        source, [read for inner in nodes if isinstance(inner, ast.Name) for read in _reads(inner, target.id)]
    )
    if is_local(scope) and not _is_read(source, scope, statement, target.id):
        raise ConfigError(UNUSED)


def check_grad_clip(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if Paddle's optimizer ignores a clip, or gets the clip only under a condition.

    A condition about the threshold is allowed, as in `ClipGradByNorm(norm) if norm > 0 else None`.
    """
    if not source.dotted(call.func).startswith("paddle.") and last_name(call.func) != "as_paddle":
        return
    flow = Flow(source)
    for optimizer in source.calls:
        if source.dotted(optimizer.func) in LBFGS and call in [*flow.reached(optimizer)]:
            raise ConfigError(IGNORED.format(line=optimizer.lineno))
    threshold = ast.unparse([*call.args, *(each.value for each in call.keywords), call.func][0])
    for outer in flow.sites(call, lambda outer: isinstance(outer, ast.Call)).values():
        for choice in (each for each in outer if isinstance(each, ast.IfExp)):
            branches = map(ast.unparse, (choice.body, choice.orelse))
            if "None" in branches and threshold not in ast.unparse(choice.test):
                raise ConfigError(CONDITIONAL.format(test=shortened(choice.test)))


def _check_updates(source: Source, transformations: Sequence[ast.expr]) -> None:
    methods = [source.parents[node] for node in transformations]
    names = [each.attr if isinstance(each, ast.Attribute) else "" for each in methods]
    updates = [source.parents[each] for each, name in zip(methods, names, strict=True) if name == "update"]
    if "optax" not in source.packages or {*names} - {"init", "update"}:
        return
    unused = ConfigError(NOT_UPDATED)
    for call in updates:
        try:
            if isinstance(call, ast.Call):
                check(source, call)
            return
        except ConfigError as error:
            unused = error
    if names:
        raise unused


def _check_next(source: Source, statement: ast.stmt, name: str) -> None:
    parent = source.parents[statement]
    blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list) and statement in block]
    for following in blocks[0][blocks[0].index(statement) + 1 :] if blocks else ():
        if isinstance(following, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if _reads(following, name):
            return
        if isinstance(following, ast.Assign) and any(ast.unparse(each) == name for each in following.targets):
            raise ConfigError(REPLACED.format(line=following.lineno, name=name))


def _is_read(source: Source, scope: ast.AST, statement: ast.stmt, name: str) -> bool:
    loops = {outer for outer in source.around(statement) if isinstance(outer, ast.For | ast.While)}
    for node in _reads(scope, name):
        around = list(source.around(node))
        is_inner = next(outer for outer in around if isinstance(outer, FUNCTIONS)) is not scope
        if is_inner or node.lineno > (statement.end_lineno or 0) or loops.intersection(around):
            return True
    return any(name in node.names for node in ast.walk(scope) if isinstance(node, ast.Global | ast.Nonlocal))


def _reads(node: ast.AST, name: str) -> list[ast.Name]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return [inner for inner in names if inner.id == name and isinstance(inner.ctx, ast.Load)]
