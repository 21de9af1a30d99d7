"""Evaluate constant expressions in Python source without running the source."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
from collections.abc import Callable
from typing import Any

INFINITIES = frozenset(
    {
        "jax.numpy.inf",
        "math.inf",
        "numpy.Inf",
        "numpy.inf",
        "paddle.inf",
        "tensorflow.experimental.numpy.inf",
        "torch.inf",
    }
)

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

MAX_EXPONENT = MAX_DIGITS = 400
"""Limits for the exponent of a power and for the digits of a whole number, so that an evaluation is fast."""

Target = ast.Name | ast.Attribute


class UnknownValueError(Exception):
    def __init__(self, node: ast.expr) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


def evaluate(node: ast.expr, value_of: Callable[[Target], Any], full_name: Callable[[Target], str]) -> Any:
    """Return the value of an expression, such as `1.0 / 4` or `float("inf")`. Read names with `value_of`."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = evaluate(operand, value_of, full_name)
            if is_number(value):
                return -value if isinstance(node.op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            numbers = [evaluate(side, value_of, full_name) for side in (left, right)]
            if all(map(is_number, numbers)):
                return _computed(node, *numbers)
        case ast.Call(func=ast.Name(id="float"), args=[argument], keywords=[]):
            value = evaluate(argument, value_of, full_name)
            if is_number(value):
                return value  # callers report an integer that no float can hold
            if isinstance(value, str):
                return _parsed(value, node)
        case ast.Name() | ast.Attribute():
            return math.inf if full_name(node) in INFINITIES else value_of(node)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [evaluate(element, value_of, full_name) for element in elements]
    raise UnknownValueError(node)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _computed(node: ast.BinOp, left: float, right: float) -> float:
    if not (isinstance(node.op, ast.Pow) and abs(right) > MAX_EXPONENT):
        with contextlib.suppress(ArithmeticError):
            value = OPERATORS[type(node.op)](left, right)
            if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**MAX_DIGITS):
                return value
    raise UnknownValueError(node)


def _parsed(text: str, node: ast.expr) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnknownValueError(node) from None
