"""Run a call of a configuration, as docs/config.md prints it, on a model whose gradients are all 3."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from support.kits import Kit

Gradients = dict[str, np.ndarray]
"""The clipped gradients by name: "weight" has two elements, and "bias" has one."""

OF_FRAMEWORK = {"PyTorch": "torch", "Keras": "tensorflow", "Paddle": "paddle", "optax": "jax"}


def run(kit: Kit, call: str, clip: Any) -> Gradients:
    if "optimizer" in call or "model" in call:
        return RUNS[kit.name](call, clip)
    grads = {"weight": kit.tensor([3.0, 3.0]), "bias": kit.tensor([3.0])}
    return {name: kit.array(gradient) for name, gradient in eval(call, {"clip": clip, "grads": grads}).items()}


def _torch(call: str, clip: Any) -> Gradients:
    import torch

    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eval(call, {"clip": clip, "model": model, "optimizer": optimizer})
    optimizer.step()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def _tensorflow(call: str, clip: Any) -> Gradients:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1.0)
    eval(call, {"clip": clip, "model": model, "optimizer": optimizer})
    before = [np.asarray(variable).copy() for variable in model.trainable_variables]
    optimizer.apply([keras.ops.full(variable.shape, 3.0) for variable in before], model.trainable_variables)
    after = [np.asarray(variable).copy() for variable in model.trainable_variables]
    return {"weight": before[0] - after[0], "bias": before[1] - after[1]}


def _paddle(call: str, clip: Any) -> Gradients:
    import paddle

    model = paddle.nn.Linear(2, 1)
    arguments = {"clip": clip, "model": model}
    options = eval(f"dict({call})", arguments) if "=" in call else {}
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters(), **options)
    sum((parameter * 3.0).sum() for parameter in model.parameters()).backward()
    if not options:
        eval(call, arguments)
    before = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    optimizer.step()
    return {name: before[name] - parameter.numpy() for name, parameter in model.named_parameters()}


def _jax(call: str, clip: Any) -> Gradients:
    import jax.numpy as jnp
    import optax

    transformation = eval(call, {"clip": clip, "optimizer": optax.sgd(1.0)})
    params = {"weight": jnp.zeros(2), "bias": jnp.zeros(1)}
    updates, _ = transformation.update(
        {"weight": jnp.full(2, 3.0), "bias": jnp.full(1, 3.0)}, transformation.init(params)
    )
    return {name: -np.array(update) for name, update in updates.items()}


RUNS: dict[str, Callable[[str, Any], Gradients]] = {
    "torch": _torch, "tensorflow": _tensorflow, "paddle": _paddle, "jax": _jax,
}  # fmt: skip
