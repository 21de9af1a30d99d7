"""Checks of adaptive thresholds in graphs and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import adaptive
from support import adaptive_tensors as oracle

from unified_clip import ClipConfig
from unified_clip import adaptive as functions

FITTING = [setting for setting in adaptive.SETTINGS if setting not in adaptive.GROWING]

ADAGC, AGC = functions.AdaGC(warmup_steps=25), functions.AGC(0.5, "optax")

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


def check_tensor_graph(clip: Any, make: Any, clip_units: Any) -> None:
    """Compare compiled functions of three gradients with the recursion of AdaGC, and with the definition of AGC.

    clip: Returns (clipped gradients, new state) of gradients and a state. clip_units: Returns the clipped gradients of
    gradients and parameters.
    """
    steps = [[0.5 if norm is None else norm for norm in norms] for norms in oracle.NORMS[:70]]
    state = functions.initial_state(ADAGC, [make(gradient) for gradient in oracle.gradients(steps[0])])
    for norms, (coefs, expected_state) in zip(steps, oracle.adagc(steps, warmup_steps=25, eps=0.0), strict=True):
        results, state = clip([make(gradient) for gradient in oracle.gradients(norms)], state)
        for result, expected in zip(results, oracle.scaled(norms, coefs), strict=True):
            np.testing.assert_array_equal(np.asarray(result), expected)
        assert functions.read_state(ADAGC, state) == expected_state
    chance = np.random.default_rng(0)
    gradients, parameters = ([chance.standard_normal((4, 3)).astype(np.float32), np.float32([0, 2, 3])] for _ in "gp")
    gradients[0][1:3] = [[np.nan, 1, 1], [0, 1e-4, 0]]
    expected_state = [
        oracle.agc(*pair, clip_factor=0.5, convention="optax") for pair in zip(gradients, parameters, strict=True)
    ]
    results = clip_units([make(gradient) for gradient in gradients], [make(gradient) for gradient in parameters])
    for result, expected in zip(results, expected_state, strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected)


UNITS = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", "clip_factor": 0.05})
TENSORS = ClipConfig(rule="norm", adaptive={"rule": "adagc", "warmup_steps": 3})


def check_absent_gradients(step: Any, state_dict: Any) -> None:
    """Train heads in turn. Each parameter keeps its own state. If states were assigned by position, the states would be
    mixed up.

    step: Makes a step with two gradients of three numbers, some of them None, and returns the effects on the weights.
    """
    clip, sequence = TENSORS.clipper(), [(2.0, 2000.0), (None, 1000.0), (1.0, None), (None, 3000.0), (3.0, None)]
    for norms in sequence:
        gradients = [None if norm is None else gradient(norm) for norm in norms]
        for effect, expected in zip(step(gradients), clip(gradients), strict=True):
            np.testing.assert_array_equal(effect, np.zeros(3) if expected is None else -expected)
    assert state_dict()["adaptive"] == clip.state_dict()["adaptive"]


def check_units_in_an_optimizer(step: Any) -> None:
    """step: Makes a step with the gradient of a weight with these values, and returns the effect on the weight."""
    chance = np.random.default_rng(0)
    weight, grad = (chance.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    (expected,) = UNITS([grad], parameters=[weight])
    np.testing.assert_array_equal(step(weight, grad), weight - expected)
    assert (expected != grad).any()
