"""The losses and the other logged numbers of recorded runs, and the pairs of numbers to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .recorded_run import RecordedRun
from .rounding import ROUNDING, distance

Numbered = tuple[int, float]
"""(step, number)."""

NumberPair = tuple[Numbered, Numbered]


def logged_numbers(run: RecordedRun) -> dict[str, list[Numbered]]:
    """Return {name of a logged number: [(step, value), ...]}.

    If the run logged no "loss", the losses of its backward passes take its place.
    """
    numbers: dict[str, list[Numbered]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    losses = [(step.step, loss) for step in run.optimizer_steps for loss in step.losses]
    return {"loss": losses, **numbers} if losses else numbers


def pair_numbers(a: Sequence[Numbered], b: Sequence[Numbered]) -> Iterator[NumberPair]:
    """Pair the numbers of two runs by order if both runs have the same number of values. Otherwise, pair the numbers by
    step."""
    if len(a) == len(b):
        yield from zip(a, b, strict=True)
        return
    by_step: dict[int, list[Numbered]] = {}
    for each in b:
        by_step.setdefault(each[0], []).append(each)
    yield from ((each, by_step[each[0]].pop(0)) for each in a if by_step.get(each[0]))


def undivided_losses(
    runs: Sequence[RecordedRun], pairs: Sequence[NumberPair]
) -> tuple[RecordedRun, int, list[NumberPair]] | None:
    """Find the run that divides its losses by the number of backward passes in a step.

    Return the run, this number, and the pairs with undivided losses. Return None if no run or both runs divide.
    """
    counts = {len(step.losses) for run in runs for step in run.optimizer_steps}
    count = counts.pop() if len(counts) == 1 else 1
    if count < 2:
        return None
    for run, factors in zip(runs, ((count, 1), (1, count)), strict=True):
        scaled = [((step, factors[0] * a), (later, factors[1] * b)) for (step, a), (later, b) in pairs]
        if any(a for (_, a), _ in pairs[:count]) and all(
            distance(a, b).ulps <= ROUNDING for (_, a), (_, b) in scaled[:count]
        ):
            return run, count, scaled
    return None
