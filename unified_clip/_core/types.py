"""Types that the core shares. This module imports no other module of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Tensor = Any
"""A dense tensor of a framework."""

Scalar = Any
"""A float64 value, or an array of them (one per slice): NumPy's on the host path, else the framework's."""


Receive = Callable[[Sequence[Any]], None]
"""Receives the values of scalars, each a float or a nested list of floats."""

GraphCallback = Callable[[Sequence[Scalar], Receive], Callable[[], object]]
"""Adds a call with the values of scalars to the graph that is being traced. Returns a function that waits for the calls
of all runs so far."""


class Deferred(NamedTuple):
    """Numbers that a device may still compute."""

    values: Callable[[], list[Any]]
    """Wait for the numbers, and return each as a float or a nested list of floats."""

    ready: Callable[[], bool] = lambda: True
    """Return whether `values` does not have to wait."""


class Leaf(NamedTuple):
    """One tensor or None of a container, with its position and name."""

    tensor: Any
    position: int
    name: str | None = None
    parameter: Any = None

    @property
    def place(self) -> str:
        """Position and name, for messages."""
        return f"position {self.position}" + (f" (parameter {self.name!r})" if self.name else "")


class CoalescedSparse(NamedTuple):
    """A sparse gradient with repeated rows summed."""

    values: Tensor
    """The stored rows, along the first axis."""

    restore: Callable[[Tensor], Any]
    """Make a sparse gradient from new values."""

    sparse_axes: int
    """How many axes of the gradient the indices replace. They come first."""

    indices: Tensor
    """The place of each stored row, in the framework's own layout."""


class Slices(NamedTuple):
    """The slices of a gradient's values."""

    axes: Sequence[int]

    groups: Tensor | None = None
    """For each row of the values, the number of its slice: rows with equal numbers belong together. None: by axes."""


class Write(NamedTuple):
    """One change, with everything computed that can be computed before."""

    make: Callable[[], object]

    undo: Callable[[], object] | None = None
    """Restore what was there; None where memory is overwritten."""
