"""The numbers of adaptive rules: Python floats on the host path, and `Number` on the device path.

`Number` keeps compilers from merging operations, so the result of each operation is rounded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._compute.device import DeviceScalars
from .._core.types import Scalar

Real = Any
"""A float, a `Number`, or a vector."""

Condition = Any
"""The result of a comparison: a bool, or a tensor of bools. Combine conditions by `&` and `|`."""


class Number:
    """A float64 number or vector of a framework, with the operators of a Python float."""

    __slots__ = ("value", "xp")

    def __init__(self, xp: DeviceScalars, value: Scalar) -> None:
        self.xp, self.value = xp, value

    def __add__(self, other: Real) -> Number:
        return self._pinned(self.value + self._operand(other))

    __radd__ = __add__

    def __sub__(self, other: Real) -> Number:
        return self._pinned(self.value - self._operand(other))

    def __rsub__(self, other: Real) -> Number:
        return self._pinned(self._operand(other) - self.value)

    def __mul__(self, other: Real) -> Number:
        return self._pinned(self.value * self._operand(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Real) -> Number:
        divisor = self._operand(other)
        if not isinstance(other, Number):  # XLA would multiply by the rounded reciprocal of a constant
            xp = self.xp
            divisor = xp.where(self.value <= xp.asarray(math.inf), divisor, xp.asarray(math.nan))
        return self._pinned(self.value / divisor)

    def __rtruediv__(self, other: Real) -> Number:
        return self._pinned(self._operand(other) / self.value)

    def __lt__(self, other: Real) -> Condition:
        return self.value < self._operand(other)

    def __le__(self, other: Real) -> Condition:
        return self.value <= self._operand(other)

    def __gt__(self, other: Real) -> Condition:
        return self.value > self._operand(other)

    def __ge__(self, other: Real) -> Condition:
        return self.value >= self._operand(other)

    def _operand(self, other: Real) -> Scalar:
        return other.value if isinstance(other, Number) else self.xp.asarray(other)

    def _pinned(self, value: Scalar) -> Number:
        return Number(self.xp, self.xp.pinned(value))


def where(condition: Condition, yes: Real, no: Real) -> Real:
    """Return `yes` if the condition is true, else `no`. Raise no error.

    Args:
        condition: A comparison of numbers.
        yes: The result if the condition is true.
        no: The result if the condition is false.

    Example:
        >>> from unified_clip import adaptive
        >>> adaptive.where(2.0 > 1.0, 3.0, 4.0)
        3.0
    """
    if type(condition) is bool:
        return yes if condition else no
    if isinstance(condition, np.ndarray):  # a list in the state of a user's rule
        return np.where(condition, yes, no)
    number = next((value for value in (yes, no, condition) if isinstance(value, Number)), None)
    if number is not None:
        xp = number.xp
        yes, no = (value.value if isinstance(value, Number) else xp.asarray(value) for value in (yes, no))
        return Number(xp, xp.where(condition, yes, no))
    return yes if condition else no


def minimum(left: Real, right: Real) -> Real:
    """Return the smaller number. Raise no error.

    Args:
        left: The first number.
        right: The second number.

    Example:
        >>> from unified_clip import adaptive
        >>> adaptive.minimum(1.0, 2.0)
        1.0
    """
    if type(left) is float and type(right) is float:
        return left if left - right <= 0.0 else right
    return where(left - right <= 0.0, left, right)


def sqrt(number: Real) -> Real:
    """Return the square root.

    Args:
        number: A number of 0 or more.

    Raises:
        ValueError: The number is a Python float below 0. In a compiled graph or on a GPU, the result is NaN instead.

    Example:
        >>> from unified_clip import adaptive
        >>> adaptive.sqrt(4.0)
        2.0
    """
    return Number(number.xp, number.xp.sqrt(number.value)) if isinstance(number, Number) else math.sqrt(number)


def floor(number: Real) -> Real:
    """Return the largest whole number that is at most `number`.

    Args:
        number: A finite number.

    Raises:
        ValueError: The number is a Python float that is NaN.
        OverflowError: The number is a Python float that is infinite.

    Example:
        >>> from unified_clip import adaptive
        >>> adaptive.floor(2.5)
        2.0
    """
    return Number(number.xp, number.xp.floor(number.value)) if isinstance(number, Number) else float(math.floor(number))


# -- the norms of `Percentile`: a NumPy vector on the host path


def put(vector: Real, index: Real, value: Real) -> Real:
    """Return the vector with another number at the index."""
    if not isinstance(vector, Number):
        changed = vector.copy()
        changed[int(index)] = value
        return changed
    xp = vector.xp
    values = xp.asarray(0.0) * vector.value + value.value
    return Number(xp, xp.where(_at(vector, index), values, vector.value))


def insert(ordered: Real, value: Real) -> Real:
    """Insert a number into an ascending vector. Only the host path has vectors that grow."""
    return np.insert(ordered, ordered.searchsorted(value), value)


def ranked(vector: Real, count: Real, low: Real, high: Real) -> tuple[Real, Real]:
    """Return the numbers with the ranks `low` and `high`, counted from 0, of the first `count` numbers."""
    if not isinstance(vector, Number):
        ranks = int(low), int(high)
        partitioned = np.partition(vector[: int(count)], ranks)
        return float(partitioned[ranks[0]]), float(partitioned[ranks[1]])
    xp = vector.xp
    zeros = xp.asarray(0.0) * vector.value
    is_counted = xp.indices(vector.value.shape[0]) < count.value
    ordered = Number(xp, xp.sort(xp.where(is_counted, vector.value, zeros + xp.asarray(LARGEST))))
    below, above = (Number(xp, xp.total(xp.where(_at(ordered, rank), ordered.value, zeros))) for rank in (low, high))
    return below, above


LARGEST = float(np.finfo(np.float64).max)


def _at(vector: Number, index: Number) -> Condition:
    indices = vector.xp.indices(vector.value.shape[0])
    return (indices <= index.value) & (indices >= index.value)
