"""Paddle: every optimizer with every clip, dynamic and static, in parameter groups, compiled, and with loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support.paddle_programs import BACKWARD_WARNS, program, tensor

import unified_clip.paddle as uc

pytestmark = [BACKWARD_WARNS, pytest.mark.filterwarnings("ignore:full_graph=False:UserWarning")]


# -- optimizers

CLIPS: dict[str, tuple[Any, list[list[float]]]] = {
    "global norm": (uc.GradientClipByGlobalNorm(1.0), [[3 / 13, 4 / 13], [12 / 13]]),
    "norm": (uc.GradientClipByNorm(1.0), [[0.6, 0.8], [1.0]]),
    "value": (uc.GradientClipByValue(3.5), [[3.0, 3.5], [3.5]]),
}
"""The clips, and their results for the gradients [3, 4] and [12]."""

GRADIENTS = [[3.0, 4.0], [12.0]]

EPSILON = {"Adam", "AdamW", "NAdam", "RAdam", "Lamb", "RMSProp", "Adagrad", "Adadelta", "Adamax"}
OPTIMIZERS = sorted({"SGD", "Momentum", "ASGD", "Rprop"} | EPSILON)
"""All of Paddle's but LBFGS, which accepts `grad_clip=` and never calls it."""


def made(name: str, **options: Any) -> paddle.optimizer.Optimizer:
    if name in EPSILON:
        options["epsilon"] = 1.0  # otherwise, a step hardly depends on the length of the gradient
    options |= {"batch_num": 1} if name == "ASGD" else {}
    return getattr(paddle.optimizer, name)(learning_rate=0.1, **options)


def attribute(name: str | None = None, **options: Any) -> paddle.ParamAttr:
    return paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Constant(1.0), **options)


def eager_steps(name: str, clip: Any, gradients: list[list[float]], steps: int = 3) -> list[np.ndarray]:
    parameters = [paddle.create_parameter([len(g)], "float32", attr=attribute()) for g in gradients]
    optimizer = made(name, parameters=parameters, grad_clip=clip)
    for _ in range(steps):
        sum((p * tensor(g)).sum() for p, g in zip(parameters, gradients, strict=True)).backward()
        optimizer.step()
        optimizer.clear_grad()
    return [parameter.numpy() for parameter in parameters]


def static_steps(name: str, clip: Any, gradients: list[list[float]], steps: int = 3) -> list[np.ndarray]:
    paddle.enable_static()
    try:
        with program(), paddle.static.scope_guard(paddle.static.Scope()):
            parameters = [paddle.static.create_parameter([len(g)], "float32", attr=attribute()) for g in gradients]
            fed = [paddle.static.data(f"g{i}", [-1], "float32") for i in range(len(gradients))]
            loss = sum((p * g).sum() for p, g in zip(parameters, fed, strict=True))
            made(name, grad_clip=clip).minimize(loss)
            executor = paddle.static.Executor()
            executor.run(paddle.static.default_startup_program())
            feed = {f"g{i}": np.float32(g) for i, g in enumerate(gradients)}
            for _ in range(steps):
                executor.run(feed=feed)
            scope = paddle.static.global_scope()
            return [np.array(scope.find_var(parameter.name).get_tensor()) for parameter in parameters]
    finally:
        paddle.disable_static()


@pytest.mark.parametrize("steps", [eager_steps, static_steps])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_every_clip(name: str, steps: Callable[..., list[np.ndarray]]) -> None:
    plain = steps(name, None, GRADIENTS)
    for clip, clipped in CLIPS.values():
        assert isinstance(clip, paddle.nn.clip.ClipGradBase)
        got, expected = steps(name, clip, GRADIENTS), steps(name, None, clipped)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        if name != "Rprop":  # Rprop reads only the signs
            assert any(not np.allclose(a, b, rtol=1e-5) for a, b in zip(got, plain, strict=True))


def test_no_optimizer_is_left_out() -> None:
    bases = {"Optimizer", "LBFGS"}
    made_by_paddle = {name for name in paddle.optimizer.__all__ if name not in bases}
    assert made_by_paddle == set(OPTIMIZERS)


def test_parameter_groups_may_have_clips_of_their_own() -> None:
    parameters = [paddle.create_parameter([2], "float32", attr=attribute()) for _ in range(3)]
    groups = [
        {"params": parameters[:1], "grad_clip": uc.GradientClipByNorm(1.0)},
        {"params": parameters[1:2], "grad_clip": uc.GradientClipByValue(0.5)},
        {"params": parameters[2:]},  # the optimizer's
    ]
    optimizer = paddle.optimizer.SGD(1.0, parameters=groups, grad_clip=uc.GradientClipByGlobalNorm(2.0))
    sum((parameter * tensor([3.0, 4.0])).sum() for parameter in parameters).backward()
    optimizer.step()
    moved = [1.0 - parameter.numpy() for parameter in parameters]
    np.testing.assert_allclose(moved, [[0.6, 0.8], [0.5, 0.5], [1.2, 1.6]], rtol=1e-5)


# -- compiled with to_static

INPUT = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)


def network() -> paddle.nn.Layer:
    paddle.seed(0)
    return paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))


def cost(model: Callable[[Any], Any], x: Any) -> Any:
    return (model(x) * paddle.full([], 10.0)).square().mean()


def weights(model: paddle.nn.Layer) -> list[bytes]:
    return [parameter.numpy().tobytes() for parameter in model.parameters()]


def trained(
    model: paddle.nn.Layer, in_place: bool, compiled: Callable[[Any], Any] = lambda f: f, clip: Any = None
) -> list[bytes]:
    clip = clip or uc.GradientClipByGlobalNorm(0.5)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=None if in_place else clip)

    def step(x: Any) -> Any:
        loss = cost(model, x)
        loss.backward()
        norm = uc.clip_grad_norm_(model.parameters(), 0.5) if in_place else loss
        optimizer.step()
        optimizer.clear_grad()
        return loss + norm

    whole = compiled(step)
    for _ in range(3):
        whole(tensor(INPUT))
    return weights(model)


@pytest.mark.parametrize("in_place", [True, False])
def test_whole_steps_under_to_static(in_place: bool) -> None:
    expected = trained(network(), in_place)
    got = trained(network(), in_place, lambda step: paddle.jit.to_static(step, full_graph=False))
    assert got == expected != weights(network())


# -- loss scaling
