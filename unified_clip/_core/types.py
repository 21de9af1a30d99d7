"""Types that the core shares. This module imports no other module of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Tensor = Any
"""A dense tensor of a framework."""

Scalar = Any
"""A float64 number, or an array with a number for each slice. On the host path, it is NumPy's, otherwise the
framework's.
"""


Receive = Callable[[Sequence[Any]], None]
"""A function that gets the values of scalars. Each value is a float or a nested list of floats."""

GraphCallback = Callable[[Sequence[Scalar], Receive], Callable[[], object]]
"""A function of scalars and a `Receive` function. It adds a call to the traced graph, by which each run of the graph
passes the scalars' values to the `Receive` function. The result is a function that waits until the runs so far have
made their calls.
"""


class Deferred(NamedTuple):
    """Numbers that a device may still be computing."""

    values: Callable[[], list[Any]]
    """Waits for the numbers, and returns each as a float or a nested list of floats."""

    ready: Callable[[], bool] = lambda: True
    """Returns whether `values` would return at once."""


class Leaf(NamedTuple):
    """An entry of a flattened container: a tensor or None, with its position, its name and its parameter if known."""

    tensor: Any
    position: int
    name: str | None = None
    parameter: Any = None

    @property
    def place(self) -> str:
        """The position and name in words, such as "position 3 (parameter 'bias')"."""
        return f"position {self.position}" + (f" (parameter {self.name!r})" if self.name else "")


class CoalescedSparse(NamedTuple):
    """A sparse gradient whose repeated rows have been summed."""

    values: Tensor
    """The stored rows, along the first axis."""

    restore: Callable[[Tensor], Any]
    """Returns a sparse gradient with these new values."""

    sparse_axes: int
    """The number of leading axes of the gradient that the indices replace."""

    indices: Tensor
    """The indices of each stored row, in the framework's own layout."""


class Slices(NamedTuple):
    """The slices of a gradient's values. Each slice is clipped by its own norm."""

    axes: Sequence[int]

    groups: Tensor | None = None
    """For each row of the values, the number of its slice. Rows with equal numbers form one slice. None: slices extend
    along `axes` only.
    """


class Write(NamedTuple):
    """A prepared change, such as one assignment. All values that can be computed in advance have been computed."""

    make: Callable[[], object]

    undo: Callable[[], object] | None = None
    """Restores the state before the change. None if the change overwrites memory, so that it cannot be undone."""


def with_article(name: str) -> str:
    """Return the name of a type with "a" or "an" before it, such as "an int"."""
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
