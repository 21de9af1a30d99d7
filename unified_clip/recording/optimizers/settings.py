"""Compare the settings of optimizers, such as the learning rate and the weight decay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ...causes.cause import Cause, joined, names_text
from ..divergence import Divergence, Stage, StepDifference
from ..pairs.parameters import Names
from ..recorded_run import OptimizerStep, RecordedRun, Setting
from .epsilon import EQUAL, compare_places, places_differ, setting_text, tolerance_of
from .names import LIBRARIES
from .update_rules import are_one_kind, compare_momentum, compare_rows, decay_rules, undecayed_text

TINY = 1e-20
"""Smaller differences are ignored, because a port to PyTorch may need a tiny learning rate instead of 0."""

MOMENTUM = "rule for momentum"

INITIAL = "initial_accumulator_value"
"""The value at which the sum or mean of the squared gradients starts, in Adagrad and RMSprop."""

SETTING_TEXTS = {"eps": "the optimizer's eps", INITIAL: "an initial mean or sum of squared gradients of"}


def compare_settings(
    left: OptimizerStep, right: OptimizerStep, rounding: float, names: Names
) -> Iterator[StepDifference]:
    differs, is_one_kind = f"Unlike {left.run}, {right.run} has", are_one_kind(left, right)
    is_moved = is_one_kind and places_differ(left, right)
    rates = _other_rates(left, right, names, rounding)
    for name in {**left.settings, **right.settings}:
        old, new = (_setting(step, name) for step in (left, right))
        tolerance, error = (tolerance_of(left, right), rounding) if name == "lr" else (EQUAL, TINY)
        if (
            old is None
            or new is None
            or (name == "eps" and is_moved)
            or (
                same_setting(old, new, tolerance, is_ordered=name == "betas", rounding=error)
                and not (name == "lr" and rates)
            )
        ):
            continue
        is_mixed = name != "betas" and isinstance(old, tuple) != isinstance(new, tuple)
        suffixes = [" (for different parameters)" * (is_mixed and isinstance(each, tuple)) for each in (new, old)]
        values = f"{setting_text(new)}{suffixes[0]} instead of {setting_text(old)}{suffixes[1]}"
        if name == "lr":
            sentence = joined(f"{differs} a learning rate of {values}", rates)
            yield _difference(left, "learning rate", old, new, Cause("another learning rate", sentence))
        elif is_one_kind:
            undecayed = undecayed_text(left, right, names) if name == "weight_decay" else ""
            advice = _initial_advice(right, old) if name == INITIAL else undecayed
            sentence = joined(f"{differs} {SETTING_TEXTS.get(name, name)} {values}", advice)
            yield _difference(left, "optimizer", old, new, Cause("another optimizer", sentence), name)
    counts = [step.decayed or (0, 0) for step in (left, right)]
    if is_one_kind and counts[0][1] == counts[1][1] and counts[0][0] != counts[1][0]:
        values = f"{counts[1][0]} of {counts[1][1]} elements instead of {counts[0][0]}"
        advice = undecayed_text(left, right, names) or "Compare which parameters have weight decay"
        cause = Cause("another optimizer", joined(f"{differs} weight decay for {values}", advice))
        yield _difference(left, "optimizer", counts[0][0], counts[1][0], cause, "number of elements with weight decay")
    if rows := compare_rows(left, right):
        yield _difference(left, "optimizer", *rows, "rule for repeated rows")
    rules = decay_rules(left, right) if is_one_kind else ""
    if rules or not is_one_kind:
        sentence = f"{left.run} uses the optimizer {left.optimizer}, and {right.run} uses {right.optimizer}"
        sentence = joined(sentence, rules)
        yield _difference(left, "optimizer", left.optimizer, right.optimizer, Cause("another optimizer", sentence))
    # the place of eps comes last, because its effect is often the smallest
    if is_moved and (effects := compare_places(left, right)):
        yield _difference(left, "optimizer", *effects, "effective eps")


def _other_rates(left: OptimizerStep, right: OptimizerStep, names: Names, rounding: float) -> str:
    if not (left.rates or right.rates):
        return ""
    other: dict[str, list[str]] = {}
    for name, name_in_right in names.items():
        of_names = ((left, name), (right, name_in_right))
        old, new = (step.rates.get(each, step.settings.get("lr")) for step, each in of_names)
        if isinstance(old, tuple) or isinstance(new, tuple) or old is None or new is None:
            return ""
        if not same_setting(old, new, tolerance_of(left, right), rounding=rounding):
            other.setdefault(f"{setting_text(new)} instead of {setting_text(old)}", []).append(
                name if name_in_right.isdecimal() else name_in_right
            )
    return joined(*(f"The learning rate of {names_text(each)} is {rates}" for rates, each in other.items()))


def _setting(step: OptimizerStep, name: str) -> Setting | None:
    # only PyTorch has dampening, and only TensorFlow 1 and optax record the initial value of RMSprop
    is_zero = name == "dampening" or (
        name == INITIAL and step.optimizer.lower().endswith(".rmsprop") and not step.optimizer.startswith("tf.")
    )
    return step.settings.get(name, 0.0 if is_zero and step.optimizer.startswith(LIBRARIES) else None)


def _initial_advice(step: OptimizerStep, initial: Setting) -> str:
    if step.optimizer == "torch.optim.RMSprop":
        advice = f"In {step.run}, use the class in docs/my-loss-curve-differs.md#rmsprop-and-adagrad"
    elif step.optimizer.lower().endswith(".rmsprop") and not step.optimizer.startswith("optax."):
        advice = "docs/my-loss-curve-differs.md#rmsprop-and-adagrad lists the initial mean of each RMSprop"
    else:
        advice = f"In {step.run}, set the initial value to {setting_text(initial)}"
    return joined(advice, "Ignore this cause if a run resumes from a checkpoint, or sets the state of its optimizer")


def compare_changed_rates(a: RecordedRun, b: RecordedRun) -> Iterator[StepDifference]:
    pairs = zip(a.optimizer_steps, b.optimizer_steps, strict=False)
    for (before, _), (left, right) in itertools.pairwise(pairs):
        rates = before.settings.get("lr"), left.settings.get("lr")
        if None in rates or rates[0] == rates[1]:
            continue
        if rules := compare_momentum(left, right):
            yield _difference(left, "optimizer", *rules, MOMENTUM)
            return


def same_setting(
    a: Setting, b: Setting, tolerance: float = EQUAL, *, is_ordered: bool = False, rounding: float = TINY
) -> bool:
    sides = [each if isinstance(each, tuple) else (each,) for each in (a, b)]
    left, right = sides if is_ordered else [sorted({*each}) for each in sides]
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(math.isclose(x, y, rel_tol=tolerance, abs_tol=rounding) for x, y in pairs)


def _difference(
    step: OptimizerStep, stage: Stage, a: object, b: object, cause: Cause, setting: str | None = None
) -> StepDifference:
    return StepDifference(Divergence(step.step, stage, a, b, setting), cause)
