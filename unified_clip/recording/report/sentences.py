"""Describe the result of comparing two runs in sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...causes.observation import Cause, CauseKind
from ..causes.before_clips import OUTSIDE_THE_CLIP, is_clearing_known
from ..causes.sequence import count_of
from ..compare import RecordingComparison
from ..divergence import Divergence
from ..optimizers.steps import STAGES
from ..runs import RecordedCall, RecordedRun
from .agreement import STAGE_NAMES, agreements, allowed, count_calls, format_distance, largest_differences, losses
from .noise import uncompared_noise
from .remedies import remedies, step_of_other_eps

FIRST, BEYOND, SAME = "The runs first differ", "They differ by more than rounding", "The runs are the same"
RULED_OUT: dict[CauseKind, str] = {
    "another rule": "another rule",
    "another threshold": "another threshold",
    "another norm type": "another norm type",
    "another eps": "another eps",
    "per tensor for global": "per tensor for global",
    "clipped twice": "clipped twice",
    "clipping before unscaling": "clipping before unscaling",
    "repeated parameter": "a repeated parameter",
    "shifted step": "a shifted step",
}
"""The name of each cause in the sentence "Ruled out: ...", by kind. Every comparison tests these causes, and also
WHOLE_FACTOR.
"""

WHOLE_FACTOR: tuple[CauseKind, str] = ("scaled gradients", "a whole factor on all gradients")

ALIKE: Mapping[CauseKind, Sequence[CauseKind]] = {
    "per tensor for global": ["another rule"],
    "per group for global": ["another rule", "per tensor for global"],
    "another rule": ["per tensor for global"],
    "clipped twice": ["several clips before a step"],
    "several clips before a step": ["clipped twice"],
    "not clipped": ["another threshold", "left-out clip"],
    "clipped below the threshold": ["another threshold"],
    "clipping before unscaling": ["scaled gradients"],
    "gradient accumulation": ["scaled gradients"],
    "rows": ["inexact norm"],
    "given norm": ["inexact norm"],
    "16 bits": ["inexact norm"],
}
"""The causes that a report does not rule out beside a named cause, because they are about the same numbers."""

RULES = {"global": "total norm", "each": "per tensor", "groups": "per group", "slices": "per slice"}
"""The words for the rules of recorded calls."""

RULED_OUT_BY_NORMS: dict[CauseKind, str] = {
    "left out": "a missing parameter",
    "swapped": "swapped parameters",
    "scaled gradients": "any factor on all gradients",
    "inexact norm": "an inexact norm of a framework's function",
}
"""The name of each cause in the sentence "Ruled out: ...", for causes whose test needs norms of parameters."""

RULED_OUT_BY_STEPS: dict[CauseKind, str] = {
    "another learning rate": "another learning rate",
    "gradients are not cleared": "gradients that are not cleared",
    "gradient accumulation": "another number of backward passes",
    "left-out clip": "a left-out clip",
    "several clips before a step": "several clips before a step",
    "clipping after the step": "clipping after the step",
}
"""The name of each cause in the sentence "Ruled out: ...", for causes whose test needs steps of optimizers."""

COUNTS = {
    "calls": "clip calls",
    "clips": "clip calls",
    "norms": "norms",
    "backward passes": "backward passes before it",
}
"""The words for the counted things, by stage, for stages whose divergences are between two counts."""

UNEXPLAINED = "Unexplained: no known cause fits these numbers, or more than one does."


class Explanation(NamedTuple):
    """A divergence in a sentence, and sentences about its causes. A cause of an earlier divergence is only named."""

    divergence: Divergence
    what: str
    why: list[str]


def lines(comparison: RecordingComparison) -> list[str]:
    """Return all sentences of the report, in the order in which the terminal shows them.

    They are about each run, the differences, their causes with remedies, logged numbers, the parts of the training to
    compare, and the causes that were ruled out.
    """
    causes = ruled_out(comparison)
    return [
        *map(about, (comparison.a, comparison.b)),
        *with_remedies(describe(comparison), remedies(comparison)),
        *largest_differences(comparison),
        *losses(comparison),
        *where_to_look(comparison),
        *([f"Ruled out: {', '.join(causes)}."] if causes else []),
    ]


def with_remedies(described: Sequence[str], remedies: Mapping[CauseKind, Sequence[str]]) -> Iterator[str]:
    """Yield the sentences. After the first sentence about a cause, also yield the advice about this cause.

    remedies: The advice about each cause, by kind.
    """
    rest = {kind.lower(): advice for kind, advice in remedies.items()}
    for sentence in described:
        yield sentence
        yield from rest.pop(sentence.partition(":")[0].lower(), ())
    for advice in rest.values():
        yield from advice


def about(run: RecordedRun) -> str:
    """Return a sentence about a recording: its number of calls, and whether the last line is incomplete.

    With several processes, add sentences on whether they recorded the same clips.
    """
    folded = (
        f" that clip one gradient each, compared as {count_calls(len(run.lines))}"
        if run.recorded > len(run.lines)
        else ""
    )
    text = f"{run.path}: {count_calls(run.recorded)}{folded}{', and an incomplete line' if run.torn else ''}."
    return f"{text}{_about_ranks(run)}" if run.others else text


def _about_ranks(run: RecordedRun) -> str:
    """Return sentences about the other processes of a run, with the first difference from the first process.

    A difference is in the function, threshold, norm or coefficient of a call, or in the number of calls.
    """
    count = len(run.others) + 1
    for other in run.others:
        for own, line in zip(run.lines, other, strict=False):
            if (own.call, own.threshold, own.norm, own.coef) != (line.call, line.threshold, line.norm, line.coef):
                what = "norm" if own.norm != line.norm else "clip"
                return (
                    f" It has {count} processes. The first is compared. Process {line.process} differs from it at step "
                    f"{own.step}: {what} is {_clip_text(own, what)} and {_clip_text(line, what)}."
                )
        if len(run.lines) != len(other):
            return f" It has {count} processes. The first is compared. Another one has {count_calls(len(other))}."
    return f" It has {count} processes, with the same norms and coefficients. The first is compared."


def _clip_text(line: RecordedCall, what: str) -> str:
    return f"{line.norm}" if what == "norm" else f"{line.call} with threshold {line.threshold}"


def describe(comparison: RecordingComparison) -> list[str]:
    """Return sentences about the differences of the runs, their causes, and the agreement at each stage."""
    explained = [sentence for each in explanations(comparison) for sentence in (each.what, *each.why)]
    return [*explained, *notes(comparison)]


def explanations(comparison: RecordingComparison) -> Iterator[Explanation]:
    """Yield each divergence with sentences about it and its causes, in order.

    A cause of an earlier divergence is only named. A sentence that is the same as an earlier one is left out.
    """
    steps: dict[Cause, int] = {}
    earlier: list[str] = []
    for number, (divergence, findings) in enumerate(comparison.divergences.items()):
        what = f"{BEYOND if number else FIRST} at step {divergence.step}: {_format_divergence(divergence)}."
        why = [_as_before(each, steps[each]) if each in steps else str(each) for each in findings]
        why = why or [_unexplained(comparison, divergence)]
        yield Explanation(divergence, what, [sentence for sentence in why if sentence not in earlier])
        steps |= {each: divergence.step for each in findings if each not in steps}
        earlier += why


def _as_before(cause: Cause, step: int) -> str:
    return f"{cause.kind[:1].upper()}{cause.kind[1:]}, as at step {step}."


def notes(comparison: RecordingComparison) -> list[str]:
    """Return sentences about how closely the runs agree: one for each stage, or a single one if the runs are the same.

    Others are about an eps that differs without being the cause of a reported difference, about what was not compared,
    and about ClipWarnings. If a difference has no cause, and a run has no norms of parameters, one explains how to
    record them.
    """
    if comparison.first is None:
        same = f"{SAME}: {count_calls(len(comparison.pairs))}{allowed(comparison)}."
        unknown = [*uncompared_noise(comparison), *_unknown_coefficients(comparison), *_unknown_thresholds(comparison)]
        return [same, *_unreported_eps(comparison), *_other_counts(comparison), *unknown, *_warnings(comparison)]
    notes = [*uncompared_noise(comparison), *_unknown_coefficients(comparison), *_warnings(comparison)]
    sentences = [*_unreported_eps(comparison), *agreements(comparison), *notes]
    if not all(comparison.divergences.values()) and not (comparison.a.header.norms and comparison.b.header.norms):
        hint = "Record both runs with norms=True, or --norms, to see by which parameters they differ."
        return [hint, *sentences]
    return sentences


def _warnings(comparison: RecordingComparison) -> list[str]:
    """Return a sentence for each ClipWarning of a run."""
    runs = (comparison.a, comparison.b)
    return [f"ClipWarning in {run.name}: {text.removesuffix('.')}." for run in runs for text in run.warnings]


def _unreported_eps(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence] about another eps that no reported difference has as its cause, else []."""
    if comparison.unreported_eps is None:
        return []
    divergence, cause = comparison.unreported_eps
    is_allowed = (divergence.ulps or 0.0) <= comparison.max_ulp
    allowed = f", which --max-ulp {comparison.max_ulp:g} allows" if is_allowed else ""
    return [f"{cause} It first shows at step {divergence.step}: {_format_divergence(divergence)}{allowed}."]


def _unexplained(comparison: RecordingComparison, divergence: Divergence) -> str:
    """Return the sentence about a divergence for which no cause was found.

    If steps of optimizers differ earlier, or if another eps shows at this step or earlier, the sentence names the first
    such step.
    """
    earlier = itertools.takewhile(lambda each: each is not divergence, comparison.divergences)
    steps = [each for each in earlier if each.stage in STAGES]
    if steps:
        return f"This difference can follow from the one at step {steps[0].step}."
    step = step_of_other_eps(comparison)
    is_later = step is not None and step <= divergence.step
    return f"This difference can follow from the different eps at step {step}." if is_later else UNEXPLAINED


def _first_unexplained(comparison: RecordingComparison) -> Divergence | None:
    """Return the first divergence that no difference in clipping explains.

    Return None if there is none, or if an earlier difference between optimizers' steps may have caused it.
    """
    unexplained = [
        each for each, causes in comparison.divergences.items() if {cause.kind for cause in causes} <= OUTSIDE_THE_CLIP
    ]
    if not unexplained or _unexplained(comparison, unexplained[0]) != UNEXPLAINED:
        return None
    return unexplained[0]


def _without_effect(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence] if only thresholds are reported to differ, but changed no coefficient. Else return [].

    Also return [] if no weight, gradient or norm differs.
    """
    by_stage = {each.stage: each.differs_at_step for each in comparison.agreements}
    later = {stage: step for stage, step in by_stage.items() if step is not None}
    only_thresholds = {each.stage for each in comparison.divergences} == {"threshold"}
    if not only_thresholds or by_stage.get("coefficient", 0) is not None or not later:
        return []
    names = [f"{STAGE_NAMES[stage].lower()} from step {step} on" for stage, step in later.items()]
    return [
        f"All coefficients are equal, so the thresholds had no effect. They do not explain the other differences: "
        f"{', '.join(names)}. Compare the optimizers, the forward pass and the data."
    ]


def where_to_look(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence with the parts of the training to compare], or [] if the clip may explain the divergence.

    Return [], too, if the runs are the same, or differ first in something else than a weight, a gradient, a norm, or a
    threshold that had no effect.
    """
    if without_effect := _without_effect(comparison):
        return without_effect
    first, runs = _first_unexplained(comparison), (comparison.a, comparison.b)
    if first is None or any(cause.kind == "other gradients" for cause in comparison.divergences[first]):
        return []  # the cause has its own advice
    if first.stage not in ("weight", "gradient", "norm") or first is not comparison.first:
        return []
    is_first = first.step == comparison.pairs[0].a.step
    place = "the initial weights" if first.stage == "weight" else "the forward pass, the loss and the data"
    if first.stage != "weight" and not all(run.header.norms for run in runs):
        place += ", and the initial weights"
    if first.stage == "weight" and not is_first:
        place = "the optimizers"
    same = "" if is_first else f" up to step {first.step - 1}"
    what = "weights" if first.stage == "weight" else "gradients"
    clips = f"Clipping is the same{same}: rule, threshold, norm type and formula"
    if different := _other_clips(comparison, first.step):
        clips = f"Clipping is not known to be the same: {', and '.join(different.values())}"
    return [f"{clips}. The {what} differ before the clip of step {first.step}. Compare {place}."]


def _other_clips(comparison: RecordingComparison, step: int) -> dict[str, str]:
    """Return {what: phrase} for each property in which the clips up to a step differ, or may differ.

    These properties are no divergences of their own: the calls of each step, the gradients of each call, and eps.
    """
    runs = (comparison.a, comparison.b)
    clips = [[line.step for line in run.lines if line.step <= step] for run in runs]
    found = {}
    if clips[0] != clips[1]:
        numbers = (n for n in sorted({*clips[0], *clips[1]}) if clips[0].count(n) != clips[1].count(n))
        number = next(numbers)
        counts = " and ".join(count_calls(each.count(number)) for each in clips)
        found["calls"] = f"{comparison.a.name} and {comparison.b.name} make {counts} at step {number}"
    elif not all(run.optimizer_steps for run in runs) and len(runs[0].lines) != len(runs[1].lines):
        counts = " and ".join(f"{run.name} has {count_calls(len(run.lines))}" for run in runs)
        found["calls"] = (
            f"{counts}. If both ran the same number of steps, they make different numbers of calls per step"
        )
    for pair in comparison.pairs:
        if pair.a.step > step:
            break
        if (pair.a.eps or 0.0) != (pair.b.eps or 0.0):
            found.setdefault("eps", f"the eps of the clips is {pair.a.eps or 0.0:g} and {pair.b.eps or 0.0:g}")
        if None not in (pair.a.count, pair.b.count) and pair.a.count != pair.b.count and not pair.names:
            found.setdefault("count", f"the calls clip {pair.a.count} and {pair.b.count} gradients")
    return found


def ruled_out(comparison: RecordingComparison) -> list[str]:
    """Return the causes that were ruled out if a divergence is unexplained, else [].

    Causes that need norms of parameters or optimizer steps are in the list only if both runs recorded these. Causes
    that the report names, or that the recorded numbers do not decide, are not in the list.
    """
    first = _first_unexplained(comparison)
    if first is None:
        return []
    runs = (comparison.a, comparison.b)
    causes = [*RULED_OUT.items(), WHOLE_FACTOR]
    if all(run.header.norms for run in runs):
        causes += RULED_OUT_BY_NORMS.items()
    if all(run.optimizer_steps for run in runs):
        causes += RULED_OUT_BY_STEPS.items()
    named = {cause.kind for cause in comparison.findings}
    unknown = named.union(_undecided(comparison, first.step), *(ALIKE.get(kind, ()) for kind in named))
    return [name for kind, name in causes if kind not in unknown]


def _undecided(comparison: RecordingComparison, step: int) -> set[CauseKind]:
    """Return the causes of which the recorded numbers do not show whether they apply at a step or before it."""
    runs = (comparison.a, comparison.b)
    steps = [each for run in runs for each in run.optimizer_steps if each.step <= step]
    clips = [[line.step for line in run.lines if line.step <= step] for run in runs]
    has_steps = all(run.optimizer_steps for run in runs)
    by_total_norm = all(line.rule == "global" for run in runs for line in run.lines if line.step <= step)
    found: set[CauseKind] = set()
    if not is_clearing_known(*runs, step):
        found.add("gradients are not cleared")
    if any(not each.backward_calls for each in steps):
        found.add("gradient accumulation")
    if any("lr" not in each.settings for each in steps):
        found.add("another learning rate")
    different = _other_clips(comparison, step)
    if "eps" in different:
        found.add("another eps")
    if "calls" in different:
        found |= {"another rule", "per tensor for global", "shifted step"}
    if clips[0] != clips[1] or "calls" in different:
        found |= {"clipped twice", "several clips before a step"}
    elif not has_steps and not by_total_norm:
        found.add("clipped twice")
    return found


def _unknown_thresholds(comparison: RecordingComparison) -> list[str]:
    pairs = comparison.pairs
    count = sum(pair.a.rule is not None and None in (pair.a.threshold, pair.b.threshold) for pair in pairs)
    where = f"{count} of {count_calls(len(pairs))}"
    return [f"Thresholds were not compared in {where}: at least one run did not record a number."] if count else []


def _other_counts(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence] about the first calls with other numbers of gradients that were not compared one by one."""
    for pair in comparison.pairs:
        old, new = count_of(pair.a), count_of(pair.b)
        if not pair.names and old and new and old != new:
            place = f"Not compared: single gradients. At step {pair.a.step}, the clips have {old} and {new} gradients"
            return [f"{place}, with the same total norm. To compare them, record both with norms=True, or --norms."]
    return []


def _unknown_coefficients(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence] about the calls with a coefficient that was not compared, or [] if there are none."""
    pairs = comparison.pairs
    count = sum(any(None in line.coefs() for line in (pair.a, pair.b)) for pair in pairs)
    where = f"{count} of {count_calls(len(pairs))}"
    reason = "in at least one run, no factor explains the clipped gradients, or the threshold is not a single number"
    return [f"Not all coefficients were compared in {where}: {reason}."] if count else []


def _format_divergence(divergence: Divergence) -> str:
    names = {"weight": "the norm of the weight", "gradient": "the norm of the gradient"}
    if divergence.stage == "gradient" and divergence.parameter is None:
        sides = (divergence.a, divergence.b)
        unmatched = [", ".join(map(repr, side)) or "none" for side in sides if isinstance(side, tuple)]
        return f"parameters that only one run has: the first has {', the second has '.join(unmatched)}"
    if divergence.stage in COUNTS:
        return f"{divergence.a} and {divergence.b} {COUNTS[divergence.stage]}"
    if divergence.stage == "gradients cleared":
        return f"gradients are cleared before it only in the {'first' if divergence.a else 'second'} run"
    if divergence.stage == "optimizer" and divergence.parameter:
        return f"{divergence.parameter} of the optimizer is {divergence.a} and {divergence.b}"
    if divergence.stage == "rule":
        a, b = (RULES.get(str(side), side) for side in (divergence.a, divergence.b))
        return f"rule is {a} and {b}"
    whose = f" of {divergence.parameter!r}" if divergence.parameter else ""
    if divergence.stage == "coefficient" and divergence.ulps is None:
        side, known = ("first", divergence.b) if divergence.a is None else ("second", divergence.a)
        other = "second" if side == "first" else "first"
        return f"no coefficient{whose} explains the clipped gradients of the {side} run. In the {other}, it is {known}"
    text = f"{names.get(divergence.stage, divergence.stage)}{whose} is {divergence.a} and {divergence.b}"
    return text if divergence.ulps is None else f"{text}, {format_distance(divergence.ulps, divergence.relative)}"
