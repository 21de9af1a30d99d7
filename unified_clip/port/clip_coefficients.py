"""Find arithmetic that computes a clip coefficient, such as `max_norm / (total_norm + 1e-6)`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import libcst as cst

from .catalog import NORM_NAME, THRESHOLD_NAME
from .found_clip import FoundClip
from .source.module import Module
from .source.syntax_tree import sorted_nodes

NAME = "clip coefficient"

BY_HAND = (
    "This expression divides a threshold by a norm, like a clip coefficient. If the quotient scales gradients, replace "
    "this code by hand with one call of unified_clip, such as clip_grad_norm_."
)


DIVISIONS = ("div", "divide", "div_no_nan", "divide_no_nan", "elementwise_div", "true_divide")


def clip_coefficient_in_call(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    if _words(module, call.func)[-1] in DIVISIONS and len(call.args) >= 2:
        threshold, norm = (argument.value for argument in call.args[:2])
        name = _words(module, threshold)[-1]
        if THRESHOLD_NAME.search(name) and _has_norm(module, norm, name):
            yield FoundClip(call, NAME, why_not=BY_HAND)


def clip_coefficients(module: Module, node: cst.BinaryOperation) -> Iterator[FoundClip]:
    if _is_quotient(module, node):
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


def _norms(node: cst.BinaryOperation, other: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node.operator, cst.Divide):
        return [other]
    operations = [inner for inner in sorted_nodes(other) if isinstance(inner, cst.BinaryOperation)]
    return [inner.right for inner in operations if isinstance(inner.operator, cst.Divide)]


def _has_norm(module: Module, node: cst.BaseExpression, threshold: str) -> bool:
    return any(word != threshold and NORM_NAME.search(word) for word in _words(module, node))


def _words(module: Module, node: cst.BaseExpression) -> list[str]:
    return re.findall(r"\w+", module.code(node)) or [""]
