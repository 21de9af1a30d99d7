"""Clipping in a train step of Keras, in a graph and in XLA, also with the scaled losses of mixed precision."""

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


class ClippingModel(keras.Model):
    """A model that clips in its train step. Its threshold applies to gradients that include the loss scale."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            scaled_loss = self.optimizer.scale_loss(loss)
        scale = getattr(self.optimizer, "dynamic_scale", 1.0)
        gradients = tape.gradient(scaled_loss, self.trainable_weights)
        gradients, norm = uc.clip_by_global_norm(gradients, LIMIT * scale)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"norm": norm / scale}


@pytest.fixture(params=["float32", "mixed_float16"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def made() -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    return ClippingModel(inputs, keras.layers.Dense(1, dtype="float32")(hidden))


def length(arrays: list[np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(array.astype(np.float64)) for array in arrays]))


def gradients_of(model: keras.Model) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(INPUTS) - TARGETS) ** 2)
    return [gradient.numpy() for gradient in tape.gradient(loss, model.trainable_weights)]


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_train_step_clips(policy: str, jit: bool) -> None:
    model, optimizer = made(), keras.optimizers.SGD(RATE)
    is_scaled = policy == "mixed_float16"
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=SCALE)
    before, gradients = model.get_weights(), gradients_of(made())
    model.compile(optimizer, "mse", jit_compile=jit, auto_scale_loss=False)
    history = model.fit(INPUTS, TARGETS, batch_size=16, shuffle=False, verbose=0).history
    step = [(one - other) / RATE for one, other in zip(before, model.get_weights(), strict=True)]
    assert length(gradients) > 4 * LIMIT
    tolerance = 0.01 if is_scaled else 1e-5
    np.testing.assert_allclose(history["norm"], length(gradients), rtol=tolerance)
    np.testing.assert_allclose(length(step), LIMIT, rtol=1e-5)
    for got, gradient in zip(step, gradients, strict=True):
        expected = gradient * LIMIT / length(gradients)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * LIMIT)
