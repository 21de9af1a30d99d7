"""Which steps train one network."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unified_clip.recipes.networks import find_networks
from unified_clip.recording.recorded_run import OptimizerStep, Parameter


def _step(instance: int, weight: float) -> OptimizerStep:
    tensors = {"w": Parameter(norm=1.0, shape=(2,), weight_sample=(weight, 2 * weight))}
    settings = {"step": 1, "optimizer": "optax.sgd", "settings": {"lr": 0.1}, "parameters": ("w",), "tensors": tensors}
    return OptimizerStep.model_validate({**settings, "instance": instance})


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        ([(1, 1.0), (2, 0.95), (3, 0.9)], [3]),  # made anew for each step
        ([(1, 1.0), (1, 0.95), (2, 1.0), (2, 0.95)], [2, 2]),  # another fold, from the same seed
        ([(1, 1.0), (1, 0.95), (2, 0.9), (2, 0.85)], [4]),
        ([(1, 1.0), (1, 0.95), (2, 8.0), (2, 7.0)], [2, 2]),
    ],
)
def test_an_optimizer_that_is_made_anew_continues_only_the_same_training(
    steps: Sequence[tuple[int, float]], lengths: Sequence[int]
) -> None:
    assert [len(network.steps) for network in find_networks([_step(*each) for each in steps])] == lengths
