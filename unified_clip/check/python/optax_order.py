"""Find clips in `optax.chain` that come after another transformation, so that they clip no gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Literal

from ...config.formats.python_source import Source, last_name, shortened
from ...config.formats.trainers.jax.optax import WRAPPERS
from .steps.flow import APPENDING, Flow
from .usage import SHOWS

METHOD = "as_optax"
CHAINS = ("optax.chain", "optax.named_chain")
PASSES_ALL = ("with_extra_args_support", "GradientTransformationExtraArgs", *WRAPPERS)
"""The functions of optax, besides its chains, whose transformation gets all gradients."""

KEEPS_GRADIENTS = ("optax.identity", "optax.zero_nans")
"""The transformations of optax, besides its clips, after which a clip still clips gradients."""

HOLDERS = ("create", "Optimizer", "TrainState")
"""Functions of flax whose result contains a transformation, but is not a transformation itself."""

CLIPS = ("optax.clip", "optax.clip_by_global_norm", "optax.clip_by_block_rms", "optax.adaptive_grad_clip")

WHY = (
    "This clip comes after {code} in optax.chain, so it clips the updates of that transformation, not the gradients. "
    "Write the clip first in optax.chain. To keep clipping updates, ignore the clip with a reason in check.ignore."
)

INSIDE = (
    "This clip is inside {name}, so it possibly clips only some gradients or steps. Write the clip first in "
    "optax.chain, outside of {name}. If this is intended, ignore the clip with a reason in check.ignore."
)
CONDITIONAL = (
    "This clip depends on a condition, {test}, which is only known at run time. Clip in both cases, or ignore the clip "
    "with a reason in check.ignore."
)

DEPTH = 4
"""Names and chains inside chains are followed up to this depth."""

Kind = Literal["transformation", "entry", "entries"]
"""What code in a chain stands for: transformations, a (name, transformation) tuple of `optax.named_chain`, or a list of
such tuples."""


def misplaced(source: Source) -> dict[ast.Call, str]:
    """Return the reason for each clip of optax or `as_optax` that is not among the first in `optax.chain`.

    After other clips, and after transformations in KEEPS_GRADIENTS, a clip still counts as one of the first. Find parts
    of a chain also in variables and lists that the source assigns once.
    """
    reasons: dict[ast.Call, str] = {}
    flow = Flow(source)
    for call in source.calls:
        if _chain(source, call):
            _add_late(flow, call, None, reasons)
    for clip, why in _selected(flow):
        reasons.setdefault(clip, why)
    return reasons


def _chain(source: Source, call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """Return (function, transformations) of a call of `optax.chain` or `optax.named_chain`. Return None for others.

    The function may have its first transformations from `functools.partial`.
    """
    function, parts = source.followed(call.func), call.args
    if isinstance(function, ast.Call) and last_name(function.func) == "partial" and function.args:
        first, *early = function.args
        function, parts = first, [*early, *parts]
    name = source.dotted(function)
    return (name, parts) if name in CHAINS else None


def _selected(flow: Flow) -> Iterator[tuple[ast.Call, str]]:
    """Yield (clip, reason) for each clip that a function such as optax.masked, or a condition, may exclude from steps.

    Three kinds of functions pass all gradients to a clip: chains, the functions in PASSES_ALL, and functions of the
    file that pass the clip first to a chain.
    """
    source = flow.source
    for node in source.nodes:
        if isinstance(node, ast.Call) and (name := source.dotted(node.func)).startswith("optax."):
            if name not in CHAINS and name.rpartition(".")[2] not in PASSES_ALL:
                for part in [*node.args, *(each.value for each in node.keywords)]:
                    yield from ((clip, INSIDE.format(name=name)) for clip in _clips_in(flow, part))
        elif isinstance(node, ast.Call) and not _keeps(flow, node):
            outer = source.parents[node]
            is_part = isinstance(outer, ast.Call) and _chain(source, outer) is not None
            parts = [*node.args, *(each.value for each in node.keywords)]
            for part in [*parts, node.func] if isinstance(node.func, ast.Call) else parts:
                clips = _clips_in(flow, part) if is_part else [part] if _is_clip(source, part) else []
                for clip in clips:
                    if isinstance(clip, ast.Call) and not _has_optimizer(clip):
                        yield clip, INSIDE.format(name=shortened(node.func))
        elif isinstance(node, ast.IfExp):
            branches = [list(_clips_in(flow, branch)) for branch in (node.body, node.orelse)]
            if not all(branches):
                why = CONDITIONAL.format(test=shortened(node.test))
                yield from ((clip, why) for branch in branches for clip in branch)


def _keeps(flow: Flow, call: ast.Call) -> bool:
    """Return whether a call of other code than optax keeps its arguments, or passes one of them first to a chain."""
    name, is_chain = last_name(call.func), _chain(flow.source, ast.Call(call, [], [])) or _chain(flow.source, call)
    if is_chain or name in (*HOLDERS, *APPENDING, *SHOWS, "dict") or name[:1].isupper():
        return True
    functions = flow.functions.get(name, [])
    chains = (_chain(flow.source, each) for each in flow.source.calls if flow.source.function(each) in functions)
    passed = {ast.unparse(part) for chain in chains if chain for part in chain[1][:1]}
    parameters = (each for function in functions for each in ast.walk(function) if isinstance(each, ast.arg))
    return any(each.arg in passed for each in parameters)


def _clips_in(flow: Flow, node: ast.expr) -> Iterator[ast.Call]:
    """Yield the clips in the transformations of an expression, also through variables and functions of the file.

    Results of methods and attributes of a transformation, as in `tx.update(gradients)`, have no clip.
    """
    seen: set[ast.AST] = set()
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if inner in seen:
            continue
        seen.add(inner)
        if isinstance(inner, ast.expr) and _is_clip(flow.source, inner):
            assert isinstance(inner, ast.Call)
            yield inner
        if isinstance(inner, ast.Call) and last_name(inner.func) in HOLDERS:
            continue
        around = set(flow.source.around(inner))  # in tx = masked(tx), the inner tx has an earlier value
        earlier = [value for value in flow.values(inner) if value not in around]
        waiting += [*earlier, *flow.items(inner), *flow.returned(inner)]
        waiting += [] if isinstance(inner, ast.Attribute) else ast.iter_child_nodes(inner)


def own(source: Source) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield (call, name, reason) for each misplaced call of `as_optax`."""
    for call, why in misplaced(source).items():
        if last_name(call.func) == METHOD:
            yield call, f"ClipConfig.{METHOD}", why


def _add_late(
    flow: Flow,
    node: ast.expr,
    before: ast.expr | None,
    reasons: dict[ast.Call, str],
    depth: int = 0,
    kind: Kind = "transformation",
) -> ast.expr | None:
    """Add each clip in `node` that comes after another transformation to `reasons`, with the reason.

    Return the first transformation in `before` or `node` after which a clip clips no gradients, or None if there is
    none. Follow chains inside chains, lists, and variables that are assigned once. The branches of an `if` expression
    do not come after each other.

    before: The result for the code before `node`.
    depth: The number of names and chains that were followed to `node`.
    kind: What `node` stands for.
    """
    parts: Sequence[ast.expr] | None
    source, inner = flow.source, kind
    branches: Sequence[ast.expr] = ()
    match node:
        case _ if depth > DEPTH:
            parts = None
        case ast.Call() if (chain := _chain(source, node)) is not None:
            parts, inner = chain[1], "entry" if chain[0] == CHAINS[1] else "transformation"
        case ast.Tuple(elts=[_, part]) if kind == "entry":
            parts, inner = [part], "transformation"
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            inner = "entry" if kind == "entries" else kind
        case ast.Starred(value=value):
            parts, inner = [value], "entries" if kind == "entry" else kind
        case ast.Name() if (assigned := _assigned(source, node)) is not None:
            parts = [assigned]
        case ast.IfExp(body=body, orelse=other):
            parts, branches = None, [body, other]
        case ast.Call(func=function):
            parts, branches = None, flow.returned(function)
        case _:
            parts = None
    if parts is not None:
        depth += isinstance(node, ast.Call | ast.Name)
        for part in parts:
            before = _add_late(flow, part, before, reasons, depth, inner)
        return before
    if branches:
        ends = [_add_late(flow, branch, before, reasons, depth + 1, kind) for branch in branches]
        return next(filter(None, ends), None)
    is_clip = _is_clip(source, node)
    if is_clip and before is not None and isinstance(node, ast.Call):
        reasons.setdefault(node, WHY.format(code=shortened(before)))
    keeps = isinstance(node, ast.Call) and source.dotted(node.func) in KEEPS_GRADIENTS
    keeps = keeps or (is_clip and not _has_optimizer(node))
    return node if before is None and not keeps else before


def _assigned(source: Source, node: ast.Name) -> ast.expr | None:
    """Return the expression that is assigned to a name. Return None unless the name is bound exactly once.

    Return None, too, if the name is in this expression, where it has an earlier value, as in `tx = chain(clip, tx)`.
    """
    values = source.bound.get(node.id, [])
    is_rebound = node.id in source.imports or any(outer in values for outer in source.around(node))
    return None if is_rebound or len(values) != 1 else values[0]


def _is_clip(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (source.dotted(node.func) in CLIPS or last_name(node.func) == METHOD)


def _has_optimizer(node: ast.expr) -> bool:
    """Return whether a node is a call of `as_optax` with an optimizer, which returns that optimizer's updates."""
    if not isinstance(node, ast.Call) or last_name(node.func) != METHOD:
        return False
    return bool(node.args) or any(each.arg in ("optimizer", None) for each in node.keywords)
