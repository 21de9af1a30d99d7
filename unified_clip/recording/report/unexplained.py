"""Advise where to look for the cause of an unexplained difference between two runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..._display import counted, enumeration
from ...causes.cause import CauseKind
from ..causes.before_clips import OUTSIDE_THE_CLIP, is_clearing_known
from ..causes.order_of_calls import RULES_FOR_GLOBAL, count_of
from ..compare import RecordingComparison
from ..divergence import Divergence
from ..optimizers.names import LIBRARIES
from ..optimizers.step_differences import STAGES
from ..pairs.packed_parameters import elements
from .largest_differences import STAGE_NAMES
from .remedies import step_of_other_eps

ROUNDED: frozenset[CauseKind] = frozenset({"rounding", "rounding noise", "rounding that has grown"})

UNEXPLAINED = "Unexplained: the differing numbers fit no known cause, or more than one."

FOLLOWS_EPS = "This difference might follow from the different eps of the clips at step"

RULED_OUT: tuple[CauseKind, ...] = (
    "another rule", "another threshold", "another norm type", "another eps of the clip", "per tensor for global",
    "clipped twice", "clipping before unscaling", "repeated parameter", "shifted step",
)  # fmt: skip
"""Causes that every comparison tests."""

RULED_OUT_BY_NORMS: tuple[CauseKind, ...] = ("left out", "swapped", "scaled gradients", "inexact norm")
"""Causes that a comparison tests only if norms of parameters were recorded."""

RULED_OUT_BY_STEPS: tuple[CauseKind, ...] = (
    "another learning rate", "gradients are not cleared", "gradient accumulation", "left-out clip",
    "several clips before a step", "clipping after the step",
)  # fmt: skip
"""Causes that a comparison tests only if optimizer steps were recorded."""

ALIKE: Sequence[set[CauseKind]] = (
    {"another rule", "per tensor for global", "per group for global"},
    {"clipped twice", "several clips before a step"},
    {"skipped step", "shifted step", "another learning rate"},
    {"not clipped", "clipped below the threshold", "another threshold", "left-out clip"},
    {"scaled gradients", "clipping before unscaling", "gradient accumulation", "weight decay before the clip"},
    {"inexact norm", "rows", "given norm", "16 bits"},
)
"""Sets of similar causes. If one cause of a set is found, the report does not say that the others are ruled out."""

ABOUT_PARAMETERS = {
    "left out",
    "parameters of another network",
    "left-out clip",
    "several clips before a step",
    "repeated parameter",
    *RULES_FOR_GLOBAL,
}


def without_cause(comparison: RecordingComparison, divergence: Divergence) -> str:
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
    optimizers = [_unknown_optimizers(unknown)] if len(unknown) == 1 else _unknown_settings(comparison)
    return [*_advice(comparison), *optimizers]


def _advice(comparison: RecordingComparison) -> list[str]:
    counts = [run.steps_in_iteration for run in comparison.runs]
    if counts == [1, 1] or _first(comparison) is None:
        return _where_to_look(comparison)
    numbers = " and ".join(
        f"{run.name} makes {counted(count, 'optimizer step')}"
        for run, count in zip(comparison.runs, counts, strict=True)
    )
    order = (
        f"In each iteration, {numbers}. An optimizer step changes weights that later losses may use, so compare the "
        "order of the backward passes and the steps."
    )
    return [*_where_to_look(comparison), order]


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


def _unknown_settings(comparison: RecordingComparison) -> list[str]:
    """A class of the user can have settings that its recording does not contain."""
    runs = comparison.runs if all(run.optimizer_steps for run in comparison.runs) else ()
    lines = []
    for run, other in zip(runs, runs[::-1], strict=True):
        step, known = run.optimizer_steps[0], other.optimizer_steps[0].settings
        names = [name for name, value in known.items() if name not in step.settings and np.any(value)]
        if names and not step.optimizer.startswith(LIBRARIES):
            lines.append(
                f"Not compared: {enumeration(names)} of the optimizers. {run.name} has no recorded value for "
                f"{step.optimizer}. Compare the code of both optimizers."
            )
    return lines


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


def ruled_out(comparison: RecordingComparison) -> list[str]:
    first = _first(comparison)
    if first is None or first.stage == "norms" or isinstance(first.a, tuple):
        return []
    by_norms = RULED_OUT_BY_NORMS if all(run.header.norms for run in comparison.runs) else ()
    by_steps = RULED_OUT_BY_STEPS if all(run.optimizer_steps for run in comparison.runs) else ()
    named = {cause.kind for cause in comparison.findings}
    unknown = named.union(_undecided(comparison, first.step), *(kinds for kinds in ALIKE if kinds & named))
    return [kind for kind in (*RULED_OUT, *by_norms, *by_steps) if kind not in unknown]


def _undecided(comparison: RecordingComparison, step: int) -> set[CauseKind]:
    steps = [each for run in comparison.runs for each in run.optimizer_steps if each.step <= step]
    clips = [[line.step for line in run.lines if line.step <= step] for run in comparison.runs]
    has_steps = all(run.optimizer_steps for run in comparison.runs)
    by_total_norm = all(line.rule == "global" for run in comparison.runs for line in run.lines if line.step <= step)
    undecided: set[CauseKind] = set()
    if not is_clearing_known(*comparison.runs, step):
        undecided.add("gradients are not cleared")
    if any(not each.backward_calls for each in steps):
        undecided.add("gradient accumulation")
    if any("lr" not in each.settings for each in steps):
        undecided.add("another learning rate")
    different = _other_clips(comparison, step)
    if "eps" in different:
        undecided.add("another eps of the clip")
    if "calls" in different:
        undecided |= {"another rule", "per tensor for global", "shifted step"}
    if clips[0] != clips[1] or "calls" in different:
        undecided |= {"clipped twice", "several clips before a step"}
    elif not has_steps and not by_total_norm:
        undecided.add("clipped twice")
    return undecided
