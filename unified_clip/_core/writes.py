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

    An error undoes the former. It is raised as a PartlyClippedError once memory has been overwritten, or if a change
    cannot be undone.
    """
    undoable = [write for write in writes if write.undo is not None]
    final = [write for write in writes if write.undo is None]
    begun: list[Write] = []
    try:
        for write in (*undoable, *final):
            begun.append(write)
            write.make()
    except BaseException as error:
        undone = [_undo(write.undo) for write in reversed(begun) if write.undo is not None]
        overwritten = len(begun) > len(undoable) + 1
        if (overwritten or not all(undone)) and isinstance(error, Exception):
            raise PartlyClippedError(
                f"clipping failed after some gradients were written: {error}. The gradients are partly clipped. "
                "Discard them, as optimizer.zero_grad() does, and repeat the backward pass"
            ) from error
        raise


def _undo(undo: Callable[[], object]) -> bool:
    """Undo one change. An error here must not keep others from being undone."""
    try:
        undo()
    except Exception:
        return False
    return True
