"""Compare the losses of two runs, and other logged numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .divergence import Divergence
from .recorded_run import RecordedRun
from .rounding import ROUNDING, distance, single, ulps_at

Numbered = tuple[int, float]
"""(step, number)."""

NumberPair = tuple[Numbered, Numbered]

IsBeyond = Callable[[Divergence, float], bool]
"""Takes (difference, largest earlier difference in ULP). Returns whether the difference is not tolerated."""


class LoggedComparison(NamedTuple):
    name: str
    differences: Sequence[Divergence]
    """One for each pair of numbers, also if they are equal."""

    first: Divergence | None
    """The first difference that is not tolerated."""

    divides: RecordedRun | None = None
    passes: int = 1
    """Only the run `divides` divides its losses by `passes`, the number of backward passes in a step. `differences`
    has the losses without this division."""


def is_loss(name: str) -> bool:
    """Whether a difference of this logged number makes the runs different. For example, accuracies jump by rounding."""
    return name.lower().endswith("loss")


def logged_numbers(run: RecordedRun) -> dict[str, list[Numbered]]:
    """Return {name: [(step, value), ...]}. If no "loss" was logged, use the losses of the backward passes."""
    numbers: dict[str, list[Numbered]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    losses = [(step.step, loss) for step in run.optimizer_steps for loss in step.losses]
    return {"loss": losses, **numbers} if losses else numbers


def compare_logged(a: RecordedRun, b: RecordedRun, is_beyond: IsBeyond) -> list[LoggedComparison]:
    """Compare the numbers that both runs have, sorted by name."""
    left, right = logged_numbers(a), logged_numbers(b)
    lines = [*a.lines, *b.lines]
    is_float64 = bool(lines) and all(line.dtype == "float64" for line in lines)
    compared = []
    for name in sorted(left.keys() & right.keys()):
        pairs = list(_pair_numbers(left[name], right[name]))
        divides, count, pairs = _undivided((a, b), pairs) if name == "loss" else (None, 1, pairs)
        differences = list(_differences(name, pairs, is_float64))
        compared.append(LoggedComparison(name, differences, _first_beyond(differences, is_beyond), divides, count))
    return compared


def _pair_numbers(a: Sequence[Numbered], b: Sequence[Numbered]) -> Iterator[NumberPair]:
    if len(a) == len(b):
        yield from zip(a, b, strict=True)
        return
    # one run may split the batch of a step into several backward passes
    sums = [_sums(side) for side in (a, b)]
    yield from (((step, sums[0][step]), (step, sums[1][step])) for step in sums[0] if step in sums[1])


def _sums(numbers: Sequence[Numbered]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for step, number in numbers:
        sums[step] = sums.get(step, 0.0) + number
    return sums


def _undivided(
    runs: Sequence[RecordedRun], pairs: list[NumberPair]
) -> tuple[RecordedRun | None, int, list[NumberPair]]:
    counts = {len(step.losses) for run in runs for step in run.optimizer_steps}
    count = counts.pop() if len(counts) == 1 else 1
    for run, factors in zip(runs, ((count, 1), (1, count)), strict=True) if count > 1 else ():
        scaled = [((step, factors[0] * a), (later, factors[1] * b)) for (step, a), (later, b) in pairs]
        if any(a for (_, a), _ in pairs[:count]) and all(
            distance(a, b).ulps <= ROUNDING for (_, a), (_, b) in scaled[:count]
        ):
            return run, count, scaled
    return None, 1, pairs


def _differences(name: str, pairs: Sequence[NumberPair], is_float64: bool) -> Iterator[Divergence]:
    largest = 0.0
    for (step, old), (_, new) in pairs:
        a, b = (old, new) if is_float64 else (single(old), single(new))
        largest = max([largest, *(abs(each) for each in (a, b) if math.isfinite(each))])
        size = ulps_at(largest, a, b, is_float64=is_float64)
        yield Divergence(step, "loss", old, new, name, *distance(a, b, is_float64=is_float64), size)


def _first_beyond(differences: Sequence[Divergence], is_beyond: IsBeyond) -> Divergence | None:
    greatest = 0.0
    for each in differences:
        if is_beyond(each, greatest):
            return each
        greatest = max(greatest, each.ulps_at_its_size or 0.0)
    return None
