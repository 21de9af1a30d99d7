"""Compare the losses of two runs, and other logged numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..recording.recorded_run import RecordedRun
from ..recording.rounding import GROWTH, ROUNDING, single

UNIT = 2.0**-24

Numbered = tuple[int, float]
"""(step, number)."""


class LoggedPoint(NamedTuple):
    step: int
    old: float
    new: float
    relative: float
    """The difference, divided by the largest number so far."""


class LoggedComparison(NamedTuple):
    name: str
    points: Sequence[LoggedPoint]
    first: LoggedPoint | None
    """The first difference that is larger than rounding."""

    divides: RecordedRun | None = None
    passes: int = 1
    """Only the run `divides` divides its losses by `passes`, the number of backward passes in a step. `points` has the
    losses without this division."""

    @property
    def largest(self) -> LoggedPoint | None:
        return max(self.points, key=lambda point: point.relative, default=None)


def is_loss(name: str) -> bool:
    """Whether a difference of this logged number makes the runs different. For example, accuracies jump by rounding."""
    return name.lower().endswith("loss")


def logged_numbers(run: RecordedRun) -> dict[str, list[Numbered]]:
    """Return {name: [(step, value), ...]}. If no "loss" was logged, use the losses of the backward passes."""
    numbers: dict[str, list[Numbered]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    losses = [(number, loss) for number, step in enumerate(run.optimizer_steps, 1) for loss in step.losses]
    return {"loss": losses, **numbers} if losses else numbers


def compare_logged(a: RecordedRun, b: RecordedRun, before: float = 0.0) -> list[LoggedComparison]:
    """Compare the numbers that both runs have, sorted by name.

    before: The largest difference of the gradients, in ULP of their norm. Losses that differ by about as much follow
        from it.
    """
    left, right = logged_numbers(a), logged_numbers(b)
    compared = []
    for name in sorted(left.keys() & right.keys()):
        pairs = list(_pair_numbers(left[name], right[name]))
        divides, count, pairs = _undivided((a, b), pairs) if name == "loss" else (None, 1, pairs)
        points = list(_points(pairs))
        compared.append(LoggedComparison(name, points, _first_beyond(points, before), divides, count))
    return compared


def _pair_numbers(a: Sequence[Numbered], b: Sequence[Numbered]) -> Iterator[tuple[int, float, float]]:
    if len(a) == len(b):
        yield from ((step, old, new) for (step, old), (_, new) in zip(a, b, strict=True))
        return
    # one run may split the batch of a step into several backward passes
    sums = [_sums(side) for side in (a, b)]
    yield from ((step, sums[0][step], sums[1][step]) for step in sums[0] if step in sums[1])


def _sums(numbers: Sequence[Numbered]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for step, number in numbers:
        sums[step] = sums.get(step, 0.0) + number
    return sums


def _undivided(
    runs: Sequence[RecordedRun], pairs: list[tuple[int, float, float]]
) -> tuple[RecordedRun | None, int, list[tuple[int, float, float]]]:
    """Only one run may divide its losses by the number of backward passes of a step, of either run."""
    counts = {len(step.losses) for run in runs for step in run.optimizer_steps} - {0, 1}
    for count in counts if len(counts) == 1 else ():
        for run, factors in zip(runs, ((count, 1), (1, count)), strict=True):
            scaled = [(step, factors[0] * old, factors[1] * new) for step, old, new in pairs]
            _, old, new = scaled[0] if scaled else (0, 0.0, 1.0)
            if old and math.isclose(old, new, rel_tol=ROUNDING * UNIT):
                return run, count, scaled
    return None, 1, pairs


def _points(pairs: Sequence[tuple[int, float, float]]) -> Iterator[LoggedPoint]:
    largest = 0.0
    for step, old, new in pairs:
        a, b = single(old), single(new)
        largest = max([largest, *(abs(each) for each in (a, b) if math.isfinite(each))])
        is_equal = a == b or (math.isnan(a) and math.isnan(b))
        difference = abs(a - b)
        relative = 0.0 if is_equal else difference / largest if math.isfinite(difference) and largest else math.inf
        yield LoggedPoint(step, old, new, relative)


def _first_beyond(points: Sequence[LoggedPoint], before: float) -> LoggedPoint | None:
    allowed = max(ROUNDING, GROWTH * before) * UNIT
    for point in points:
        if point.relative > allowed:
            return point
        allowed = max(allowed, GROWTH * point.relative)
    return None
