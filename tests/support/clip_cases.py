"""Configurations, gradients for some steps, and the clips of the host path, for tests that clip the same gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from unified_clip import ClipConfig

SHAPES = {"hidden.kernel": (3, 4), "hidden.bias": (4,), "output.kernel": (4, 1), "output.bias": (1,)}

LINEAR = {"schedule": "linear", "start": 3.0, "end": 0.3, "steps": 4, "begin": 1}
COSINE = {"schedule": "cosine", "start": 3.0, "end": 0.3, "steps": 5}
PIECEWISE = {"schedule": "piecewise", "values": [5.0, 0.7, 2.0], "boundaries": [2, 4]}
HEAD = {"name": "head", "include": ["*output*"], "threshold": 0.25}

CONFIGS: dict[str, dict[str, Any]] = {
    "global norm": {"rule": "global_norm", "threshold": 1.5},
    "a norm for each": {"rule": "norm", "threshold": 1.0, "family": "tensorflow"},
    "order 3": {"rule": "global_norm", "threshold": 1.5, "norm_type": 3.0},
    "values": {"rule": "value", "threshold": 0.5},
    "two bounds": {"rule": "value", "min": -0.25, "max": 0.5},
    "only measured": {"rule": "none"},
    "without biases": {"rule": "global_norm", "threshold": 1.5, "exclude": ["*.bias"]},
    "groups": {"rule": "global_norm", "threshold": 1.5, "groups": [HEAD]},
    "linear": {"rule": "global_norm", "threshold": LINEAR},
    "cosine": {"rule": "global_norm", "threshold": COSINE},
    "piecewise": {"rule": "norm", "threshold": PIECEWISE},
    "values by schedule": {"rule": "value", "threshold": LINEAR},
}

NONFINITE = {
    "zero": {"rule": "global_norm", "threshold": 1.5, "nonfinite": "zero"},
    "values zero": {"rule": "value", "threshold": 0.5, "nonfinite": "zero"},
    "paddle": {"rule": "global_norm", "threshold": 1.5, "family": "paddle"},
    "tensorflow": {"rule": "global_norm", "threshold": 1.5, "family": "tensorflow"},
}

ONE_OVERFLOWS: dict[str, Any] = {"rule": "norm", "threshold": 1.0, "norm_type": 1.0}
"""Clips each tensor by its own 1-norm. In `overflowing()`, one of these norms exceeds float32, and the total norm does
not."""

STEPS = 6


class Step(NamedTuple):
    gradients: dict[str, np.ndarray]
    clipped: dict[str, np.ndarray]
    norm: float
    coef: float
    is_clipped: bool | None
    norm_clipped: float | None


def gradients(steps: int = STEPS, *, nan_at: int | None = None, inf_at: int | None = None) -> list[dict[str, Any]]:
    """Return the same gradients for every framework. Their norms are between 0.2 and 10."""
    random = np.random.default_rng(7)
    sequence = []
    for step in range(steps):
        size = np.float32((3.0, 0.1, 1.0)[step % 3])
        step_gradients = {name: random.standard_normal(shape, np.float32) * size for name, shape in SHAPES.items()}
        if step in (nan_at, inf_at):
            step_gradients["output.kernel"][1, 0] = np.nan if step == nan_at else np.inf
        sequence.append(step_gradients)
    return sequence


def overflowing() -> dict[str, Any]:
    gradients = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    gradients["hidden.bias"][:2] = 2.4e38
    return gradients


def clip_by_numpy(config: ClipConfig, gradients: list[dict[str, Any]]) -> list[Step]:
    clip = config.clipper()
    steps = []
    for grads in gradients:
        clipped = clip(grads)
        last = clip.last
        steps.append(Step(grads, clipped, last.norm, last.coef, last.clipped, last.norm_clipped))
    return steps


def assert_equal(results: dict[str, np.ndarray], expected: dict[str, np.ndarray], ulp: int) -> None:
    for name, array in expected.items():
        if ulp == 0:
            np.testing.assert_array_equal(results[name], array, err_msg=name)
        else:
            finite = np.isfinite(array)
            np.testing.assert_array_equal(results[name][~finite], array[~finite], err_msg=name)
            np.testing.assert_array_max_ulp(results[name][finite], array[finite], ulp)


def assert_reported(last: Any, expected: Step, step: int, ulp: int) -> None:
    assert last.step == step
    for result, number in ((last.norm, expected.norm), (last.coef, expected.coef)):
        if np.isfinite(number):
            np.testing.assert_array_max_ulp(np.float32(result), np.float32(number), ulp)
        else:
            assert str(result) == str(number)
    if last.norm_clipped is not None and expected.norm_clipped is not None:  # each knows it for some rules
        assert last.norm_clipped == pytest.approx(expected.norm_clipped, rel=1e-6, nan_ok=True)
    if expected.is_clipped is not None:
        assert last.clipped == expected.is_clipped
    else:  # the host path does not report it, so compare the gradients
        assert last.clipped == any(
            not np.array_equal(expected.clipped[name], expected.gradients[name], equal_nan=True)
            for name in expected.gradients
        )
