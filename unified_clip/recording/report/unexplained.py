"""Advise where to look for the cause of an unexplained difference between two runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..._kit.display import counted, enumeration
from ..causes.before_clips import OUTSIDE_THE_CLIP
from ..causes.join_causes import ROUNDED
from ..causes.order_of_calls import RULES_FOR_GLOBAL, count_of
from ..compare import RecordingComparison
from ..divergence import Divergence
from ..optimizers.step_differences import STAGES
from ..pairs.packed_parameters import elements
from .largest_differences import STAGE_NAMES
from .remedies import step_of_other_eps

UNEXPLAINED = "Unexplained: the differing numbers fit no known cause, or more than one."

ONLY_LOSSES = "The compared norms agree up to this step, so the scripts compute or log this loss in different ways."

FOLLOWS_EPS = "This difference might follow from the different eps of the clips at step"

ABOUT_PARAMETERS = {
    "left out",
    "parameters of another network",
    "left-out clip",
    "several clips before a step",
    "repeated parameter",
    *RULES_FOR_GLOBAL,
}


def without_cause(comparison: RecordingComparison, divergence: Divergence) -> str:
    if divergence.stage == "loss":
        return ONLY_LOSSES
    other = other_parameters(comparison)
    if other and divergence.step == comparison.pairs[0].a.step:
        return other
    earlier = itertools.takewhile(lambda each: each is not divergence, comparison.divergences)
    steps = [each for each in earlier if each.stage in STAGES]
    if steps:
        return f"This difference might follow from the difference at step {steps[0].step}."
    step = step_of_other_eps(comparison)
    if step is None or step > divergence.step:
        return UNEXPLAINED
    return f"{FOLLOWS_EPS} {step}."


def other_parameters(comparison: RecordingComparison) -> str | None:
    step = comparison.pairs[0].a.step if comparison.pairs else None
    calls = [[line for line in run.lines if line.step == step] for run in comparison.runs]
    sizes = [sum(map(elements, each)) for each in calls]
    is_named = any(each.kind in ABOUT_PARAMETERS for each in comparison.findings)
    if is_named or sizes[0] == sizes[1] or not all(map(math.isfinite, sizes)) or not all(sizes):
        return None
    facts = [
        f"{run.name} clips {counted(sum(map(count_of, lines)), 'gradient')} with {size:.0f} elements"
        for run, lines, size in zip(comparison.runs, calls, sizes, strict=True)
    ]
    different = f"The runs clip different parameters: at step {step}, {', and '.join(facts)}"
    return f"{different}. Compare recordings of the same model."


def _first(comparison: RecordingComparison) -> Divergence | None:
    causes_of = comparison.divergences.items()
    first = next((each for each, causes in causes_of if {cause.kind for cause in causes} <= OUTSIDE_THE_CLIP), None)
    return first if first and without_cause(comparison, first) == UNEXPLAINED else None


def _without_effect(comparison: RecordingComparison) -> list[str]:
    by_stage = {each.stage: each.differs_at_step for each in comparison.agreements}
    later = {stage: step for stage, step in by_stage.items() if step is not None}
    only_thresholds = {each.stage for each in comparison.divergences} == {"threshold"}
    if not only_thresholds or by_stage.get("coefficient", 0) is not None or not later:
        return []
    names = [f"{STAGE_NAMES[stage].lower()} from step {step} on" for stage, step in later.items()]
    return [
        f"All coefficients are equal, so the different thresholds do not explain the other differences: "
        f"{', '.join(names)}. Compare the optimizers, the forward pass and the data."
    ]


def where_to_look(comparison: RecordingComparison) -> list[str]:
    unknown = [run.name for run in comparison.runs if not run.optimizer_steps]
    optimizers = [_unknown_optimizers(unknown)] if len(unknown) == 1 else []
    return [*_where_to_look(comparison), *optimizers]


def _where_to_look(comparison: RecordingComparison) -> list[str]:
    if without_effect := _without_effect(comparison):
        return without_effect
    first = _first(comparison)
    if first is None or any(cause.kind == "other gradients" for cause in comparison.divergences[first]):
        return []  # the cause has its own advice
    if isinstance(first.a, tuple):
        return [
            "Parameters that only one run has were not compared. If the runs have different names "
            "for the same weights, match the names with --map."
        ]
    if first.stage not in ("weight", "gradient", "norm") or not _follows_only_rounding(comparison, first):
        return []
    is_first = first.step == comparison.pairs[0].a.step
    place = "the initial weights" if first.stage == "weight" else "the forward pass, the loss and the data"
    if first.stage != "weight" and not all(run.header.norms for run in comparison.runs):
        place += ", and the initial weights"
    if first.stage == "weight" and not is_first:
        place = "the optimizers, and the code between the clip and the step"
    same = "" if is_first else f" up to step {first.step - 1}"
    what = "weights" if first.stage == "weight" else "gradients"
    clips = f"Clipping is the same{same}: rule, threshold, norm type and formula"
    if different := _other_clips(comparison, first.step):
        clips = f"The clips might differ: {', and '.join(different.values())}"
    look = f"{clips}. The {what} differ before the clip of step {first.step}. Compare {place}."
    unknown = [run.name for run in comparison.runs if not run.optimizer_steps]
    return [look] if is_first or len(unknown) < 2 else [look, _unknown_optimizers(unknown)]


def _follows_only_rounding(comparison: RecordingComparison, divergence: Divergence) -> bool:
    earlier = itertools.takewhile(lambda each: each is not divergence, comparison.divergences)
    return all(cause.kind in ROUNDED for each in earlier for cause in comparison.divergences[each])


def _unknown_optimizers(runs: Sequence[str]) -> str:
    verb = "has" if len(runs) == 1 else "have"
    return (
        f"{enumeration(runs)} {verb} no recorded optimizer steps, so the settings of the optimizers were not compared. "
        "Compare the optimizers and their settings, or run `unified-clip verify`, which compares the updates."
    )


def _other_clips(comparison: RecordingComparison, step: int) -> dict[str, str]:
    runs = comparison.runs
    clips = [[line.step for line in run.lines if line.step <= step] for run in runs]
    phrases = {}
    if clips[0] != clips[1]:
        numbers = (n for n in sorted({*clips[0], *clips[1]}) if clips[0].count(n) != clips[1].count(n))
        number = next(numbers)
        counts = (
            f"{run.name} makes {counted(each.count(number), 'call')}" for run, each in zip(runs, clips, strict=True)
        )
        phrases["calls"] = f"at step {number}, {' and '.join(counts)}"
    elif not all(run.optimizer_steps for run in runs) and len(runs[0].lines) != len(runs[1].lines):
        totals = " and ".join(f"{run.name} has {counted(len(run.lines), 'call')}" for run in runs)
        phrases["calls"] = f"{totals}: the runs differ in the number of steps, or in the number of calls per step"
    for pair in comparison.pairs:
        if pair.a.step > step:
            break
        if (pair.a.eps or 0.0) != (pair.b.eps or 0.0):
            sides = f"{pair.a.eps or 0.0:g} in the first run and {pair.b.eps or 0.0:g} in the second run"
            phrases.setdefault("eps", f"the eps of the clips is {sides}")
        if None not in (pair.a.count, pair.b.count) and pair.a.count != pair.b.count and not pair.names:
            phrases.setdefault(
                "count", f"the calls clip different numbers of gradients ({pair.a.count} and {pair.b.count})"
            )
    return phrases
