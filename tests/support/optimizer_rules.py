"""Identify the rules of a framework's own optimizers from their updates, as `unified-clip compare` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from unified_clip.recipes.optimizers.rules import IN_ROOT, OF_ROOT, PLACE_OF_EPS, PLACES
from unified_clip.recipes.optimizers.updates import Step, recipes

RATE, EPS, ELEMENTS, STEPS = 0.125, 1e-3, 12, 6
AFTER, BEFORE, _ = PLACES

EXPECTED: dict[str, dict[str, dict[str, object]]] = {
    "adam": {
        library: {PLACE_OF_EPS: BEFORE if library in ("keras", "tf") else AFTER}
        for library in ("torch", "paddle", "optax", "keras", "tf")
    },
    "adamw": {
        library: {PLACE_OF_EPS: BEFORE if library == "keras" else AFTER}
        for library in ("torch", "paddle", "optax", "keras")
    },
    "rmsprop": {
        "torch": {PLACE_OF_EPS: OF_ROOT[0]},
        "paddle": {PLACE_OF_EPS: IN_ROOT},
        "optax": {PLACE_OF_EPS: IN_ROOT},
        "keras": {PLACE_OF_EPS: IN_ROOT},
        "tf": {PLACE_OF_EPS: IN_ROOT, "initial squares": 1.0},
    },
}
"""{class of an optimizer in lower case: {library: settings of its rule, and None for one that is switched off}}."""

Single = Any  # an array of float32
Weights = Callable[[str, Sequence[Single]], Sequence[Single]]
"""A function (class, gradients) that returns the weights before and after each step, with RATE and EPS."""


def check_rules(library: str, module: Any, weights_of: Weights, suffix: str = "") -> None:
    """suffix: What the names of the classes end with, such as "Optimizer"."""
    classes = {name.lower(): name for name in dir(module) if callable(getattr(module, name))}
    for name, libraries in EXPECTED.items():
        if library in libraries:
            _check_rule(partial(weights_of, classes[f"{name}{suffix}"]), name, libraries[library])


def _check_rule(weights_of: Callable[[Sequence[Single]], Sequence[Single]], name: str, expected: Any) -> None:
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1e-3, 1, ELEMENTS)  # EPS changes the updates of small gradients most
    gradients = [(rng.standard_normal(ELEMENTS) * sizes).astype(np.float32) for _ in range(STEPS)]
    weights = [np.array(each, np.float64) for each in weights_of(gradients)]
    assert len(weights) == STEPS + 1
    steps = [
        Step({"w": gradient.astype(np.float64)}, {"w": before}, {"w": after - before})
        for gradient, before, after in zip(gradients, weights, weights[1:], strict=False)
    ]
    kind = "RMSprop" if name == "rmsprop" else "Adam"
    # Adam with betas[0] = 0 and without bias correction is RMSprop, and a rate that grows can replace the correction
    found = [
        recipe
        for recipe in recipes(steps)
        if recipe.settings["optimizer"] == kind and np.allclose(recipe.rates, RATE, rtol=1e-3)
    ]
    assert found, name
    for recipe in found:
        assert {key: recipe.settings.get(key) for key in expected} == expected
        assert recipe.settings["eps"] == EPS
