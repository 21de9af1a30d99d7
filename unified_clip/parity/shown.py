"""What a clipped gradient shows of how it was made, tensor by tensor: by what it was multiplied, and where NaN is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .arithmetic import FORMATS, Float64s
from .tensors import Dense

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Shown:
    """One gradient as it was given, as it is due, and as it was found, all of one form."""

    given: Dense
    due: Dense
    found: Dense

    @cached_property
    def is_given(self) -> bool:
        """Whether it came back bit for bit."""
        return bool(np.array_equal(self.given.bits(), self.found.bits()))

    @cached_property
    def is_due(self) -> bool:
        return bool(np.array_equal(self.due.bits(), self.found.bits()))

    @cached_property
    def distance(self) -> float:
        """The greatest difference from what is due, relative to its greatest element."""
        due, found = self.due.values(), self.found.values()
        with np.errstate(invalid="ignore"):
            apart = np.where((due == found) | (np.isnan(due) & np.isnan(found)), 0.0, np.abs(due - found))
        greatest = float(np.max(np.abs(due), where=np.isfinite(due), initial=0.0))
        farthest = float(np.max(np.where(np.isnan(apart), math.inf, apart), initial=0.0))
        return farthest if farthest == 0 else farthest / greatest if greatest else math.inf

    @cached_property
    def nan(self) -> tuple[Booleans, Booleans]:
        """Where it is NaN and should not be, and where it is not and should."""
        due, found = np.isnan(self.due.values()), np.isnan(self.found.values())
        return found & ~due, due & ~found

    @property
    def is_zero(self) -> bool:
        """Whether nothing is left of a gradient that was not zero."""
        return not self.found.values().any() and bool(self.given.values().any())

    @cached_property
    def multiplied(self) -> tuple[float, float]:
        """The least and the greatest number by which all finite elements can have been multiplied and rounded once;
        (inf, -inf) where there is none, (-inf, inf) where there is no element to tell."""
        given, found = self.given.values().reshape(-1), self.found.values().reshape(-1)
        if found[given == 0].any():
            return math.inf, -math.inf
        telling = np.isfinite(given) & (given != 0)
        given, found = given[telling], found[telling]
        room = _half_steps(found, self.given.dtype)
        with np.errstate(all="ignore"):
            ends = np.sort([(found - room) / given, (found + room) / given], axis=0)
        if not np.isfinite(found).all():
            return math.inf, -math.inf
        return float(ends[0].max(initial=-math.inf)), float(ends[1].min(initial=math.inf))

    def allows(self, coefficient: float, slack: float) -> bool:
        """Whether it can have been multiplied by a number that is off by no more than `slack`, relatively."""
        size = FORMATS[self.given.dtype].size
        if coefficient == 1 and slack <= EXACT:
            return self.is_given
        if size < 8:
            coefficient = float(np.float32(coefficient))
        low, high = self.multiplied
        room = abs(coefficient) * max(slack, TWICE_ROUNDED if size == 2 else 0.0)
        return low - room <= coefficient <= high + room


EXACT = 2.0**-46
"""What the division that finds a coefficient loses."""

TWICE_ROUNDED = 2.0**-23
"""A product of 16-bit numbers is rounded to float32 before it is rounded to 16 bits."""


def _half_steps(values: Float64s, dtype: str) -> Float64s:
    """Half the distance of each number of a dtype to the next; all of a subnormal one, which may be a flushed one."""
    target, smallest = FORMATS[dtype], FORMATS["float64" if FORMATS[dtype].size == 8 else "float32"].min_exponent
    _, exponents = np.frexp(values)
    steps = np.ldexp(1.0, np.maximum(exponents - 1, target.min_exponent) - target.precision)
    return np.where(np.abs(values) < 2.0**smallest, 2.0**smallest, steps)
