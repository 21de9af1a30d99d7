"""The point at which two runs differ, and an explanation of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..divergence import Divergence, numbers
from ..pairing import CallPair
from ..rounding import distance
from ..runs import RecordedCall, RecordedRun

NEAR = 4
"""Norms are equal up to this many units in the last place: sums and frameworks round."""

PRODUCT = 1e-5
"""Relative tolerance of the norm of clipped float32 gradients, computed from their coefficient."""


@dataclass(frozen=True)
class Finding:
    """An explanation of a difference, confirmed by the numbers."""

    mistake: str
    text: str


@dataclass(frozen=True)
class DivergencePoint:
    """A divergence, and where it is in two runs."""

    a: RecordedRun
    b: RecordedRun
    pairs: Sequence[CallPair]
    index: int
    """The position of the pair; after the last one if a run has a call more than the other."""

    first: Divergence

    @property
    def pair(self) -> CallPair | None:
        return self.pairs[self.index] if self.index < len(self.pairs) else None

    def both_ways(self) -> Iterator[tuple[RecordedRun, RecordedRun]]:
        yield self.a, self.b
        yield self.b, self.a

    def gradients(self) -> list[tuple[str, float, float]]:
        """Return the norm of each gradient in both runs."""
        if self.pair is None:
            return []
        norms = list(numbers(self.pair, "gradient"))
        if not norms and self.pair.a.rule == "each":
            norms = list(numbers(self.pair, "norm"))
        return [(name or "the gradient", a, b) for name, a, b in norms]


def call_at(run: RecordedRun, index: int) -> RecordedCall | None:
    """Return a call of a run; None outside of it."""
    return run.lines[index] if 0 <= index < len(run.lines) else None


def is_near(a: float, b: float) -> bool:
    """Return whether two norms are equal up to `NEAR`."""
    return distance(a, b).ulps <= NEAR


def is_close(a: float, b: float, relative: float) -> bool:
    return math.isclose(a, b, rel_tol=relative)


def listed(parts: Sequence[str], most: int = 3) -> str:
    """Join the first `most` parts, and count the others."""
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
