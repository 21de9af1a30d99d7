"""Adaptive thresholds in static programs of Paddle, and in `grad_clip=`: the bits of the recursion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support import adaptive
from support.tiers import REMOVES_GRADIENTS, quick
from support.trainers.adaptive_cases import (
    ADAGC,
    AGC,
    CONFIG,
    FITTING,
    HALF,
    TENSORS,
    THRESHOLDS,
    UNITS,
    Doubling,
    check_absent_gradients,
    check_graph,
    check_tensor_graph,
    check_tensors_in_an_optimizer,
    check_tensors_resume,
    check_units_in_an_optimizer,
    gradient,
    rule_of,
    state_of_another_framework,
)

from unified_clip import adaptive as functions


def program(rule: Any) -> Any:
    length = len(functions.initial_state(rule, np.zeros(1)))
    paddle.enable_static()
    try:
        main = paddle.static.Program()
        with paddle.static.program_guard(main):
            grad, state = paddle.static.data("grad", [3], "float32"), paddle.static.data("state", [length], "float64")
            (result,), norm, new = functions.clip_by_global_norm([grad], rule, state)
    finally:
        paddle.disable_static()

    executor = paddle.static.Executor()

    def run(grad: Any, state: Any) -> Any:
        paddle.enable_static()
        try:
            feed = {"grad": np.asarray(grad), "state": np.asarray(state)}
            return executor.run(main, feed=feed, fetch_list=[result, norm, new])
        finally:
            paddle.disable_static()

    return run


@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2]))
def test_a_static_program_has_the_bits_of_the_recursion(settings: dict[str, Any]) -> None:
    rule = rule_of(settings)
    check_graph(program(rule), np.asarray, rule, settings)


@pytest.mark.nightly
def test_a_users_own_rule_has_the_bits_of_numpy() -> None:
    check_graph(program(Doubling()), np.asarray, Doubling())


def static_function(function: Any, shapes: list[tuple[int, ...]], dtypes: list[str]) -> Any:
    paddle.enable_static()
    try:
        main = paddle.static.Program()
        with paddle.static.program_guard(main):
            names = [f"input_{index}" for index in range(len(shapes))]
            inputs = [paddle.static.data(*each) for each in zip(names, shapes, dtypes, strict=True)]
            fetched = function(*inputs)
    finally:
        paddle.disable_static()
    executor = paddle.static.Executor()

    def run(*values: Any) -> Any:
        paddle.enable_static()
        try:
            return executor.run(main, feed=dict(zip(names, map(np.asarray, values), strict=True)), fetch_list=fetched)
        finally:
            paddle.disable_static()

    return run


def test_thresholds_of_tensors_and_units_have_the_same_bits_in_a_static_program() -> None:
    def clip(*inputs: Any) -> Any:
        results, _, state = functions.clip_by_tensor_norm(list(inputs[:3]), ADAGC, inputs[3])
        return [*results, state]

    def clip_units(*inputs: Any) -> Any:
        return functions.clip_by_unit_norm(list(inputs[:2]), list(inputs[2:]), AGC)

    clip_program = static_function(clip, [(3,)] * 3 + [(4,)], ["float32"] * 3 + ["float64"])
    units_program = static_function(clip_units, [(4, 3), (3,)] * 2, ["float32"] * 4)

    def clip_step(grads: Any, state: Any) -> Any:
        *results, new = clip_program(*grads, state)
        return results, new

    check_tensor_graph(clip_step, np.asarray, lambda grads, parameters: units_program(*grads, *parameters))


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


@pytest.mark.parametrize("rule", FITTING, ids=str)
def test_the_state_has_no_derivative_so_that_each_step_can_be_differentiated(rule: Any) -> None:
    weight = paddle.to_tensor([3.0, 4.0], stop_gradient=False)
    rule = rule_of(rule)
    state = functions.initial_state(rule, [weight])
    for _ in range(3):
        (grad,) = paddle.grad((weight**3).sum(), weight, create_graph=True)
        (clipped,), _, state = functions.clip_by_global_norm([grad], rule, state)
        assert state.stop_gradient
        clipped.sum().backward()  # through this step only
