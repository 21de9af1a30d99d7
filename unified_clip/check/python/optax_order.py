"""Find clips in `optax.chain` that come after another transformation, so that they clip no gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...config.formats.python_source import Source, shortened
from ...config.formats.trainers.jax.optax import WRAPPERS

METHOD = "as_optax"
CHAINS = ("optax.chain", "optax.named_chain")
PASSES_ALL = ("with_extra_args_support", "GradientTransformationExtraArgs", *WRAPPERS)
"""The functions of optax, besides its chains, whose transformation gets all gradients."""

KEEPS_GRADIENTS = ("optax.identity", "optax.zero_nans")
"""The transformations of optax, besides its clips, after which a clip still clips gradients."""

CLIPS = ("optax.clip", "optax.clip_by_global_norm", "optax.clip_by_block_rms", "optax.adaptive_grad_clip")

WHY = (
    "This clip comes after {code} in optax.chain, so it clips the updates that this returns, not the gradients. Write "
    "the clip first in optax.chain. If it is meant to clip updates, ignore it with a reason in [[check.ignore]]."
)

INSIDE = (
    "This clip is inside {name}, so it may not clip all gradients in each step. Write the clip first in optax.chain, "
    "outside of {name}. If it is meant so, ignore it with a reason in [[check.ignore]]."
)
CONDITIONAL = (
    "This clip depends on a condition, {test}, which is only known at run time. Clip in both cases, or ignore it with "
    "a reason in [[check.ignore]]."
)

DEPTH = 4
"""Names and chains inside chains are followed up to this depth."""


def misplaced(source: Source) -> dict[ast.Call, str]:
    """Return the reason for each clip of optax or `as_optax` that is not among the first in `optax.chain`.

    Only clips before it, and transformations in KEEPS_GRADIENTS, leave it a clip of gradients. Parts of a chain are
    also found in variables and in lists, if these are assigned once.
    """
    reasons: dict[ast.Call, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Call) and source.dotted(node.func) in CHAINS:
            before: ast.expr | None = None
            for part in _parts(source, node):
                is_clip = _is_clip(source, part)
                if is_clip and before is not None and isinstance(part, ast.Call):
                    reasons.setdefault(part, WHY.format(code=shortened(before)))
                if before is None and not (is_clip and not _has_optimizer(part)) and not _keeps(source, part):
                    before = part
    for clip, why in _selected(source):
        reasons.setdefault(clip, why)
    return reasons


def _selected(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Yield (clip, reason) for each clip that a function such as optax.masked, or a condition, excludes from steps.

    As for `unified-clip config import`, only chains and PASSES_ALL pass all gradients to a clip.
    """
    for node in source.nodes:
        if isinstance(node, ast.Call) and (name := source.dotted(node.func)).startswith("optax."):
            if name not in CHAINS and name.rpartition(".")[2] not in PASSES_ALL:
                for part in [*node.args, *(each.value for each in node.keywords)]:
                    yield from ((clip, INSIDE.format(name=name)) for clip in _clips_in(source, part))
        elif isinstance(node, ast.IfExp):
            branches = [list(_clips_in(source, branch)) for branch in (node.body, node.orelse)]
            if not all(branches):
                why = CONDITIONAL.format(test=shortened(node.test))
                yield from ((clip, why) for branch in branches for clip in branch)


def _clips_in(source: Source, node: ast.expr, depth: int = 0) -> Iterator[ast.Call]:
    """Yield the clips in an expression, and in the values of its variables that are assigned once."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and _is_clip(source, inner):
            yield inner
        elif isinstance(inner, ast.Name) and depth < DEPTH:
            values = source.bound.get(inner.id, [])
            if len(values) == 1 and values[0] is not None:
                yield from _clips_in(source, values[0], depth + 1)


def own(source: Source) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield (call, name, reason) for each misplaced call of `as_optax`."""
    for call, why in misplaced(source).items():
        if isinstance(call.func, ast.Attribute) and call.func.attr == METHOD:
            yield call, f"ClipConfig.{METHOD}", why


def _parts(source: Source, node: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
    """Yield the transformations of a chain in order. The value stands for a variable that is assigned once."""
    if depth > DEPTH:
        yield node
        return
    match node:
        case ast.Call(func=function, args=arguments) if source.dotted(function) in CHAINS:
            parts = list(map(_named_part, arguments)) if source.dotted(function) == CHAINS[1] else arguments
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            pass
        case ast.Starred(value=value):
            parts = [value]
        case ast.Name(id=name) if len(values := source.bound.get(name, [])) == 1 and values[0] is not None:
            parts = [values[0]]
        case ast.IfExp(body=body, orelse=other):
            parts = [body, other]
        case _:
            yield node
            return
    for part in parts:
        yield from _parts(source, part, depth + 1)


def _named_part(part: ast.expr) -> ast.expr:
    """Return the transformation of a (name, transformation) tuple of `optax.named_chain`."""
    return part.elts[1] if isinstance(part, ast.Tuple) and len(part.elts) == 2 else part


def _is_clip(source: Source, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return source.dotted(node.func) in CLIPS or (isinstance(node.func, ast.Attribute) and node.func.attr == METHOD)


def _has_optimizer(node: ast.expr) -> bool:
    """Return whether `as_optax` gets an optimizer, whose updates it returns."""
    if not isinstance(node, ast.Call) or not (isinstance(node.func, ast.Attribute) and node.func.attr == METHOD):
        return False
    return bool(node.args) or any(each.arg in ("optimizer", None) for each in node.keywords)


def _keeps(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and source.dotted(node.func) in KEEPS_GRADIENTS
