"""One difference between the recipes of two runs."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..causes.cause import CauseKind


class Finding(NamedTuple):
    step: int
    kind: CauseKind
    field: str
    """What differs, such as "threshold"."""

    sentence: str
    """What follows from the difference."""

    fix: str = ""
    """One line that mends the new run."""

    old: object = ""
    new: object = ""
    effect: float = math.inf
    """By which fraction the difference changes the updates, if this was measured."""


def in_order(own: object, other: object, is_old: bool) -> tuple[object, object]:
    """Return (value in the old run, value in the new run) from those of a run and of the other run."""
    return (own, other) if is_old else (other, own)


def value_text(value: object) -> str:
    if isinstance(value, tuple | list):
        return " and ".join(map(value_text, value))
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
