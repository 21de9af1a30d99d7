"""Find arithmetic that clips, such as `max_norm / (total_norm + 1e-6)`, or `g /= norm` inside `if norm > c`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import libcst as cst

from .catalog import NORM_NAME, THRESHOLD_NAME
from .found_clip import FoundClip
from .source.gradient_flow import Gradients
from .source.module import Module
from .source.syntax_tree import sorted_nodes

NAME = "clip coefficient"

BY_HAND = (
    "This code divides by a norm, like a clip. If the quotient is a gradient, or scales gradients, replace this code "
    "by hand with one call of unified_clip, such as clip_grad_norm_."
)
SMALLEST_THRESHOLD = 1e-4
"""A smaller number, as in `if norm > 1e-8`, only avoids a division by 0."""

DIVISIONS = ("div", "divide", "div_no_nan", "divide_no_nan", "elementwise_div", "true_divide")


def clip_coefficient_in_call(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    if _words(module, call.func)[-1] in DIVISIONS and len(call.args) >= 2:
        threshold, norm = (argument.value for argument in call.args[:2])
        name = _words(module, threshold)[-1]
        if THRESHOLD_NAME.search(name) and _has_norm(module, norm, name):
            yield FoundClip(call, NAME, why_not=BY_HAND)


def clip_coefficients(module: Module, node: cst.BinaryOperation | cst.AugAssign) -> Iterator[FoundClip]:
    if isinstance(node, cst.AugAssign):
        if isinstance(node.operator, cst.DivideAssign) and _is_above_threshold(module, node, node.value):
            yield FoundClip(node, NAME, why_not=BY_HAND)
    elif _is_quotient(module, node):
        around = [outer for outer in module.ancestors(node) if isinstance(outer, cst.BinaryOperation)]
        if not any(_is_quotient(module, outer) for outer in around):
            yield FoundClip(node, NAME, why_not=BY_HAND)


def is_coefficient(module: Module, node: cst.BaseExpression) -> bool:
    values = [node, *(bound.value for bound in module.binding(node).bounds)]
    return any(isinstance(value, cst.BinaryOperation) and _is_quotient(module, value) for value in values)


def _is_quotient(module: Module, node: cst.BinaryOperation) -> bool:
    if not isinstance(node.operator, cst.Divide | cst.Multiply):
        return False
    if _is_bounded_by_1(module, node):
        return True
    if isinstance(node.operator, cst.Divide) and _is_above_threshold(module, node, node.right):
        return True
    for threshold, other in ((node.left, node.right), (node.right, node.left)):
        is_value = isinstance(threshold, cst.Name | cst.Attribute | cst.Subscript | cst.Call)
        name = _words(module, threshold)[-1] if is_value else ""
        if THRESHOLD_NAME.search(name) and any(_has_norm(module, norm, name) for norm in _norms(node, other)):
            return True
    return False


def _is_bounded_by_1(module: Module, node: cst.BinaryOperation) -> bool:
    """Return whether a node is the quotient in `max(1, norm / c)` or `min(1, c / norm)`."""
    argument, call = itertools.islice(itertools.chain(module.ancestors(node), (None, None)), 2)
    if not (isinstance(argument, cst.Arg) and isinstance(call, cst.Call) and isinstance(node.operator, cst.Divide)):
        return False
    bound = _words(module, call.func)[-1]
    if not any(module.code(each.value) in ("1", "1.", "1.0") for each in call.args):
        return False
    norm = {"max": node.left, "maximum": node.left, "min": node.right, "minimum": node.right}.get(bound)
    return norm is not None and _has_norm(module, norm, "")


def _is_above_threshold(module: Module, node: cst.CSTNode, divisor: cst.BaseExpression) -> bool:
    """Return whether a statement about gradients divides by a norm, but only by a norm above a threshold.

    For example, `g / norm` in `if norm > c`, or `g / max(norm, c)`.
    """
    norms = {word for word in _words(module, divisor) if NORM_NAME.search(word)}
    statement = module.small_statement(node) if norms else None
    if statement is None or not _is_about_gradients(module, statement):
        return False
    if isinstance(divisor, cst.Call) and _words(module, divisor.func)[-1] in ("max", "maximum"):
        return any(_is_threshold(module, argument.value, norms) for argument in divisor.args)
    for outer in itertools.takewhile(lambda outer: not isinstance(outer, cst.FunctionDef), module.ancestors(node)):
        test = outer.test if isinstance(outer, cst.If | cst.IfExp) else None
        test = outer.args[0].value if isinstance(outer, cst.Call) and outer.args else test
        for compared in sorted_nodes(test) if test is not None else ():
            if isinstance(compared, cst.Comparison) and norms.intersection(_words(module, compared)):
                return any(
                    _is_threshold(module, side, norms) for side in (compared.left, compared.comparisons[0].comparator)
                )
    return False


def _is_about_gradients(module: Module, statement: cst.CSTNode) -> bool:
    gradients = Gradients(module)
    names = (node for node in sorted_nodes(statement) if isinstance(node, cst.Name))
    return any("grad" in name.value or gradients.may_be_gradient(name) for name in names)


def _is_threshold(module: Module, node: cst.BaseExpression, norms: set[str]) -> bool:
    number, words = module.number(node), _words(module, node)
    return not norms.intersection(words) and "eps" not in words and (number is None or number > SMALLEST_THRESHOLD)


def _norms(node: cst.BinaryOperation, other: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node.operator, cst.Divide):
        return [other]
    operations = [inner for inner in sorted_nodes(other) if isinstance(inner, cst.BinaryOperation)]
    return [inner.right for inner in operations if isinstance(inner.operator, cst.Divide)]


def _has_norm(module: Module, node: cst.BaseExpression, threshold: str) -> bool:
    return any(word != threshold and NORM_NAME.search(word) for word in _words(module, node))


def _words(module: Module, node: cst.CSTNode) -> list[str]:
    return re.findall(r"\w+", module.code(node)) or [""]
