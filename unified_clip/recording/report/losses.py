"""Describe the differences between the losses of two runs, and between other logged numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..compare import RecordingComparison
from ..recorded_run import RecordedRun
from ..rounding import ROUNDING, distance, greatest, single
from .largest_differences import format_greatest, format_relative

Numbered = tuple[int, float]
"""(step, number)."""

NumberPair = tuple[Numbered, Numbered]


def logged_numbers(run: RecordedRun) -> dict[str, list[Numbered]]:
    """Return {name: [(step, value), ...]}. If no "loss" was logged, use the losses of the backward passes."""
    numbers: dict[str, list[Numbered]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    losses = [(step.step, loss) for step in run.optimizer_steps for loss in step.losses]
    return {"loss": losses, **numbers} if losses else numbers


def pair_numbers(a: Sequence[Numbered], b: Sequence[Numbered]) -> Iterator[NumberPair]:
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
    """Return (run, count, pairs). Only `run` divides its losses by `count`, the number of backward passes in a step.
    The returned pairs contain the losses without this division."""
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


def loss_sentences(comparison: RecordingComparison) -> list[str]:
    sides = [logged_numbers(run) for run in comparison.runs]
    sentences = []
    only = ((comparison.a, sides[0].keys() - sides[1]), (comparison.b, sides[1].keys() - sides[0]))
    sentences += [f"{name} was not compared: only {run.name} has it." for run, names in only for name in names]
    for name in sides[0].keys() & sides[1].keys():
        pairs = list(pair_numbers(sides[0][name], sides[1][name]))
        if name == "loss" and (undivided := undivided_losses(comparison.runs, pairs)):
            run, count, pairs = undivided
            reason = f"only this run divides its losses by {count}, the number of backward passes of a step"
            sentences.append(f"Losses of {run.name} are multiplied by {count} in this report, because {reason}.")
        if pairs:
            sentences.append(_format_logged(name, pairs, comparison))
        else:
            sentences.append(f"{name} was not compared: the runs logged it at different steps.")
    return sorted(sentences)


def loss_advice(comparison: RecordingComparison) -> list[str]:
    """Advise how to record the losses if only one run has them."""
    without = [run.name for run in comparison.runs if "loss" not in logged_numbers(run)]
    if len(without) != 1:
        return []
    return [
        f"To record the losses of {without[0]}, call `unified_clip.recording.log(loss=...)` at each step of its script."
    ]


def _format_logged(name: str, pairs: Sequence[NumberPair], comparison: RecordingComparison) -> str:
    if all(pair.is_float64 for pair in comparison.pairs):
        distances = [distance(a, b, is_float64=True) for (_, a), (_, b) in pairs]
    else:
        distances = [distance(single(a), single(b)) for (_, a), (_, b) in pairs]
    most = greatest(distances)
    differing = next((n for n, each in enumerate(distances) if each.ulps > comparison.max_ulp), None)
    if differing is None:
        where = f"at all {len(pairs)} steps"
        step = next(each[0] for (each, _), far in zip(pairs, distances, strict=True) if far.ulps == most.ulps)
        return f"{name} is equal {where}{format_greatest(most, step, comparison)}"
    (step, a), (_, b) = pairs[differing]
    beyond = next((n for n, each in enumerate(distances) if each.ulps > ROUNDING), None)
    start = f"from step {step} on: {a} and {b} at this step"
    largest = f"The values differ by at most {format_relative(most.relative)}"
    if beyond is None:
        text = f"{name} differs {start}. {largest}, which can be rounding."
        if not any("float64" in (pair.a.dtype, pair.b.dtype) for pair in comparison.pairs):
            text += " A small mistake can cause the same difference. To find out, run both scripts in float64."
        return text
    if beyond > differing:
        (later, c), (_, d) = pairs[beyond]
        return (
            f"{name} differs {start}. This difference is {distances[differing].ulps:g} ULP, which can be rounding. "
            f"From step {later} on, {name} differs by more than {ROUNDING} ULP: {c} and {d} at this step. {largest}."
        )
    if beyond < differing:
        return f"{name} differs by more than {comparison.max_ulp:g} ULP {start}. {largest}."
    return f"{name} differs {start}. {largest}."
