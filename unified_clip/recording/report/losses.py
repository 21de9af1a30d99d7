"""Describe the differences between the losses of two runs, and between other logged numbers."""

from __future__ import annotations

import math

from ..compare import RecordingComparison
from ..losses import LoggedComparison, logged_numbers
from ..rounding import ROUNDING, Distance, greatest
from .largest_differences import format_distance, format_greatest, format_relative


def loss_sentences(comparison: RecordingComparison) -> list[str]:
    sides = [logged_numbers(run) for run in comparison.runs]
    only = ((comparison.a, sides[0].keys() - sides[1]), (comparison.b, sides[1].keys() - sides[0]))
    sentences = [f"{name} was not compared: only {run.name} has it." for run, names in only for name in names]
    for each in comparison.logged:
        if each.divides:
            reason = f"only this run divides its losses by {each.passes}, the number of backward passes of a step"
            text = f"Losses of {each.divides.name} are multiplied by {each.passes} in this report, because {reason}."
            sentences.append(text)
        if each.differences:
            sentences.append(_format_logged(each, comparison))
        else:
            sentences.append(f"{each.name} was not compared: the runs logged it at different steps.")
    return sorted(sentences)


def loss_advice(comparison: RecordingComparison) -> list[str]:
    """Advise how to record the losses if only one run has them."""
    without = [run.name for run in comparison.runs if "loss" not in logged_numbers(run)]
    if len(without) != 1:
        return []
    return [
        f"To record the losses of {without[0]}, call `unified_clip.recording.log(loss=...)` at each step of its script."
    ]


def _format_logged(logged: LoggedComparison, comparison: RecordingComparison) -> str:
    name, differences, first = logged.name, logged.differences, logged.first
    most = greatest([Distance(each.ulps or 0.0, each.relative or 0.0) for each in differences])
    if first is None:
        where = f"at all {len(differences)} steps"
        if comparison.max_ulp is None and most.ulps:
            return f"{name} differs by rounding, by at most {format_distance(*most)}."
        step = next(each.step for each in differences if each.ulps == most.ulps)
        return f"{name} is equal {where}{format_greatest(most, step, comparison)}"
    largest = f"The values differ by at most {format_relative(most.relative)}"
    if math.isinf(most.relative):
        largest = "In one run, some values are not finite"
    text = f"{name} differs from step {first.step} on: {first.a} and {first.b} at this step. {largest}"
    if all((each.ulps or 0.0) <= ROUNDING for each in differences):
        text += ", which can be rounding"
        if not any("float64" in (pair.a.dtype, pair.b.dtype) for pair in comparison.pairs):
            text += ". A small mistake can cause the same difference. To find out, run both scripts in float64"
    return f"{text}."
