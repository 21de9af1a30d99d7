"""A short training per framework, whose imports, backward passes, clips and steps a recording observes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from support.tiers import why_no_graphs

import unified_clip

STATUS = 3


def train_numpy() -> list[np.ndarray]:
    gradients = [np.array([3.0, 4.0], np.float32)]
    for _ in range(2):
        unified_clip.clip_grad_norm_(gradients, 1.0)
    return gradients


def train_torch() -> list[np.ndarray]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        scaler.scale(model(torch.ones(1, 3)).square().sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.9)
        torch.nn.utils.clip_grad_norm_((each for each in model.parameters()), 0.5)  # an iterator is used up
        unified_clip.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [each.detach().numpy() for each in model.parameters()]


def train_tensorflow() -> list[np.ndarray]:
    import keras
    import tensorflow as tf

    variable = tf.Variable([3.0, 4.0])
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    by_keras, unclipped = keras.optimizers.Adam(0.1, clipnorm=1.0), keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(variable))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [variable]), 1.0)
        gradients, _ = unified_clip.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients([(gradients[0], variable)])

    for _ in range(2):
        step()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(variable))
        (gradient,) = tape.gradient(loss, [variable])
        gradient = tf.clip_by_value(tf.clip_by_norm(gradient, 1.0), -0.9, 0.9)
        if hasattr(by_keras, "apply"):  # recordings need Keras 3
            by_keras.apply([gradient], [variable])
            unclipped.apply([gradient], [variable])
    return [variable.numpy(), train_in_session()]


def train_in_session() -> np.ndarray:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=[3.0, 4.0])
        clipped, _ = tf.clip_by_global_norm(tf.gradients(tf.reduce_sum(weight**2), [weight]), 0.5)
        train = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(clipped[0], weight)])
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(train)
        trained: np.ndarray = session.run(weight)
    return trained


def train_paddle() -> list[np.ndarray]:
    import paddle

    paddle.seed(0)
    model = paddle.nn.Linear(3, 2)
    clip = paddle.nn.ClipGradByGlobalNorm(0.5)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters(), grad_clip=clip)
    scaler = paddle.amp.GradScaler(enable=False)  # on a CPU, Paddle cannot enable it
    for _ in range(2):
        scaler.scale(model(paddle.ones([1, 3])).square().sum()).backward()
        scaler.unscale_(optimizer)
        paddle.nn.utils.clip_grad_norm_(model.parameters(), 0.9)
        unified_clip.clip_grad_norm_(model.parameters(), 0.8)
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    return [each.numpy() for each in model.parameters()]


def train_jax() -> list[np.ndarray]:
    import jax
    import optax

    transformation = optax.chain(optax.clip_by_global_norm(1.0), optax.clip(0.9), optax.adam(0.1))
    weights = jax.numpy.array([3.0, 4.0])
    state = transformation.init(weights)

    in_graph = (lambda function: function) if why_no_graphs("jax") else jax.jit

    @in_graph
    def update(weights: jax.Array, state: optax.OptState) -> tuple[jax.Array, optax.OptState]:
        gradient = unified_clip.clip_by_norm(2 * weights, 2.0)
        updates, state = transformation.update(gradient, state, weights)
        return weights + updates, state

    for _ in range(2):
        weights, state = update(weights, state)
        updates, state = transformation.update(2 * weights, state, weights)
        weights = weights + updates
        unified_clip.clip_by_norm(weights, 1.0)
    return [np.asarray(weights)]


TRAIN: dict[str, Callable[[], list[np.ndarray]]] = {
    "numpy": train_numpy, "torch": train_torch, "tensorflow": train_tensorflow, "paddle": train_paddle,
    "jax": train_jax,
}  # fmt: skip


def bits(framework: str) -> list[bytes]:
    return [array.tobytes() for array in TRAIN[framework]()]


def main(framework: str, broken: str) -> None:
    """Train in a process, while the hook `broken` fails. Exit with `STATUS`."""
    from unified_clip.recorder import guard

    run = guard.Hook.run

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(broken)

    guard.Hook.run = lambda hook, observe, *args, **kwargs: run(  # type: ignore[method-assign]
        hook, fail if hook.name == broken else observe, *args, **kwargs
    )
    print([each.hex() for each in bits(framework)])
    sys.exit(STATUS)


if __name__ == "__main__":
    main(*sys.argv[1:])
