"""The numbers of adaptive rules: Python floats on the host path, and `Number` on the device path.

`Number` keeps compilers from merging operations, so the result of each operation is rounded.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from typing import Any

import numpy as np

from .._compute.scalars import HOST
from .._core.path import Scalars
from .._core.types import Scalar

Real = Any
"""A float, a `Number`, or a vector."""

Condition = Any
"""The result of a comparison: a bool, or a tensor of bools. Combine conditions by `&` and `|`."""


class Number:
    """A float64 number or vector of a framework, with the operators of a Python float."""

    __slots__ = ("value", "xp")

    def __init__(self, xp: Scalars, value: Scalar) -> None:
        self.xp, self.value = xp, value

    def __add__(self, other: Real) -> Number:
        return self._pinned(self.value + self._operand(other))

    def __radd__(self, other: Real) -> Number:
        return self._pinned(self._operand(other) + self.value)

    def __sub__(self, other: Real) -> Number:
        return self._pinned(self.value - self._operand(other))

    def __rsub__(self, other: Real) -> Number:
        return self._pinned(self._operand(other) - self.value)

    def __mul__(self, other: Real) -> Number:
        return self._pinned(self.value * self._operand(other))

    def __rmul__(self, other: Real) -> Number:
        return self._pinned(self._operand(other) * self.value)

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
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    number = next((value for value in (yes, no, condition) if isinstance(value, Number)), None)
    if number is not None:
        xp = number.xp
        yes, no = (value.value if isinstance(value, Number) else xp.asarray(value) for value in (yes, no))
        return Number(xp, xp.where(condition, yes, no))
    return yes if condition else no


def is_less(left: Real, margin: float, right: Real) -> bool:
    return isinstance(left, np.ndarray) and HOST.is_true((left + margin if margin else left) < right)


def simplified(conditions: Condition) -> Condition:
    return True if isinstance(conditions, np.ndarray) and HOST.is_true(conditions) else conditions


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
    if isinstance(left, np.ndarray):
        return np.minimum(left, right)
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


# -- vectors


class Window:
    """The last norms. `ordered` has the norms of the steps so far, in ascending order."""

    __slots__ = ("ordered", "vector")

    def __init__(self, vector: array[float], ordered: array[float]) -> None:
        self.vector, self.ordered = vector, ordered

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.vector, dtype)

    def tolist(self) -> list[float]:
        return self.vector.tolist()


def put(vector: Real, index: Real, value: Real, count: Real) -> Real:
    if not isinstance(vector, Number):
        vector = _window(vector, count)
        place, numbers, ordered = int(index), vector.vector[:], vector.ordered[:]
        if place < len(ordered):
            del ordered[bisect_left(ordered, numbers[place])]
        numbers[place] = value
        insort(ordered, value)
        return Window(numbers, ordered)
    xp = vector.xp
    values = xp.asarray(0.0) * vector.value + value.value
    return Number(xp, xp.where(_at(vector, index), values, vector.value))


def take(vector: Real, index: Real) -> Real:
    if not isinstance(vector, Number):
        return vector[int(index)]
    xp = vector.xp
    zeros = xp.asarray(0.0) * vector.value
    return Number(xp, xp.total(xp.where(_at(vector, index), vector.value, zeros)))


def insert(ordered: Real, value: Real) -> Real:
    longer = array("d", ordered)
    insort(longer, value)
    return longer


def sort_first(vector: Real, count: Real, length: int) -> Real:
    """Sort the first `count` numbers. The rest of the result is arbitrary."""
    if not isinstance(vector, Number):
        return _window(vector, count).ordered
    xp = vector.xp
    rest = xp.asarray(0.0) * vector.value + xp.asarray(LARGEST)
    return Number(xp, xp.sort(xp.where(xp.indices(length) < count.value, vector.value, rest)))


def _window(vector: Window | np.ndarray[Any, Any], count: float) -> Window:
    if isinstance(vector, Window):
        return vector
    numbers = vector.tolist()
    return Window(array("d", numbers), array("d", sorted(numbers[: int(count)])))


LARGEST = float(np.finfo(np.float64).max)


def _at(vector: Number, index: Number) -> Condition:
    indices = vector.xp.indices(vector.value.shape[0])
    return (indices <= index.value) & (indices >= index.value)
