"""Find clips in `optax.chain` that clip no gradients, because they come after another transformation."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from ...config.formats.python_source import FUNCTIONS, Source, end_of, last_name, shortened
from ...config.formats.trainers.jax.optax import WRAPPERS
from .configuration_uses import SHOWS
from .steps.optimizers_without_clip import SETTING
from .steps.value_flow import APPENDING, Flow

METHOD = "as_optax"
CHAINS = ("optax.chain", "optax.named_chain")
PASSES_ALL = ("with_extra_args_support", "GradientTransformationExtraArgs", "inject_hyperparams", *WRAPPERS)
"""Functions of optax that wrap a transformation, and pass all gradients to it."""

KEEPS_GRADIENTS = ("optax.identity", "optax.zero_nans")
"""Transformations that are allowed before a clip, because they return gradients and not updates."""

HOLDERS = ("create", "Optimizer", "TrainState")
"""Functions of flax that return an object with an optax transformation."""

CLIPS = ("optax.clip", "optax.clip_by_global_norm", "optax.clip_by_block_rms", "optax.adaptive_grad_clip")

WHY = (
    "This clip comes after {code} in optax.chain, so the clip changes updates, not gradients. Write the clip first in "
    "optax.chain. If you want to clip the updates, add the clip to check.ignore with a reason."
)

INSIDE = (
    "This clip is inside {name}, so it possibly clips only some gradients or steps. Write the clip first in "
    "optax.chain, outside of {name}. If this is intended, add the clip to check.ignore with a reason."
)
CONDITIONAL = (
    "This clip depends on a condition, {test}, which is only known at run time. Clip in both cases, or add the clip to "
    "check.ignore with a reason."
)

DEPTH = 4

Kind = Literal["transformation", "entry", "entries"]
"""An "entry" is a (name, transformation) tuple of `optax.named_chain`, and "entries" are a sequence of these tuples."""


def misplaced(source: Source) -> dict[ast.Call, str]:
    """Return {clip: reason} for each clip in a wrong place of an `optax.chain`.

    Before a clip, only other clips and transformations in KEEPS_GRADIENTS are allowed.
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
    function, parts = source.followed(call.func), call.args
    if isinstance(function, ast.Call) and last_name(function.func) == "partial" and function.args:
        first, *early = function.args
        function, parts = first, [*early, *parts]
    name = source.dotted(function)
    return (name, parts) if name in CHAINS else None


def _selected(flow: Flow) -> Iterator[tuple[ast.Call, str]]:
    for clip in flow.source.calls:
        if _is_clip(flow.source, clip):
            users = flow.sites(clip, _ends).values()
            for outer in users:
                yield from ((clip, why) for each in reversed(outer) if (why := _selection(flow, clip, each)))
            chains = [clip, *itertools.chain.from_iterable(users)]
            tests = [_condition(flow.source, clip), *(_replacing(flow.source, chain) for chain in chains)]
            for test in filter(None, tests):
                yield clip, CONDITIONAL.format(test=shortened(test))


def _condition(source: Source, clip: ast.Call) -> ast.expr | None:
    inner: ast.AST = clip
    targets: set[str] = set()
    for outer in source.around(clip):
        if isinstance(outer, FUNCTIONS):
            break
        if isinstance(outer, ast.Assign):
            parts = {ast.unparse(each) for each in ast.walk(outer.value) if isinstance(each, ast.Name | ast.Attribute)}
            targets = parts.intersection(map(ast.unparse, outer.targets))
        if isinstance(outer, ast.If) and targets and SETTING.search(ast.unparse(outer.test)) is None:
            others = outer.orelse if inner in outer.body else outer.body
            calls = (each for part in others for each in ast.walk(part) if isinstance(each, ast.Call))
            return None if any(_is_clip(source, call) for call in calls) else outer.test
        inner = outer
    return None


def _replacing(source: Source, chain: ast.expr) -> ast.expr | None:
    """Return `x` if code such as `if x: tx = adam` replaces `chain` by an optimizer without the clip."""
    own = next(outer for outer in source.around(chain) if isinstance(outer, ast.stmt))
    names = {each.id for each in ast.walk(own) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    for node in source.nodes if _results(own) else ():
        if isinstance(node, ast.Assign | ast.Return) and _results(node) == _results(own) and node is not own:
            is_used = isinstance(node.value, ast.Name) and node.value.id in names
            if is_used and source.function(node) is source.function(chain):
                first, last = sorted((node, own), key=end_of, reverse=isinstance(node, ast.Return))
                branches = _branches(source, first)
                tests = [branch[0] for branch in _branches(source, last) if branch not in branches]
                if tests and SETTING.search(ast.unparse(tests[0])) is None:
                    return tests[0]
    return None


def _results(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        return " ".join(map(ast.unparse, node.targets))
    return "return" if isinstance(node, ast.Return) else ""


def _branches(source: Source, node: ast.AST) -> list[tuple[ast.expr, bool]]:
    """Return (condition, whether the node is in the body) for each `if` statement around a node."""
    pairs = itertools.pairwise([node, *source.around(node)])
    return [(outer.test, inner in outer.body) for inner, outer in pairs if isinstance(outer, ast.If)]


def _ends(outer: ast.AST) -> bool:
    return isinstance(outer, ast.Attribute) or (isinstance(outer, ast.Call) and last_name(outer.func) in HOLDERS)


def _selection(flow: Flow, clip: ast.Call, outer: ast.Call | ast.IfExp) -> str:
    source = flow.source
    if isinstance(outer, ast.IfExp):
        is_clipped = all(_has_clip(flow, branch) for branch in (outer.body, outer.orelse))
        return "" if is_clipped else CONDITIONAL.format(test=shortened(outer.test))
    name = source.dotted(outer.func)
    if name.startswith("optax."):
        return "" if name in CHAINS or name.rpartition(".")[2] in PASSES_ALL else INSIDE.format(name=name)
    parent = source.parents[outer]
    is_part = isinstance(parent, ast.Call) and _chain(source, parent) is not None
    is_direct = clip in outer.args or clip in (each.value for each in outer.keywords)
    is_inside = (is_part or is_direct) and not _has_optimizer(clip) and not _keeps(flow, outer)
    return INSIDE.format(name=shortened(outer.func)) if is_inside else ""


def _has_clip(flow: Flow, node: ast.AST, depth: int = 0) -> bool:
    nodes = list(flow.reached(node))
    returned = (value for each in nodes if depth < DEPTH for value in flow.returned(each))
    is_clip = any(isinstance(each, ast.expr) and _is_clip(flow.source, each) for each in nodes)
    return is_clip or any(_has_clip(flow, value, depth + 1) for value in returned)


def _keeps(flow: Flow, call: ast.Call) -> bool:
    name, is_chain = last_name(call.func), _chain(flow.source, ast.Call(call, [], [])) or _chain(flow.source, call)
    if is_chain or name in (*HOLDERS, *APPENDING, *SHOWS, "dict") or name[:1].isupper():
        return True
    functions = flow.functions.get(name, [])
    chains = (_chain(flow.source, each) for each in flow.source.calls if flow.source.function(each) in functions)
    passed = {ast.unparse(part) for chain in chains if chain for part in chain[1][:1]}
    parameters = (each for function in functions for each in ast.walk(function) if isinstance(each, ast.arg))
    return any(each.arg in passed for each in parameters)


def own(source: Source) -> Iterator[tuple[ast.Call, str, str]]:
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
    """For each clip in `node` that follows a transformation of the gradients, add to `reasons` why it is reported.

    Return the first transformation that changes the gradients, or None.
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
        case ast.Name() if node.id not in source.imports and len(values := flow.values(node)) == 1:
            parts = values
        case ast.Name() | ast.Attribute() if kind == "transformation" and (values := flow.list_parts(node)):
            parts = values
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [left, right]
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


def _is_clip(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (source.dotted(node.func) in CLIPS or last_name(node.func) == METHOD)


def _has_optimizer(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or last_name(node.func) != METHOD:
        return False
    return bool(node.args) or any(each.arg in ("optimizer", None) for each in node.keywords)
