"""Types that the core shares. This module imports no other module of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Tensor = Any
"""A dense tensor of a framework."""

Scalar = Any
"""A float64 number, or an array with one number for each slice.

The host path uses scalars of NumPy, and the device path uses scalars of the framework.
"""


Receive = Callable[[Sequence[Any]], None]
"""A function that gets the values of scalars. Each value is a float or a nested list of floats."""

GraphCallback = Callable[[Sequence[Scalar], Receive], Callable[[], object]]
"""A function that makes the traced graph call `Receive` with the values of the scalars in each run.

The function returns a second function, which waits for the calls of all earlier runs.
"""


class Deferred(NamedTuple):
    """Numbers that a device might still be computing."""

    values: Callable[[], list[Any]]
    """A function that waits for the numbers, and returns each number as a float or a nested list of floats."""

    ready: Callable[[], bool] = lambda: True


class Leaf(NamedTuple):
    """A tensor or None in a flattened container, with its position."""

    tensor: Any
    position: int
    name: str | None = None
    parameter: Any = None

    @property
    def place(self) -> str:
        """Text for messages, such as "position 3 (parameter 'bias')"."""
        return f"position {self.position}" + (f" (parameter {self.name!r})" if self.name else "")


class CoalescedSparse(NamedTuple):
    """A sparse gradient whose repeated rows have been summed."""

    values: Tensor
    restore: Callable[[Tensor], Any]
    """A function that returns the sparse gradient with new values."""

    sparse_axes: int
    """The number of leading axes for which the sparse gradient has indices."""

    indices: Tensor


class Slices(NamedTuple):
    """The slices of a gradient. Each slice is clipped by its own norm."""

    axes: Sequence[int]

    groups: Tensor | None = None
    """A number for each row, or None if `axes` alone determine the slices. Rows with equal numbers form one slice."""


class Write(NamedTuple):
    make: Callable[[], object]

    undo: Callable[[], object] | None = None
    """A function that restores the state before the change, or None if the change cannot be undone."""


def with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
