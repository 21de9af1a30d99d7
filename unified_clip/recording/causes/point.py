"""The point at which two runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...causes.observation import Cause
from ...tensors.types import Dense
from ..divergence import Divergence, numbers
from ..pairing import CallPair
from ..rounding import distance
from ..runs import RecordedCall, RecordedRun

NEAR = 4
"""Norms are equal up to this many ULP: sums and frameworks round."""

PRODUCT = 1e-5
"""Relative tolerance of the norm of clipped float32 gradients, computed from their coefficient."""


@dataclass(frozen=True)
class DivergencePoint:
    """A divergence, and where it is in two runs."""

    a: RecordedRun
    b: RecordedRun
    pairs: Sequence[CallPair]
    index: int
    """The position of the pair; after the last one if a run has a call more than the other."""

    first: Divergence

    def both_ways(self) -> Iterator[tuple[RecordedRun, RecordedRun]]:
        yield self.a, self.b
        yield self.b, self.a

    def gradients(self) -> list[tuple[str, float, float]]:
        """Return the name of each gradient, and its norm in both runs."""
        pair = self.pairs[self.index]
        norms = list(numbers(pair, "gradient"))
        if not norms and pair.a.rule == "each":
            norms = list(numbers(pair, "norm"))
        return [(name or "the gradient", a, b) for name, a, b in norms]

    def cause(self, kind: str, sentence: str, run: RecordedRun | None = None) -> Cause:
        """Return a cause by which `run`, by default the second, differs from the other run."""
        run, other = (self.a, self.b) if run is self.a else (self.b, self.a)
        return Cause(kind, f"{run.name} differs from {other.name}{'' if sentence[:3] == 'as ' else ':'} {sentence}")


def stand_ins(norms: Iterable[float]) -> list[Dense]:
    """Return gradients with these norms: a recording has no others."""
    return [Dense("float64", np.array([norm])) for norm in norms]


def call_at(run: RecordedRun, index: int) -> RecordedCall | None:
    """Return a call of a run; None outside of it."""
    return run.lines[index] if 0 <= index < len(run.lines) else None


def is_near(a: float, b: float) -> bool:
    """Return whether two norms are equal up to `NEAR`."""
    return distance(a, b).ulps <= NEAR
