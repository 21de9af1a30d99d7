"""Find arithmetic that clips, such as `max_norm / (total_norm + 1e-6)`, or `g /= norm` inside `if norm > c`."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from ..source.module import Module
from ..source.tree import Function, arguments_of, sorted_nodes
from .catalog import NORM_NAME, THRESHOLD_NAME
from .found_clip import FoundClip, number_of
from .gradient_flow import Gradients

NAME = "clip coefficient"

BY_HAND = (
    "This code divides by a norm, like a clip. If the quotient is a gradient, or scales gradients, replace this code "
    "by hand with one call of unified_clip, such as clip_grad_norm_."
)
SMALLEST_THRESHOLD = 1e-4
"""A smaller number, as in `if norm > 1e-8`, only avoids a division by 0."""

DIVISIONS = ("div", "divide", "div_no_nan", "divide_no_nan", "elementwise_div", "true_divide")


def clip_coefficient_in_call(module: Module, call: ast.Call) -> Iterator[FoundClip]:
    if _words(module, call.func)[-1] in DIVISIONS and len(arguments_of(call)) >= 2:
        threshold, norm = (argument.value for argument in arguments_of(call)[:2])
        name = _words(module, threshold)[-1]
        if THRESHOLD_NAME.search(name) and _has_norm(module, norm, name):
            yield FoundClip(call, NAME, why_not=BY_HAND)


def clip_coefficients(module: Module, node: ast.BinOp | ast.AugAssign) -> Iterator[FoundClip]:
    if isinstance(node, ast.AugAssign):
        if isinstance(node.op, ast.Div) and _is_above_threshold(module, node, node.value):
            yield FoundClip(node, NAME, why_not=BY_HAND)
    elif _is_quotient(module, node):
        around = [outer for outer in module.ancestors(node) if isinstance(outer, ast.BinOp)]
        if not any(_is_quotient(module, outer) for outer in around):
            yield FoundClip(node, NAME, why_not=BY_HAND)


def is_coefficient(module: Module, node: ast.expr) -> bool:
    values = [node, *(bound.value for bound in module.binding(node).bounds)]
    return any(isinstance(value, ast.BinOp) and _is_quotient(module, value) for value in values)


def _is_quotient(module: Module, node: ast.BinOp) -> bool:
    if not isinstance(node.op, ast.Div | ast.Mult):
        return False
    if _is_bounded_by_1(module, node):
        return True
    if isinstance(node.op, ast.Div) and _is_above_threshold(module, node, node.right):
        return True
    if isinstance(node.op, ast.Div) and _is_named_clip(module, node):
        return _has_norm(module, node.right, _words(module, node.left)[-1])
    for threshold, other in ((node.left, node.right), (node.right, node.left)):
        is_value = isinstance(threshold, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
        name = _words(module, threshold)[-1] if is_value else ""
        if THRESHOLD_NAME.search(name) and any(_has_norm(module, norm, name) for norm in _norms(node, other)):
            return True
    return False


def _is_named_clip(module: Module, node: ast.BinOp) -> bool:
    """Return whether a variable that gets the quotient has a name such as `clip_coef`."""
    statement = module.parents[node]
    return isinstance(statement, ast.Assign) and any("clip" in module.code(each).lower() for each in statement.targets)


def _is_bounded_by_1(module: Module, node: ast.BinOp) -> bool:
    """Return whether a node is the quotient in `max(1, norm / c)` or `min(1, c / norm)`."""
    passed = module.argument(node)
    if passed is None or not isinstance(node.op, ast.Div):
        return False
    call, _ = passed
    bound = _words(module, call.func)[-1]
    if not any(module.code(each.value) in ("1", "1.", "1.0") for each in arguments_of(call)):
        return False
    norm = {"max": node.left, "maximum": node.left, "min": node.right, "minimum": node.right}.get(bound)
    return norm is not None and _has_norm(module, norm, "")


def _is_above_threshold(module: Module, node: ast.AST, divisor: ast.expr) -> bool:
    """Return whether a statement about gradients divides by a norm, but only by a norm above a threshold.

    For example, `g / norm` in `if norm > c`, or `g / max(norm, c)`.
    """
    norms = {word for word in _words(module, divisor) if NORM_NAME.search(word)}
    statement = (module.simple_statement(node) or module.enclosing(node, ast.Return)) if norms else None
    if statement is None or not _is_about_gradients(module, statement):
        return False
    if isinstance(divisor, ast.Call) and _words(module, divisor.func)[-1] in ("max", "maximum"):
        return any(_is_threshold(module, argument.value, norms) for argument in arguments_of(divisor))
    for outer in itertools.takewhile(lambda outer: not isinstance(outer, Function), module.ancestors(node)):
        test = outer.test if isinstance(outer, ast.If | ast.IfExp) else None
        arguments = arguments_of(outer) if isinstance(outer, ast.Call) else []
        test = arguments[0].value if arguments else test
        for compared in sorted_nodes(test) if test is not None else ():
            if isinstance(compared, ast.Compare) and norms.intersection(_words(module, compared)):
                return any(_is_threshold(module, side, norms) for side in (compared.left, compared.comparators[0]))
    return False


def _is_about_gradients(module: Module, statement: ast.AST) -> bool:
    gradients = Gradients(module)
    names = (node for node in sorted_nodes(statement) if isinstance(node, ast.Name))
    return any("grad" in name.id or gradients.may_be_gradient(name) for name in names)


def _is_threshold(module: Module, node: ast.expr, norms: set[str]) -> bool:
    number, words = number_of(module, node), _words(module, node)
    return not norms.intersection(words) and "eps" not in words and (number is None or number > SMALLEST_THRESHOLD)


def _norms(node: ast.BinOp, other: ast.expr) -> list[ast.expr]:
    if isinstance(node.op, ast.Div):
        return [other]
    operations = [inner for inner in sorted_nodes(other) if isinstance(inner, ast.BinOp)]
    return [inner.right for inner in operations if isinstance(inner.op, ast.Div)]


def _has_norm(module: Module, node: ast.expr, threshold: str) -> bool:
    return any(word != threshold and NORM_NAME.search(word) for word in _words(module, node))


def _words(module: Module, node: ast.AST) -> list[str]:
    return re.findall(r"\w+", module.code(node)) or [""]
