"""The expected clips of integrations are right for rules that NumPy itself can compute."""

from __future__ import annotations

import numpy as np
import pytest
from support.clip_cases import CONFIGS, clip_by_numpy, gradients

from unified_clip import ClipConfig


@pytest.mark.parametrize(("case", "low", "high"), [("values", -0.5, 0.5), ("two bounds", -0.25, 0.5)])
def test_values_are_clipped_to_their_bounds(case: str, low: float, high: float) -> None:
    for step in clip_by_numpy(ClipConfig(**CONFIGS[case]), gradients()):
        for name, gradient in step.gradients.items():
            np.testing.assert_array_equal(step.clipped[name], np.clip(gradient, low, high))


def test_the_norm_is_the_total_norm() -> None:
    config = ClipConfig(**CONFIGS["without biases"])
    for step in clip_by_numpy(config, gradients()):
        kernels = [gradient.astype(float) for name, gradient in step.gradients.items() if "bias" not in name]
        norm = np.float32(np.sqrt(sum((kernel**2).sum() for kernel in kernels)))
        assert step.norm == norm
        assert step.coef == min(1.0, 1.5 / (float(norm) + 1e-6))
