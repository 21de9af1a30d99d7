"""Checks of adaptive thresholds in graphs and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import adaptive

from unified_clip import ClipConfig
from unified_clip import adaptive as functions

FITTING = [setting for setting in adaptive.SETTINGS if setting not in adaptive.GROWING]

AGC = functions.AGC(0.5, "optax")

CONFIG = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}, threshold=3.0)


def gradient(norm: float) -> np.ndarray:
    return np.array([0.0, -norm, 0.0], np.float32)


def rule_of(settings: dict[str, Any]) -> Any:
    from unified_clip.adaptive.rules import RULES

    return RULES[settings["rule"]](**{key: value for key, value in settings.items() if key != "rule"})


class Doubling:
    """A user's own rule: at most twice the root of the last norm, and the largest norm so far."""

    def init(self) -> dict[str, Any]:
        return {"largest": 0.0, "last": 1.0}

    def threshold(self, state: Any, norm: Any, step: Any) -> Any:
        from unified_clip.adaptive import minimum, sqrt, where

        limit = minimum(state["largest"], 2.0 * sqrt(state["last"]) / 3.0 + 0.1)
        largest = where(norm > state["largest"], norm, state["largest"])
        return where(step < 1.0, float("inf"), limit), {"largest": largest, "last": norm * 0.1 + state["last"] * 0.9}


def check_graph(clip: Any, make: Any, rule: Any = None, settings: Any = None) -> None:
    """Compare 200 steps of a compiled function with the recursion, or with NumPy for a user's own rule.

    clip: Returns (clipped gradient, norm, new state) of a gradient and a state.
    """
    rule = rule or rule_of(settings)
    state, host = functions.initial_state(rule, make(gradient(1.0))), functions.initial_state(rule, np.zeros(1))
    expected_steps = adaptive.steps(settings) if settings else [(None, None)] * len(adaptive.NORMS)
    for norm, (_, recursion) in zip(adaptive.NORMS, expected_steps, strict=True):
        result, total, state = clip(make(gradient(norm)), state)
        (expected,), _, host = functions.clip_by_global_norm([gradient(norm)], rule, host)
        np.testing.assert_array_equal(np.asarray(result), expected)
        np.testing.assert_array_equal(np.asarray(total), np.float32(norm))
        now = functions.read_state(rule, state)
        assert now == functions.read_state(rule, host)
        assert recursion is None or now == recursion


def check_unit_graph(clip: Any, make: Any) -> None:
    """Compare a compiled function, which clips gradients for parameters, with the definition of AGC."""
    chance = np.random.default_rng(0)
    gradients, parameters = ([chance.standard_normal((4, 3)).astype(np.float32), np.float32([0, 2, 3])] for _ in "gp")
    gradients[0][1:3] = [[np.nan, 1, 1], [0, 1e-4, 0]]
    results = clip([make(gradient) for gradient in gradients], [make(parameter) for parameter in parameters])
    for result, gradient, parameter in zip(results, gradients, parameters, strict=True):
        expected = adaptive.agc(gradient, parameter, clip_factor=0.5, convention="optax")
        np.testing.assert_array_equal(np.asarray(result), expected)


UNITS = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", "clip_factor": 0.05})


def check_units_in_an_optimizer(step: Any) -> None:
    """step: Makes a step with the gradient of a weight with these values, and returns the effect on the weight."""
    chance = np.random.default_rng(0)
    weight, grad = (chance.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    (expected,) = UNITS([grad], parameters=[weight])
    np.testing.assert_array_equal(step(weight, grad), weight - expected)
    assert (expected != grad).any()
