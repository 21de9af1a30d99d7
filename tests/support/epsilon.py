"""Measure where an optimizer adds its epsilon, from the sizes of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from unified_clip.recording.optimizers.epsilon import PLACES

GRADIENT, EPS, BETA2 = 0.5, 0.25, 0.75
STEPS = 8
"""The number of steps. The first steps of RAdam have no epsilon."""

BETAS = ("adam", "adamw", "nadam", "radam", "adamax")
"""The optimizers that have two betas. They are 0.5 and `BETA2` in measurements."""

Steps = Callable[[str, float, Sequence[float]], Sequence[float]]
"""A function (class, eps, gradients) that returns the change of one number in each step of an optimizer."""


def measured(name: str, steps: Callable[[float, Sequence[float]], Sequence[float]]) -> str:
    """Return where an optimizer adds its epsilon, in the words of `epsilon.Place`."""
    if name.lower() == "adamax":
        gradients = [GRADIENT, GRADIENT / 8]
        without, with_eps = (steps(eps, gradients) for eps in (1e-12, EPS))
        first, second = (a / b - 1 for a, b in zip(without, with_eps, strict=True))  # eps, relative to the maximum
        if first == pytest.approx(0, abs=1e-5):
            return "to the earlier maximum"
        assert first == pytest.approx(EPS / GRADIENT, rel=1e-4)
        return {1.0: "to each gradient", round(1 / BETA2, 4): "to the maximum"}[round(second / first, 4)]
    gradients = [GRADIENT] * STEPS
    without, once, twice = (steps(eps, gradients)[-1] for eps in (1e-12, EPS, 2 * EPS))
    once_divisor, twice_divisor = without / once, without / twice  # the divisors, relative to that without eps
    if (twice_divisor**2 - 1) / (once_divisor**2 - 1) == pytest.approx(2, rel=1e-4):
        return "inside the root"
    assert (twice_divisor - 1) / (once_divisor - 1) == pytest.approx(2, rel=1e-4)
    if name.lower() in ("rmsprop", "adagrad"):
        return "outside the root"
    size = (once_divisor - 1) * GRADIENT / EPS
    if size == pytest.approx(1, rel=1e-4):
        return "after the bias correction"
    assert size == pytest.approx((1 - BETA2**STEPS) ** -0.5, rel=1e-4)
    return "before the bias correction"


def check_places(library: str, module: Any, steps: Steps, suffix: str = "") -> None:
    """Check the place of epsilon of each optimizer of a library that the table has.

    library: The key of the library in `PLACES`.
    module: The module with its optimizers. The table has their names in lower case, without `suffix`.
    """
    classes = {name.lower(): name for name in dir(module) if callable(getattr(module, name))}
    expected = {classes[f"{name}{suffix}"]: places[library] for name, places in PLACES.items() if library in places}
    assert len(expected) > 1
    assert {name: measured(name.removesuffix("Optimizer"), partial(steps, name)) for name in expected} == expected
