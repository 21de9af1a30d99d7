"""Compare the learning rates of two runs, and the recorded settings of their optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ...recording.recorded_run import OptimizerStep
from ..finding import Finding, in_order, value_text
from ..run import Run
from .rules import DECAY, EQUAL, same_setting
from .updates import RATE, SAME_DECAY

SCHEDULE = "learning rate schedule"
RATES = (RATE, SCHEDULE)
"""The fields of learning rates."""

LIBRARIES = ("torch", "tensorflow", "tf", "keras", "paddle", "optax")
"""The first names of optimizers whose rule is known by their name. That of a script's own class is not."""

WEIGHT_DECAY = "weight_decay"
"""The name of the recorded setting."""

SUM_FIRST = frozenset({"sgd", "lion", "momentum"})
"""Optimizers that sum the repeated rows of a sparse gradient before the update."""


def rate_finding(a: Run, b: Run, rates: Sequence[Sequence[float]], tolerance: float = EQUAL) -> Finding:
    pairs, slack = list(zip(*rates, strict=False)), _slack(rates)
    differing = [
        place
        for place, (x, y) in enumerate(pairs)
        if not (math.isclose(x, y, rel_tol=tolerance, abs_tol=slack) or math.isnan(x + y))
    ]
    first = differing[0] if differing else 0
    if shift := _shift(a, b, rates, first, tolerance):
        return shift
    old, new = pairs[first]
    sentence = f"from step {first + 1} on, {b.name} has the learning rate {new:.6g} instead of {old:.6g}"
    schedules = "the schedules (docs/porting/optimizers_and_layers.md)"
    fix = f"Compare {schedules}" if first else f"Set the learning rate of {b.name} to {old:.6g}, or compare {schedules}"
    return Finding(first + 1, "another learning rate", RATE, sentence, fix, old, new)


def other_rates(a: Run, b: Run, rates: Sequence[Sequence[float]]) -> Finding | None:
    slack = _slack(rates)
    are_equal = all(math.isclose(x, y, rel_tol=EQUAL, abs_tol=slack) for x, y in zip(*rates, strict=False))
    return None if are_equal else rate_finding(a, b, rates)


def _slack(rates: Sequence[Sequence[float]]) -> float:
    """The rounding of the largest learning rate, from which a schedule can subtract."""
    return 2.0**-22 * max((abs(rate) for side in rates for rate in side if not math.isnan(rate)), default=0.0)


def _shift(a: Run, b: Run, rates: Sequence[Sequence[float]], first: int, tolerance: float) -> Finding | None:
    slack = _slack(rates)
    for start in dict.fromkeys((0, first)):
        for run, other, side in ((b, a, 1), (a, b, 0)):
            both = zip(rates[side][start:], rates[1 - side][start + 1 :], strict=False)
            pairs = [(x, y) for x, y in both if not math.isnan(x + y)]
            is_same = all(math.isclose(x, y, rel_tol=tolerance, abs_tol=slack) for x, y in pairs)
            if is_same and len({x for x, _ in pairs}) > 1:
                sentence = f"the learning rates of {run.name} are one step ahead of those of {other.name}"
                if start:
                    sentence = (
                        f"from step {start + 1} on, {sentence}. Either {run.name} skips an optimizer step, as a loss "
                        "scaler does after an overflow, or its schedule makes one additional step"
                    )
                fix = (
                    "Call the scheduler in both scripts before the step of the optimizer, or in both after it. If it "
                    f"is a list of boundaries, move those of {b.name} by one step"
                )
                return Finding(first + 1, "shifted step", SCHEDULE, sentence, fix, rates[0][first], rates[1][first])
    return None


def compare_settings(
    a: Run,
    b: Run,
    left: Sequence[OptimizerStep],
    right: Sequence[OptimizerStep],
    rates: Sequence[Sequence[float] | None],
) -> Iterator[Finding]:
    if not (left and right) or not (left[0].optimizer and right[0].optimizer):
        return
    old, new = left[0], right[0]
    if rates[0] is not None and rates[1] is not None and (found := other_rates(a, b, [rates[0], rates[1]])):
        yield found
    if _kind(old) != _kind(new):
        if not (_is_of_library(old) and _is_of_library(new)):  # the name of a script's own class says nothing
            return
        sentence = f"{a.name} uses the optimizer {old.optimizer}, and {b.name} uses {new.optimizer}"
        yield Finding(1, "another optimizer", "optimizer", sentence, "", old.optimizer, new.optimizer)
        return
    absent = {"dampening": 0.0} if _kind(old) == "sgd" else {}  # only PyTorch has it
    of_one_library = old.optimizer.partition(".")[0] == new.optimizer.partition(".")[0]
    left_settings, right_settings = absent | old.settings, absent | new.settings
    for name in left_settings.keys() & right_settings.keys() - {"lr"}:
        if name == "eps" and not of_one_library:  # libraries add it at different places
            continue
        values = left_settings[name], right_settings[name]
        if not same_setting(*(_distinct(each) if name == WEIGHT_DECAY else each for each in values)):
            sentence = (
                f"{name} of the optimizer is {value_text(values[1])} in {b.name} instead of {value_text(values[0])}"
            )
            fix = f"Set {name} to {value_text(values[0])} in {b.name}"
            yield Finding(1, "another optimizer", name, sentence, fix, *values)


def _distinct(decays: Any) -> Any:
    """PyTorch records the decay of each group, and the other frameworks each decay once."""
    values = sorted(set(decays)) if isinstance(decays, tuple) else [decays]
    return tuple(values) if len(values) > 1 else values[0]


def _is_of_library(step: OptimizerStep) -> bool:
    return step.optimizer.partition(".")[0] in LIBRARIES


def _kind(step: OptimizerStep) -> str:
    name = step.optimizer.rpartition(".")[2].lower()
    return {"momentum": "sgd"}.get(name, name)


def squared_rows(a: Run, b: Run, left: Sequence[OptimizerStep], right: Sequence[OptimizerStep]) -> Finding | None:
    rows = [next((step for step in steps if step.repeated_rows), None) for steps in (left, right)]
    squares = [step is not None and _kind(step) not in SUM_FIRST for step in rows]
    if squares[0] == squares[1] or not (left and right):
        return None
    if not _is_of_library((right if squares[0] else left)[0]):  # a script's own optimizer may square each row, too
        return None
    run, step = (a, rows[0]) if squares[0] else (b, rows[1])
    assert step is not None
    number = (left if squares[0] else right).index(step) + 1
    sentence = (
        f"{step.optimizer} of {run.name} gets gradients as IndexedSlices with repeated rows, and squares each row "
        "separately. The other run squares the sum of the repeated rows"
    )
    fix = "In Keras, call tf.convert_to_tensor(gradient) before apply_gradients"
    values = in_order("each row", "the sum of the rows", squares[0])
    return Finding(number, "squared rows", "squares of", sentence, fix, *values)


def other_decay(b: Run, left: Sequence[OptimizerStep], right: Sequence[OptimizerStep]) -> Iterator[Finding]:
    """Compare the recorded weight decays, if the measured ones agree, which are less exact."""
    old, new = (steps[0].settings.get(WEIGHT_DECAY) if steps else None for steps in (left, right))
    if not isinstance(old, float) or not isinstance(new, float) or not math.isclose(old, new, rel_tol=SAME_DECAY):
        return  # recorded in other terms
    if not same_setting(old, new):
        sentence = f"the weight decay of {b.name} is {new:.6g} instead of {old:.6g}"
        yield Finding(1, "another optimizer", DECAY, sentence, f"Set it to {old:.6g} in {b.name}", old, new)
