"""Types that several modules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..recorder.lines import canonical

Tensor = Any
"""A dense tensor of a framework."""

Scalar = Any
"""A float64 number or array: of NumPy on the host path, and of the framework on the device path."""


Receive = Callable[[Sequence[Any]], None]
"""Gets the values of scalars: floats or nested lists of floats."""

GraphCallback = Callable[[Sequence[Scalar], Receive], Callable[[], object]]
"""Adds a call of `Receive` to the traced graph. Each run calls `Receive` with the values of the scalars.

Returns a function that waits until all earlier runs have called `Receive`.
"""


class Deferred(NamedTuple):
    """Numbers that a device might still be computing."""

    values: Callable[[], list[Any]]
    """Waits for the numbers. Returns floats or nested lists of floats."""

    ready: Callable[[], bool] = lambda: True


class Leaf(NamedTuple):
    """A tensor or None in a flattened container, with its position."""

    tensor: Any
    position: int
    name: str | None = None
    """None if the path has only list indices, and the tensor has no name of its own."""

    parameter: Any = None
    path: str | None = None

    @property
    def title(self) -> str:
        """Return a name for printed results, such as "layers.0.w". Without a name, return the list indices."""
        return canonical(self.name) if self.name else self.path or str(self.position)

    @property
    def place(self) -> str:
        """Return a text such as "position 3 (parameter 'bias')"."""
        return f"position {self.position}" + (f" (parameter {self.title!r})" if self.name else "")


class CoalescedSparse(NamedTuple):
    """A sparse gradient whose repeated rows have been summed."""

    values: Tensor
    restore: Callable[[Tensor], Any]
    """Returns the sparse gradient with new values."""

    sparse_axes: int
    """The number of leading axes for which the sparse gradient has indices."""

    indices: Tensor


class Write(NamedTuple):
    make: Callable[[], object]

    undo: Callable[[], object] | None = None
    """Restores the state before the change. None if the change cannot be undone."""


def with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
