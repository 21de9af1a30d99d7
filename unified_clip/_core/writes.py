"""Changes of gradients, prepared first and then made together, so that an error leaves no gradient half clipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import PartlyClippedError


class Write(NamedTuple):
    """One change, with everything computed that can be computed before."""

    make: Callable[[], object]

    undo: Callable[[], object] | None = None
    """Restore what was there; None where memory is overwritten."""


def nothing() -> None:
    """The undo of a change that no result shows."""


def make_all(writes: Sequence[Write]) -> None:
    """Make changes that can be undone, then the others.

    An error undoes the former. Once memory has been overwritten it is raised as a PartlyClippedError.
    """
    undoable = [write for write in writes if write.undo is not None]
    final = [write for write in writes if write.undo is None]
    begun: list[Write] = []
    try:
        for write in (*undoable, *final):
            begun.append(write)
            write.make()
    except BaseException as error:
        for write in reversed(begun):
            if write.undo is not None:
                write.undo()
        if len(begun) > len(undoable) + 1 and isinstance(error, Exception):
            raise PartlyClippedError(
                f"clipping failed after some gradients were written: {error}. The gradients are partly clipped. "
                "Discard them, as optimizer.zero_grad() does, and repeat the backward pass"
            ) from error
        raise
