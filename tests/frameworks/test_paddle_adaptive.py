"""Adaptive thresholds in static programs of Paddle, and in `grad_clip=`: the bits of the recursion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support import adaptive
from support.tiers import REMOVES_GRADIENTS
from support.trainers.adaptive_cases import (
    CONFIG,
    HALF,
    TENSORS,
    THRESHOLDS,
    UNITS,
    check_absent_gradients,
    check_tensors_in_an_optimizer,
    check_tensors_resume,
    check_units_in_an_optimizer,
    gradient,
    state_of_another_framework,
)


def training(clip: Any) -> Any:
    weight = paddle.create_parameter([3], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
    optimizer = paddle.optimizer.SGD(1.0, [weight], grad_clip=clip)

    def step(norm: float) -> np.ndarray:
        weight.set_value(np.zeros(3, np.float32))
        (weight * paddle.to_tensor(gradient(norm))).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        result: np.ndarray = weight.numpy()
        return result

    return step


def test_a_run_goes_on_from_its_state_and_from_that_of_another_framework() -> None:
    first = CONFIG.as_paddle()
    whole = training(first)
    changes = [whole(norm) for norm in adaptive.NORMS[:HALF]]
    saved = json.loads(json.dumps(first.state_dict()))
    assert saved == state_of_another_framework()
    changes += [whole(norm) for norm in adaptive.NORMS[HALF:]]
    second = CONFIG.as_paddle()
    second.load_state_dict(saved)
    resumed = training(second)
    for norm, change, threshold in zip(adaptive.NORMS[HALF:], changes[HALF:], THRESHOLDS[HALF:], strict=True):
        np.testing.assert_array_equal(resumed(norm), change)
        assert second.last.parts[""].threshold == threshold


def weights_of(*values: np.ndarray) -> list[Any]:
    make = paddle.nn.initializer.Assign
    return [paddle.create_parameter(each.shape, "float32", default_initializer=make(each)) for each in values]


def adagc_in_an_optimizer() -> tuple[Callable[[Any], Any], Any]:
    weights = weights_of(np.zeros(3, np.float32), np.zeros(3, np.float32))
    clip = TENSORS.as_paddle(dict(zip("ab", weights, strict=True)))
    optimizer = paddle.optimizer.SGD(1.0, weights, grad_clip=clip)

    def step(gradients: Any) -> Any:
        for weight, grad in zip(weights, gradients, strict=True):
            weight.set_value(np.zeros(3, np.float32))
            weight.grad = None if grad is None else paddle.to_tensor(grad)
        optimizer.step()
        return [weight.numpy() for weight in weights]

    return step, clip


def test_adagc_and_agc_clip_in_an_optimizer() -> None:
    step, clip = adagc_in_an_optimizer()
    check_tensors_in_an_optimizer(step, clip.state_dict)

    def unit_step(values: Any, grad: Any) -> Any:
        (weight,) = weights_of(values)
        weight.grad = paddle.to_tensor(grad)
        paddle.optimizer.SGD(1.0, [weight], grad_clip=UNITS.as_paddle()).step()
        return weight.numpy()

    check_units_in_an_optimizer(unit_step)


@REMOVES_GRADIENTS
def test_parameters_without_a_gradient_keep_their_places() -> None:
    step, clip = adagc_in_an_optimizer()

    def step_of_one_head(gradients: Any) -> Any:
        clip.step = clip.step  # begins a new step
        return step(gradients)

    check_absent_gradients(step_of_one_head, clip.state_dict)
    weights = weights_of(np.zeros(3, np.float32), np.zeros(3, np.float32))
    optimizer = paddle.optimizer.SGD(1.0, weights, grad_clip=TENSORS.as_paddle({"a": weights[0]}))
    (weights[0] + weights[1]).sum().backward()
    with pytest.raises(ValueError, match=r"is not in the model .* Pass the whole model: clip\.as_paddle\(model\)"):
        optimizer.step()
    with pytest.raises(TypeError, match=r"adagc has a state for each parameter.* Pass the model: clip\.as_paddle"):
        TENSORS.as_paddle()


def test_adagc_goes_on_from_its_state_and_from_that_of_another_framework() -> None:
    check_tensors_resume(adagc_in_an_optimizer)


def test_several_groups_of_parameters_are_rejected() -> None:
    weights = [paddle.create_parameter([2], "float32") for _ in range(2)]
    groups = [{"params": [weight]} for weight in weights]
    optimizer = paddle.optimizer.SGD(1.0, groups, grad_clip=CONFIG.as_paddle())
    (weights[0] + weights[1]).sum().backward()
    with pytest.raises(RuntimeError, match="an adaptive threshold needs an optimizer with a single group"):
        optimizer.step()
