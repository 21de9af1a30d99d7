"""Clipping in Keras: in a train step, in an optimizer, and with the scaled losses of mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import unified_clip.tensorflow as uc

RATE, LIMIT, SCALE = 0.125, 0.5, 1024.0
INPUTS = np.random.default_rng(8).standard_normal((16, 4)).astype(np.float32)
TARGETS = 3 * INPUTS.sum(axis=1, keepdims=True)
"""Targets that are far from the results of an untrained model, so that gradients are clipped."""

jits = pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])


class ClippingModel(keras.Model):
    """A model that clips in its train step. Its threshold applies to gradients that include the loss scale."""

    traces = 0

    def train_step(self, data: Any) -> dict[str, Any]:
        type(self).traces += 1
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            scaled_loss = self.optimizer.scale_loss(loss)
        scale = getattr(self.optimizer, "dynamic_scale", 1.0)
        gradients = tape.gradient(scaled_loss, self.trainable_weights)
        gradients, norm = uc.clip_by_global_norm(gradients, LIMIT * scale)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"norm": norm / scale}


class ClippingSGD(keras.optimizers.SGD):
    """An optimizer that clips the gradients that it applies. Inside a LossScaleOptimizer, these gradients are
    unscaled."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        clipped, _ = uc.clip_by_global_norm(grads, LIMIT)
        super().apply(clipped, trainable_variables)


@pytest.fixture
def _half_precision() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


half_precision = pytest.mark.usefixtures("_half_precision")


def made(kind: type[keras.Model] = keras.Model) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    return kind(inputs, keras.layers.Dense(1, dtype="float32")(hidden))


def scaled(optimizer: keras.optimizers.Optimizer, scale: float = SCALE) -> keras.optimizers.LossScaleOptimizer:
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)


def fitted(model: keras.Model, optimizer: keras.optimizers.Optimizer, **options: Any) -> dict[str, list[float]]:
    model.compile(optimizer, "mse", **options)
    history: dict[str, list[float]] = model.fit(INPUTS, TARGETS, batch_size=16, shuffle=False, verbose=0).history
    return history


def moved(model: keras.Model) -> list[np.ndarray]:
    return [(before - after) / RATE for before, after in zip(made().get_weights(), model.get_weights(), strict=True)]


def length(arrays: list[np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(array.astype(np.float64)) for array in arrays]))


def gradients_of(model: keras.Model) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(INPUTS) - TARGETS) ** 2)
    return [gradient.numpy() for gradient in tape.gradient(loss, model.trainable_weights)]


def check_clipped(model: keras.Model, rtol: float) -> None:
    gradients, step = gradients_of(made()), moved(model)
    assert length(gradients) > 4 * LIMIT
    np.testing.assert_allclose(length(step), LIMIT, rtol=1e-5)
    for got, gradient in zip(step, gradients, strict=True):
        np.testing.assert_allclose(got, gradient * LIMIT / length(gradients), rtol=rtol, atol=rtol * LIMIT)


@jits
def test_in_a_train_step(jit: bool) -> None:
    model = made(ClippingModel)
    history = fitted(model, keras.optimizers.SGD(RATE), jit_compile=jit)
    check_clipped(model, 1e-5)
    np.testing.assert_allclose(history["norm"], length(gradients_of(made())), rtol=1e-6)


@jits
@pytest.mark.parametrize("optimizer", [ClippingSGD(RATE), keras.optimizers.SGD(RATE, global_clipnorm=LIMIT)])
def test_in_an_optimizer_as_keras_does_it(optimizer: keras.optimizers.Optimizer, jit: bool) -> None:
    model = made()
    fitted(model, type(optimizer).from_config(optimizer.get_config()), jit_compile=jit)
    check_clipped(model, 1e-5)


@half_precision
@pytest.mark.parametrize(
    "compiled", [lambda f: f, tf.function, tf.function(jit_compile=True)], ids=["", "graph", "xla"]
)
def test_a_loop_of_ones_own_with_a_scaled_loss(compiled: Any) -> None:
    """The threshold times the scale gives the same bits as unscaling first, because the scale is a power of two."""
    model, optimizer = made(), scaled(keras.optimizers.SGD(RATE))
    optimizer.build(model.trainable_variables)

    @compiled
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))
        gradients = tape.gradient(loss, model.trainable_weights)
        scale = optimizer.dynamic_scale
        clipped, norm = uc.clip_by_global_norm(gradients, LIMIT * scale)
        unscaled, unscaled_norm = uc.clip_by_global_norm([gradient / scale for gradient in gradients], LIMIT)
        optimizer.apply(clipped, model.trainable_weights)
        return norm / scale, unscaled_norm, [gradient / scale for gradient in clipped], unscaled

    norm, unscaled_norm, clipped, unscaled = step(tf.constant(INPUTS), tf.constant(TARGETS))
    check_clipped(model, 0.01)
    assert norm.numpy() == unscaled_norm.numpy()
    for one, other in zip(clipped, unscaled, strict=True):
        np.testing.assert_array_equal(one, other)


@half_precision
@pytest.mark.parametrize("kind", ["train step", "optimizer"])
def test_a_step_with_gradients_that_overflowed_is_skipped_and_the_scale_halved(kind: str) -> None:
    model = made(ClippingModel) if kind == "train step" else made()
    inner = keras.optimizers.SGD(RATE) if kind == "train step" else ClippingSGD(RATE)
    optimizer = scaled(inner, 2.0**40)
    fitted(model, optimizer, jit_compile=False, auto_scale_loss=False)
    assert length(moved(model)) == 0.0
    assert float(optimizer.dynamic_scale) == 2.0**39


def test_what_keras_own_options_do_under_a_scaled_loss() -> None:
    with pytest.raises(ValueError, match="does not support `global_clipnorm`"):
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), global_clipnorm=LIMIT)
    weight = keras.Variable([0.0, 0.0])
    optimizer = scaled(keras.optimizers.SGD(1.0, global_clipnorm=LIMIT))
    optimizer.apply([tf.constant([3.0, 4.0]) * SCALE], [weight])
    np.testing.assert_allclose(weight, [-0.3, -0.4], rtol=1e-6)
