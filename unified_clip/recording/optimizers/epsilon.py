"""Compare the places where two optimizers add eps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ...causes.cause import Cause, joined
from ..recorded_run import OptimizerStep, Setting
from .names import LIBRARIES

EQUAL = 1e-6
"""Settings with a smaller relative difference are equal, because some frameworks store them as float32."""

# v is the second moment, t is the step, and c = 1 - beta2**t is the bias correction.
Place = Literal[
    "after the bias correction",  # sqrt(v / c) + eps
    "before the bias correction",  # (sqrt(v) + eps) / sqrt(c)
    "inside the root",  # sqrt(v + eps)
    "outside the root",  # sqrt(v) + eps
    # Adamax divides by a maximum of gradients
    "to each gradient",
    "to the maximum",
    "to the earlier maximum",
]

AFTER: Final = "after the bias correction"
BEFORE: Final = "before the bias correction"
INSIDE: Final = "inside the root"
OUTSIDE: Final = "outside the root"

CONDITION: Final = "Ignore this cause if a run resumes from a checkpoint, or has several optimizers"

PLACES: Mapping[str, Mapping[str, Place]] = {
    "adam": {"torch": AFTER, "paddle": AFTER, "optax": AFTER, "keras": BEFORE, "tf": BEFORE},
    "adamw": {"torch": AFTER, "paddle": AFTER, "optax": AFTER, "keras": BEFORE},
    "nadam": {"torch": AFTER, "paddle": AFTER, "optax": AFTER, "keras": AFTER},
    "radam": {"torch": BEFORE, "paddle": BEFORE, "optax": AFTER},
    "adamax": {
        "torch": "to each gradient", "optax": "to each gradient", "keras": "to the maximum",
        "paddle": "to the earlier maximum",
    },
    "rmsprop": {"torch": OUTSIDE, "paddle": INSIDE, "optax": INSIDE, "keras": INSIDE, "tf": INSIDE},
    "adagrad": {"torch": OUTSIDE, "paddle": OUTSIDE, "optax": INSIDE, "keras": INSIDE},
}  # fmt: skip
"""{class of an optimizer: {library: place of eps}}. `test_the_place_of_epsilon` checks this table."""


def place_of(step: OptimizerStep) -> Place | None:
    if not step.optimizer.startswith(LIBRARIES):
        return None
    if step.optimizer == "optax.rmsprop" and step.settings.get("eps_in_sqrt") is False:
        return OUTSIDE
    names = step.optimizer.lower().split(".")
    return PLACES.get(names[-1], {}).get(names[0])


def after_correction(step: OptimizerStep) -> Setting | None:
    """Return the eps that has the same effect after the bias correction. `step.step` must count from the first step."""
    place, eps = place_of(step), step.settings.get("eps")
    if place == AFTER or eps is None:
        return eps
    if place != BEFORE or not 0 <= _beta2(step) < 1:
        return None
    correction = (1 - _beta2(step) ** step.step) ** 0.5
    return tuple(each / correction for each in eps) if isinstance(eps, tuple) else eps / correction


def places_differ(left: OptimizerStep, right: OptimizerStep) -> bool:
    places = (place_of(left), place_of(right))
    return None not in places and places[0] != places[1]


def compare_places(left: OptimizerStep, right: OptimizerStep) -> tuple[object, object, Cause] | None:
    """Return (value of left, value of right, cause), or None if the eps of both optimizers have the same effect."""
    epsilons = [(step, eps) for step in (left, right) if (eps := step.settings.get("eps")) is not None]
    if len(epsilons) < 2 or not any(eps for _, eps in epsilons):
        return None
    adds = [f"{step.run} ({step.optimizer}) adds eps {setting_text(eps)} {place_of(step)}" for step, eps in epsilons]
    sentence = f"{', and '.join(adds)}. "
    old, new = after_correction(left), after_correction(right)
    if old is None or new is None:
        unknown = [step for step in (left, right) if place_of(step) == BEFORE and math.isnan(_beta2(step))]
        if unknown:
            sentence += (
                f"The effects of eps were not compared, because the betas of {unknown[0].run} are unknown, or "
                "differ between parameter groups"
            )
        else:
            sentence += "No constant eps has the same effect at both places"
        return place_of(left), place_of(right), Cause("another place of the optimizer's eps", sentence)
    if _are_close(old, new, tolerance_of(left, right)):
        return None
    early, late, effect = (left, right, old) if place_of(left) == BEFORE else (right, left, new)
    same = (
        f"{sentence}At step {left.step}, the eps of {early.run} has the same effect as the eps {setting_text(effect)} "
        f"in {late.run}"
    )
    sentence = joined(same, _advice(early, late), CONDITION)
    return old, new, Cause("another place of the optimizer's eps", sentence)


def _are_close(old: Setting, new: Setting, tolerance: float) -> bool:
    left, right = (sorted({*each}) if isinstance(each, tuple) else [each] for each in (old, new))
    pairs: Iterable[tuple[float, float]]
    if 1 in (len(left), len(right)):
        pairs = itertools.product(left, right)
    elif len(left) == len(right):
        pairs = zip(left, right, strict=True)
    else:
        return False
    return all(math.isclose(x, y, rel_tol=tolerance) for x, y in pairs)


def tolerance_of(left: OptimizerStep, right: OptimizerStep) -> float:
    """Allow for the error of Keras, which computes its bias correction with betas in float32."""
    is_before = [place_of(step) == BEFORE for step in (left, right)]
    if is_before[0] == is_before[1]:
        return EQUAL
    beta2 = _beta2(left if is_before[0] else right)
    return EQUAL if math.isnan(beta2) or beta2 >= 1 else EQUAL + 2.0**-25 / (1 - beta2)  # float32 is off by 2**-25


def _advice(before: OptimizerStep, after: OptimizerStep) -> str:
    """Show all digits of beta2, because 0.999 in float32 is 0.9990000128746033."""
    eps = before.settings["eps"]
    own = "(eps of the group)" if isinstance(eps, tuple) else repr(eps)
    formula = f"{own} / (1 - {_beta2(before)!r}**t) ** 0.5"
    if after.optimizer.startswith("torch."):
        return (
            f"Before each optimizer.step() of {after.run}, insert "
            f'`for group in optimizer.param_groups: group["eps"] = {formula}`, where t counts the steps from 1'
        )
    return f"For the same effect, set the eps of {after.run} to {formula} at each step, where t counts the steps from 1"


def _beta2(step: OptimizerStep) -> float:
    betas = step.settings.get("betas")
    return float(betas[1]) if isinstance(betas, tuple) and len(betas) == 2 else math.nan


def setting_text(value: Setting) -> str:
    values = value if isinstance(value, tuple) else [value]
    return " and ".join(str(each) if isinstance(each, bool) else f"{each:.6g}" for each in values)
