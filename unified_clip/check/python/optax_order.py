"""Find clips in `optax.chain` that come after another transformation, so that they clip no gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Literal

from ...config.formats.python_source import Source, last_name, shortened
from ...config.formats.trainers.jax.optax import WRAPPERS
from .steps.flow import Flow

METHOD = "as_optax"
CHAINS = ("optax.chain", "optax.named_chain")
PASSES_ALL = ("with_extra_args_support", "GradientTransformationExtraArgs", *WRAPPERS)
"""The functions of optax, besides its chains, whose transformation gets all gradients."""

KEEPS_GRADIENTS = ("optax.identity", "optax.zero_nans")
"""The transformations of optax, besides its clips, after which a clip still clips gradients."""

HOLDERS = ("create", "Optimizer", "TrainState")
"""Functions of flax whose result contains a transformation, but is no transformation itself."""

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
    for call in source.calls:
        if source.dotted(call.func) in CHAINS:
            _add_late(source, call, None, reasons)
    for clip, why in _selected(source):
        reasons.setdefault(clip, why)
    return reasons


def _selected(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Yield (clip, reason) for each clip that a function such as optax.masked, or a condition, excludes from steps.

    Only chains and the functions in PASSES_ALL pass all gradients to a clip.
    """
    flow = Flow(source)
    for node in source.nodes:
        if isinstance(node, ast.Call) and (name := source.dotted(node.func)).startswith("optax."):
            if name not in CHAINS and name.rpartition(".")[2] not in PASSES_ALL:
                for part in [*node.args, *(each.value for each in node.keywords)]:
                    yield from ((clip, INSIDE.format(name=name)) for clip in _clips_in(flow, part))
        elif isinstance(node, ast.IfExp):
            branches = [list(_clips_in(flow, branch)) for branch in (node.body, node.orelse)]
            if not all(branches):
                why = CONDITIONAL.format(test=shortened(node.test))
                yield from ((clip, why) for branch in branches for clip in branch)


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
    source: Source,
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
    inner = kind
    match node:
        case _ if depth > DEPTH:
            parts = None
        case ast.Call(func=function, args=parts) if source.dotted(function) in CHAINS:
            inner = "entry" if source.dotted(function) == CHAINS[1] else "transformation"
        case ast.Tuple(elts=[_, part]) if kind == "entry":
            parts, inner = [part], "transformation"
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            inner = "entry" if kind == "entries" else kind
        case ast.Starred(value=value):
            parts, inner = [value], "entries" if kind == "entry" else kind
        case ast.Name() if (assigned := _assigned(source, node)) is not None:
            parts = [assigned]
        case ast.IfExp(body=body, orelse=other):
            ends = [_add_late(source, branch, before, reasons, depth, kind) for branch in (body, other)]
            return next(filter(None, ends), None)
        case _:
            parts = None
    if parts is not None:
        depth += isinstance(node, ast.Call | ast.Name)
        for part in parts:
            before = _add_late(source, part, before, reasons, depth, inner)
        return before
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
