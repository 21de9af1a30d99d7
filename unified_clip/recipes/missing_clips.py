"""Find gradients that only one run clips, or that one run clips more often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .._kit.display import counted
from ..causes.cause import CauseKind, names_text
from ..recording.recorded_run import OptimizerStep, RecordedRun
from .finding import Finding, in_order
from .pairs import Both, Pair, PairedRuns
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


def left_out(runs: PairedRuns) -> Iterator[Finding]:
    both, of_twins = runs.every(), list(twins(runs))
    for side, (run, other) in enumerate((runs.sides, runs.sides[::-1])):
        missing: dict[Pair, int] = {}
        for each in both:
            if not each.sides[side].clips and each.sides[1 - side].clips:
                missing.setdefault(each.pair, each.number)
        clips_some = {each.pair for each in both if each.sides[side].clips}
        never = [(step, pair.sides[side]) for pair, step in missing.items() if pair not in clips_some]
        sometimes = [step for pair, step in missing.items() if pair in clips_some]
        known = {name for pair in runs.pairs for name in pair.sides[side]}
        others = {name for pair in runs.pairs for name in pair.sides[1 - side]}
        others |= {name for place, name, _ in of_twins if place != side}
        unpaired = [name for name, steps in other.parameters.items() if name not in others and steps[0].clips]
        if any(line.repeated for line in other.lines):  # which count as further parameters
            unpaired = []
        is_packed = not known or len(unpaired) == len(other.parameters)
        # parameters that only the other run has may be others of this run, under another name or shape
        may_be_paired = any(name not in known for name in run.parameters)
        if not run.has_clips and (never or other.has_clips):
            yield _without_clip(run, other, side, never)
        elif never or (unpaired and not is_packed and not may_be_paired):
            yield _parameters_left_out(runs, side, never, unpaired)
        elif sometimes:
            yield _step_without_clip(runs, side, min(sometimes))
        elif not run.is_late and (  # no step gets what a late clip returns
            fewer := [each for each in both if _skipped(each.sides[side]) and not _skipped(each.sides[1 - side])]
        ):
            yield _parameters_left_out(runs, side, [(fewer[0].number, _skipped(fewer[0].sides[side]))], [])


def _skipped(step: ParameterStep) -> Sequence[str]:
    """Return the parameters that an optimizer updates, and its only clip, which has no recorded names, does not get."""
    is_single = len(step.clips) == 1 and not step.clips[0].line.parameters
    return step.step.unclipped if step.step and is_single else ()


def _step_without_clip(runs: PairedRuns, side: int, number: int) -> Finding:
    run, other = runs.sides[side], runs.sides[1 - side]
    clips = _calls_text(other, number)
    values = in_order("not clipped", "clipped", side == 0)
    steps = [each.sides[side].step for each in runs.at(number)]
    if reason := _reason(run, [each for each in steps if each], number):
        kind, problem, fix = reason
        return Finding(number, kind, "clip", f"{problem}. {other.name} clips with {clips}", fix, *values)
    sentence = f"the optimizer of {run.name} makes step {number} without a clip call. {other.name} clips with {clips}"
    return Finding(number, "left-out clip", "clip", sentence, "Clip in both runs, or in neither run", *values)


def _without_clip(run: Run, other: Run, side: int, never: Sequence[tuple[int, object]]) -> Finding:
    values = in_order("none", "clip", side == 0)
    number = min((step for step, _ in never), default=1)
    clips = f"{other.name} clips with {_calls_text(other, number)}"
    steps = run.recorded.optimizer_steps
    if reason := _reason(run, steps):
        kind, sentence, fix = reason
        return Finding(number, kind, "clip", f"{sentence}. {clips}", fix, *values)
    sentence = f"{run.name} never clips: its {counted(len(steps), 'optimizer step')} have no clip call. {clips}"
    fix = f"Add this clip to {run.name}, between the backward pass and the step, or remove it from {other.name}"
    if any(step.changed is None for step in steps):  # other code may change gradients
        values, fix = in_order("unknown", "clip", side == 0), USE_VERIFY
        sentence = (
            f"{run.name} has no recorded clip. This is only a possible cause: its own code may clip, which is not "
            f"recorded. {clips}"
        )
    return Finding(number, "left-out clip", "clip", sentence, fix, *values)


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
    runs: PairedRuns, side: int, never: Sequence[tuple[int, Sequence[str]]], unpaired: Sequence[str]
) -> Finding:
    run, other = runs.sides[side], runs.sides[1 - side]
    names = [name for _, each in never for name in each] or list(unpaired)
    step = min((step for step, _ in never), default=1)
    what = f"{counted(len(names), 'gradient')} that {other.name} clips: {names_text(names)}"
    sentence, field = f"{run.name} does not clip {what}", "clipped parameters"
    trains = other.networks and {name for network in other.networks for name in network.names.values()}
    if not never and run.networks and trains and {*names} <= trains:
        field = "trained parameters"
        sentence = f"{run.name} neither trains nor clips {what}. They are frozen, or missing in its model or optimizer"
    values = in_order("left out", "clipped", side == 0)
    if reason := _reason(run, _steps_of(run, names)):
        kind, problem, fix = reason
        return Finding(step, kind, field, f"{sentence}: {problem}", fix, *values)
    frameworks, new = run.frameworks or other.frameworks, runs.b.name
    frozen = next((text for name, text in FROZEN.items() if name in frameworks), "")
    if field == "trained parameters":
        fix = f"Train these parameters in both runs, or in neither{frozen and f' ({frozen})'}"
    elif side == 1:
        fix = f"Pass these parameters to the clip of {new}, too"
        fix += f". Do not freeze them ({frozen})" if frozen else ""
    else:
        fix = f"Leave these parameters out of the clip of {new}, too, as need_clip=False or frozen parameters are"
        if frameworks & {"torch", "paddle"}:
            fix += (
                ". With unified_clip, set parameter.need_clip = False after the last copy.deepcopy of a PyTorch model, "
                "because the copy loses this attribute. PyTorch's own functions ignore need_clip"
            )
    return Finding(step, "left out", field, sentence, fix, *values)


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


def repeated_clips(runs: PairedRuns) -> Iterator[Finding]:
    both = runs.every()
    for side, run in enumerate(runs.sides):
        repeated = [
            next((clip.line for each in both for clip in each.sides[place].clips if clip.line.repeated), None)
            for place in (side, 1 - side)
        ]
        if repeated[0] is not None and repeated[1] is None:
            sentence = (
                f"{run.name} passes {counted(repeated[0].repeated, 'parameter')} more than once to {repeated[0].call}, "
                "which counts and scales a repeated gradient each time"
            )
            values = in_order("repeated", "once", side == 0)
            yield Finding(1, "repeated parameter", "clipped parameters", sentence, "Pass each parameter once", *values)
        more = [each for each in both if len(each.sides[side].clips) > len(each.sides[1 - side].clips) > 0]
        if more:
            yield _clipped_again(runs, more, side)


def _clipped_again(runs: PairedRuns, more: Sequence[Both], side: int) -> Finding:
    run, other = runs.sides[side], runs.sides[1 - side]
    first = min(more, key=lambda each: each.number)
    own, others = first.sides[side], first.sides[1 - side]
    clips, count = own.clips, len(others.clips)
    values = in_order(len(clips), count, side == 0)
    names = names_text(list(dict.fromkeys(each.pair.name for each in more)))
    sizes = [clip.line.count or 0 for clip in clips]
    whole = others.clips[0].line
    if count == 1 and not whole.parameters and whole.rule == "global" and sum(sizes) == whole.count:
        # without the parameters of the calls, their numbers of gradients tell a loop from a clip of all gradients
        return grouping(runs, first.number, side, "" if {*sizes} == {1} else f"{len(clips)} groups of gradients")
    if clips[0].coef is not None and not clips[1].has_other_gradient(clips[0]):
        sentence = (
            f"{run.name} clips the gradients of {names} again: one call scales them by {clips[0].coef or 0:.9g}, and "
            f"the next call gets the result. {other.name} clips them once"
        )
        fix = "Remove one of the clips"
        return Finding(first.number, "clipped twice", "clips of a step", sentence, fix, *values)
    sentence = (
        f"before step {first.number} of the optimizer, {run.name} clips the gradients of {names} "
        f"{counted(len(clips), 'time')}, and {other.name} {counted(count, 'time')}"
    )
    fix = f"Make the same clip calls in both runs. {other.name} has fewer"
    if own.step and (own.step.backward_calls or 0) > 1:
        fix = (
            "With gradient accumulation, clip once, after the backward pass of the last micro-batch: directly before "
            "optimizer.step(), outside the loop over micro-batches"
        )
    return Finding(first.number, "several clips before a step", "clips of a step", sentence, fix, *values)


def grouping(runs: PairedRuns, number: int, finer: int, parts: str, rest: str = "") -> Finding:
    """The run `finer` clips each gradient, or each of several `parts`, by its own norm. The other one clips all
    gradients, or `rest`, by their total norm."""
    fine, coarse = runs.sides[finer], runs.sides[1 - finer]
    kind: CauseKind = "another rule" if rest else "per group for global" if parts else "per tensor for global"
    norm = "the total norms of the groups" if rest else "their total norm"
    sentence = (
        f"{fine.name} clips {f'each of {parts}' if parts else 'each gradient'} by its own norm, and {coarse.name} "
        f"clips {rest or 'all gradients'} by {norm}"
    )
    values = in_order(parts or "each gradient", rest or "all gradients", finer == 0)
    return Finding(number, kind, "gradients that share a norm", sentence, "", *values)


def unreached(runs: PairedRuns) -> Iterator[Finding]:
    both = runs.every()
    for side, run in enumerate(runs.sides):
        if run.is_late or any(line.repeated for line in run.lines):
            continue
        own, other = (
            [each for each in both if _is_reached(each.sides[place], run.gradient_unit) is False]
            for place in (side, 1 - side)
        )
        if own and not other:
            names = names_text(list(dict.fromkeys(each.pair.name for each in own)))
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
            yield Finding(
                min(each.number for each in own), "the clip does not reach the step", "gradients of the step",
                sentence, fix, *in_order("other gradients", "the clipped gradients", side == 0),
            )  # fmt: skip


def _is_reached(each: ParameterStep, unit: float) -> bool | None:
    """Return whether the optimizer gets the result of the last clip, or None if this is unknown."""
    result = each.clipped
    if not (each.step and each.step.tensors) or result is None or each.gradient is None or each.raw is None:
        return None
    if len(result) != len(each.gradient):
        return None
    limit = max(REACHES, 4 * unit) * float(np.abs(result).max(initial=0.0))
    return bool((np.abs(result - each.gradient) <= limit).all())
