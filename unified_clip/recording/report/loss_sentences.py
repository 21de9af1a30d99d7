"""Describe the differences between the losses of two runs, and between other logged numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..compare import RecordingComparison
from ..losses import NumberPair, logged_numbers, pair_numbers, undivided_losses
from ..rounding import ROUNDING, distance, greatest
from .largest_differences import format_relative, format_same


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
            sentences.append(f"{name} was not compared: both runs logged it, but at no common step.")
    return sorted(sentences)


def _format_logged(name: str, pairs: Sequence[NumberPair], comparison: RecordingComparison) -> str:
    distances = [distance(a, b) for (_, a), (_, b) in pairs]
    most = greatest(distances)
    differing = next((n for n, each in enumerate(distances) if each.ulps > comparison.max_ulp), None)
    if differing is None:
        where = f"at all {len(pairs)} steps"
        step = next(each[0] for (each, _), far in zip(pairs, distances, strict=True) if far.ulps == most.ulps)
        return f"{name} {format_same('is', where, most, step, comparison)}."
    (step, a), (_, b) = pairs[differing]
    beyond = next((n for n, each in enumerate(distances) if each.ulps > ROUNDING), None)
    at_most = f"by at most {format_relative(most.relative)}"
    since = ""
    if beyond is None or beyond <= differing:
        since = f" by more than {comparison.max_ulp:g} ULP" if beyond not in (None, differing) else ""
        end = f", {at_most}" + (f", which can be rounding{_limit(comparison)}" if beyond is None else "")
    else:
        (later, c), (_, d) = pairs[beyond]
        end = (
            f", {distances[differing].ulps:g} ULP, which can be rounding. From step {later} on, it differs by more "
            f"than {ROUNDING} ULP: {c} and {d}, {at_most}"
        )
    return f"{name} differs{since} from step {step} on: {a} and {b}{end}."


def _limit(comparison: RecordingComparison) -> str:
    if any("float64" in (pair.a.dtype, pair.b.dtype) for pair in comparison.pairs):
        return ""
    return ", or a small mistake. Only a comparison in float64 shows which"
