"""Adaptive thresholds in optax and in Paddle's optimizers: norms of weights, and what is rejected."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where
from support.trainers.adaptive_cases import CONFIG, UNITS, check_units_in_an_optimizer

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in ("jax", "paddle"))]


def step_of_optax(weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    import jax
    import optax

    optimizer = optax.chain(UNITS.as_optax(), optax.sgd(1.0))
    updates, _ = jax.jit(optimizer.update)([gradient], optimizer.init([weight]), [weight])
    return weight + np.asarray(updates[0])


def step_of_paddle(weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    import paddle

    initializer = paddle.nn.initializer.Assign(weight)
    parameter = paddle.create_parameter(weight.shape, "float32", default_initializer=initializer)
    parameter.grad = paddle.to_tensor(gradient)
    paddle.optimizer.SGD(1.0, [parameter], grad_clip=UNITS.as_paddle()).step()
    return parameter.numpy()


def test_agc_clips_by_the_norms_of_the_weights(kit: Kit) -> None:
    check_units_in_an_optimizer(step_of_optax if kit.name == "jax" else step_of_paddle)


@where(lambda kit: kit.name == "paddle")
def test_an_adaptive_threshold_in_paddle_needs_a_single_group_of_parameters() -> None:
    paddle: Any = importlib.import_module("paddle")
    weights = [paddle.create_parameter([3], "float32") for _ in "ab"]
    groups = [{"params": [weight]} for weight in weights]
    optimizer = paddle.optimizer.SGD(1.0, groups, grad_clip=CONFIG.as_paddle())
    (weights[0] + weights[1]).sum().backward()
    with pytest.raises(RuntimeError, match="an adaptive threshold needs an optimizer with a single group"):
        optimizer.step()


@where(lambda kit: kit.name == "jax")
def test_agc_finds_the_parameter_of_each_update_of_optax() -> None:
    ones, units = np.ones(3, np.float32), UNITS.as_optax()
    with pytest.raises(ValueError, match="1 updates for 2 parameters, and the update 'c' has no parameter"):
        units.update({"c": ones}, units.init([]), {"a": ones, "b": ones})
    with pytest.raises(ValueError, match="1 updates for 2 parameters, and two parameters have the same name"):
        units.update({"a": {"b": ones}}, units.init([]), {"a": {"b": ones}, "a.b": ones})
    with pytest.raises(ValueError, match="agc needs the parameters"):
        units.update([ones], units.init([ones]))
    updates, _ = units.update({"a": None, "b": 100 * ones}, units.init([]), {"a": 7 * ones, "b": ones})
    np.testing.assert_array_equal(updates["b"], UNITS([100 * ones], parameters=[ones])[0])
    assert updates["a"] is None
