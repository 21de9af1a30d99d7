"""Find gradients that only one run clips, or that one run clips more often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._kit.display import counted
from ..causes.cause import CauseKind, names_text
from ..recording.recorded_run import OptimizerStep, RecordedRun
from .finding import Finding, in_order
from .pairs import Pair
from .run import Clip, ParameterStep, Run
from .weights import twins

EMPTY: Mapping[str | None, tuple[str, str]] = {
    "no parameters": (
        "passes no parameters. An iterator such as model.parameters() has no items left after its first use",
        "Pass model.parameters() to each clip call, or a list of the parameters",
    ),
    "other parameters": (
        "the gradients of all passed parameters are None, but the parameters of the optimizer have gradients",
        "Pass the parameters of the optimizer to the clip call",
    ),
    None: (
        "all gradients are None. The call might come before backward() or after zero_grad(), or might pass the "
        "parameters of another network",
        "Put the clip between backward() and optimizer.step(), and pass the parameters of this optimizer",
    ),
}
"""{value of `empty_because`: (problem, advice)}."""


REACHES = 1e-3
"""A gradient at the step is the result of the clip up to this fraction."""


class Both(NamedTuple):
    """The same step of one gradient in both runs."""

    pair: Pair
    number: int
    old: ParameterStep
    new: ParameterStep

    @property
    def sides(self) -> tuple[ParameterStep, ParameterStep]:
        return self.old, self.new


def left_out(a: Run, b: Run, pairs: Sequence[Pair], both: Sequence[Both]) -> Iterator[Finding]:
    for run, other, side in ((a, b, 0), (b, a, 1)):
        never, sometimes = [], []
        for pair in pairs:
            own = [each for each in both if each.pair is pair]
            missing = [each.number for each in own if not each.sides[side].clips and each.sides[1 - side].clips]
            if missing and not any(each.sides[side].clips for each in own):
                never.append((min(missing), pair.sides[side]))
            elif missing:
                sometimes.append((min(missing), pair.sides[side]))
        known = {name for pair in pairs for name in pair.sides[side]}
        others = {name for pair in pairs for name in pair.sides[1 - side]}
        others |= {name for place, name, _ in twins(a, b, pairs) if place != side}
        unpaired = [name for name, steps in other.parameters.items() if name not in others and steps[0].clips]
        if any(line.repeated for line in other.lines):  # which count as further parameters
            unpaired = []
        is_packed = not known or len(unpaired) == len(other.parameters)
        if not run.has_clips and (never or other.has_clips):
            yield _without_clip(run, other, side, never)
        elif never or (unpaired and not is_packed and not _may_be_paired(run, known)):
            yield _parameters_left_out(a, b, run, other, never, unpaired, side)
        elif sometimes:
            step = min(step for step, _ in sometimes)
            clips = _calls_text(other, step)
            sentence = (
                f"the optimizer of {run.name} makes step {step} without a clip call. {other.name} clips with {clips}"
            )
            old, new = in_order("not clipped", "clipped", side == 0)
            at_step = [each.sides[side].step for each in both if each.number == step]
            if reason := _reason(run, [each for each in at_step if each], step):
                kind, problem, fix = reason
                yield Finding(step, kind, "clip", old, new, f"{problem}. {other.name} clips with {clips}", fix)
            else:
                yield Finding(step, "left-out clip", "clip", old, new, sentence, "Clip in both runs, or in neither run")
        elif (
            fewer := []
            if run.is_late
            else [  # no step gets what a late clip returns
                each for each in both if _skipped(each.sides[side]) and not _skipped(each.sides[1 - side])
            ]
        ):
            names = _skipped(fewer[0].sides[side])
            yield _parameters_left_out(a, b, run, other, [(fewer[0].number, names)], [], side)


def _skipped(step: ParameterStep) -> Sequence[str]:
    """Return the parameters that an optimizer updates, and its only clip, which has no recorded names, does not get."""
    is_single = len(step.clips) == 1 and not step.clips[0].line.parameters
    return step.step.unclipped if step.step and is_single else ()


def _may_be_paired(run: Run, known: set[str]) -> bool:
    """Parameters that only the other run has may be others of this run, under another name or shape."""
    return any(name not in known for name in run.parameters)


def _without_clip(run: Run, other: Run, side: int, never: Sequence[tuple[int, object]]) -> Finding:
    old, new = in_order("none", "clip", side == 0)
    step = min((step for step, _ in never), default=1)
    clips = f"{other.name} clips with {_calls_text(other, step)}"
    steps = run.recorded.optimizer_steps
    if reason := _reason(run, steps):
        kind, sentence, fix = reason
        return Finding(step, kind, "clip", old, new, f"{sentence}. {clips}", fix)
    count = counted(len(steps), "optimizer step")
    sentence = f"{run.name} never clips: its {count} have no clip call. {clips}"
    if any(step.changed is None for step in steps):  # other code may change gradients
        sentence = (
            f"{run.name} has no recorded clip. This is only a possible cause: its own code may clip, which is not "
            f"recorded. {clips}"
        )
        return Finding(step, "left-out clip", "clip", *in_order("unknown", "clip", side == 0), sentence, USE_VERIFY)
    fix = f"Add this clip to {run.name}, between the backward pass and the step, or remove it from {other.name}"
    return Finding(step, "left-out clip", "clip", old, new, sentence, fix)


USE_VERIFY = "Use `unified-clip verify`, which compares the updates, or replace the clip by a function of unified_clip"


def clip_by_hand(run: RecordedRun, steps: Sequence[OptimizerStep], number: int | None = None) -> tuple[str, str] | None:
    """Return what shows that the script's own code clips, and the advice.

    number: The only one of the steps without a clip. Hooks that other steps have, too, do not replace its clip.
    """
    for step in steps:
        place = f"before step {number or step.step} of the optimizer"
        if step.changed:
            gradients = counted(step.changed, "gradient")
            what = f"changes {gradients} outside of the recorded calls, as a clip by hand does"
            return f"{place}, {run.name} {what}", USE_VERIFY
        if step.hooks and number is None:
            parameters = counted(step.hooks, "parameter")
            what = "had hooks of Tensor.register_hook, which can clip gradients"
            return f"{place}, {parameters} of {run.name} {what}", USE_VERIFY
    return None


def _reason(run: Run, steps: Sequence[OptimizerStep], number: int | None = None) -> tuple[CauseKind, str, str] | None:
    """Return what the recording of steps without a clip shows: another clip, or one that got no gradients."""
    if by_hand := clip_by_hand(run.recorded, steps, number):
        return "clip by hand", *by_hand
    is_used_up = any("empty or used up" in warning for warning in run.recorded.warnings)
    if early := next((each for each in steps if each.empty_clips or is_used_up), None):
        problem, fix = EMPTY["no parameters" if is_used_up else early.empty_because]
        sentence = f"{run.name} makes a clip call before step {number or early.step} of the optimizer, but {problem}"
        return "left-out clip", sentence, fix
    return None


def _parameters_left_out(
    a: Run, b: Run, run: Run, other: Run, never: Sequence[tuple[int, Sequence[str]]], unpaired: Sequence[str], side: int
) -> Finding:
    names = [name for _, each in never for name in each] or list(unpaired)
    step = min((step for step, _ in never), default=1)
    what = f"{counted(len(names), 'gradient')} that {other.name} clips: {names_text(names)}"
    sentence, field = f"{run.name} does not clip {what}", "clipped parameters"
    trains = other.networks and {name for network in other.networks for name in network.names.values()}
    if not never and run.networks and trains and {*names} <= trains:
        field = "trained parameters"
        sentence = f"{run.name} neither trains nor clips {what}. They are frozen, or missing in its model or optimizer"
    old, new = in_order("left out", "clipped", side == 0)
    if reason := _reason(run, _steps_of(run, names)):
        kind, problem, fix = reason
        return Finding(step, kind, field, old, new, f"{sentence}: {problem}", fix)
    frameworks = run.frameworks or other.frameworks
    frozen = next((text for name, text in FROZEN.items() if name in frameworks), "")
    if field == "trained parameters":
        fix = f"Train these parameters in both runs, or in neither{frozen and f' ({frozen})'}"
    elif run is b:
        fix = f"Pass these parameters to the clip of {b.name}, too"
        fix += f". Do not freeze them ({frozen})" if frozen else ""
    else:
        fix = f"Leave these parameters out of the clip of {b.name}, too, as need_clip=False or frozen parameters are"
        if frameworks & {"torch", "paddle"}:
            fix += (
                ". With unified_clip, set parameter.need_clip = False after the last copy.deepcopy of a PyTorch model, "
                "because the copy loses this attribute. PyTorch's own functions ignore need_clip"
            )
    return Finding(step, "left out", field, old, new, sentence, fix)


def _steps_of(run: Run, names: Sequence[str]) -> list[OptimizerStep]:
    """Return the steps that update parameters of the other run, which may have other names in this one."""
    own = [each.step for name in names for each in run.parameters.get(name, ()) if each.step]
    return own or [
        each for each in run.recorded.optimizer_steps if not each.parameters or {*each.parameters} & {*names}
    ]


FROZEN = {"torch": "requires_grad=False", "paddle": "stop_gradient=True", "tensorflow": "trainable=False"}


def _calls_text(run: Run, number: int) -> str:
    clips = [clip for each in run.at(number) for clip in each.clips]
    texts = dict.fromkeys(clip_text(clip) for clip in clips)
    return " and ".join(texts) or "its clip calls"


def clip_text(clip: Clip) -> str:
    call, threshold = clip.line.call, clip.scaled_threshold
    if isinstance(threshold, tuple):
        return f"{call} with the bounds {threshold[0]:.6g} and {threshold[1]:.6g}"
    return call if threshold is None else f"{call} with the threshold {threshold:.6g}"


def repeated_clips(a: Run, b: Run, both: Sequence[Both]) -> Iterator[Finding]:
    for run, other, side in ((a, b, 0), (b, a, 1)):
        lines = [clip.line for each in both for clip in each.sides[side].clips]
        of_other = [clip.line for each in both for clip in each.sides[1 - side].clips]
        repeated = next((line for line in lines if line.repeated), None)
        if repeated is not None and not any(line.repeated for line in of_other):
            sentence = (
                f"{run.name} passes {counted(repeated.repeated, 'parameter')} more than once to {repeated.call}, which "
                "counts and scales a repeated gradient each time"
            )
            old, new = in_order("repeated", "once", side == 0)
            fix = "Pass each parameter once"
            yield Finding(1, "repeated parameter", "clipped parameters", old, new, sentence, fix)
        more = [each for each in both if len(each.sides[side].clips) > len(each.sides[1 - side].clips) > 0]
        if more:
            yield _clipped_again(run, other, more, side)


def _clipped_again(run: Run, other: Run, more: Sequence[Both], side: int) -> Finding:
    first = min(more, key=lambda each: each.number)
    clips, step = first.sides[side].clips, first.sides[side].step
    counts = (len(clips), len(first.sides[1 - side].clips))
    old, new = in_order(*counts, side == 0)
    names = names_text(list(dict.fromkeys(each.pair.name for each in more)))
    if parts := _parts_of_one_clip(run, other, first, side):
        return parts
    if clips[0].coef is not None and not clips[1].has_other_gradient(clips[0]):
        sentence = (
            f"{run.name} clips the gradients of {names} again: one call scales them by {clips[0].coef or 0:.9g}, and "
            f"the next call gets the result. {other.name} clips them once"
        )
        return Finding(first.number, "clipped twice", "clips of a step", old, new, sentence, "Remove one of the clips")
    sentence = (
        f"before step {first.number} of the optimizer, {run.name} clips the gradients of {names} "
        f"{counted(counts[0], 'time')}, and {other.name} {counted(counts[1], 'time')}"
    )
    fix = f"Make the same clip calls in both runs. {other.name} has fewer"
    if step and (step.backward_calls or 0) > 1:
        fix = (
            "With gradient accumulation, clip once, after the backward pass of the last micro-batch: directly before "
            "optimizer.step(), outside the loop over micro-batches"
        )
    return Finding(first.number, "several clips before a step", "clips of a step", old, new, sentence, fix)


def _parts_of_one_clip(run: Run, other: Run, first: Both, side: int) -> Finding | None:
    """Without the parameters of the calls, their numbers of gradients tell a loop from a clip of all gradients."""
    clips, whole = first.sides[side].clips, first.sides[1 - side].clips
    counts = [clip.line.count or 0 for clip in clips]
    if (
        len(whole) > 1
        or whole[0].line.parameters
        or whole[0].line.rule != "global"
        or sum(counts) != whole[0].line.count
    ):
        return None
    is_loop = set(counts) == {1}
    kind: CauseKind = "per tensor for global" if is_loop else "per group for global"
    parts = "each gradient" if is_loop else f"{len(clips)} groups of gradients"
    each = parts if is_loop else f"each of {parts}"
    sentence = f"{run.name} clips {each} by its own norm, and {other.name} clips all gradients by their total norm"
    old, new = in_order(parts, "all gradients", side == 0)
    return Finding(first.number, kind, "gradients that share a norm", old, new, sentence)


def unreached(a: Run, b: Run, both: Sequence[Both]) -> Iterator[Finding]:
    for run, side in ((a, 0), (b, 1)):
        if run.is_late or any(line.repeated for line in run.lines):
            continue
        own, other = (
            [each for each in both if _is_reached(each.sides[place], run.gradient_unit) is False]
            for place in (side, 1 - side)
        )
        if own and not other:
            names = names_text(list(dict.fromkeys(each.pair.name for each in own)))
            number = min(each.number for each in own)
            sentence = (
                f"in {run.name}, the optimizer gets other gradients of {names} than the clip returns. Other code "
                "changes them between the clip and the step, or does not use the result of the clip"
            )
            fix = f"In {run.name}, use the result of the clip, and change no gradient after it"
            steps = [each.sides[side].step for each in own]
            if any(step is not None and step.clipped_early for step in steps):
                sentence = (
                    f"{run.name} clips {names} before the last backward pass, which adds to the clipped gradients"
                )
                fix = f"In {run.name}, clip after the last backward pass of a step, directly before optimizer.step()"
            old, new = in_order("other gradients", "the clipped gradients", side == 0)
            yield Finding(number, "the clip does not reach the step", "gradients of the step", old, new, sentence, fix)


def _is_reached(each: ParameterStep, unit: float) -> bool | None:
    """Return whether the optimizer gets the result of the last clip, or None if this is unknown."""
    result = each.clipped
    if not (each.step and each.step.tensors) or result is None or each.gradient is None or each.raw is None:
        return None
    if len(result) != len(each.gradient):
        return None
    limit = max(REACHES, 4 * unit) * float(np.abs(result).max(initial=0.0))
    return bool((np.abs(result - each.gradient) <= limit).all())
