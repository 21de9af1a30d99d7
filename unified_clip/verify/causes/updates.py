"""Find out why updates differ although the clipped gradients agree."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from ...causes.cause import Cause, names_text
from ...recipes.updates import BIAS_CORRECTION, DECAY, PLACE_OF_EPS, RATE, SAME_RATE, Recipe, Step, differences, recipes
from ...recording.compare import RecordingComparison
from ...recording.optimizers.step_differences import STAGES
from ...tensors.arithmetic import FORMATS
from ..normalize import NormalizedRecording
from ..step_comparison import StepComparison
from ..step_pairing import StepPairing, TensorPair


def without_gradient(
    row: StepComparison,
    rows: Sequence[StepComparison],
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
) -> Cause | None:
    """Return a cause if only parameters without a gradient differ, such as moving averages."""
    tensors = pairing.without_gradient(recordings)
    names = [each.parameter for each in row.parameters.update if each.ulps > max_ulp]
    if not tensors.issuperset(names):
        return None
    weights = [[each.ulps for each in row.parameters.update if each.parameter not in tensors] for row in rows]
    equal = [row for row, ulps in zip(rows, weights, strict=True) if max(ulps, default=0.0) <= max_ulp]
    where = f"in all {len(rows)} steps" if len(equal) == len(rows) else f"at step {row.step}"
    return Cause(
        "tensors without a gradient",
        f"at step {row.step}, all tensors that differ have no gradient: {names_text(names)}. The updates of the "
        f"{len(weights[0])} weights with a gradient agree {where}. Optimizers do not change tensors without a "
        "gradient. For BatchNorm, compare eps, momentum and the moving variance. PyTorch's momentum is 1 minus Keras's "
        "momentum. PyTorch divides the variance of a batch by n - 1, and Keras divides the variance by n",
    )


def cause_of_update(
    row: StepComparison, clips: RecordingComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    earlier = [each for each in clips.divergences if each.stage in STAGES and each.step <= row.step]
    if any(each.stage not in ("learning rate", "optimizer") for each in earlier):
        return None
    ignored = pairing.without_gradient(recordings)
    updates = [pair for pair in pairing.updates(row.step) if pair.name not in ignored]
    if not earlier and (cause := _other_number_of_steps(recordings, row.step) or _without_update(updates, row.step)):
        return cause
    return _other_rule(row.step, pairing, recordings, {each.parameter or RECORDED[RATE] for each in earlier})


RECORDED = {RATE: "lr", DECAY: "weight_decay"}
"""The recorded names of settings, if they differ from those of recipes."""


def _other_rule(
    step: int, pairing: StepPairing, recordings: Sequence[NormalizedRecording], reported: Collection[str]
) -> Cause | None:
    """Each run explains its own updates, by the gradients that the clip returns or by those that the clip gets.

    reported: The recorded settings that differ. The result is None if they explain the difference.
    """
    names = [str(each.run.script) for each in recordings]
    (old, old_unclipped), (new, new_unclipped) = (
        [_recipes(each, recording, unit) for each, unit in tables]
        for tables, recording in zip(_tables(pairing, recordings), recordings, strict=True)
    )
    sentence = f"at step {step}, the clipped gradients are the same, but the updates differ"
    found = differences(old, new) if old and new else None
    late = [
        name
        for name, pair in zip(names, ((old_unclipped, new), (old, new_unclipped)), strict=True)
        if all(pair) and not differences(*pair)
    ]
    if late and (found is None or found):
        return Cause(
            "the clip does not reach the step",
            f"{sentence}. Every update of {late[0]} is what unclipped gradients would cause. This step clips after "
            "optimizer.step(), or its optimizer gets gradients that are not clipped. Clip before optimizer.step(), and "
            "pass the clipped gradients to the optimizer",
        )
    found = [each for each in found or () if RECORDED.get(each.setting, each.setting) not in reported]
    if reported and not found:
        return None
    if not found:
        known = [
            f"Those of {name} follow {run[0].settings['optimizer']}, and no known rule explains those of {other}"
            for name, run, other, unknown in zip(names, (old, new), names[::-1], (new, old), strict=True)
            if run and not unknown
        ]
        return Cause("another optimizer", ". ".join([sentence, *known, advice_on_settings(recordings, step), ALSO]))
    old_has, new_has = (", ".join(_shown(each.setting, each[side]) for each in found) for side in (1, 2))
    pages = "".join(f". See {PAGES[each.setting]}" for each in found if each.setting in PAGES)
    settings = (
        f"{sentence}. The updates show that the optimizer of {names[0]} has {old_has}, and that the optimizer of "
        f"{names[1]} has {new_has}{pages}"
    )
    if not reported and all(each.optimizer_steps_at(step) for each in recordings):  # with equal settings
        return Cause("another optimizer", f"{settings}. {advice_on_settings(recordings, step)}")
    is_rate = [each.setting for each in found] == [RATE]
    return Cause("another learning rate" if is_rate else "another optimizer", settings)


def _recipes(steps: Sequence[Step], recording: NormalizedRecording, unit: float) -> list[Recipe]:
    """Return the recipes of a run that do not contradict its recorded learning rates."""
    found = recipes(steps, [each.settings for each in recording.optimizer_steps], unit=unit) if steps else []
    recorded = [recording.optimizer_steps_at(number) for number in range(1, len(steps) + 1)]
    if any(len(each) != 1 or each[0].rates for each in recorded):
        return found
    rates = [each[0].settings.get("lr") for each in recorded]
    if not all(isinstance(each, int | float) for each in rates):
        return found
    return [each for each in found if all(map(_is_rate, each.rates, rates))]


def _is_rate(found: float, recorded: Any) -> bool:
    return math.isnan(found) or math.isclose(found, recorded, rel_tol=SAME_RATE)


PAGES = {
    BIAS_CORRECTION: "docs/my-loss-curve-differs.md#adam-without-bias-correction",
    PLACE_OF_EPS: "docs/my-loss-curve-differs.md#adam-from-keras-or-tensorflow",
}

ALSO = "Check also whether an optimizer clips or scales the gradients itself"


def _shown(setting: str, value: object) -> str:
    if value is True:
        return setting
    return f"no {setting}" if value is None else f"{setting} {_number(value)}"


def _number(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_number, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tables(pairing: StepPairing, recordings: Sequence[NormalizedRecording]) -> list[list[tuple[list[Step], float]]]:
    """Return the steps of each run with its clipped gradients, and with its gradients before the clip.

    The list of steps is empty if the gradients of a step are unknown. The number is the rounding error of the weights.
    """
    ignored, count = pairing.without_gradient(recordings), len(recordings[0].run.outputs)
    numbers = range(1, count + 1) if pairing.yields_each_step else ()
    tables: list[list[tuple[list[Step], float]]] = [[], []]
    for of_step in (pairing.gradients, pairing.unclipped):
        steps: list[list[Step]] = [[], []]
        unit = 2.0 ** -FORMATS["float32"].precision
        for number in numbers:
            parts = [
                {pair.name: pair for pair in pairs}
                for pairs in (of_step(number, recordings), pairing.weights_before(number), pairing.updates(number))
            ]
            names = [name for name in parts[2] if name not in ignored]
            if not names or any(name not in part for part in parts for name in names):
                steps = [[], []]
                break
            unit = 2.0 ** -FORMATS["float32"].precision * max(parts[2][name].ulp_scale for name in names)
            for side, of_side in zip(("old", "new"), steps, strict=True):
                of_side.append(Step(*({name: getattr(part[name], side) for name in names} for part in parts)))
        for table, of_side in zip(tables, steps, strict=True):
            table.append((of_side, unit))
    return tables


def _without_update(updates: Sequence[TensorPair], step: int) -> Cause | None:
    for side, other in (("new", "old"), ("old", "new")):
        still = [pair.name for pair in updates if getattr(pair, other).any() and not getattr(pair, side).any()]
        if still:
            which = "the parameters" if len(still) == len(updates) else names_text(still)
            return Cause(
                "another optimizer",
                f"at step {step}, only the {other} step changes {which}. Check that the optimizer of the {side} step "
                "gets these parameters, makes a step, and has a learning rate above 0",
            )
    return None


def _other_number_of_steps(recordings: Sequence[NormalizedRecording], step: int) -> Cause | None:
    old, new = (len(each.optimizer_steps_at(step)) for each in recordings)
    if not old or not new or old == new:
        return None
    scripts = [str(each.run.script) for each in recordings]
    return Cause(
        "another optimizer",
        f"at step {step}, {scripts[0]} calls optimizer.step() {old} time{'s' * (old > 1)}, and {scripts[1]} "
        f"{new} time{'s' * (new > 1)}",
    )


def advice_on_settings(recordings: Sequence[NormalizedRecording], step: int) -> str:
    sides = [each.optimizer_steps_at(step) for each in recordings]
    if all(sides):
        names = [set().union(*(each.settings for each in side)) for side in sides]
        same = f"The recorded settings are equal: {', '.join(sorted(names[0] & names[1]))}"
        only = f" (recorded on one side only: {', '.join(sorted(names[0] ^ names[1]))})" if names[0] ^ names[1] else ""
        return f"{same}{only}. Compare the parameter groups and the states of the optimizers"
    hidden = " and ".join(str(each.run.script) for each, side in zip(recordings, sides, strict=True) if not side)
    return (
        f"No step of an optimizer was recorded in {hidden}, so settings were not compared. Compare the learning rate, "
        "momentum and weight decay of both sides, the bias correction of Adam, and the places where the optimizers add "
        "eps"
    )
