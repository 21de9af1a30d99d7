"""The forecast of `layers_torch.py` in Keras: an optimizer for each layer, and a penalty in the gradients."""

from __future__ import annotations

import keras
import numpy as np
import setting
import tensorflow as tf

PAST, HIDDEN, SERIES, STEPS = 6, 8, 12, 9


def series(step: int) -> tuple[np.ndarray, np.ndarray]:
    phases = setting.array(f"layers {step}", SERIES, 1, scale=3.0)
    values = np.sin(phases + np.arange(PAST + 1)) * 2 + setting.array(f"layers noise {step}", SERIES, PAST + 1)
    return values[:, :-1].astype(np.float32), values[:, -1:].astype(np.float32)


model = keras.Sequential(
    [
        keras.Input((PAST,)),
        keras.layers.Dense(HIDDEN, activation="elu", name="first"),
        keras.layers.Dense(HIDDEN, activation="tanh", name="second"),
        keras.layers.Dense(1, name="out"),
    ]
)
for layer in model.layers:
    shapes = {"weight": layer.kernel.shape, "bias": layer.bias.shape}
    layer.set_weights([setting.weight(f"layers.{layer.name}.{which}", *shape) for which, shape in shapes.items()])
rates = {"first": 0.05, "second": 0.05, "out": 0.01}
optimizers = {name: keras.optimizers.SGD(rate, momentum=0.8) for name, rate in rates.items()}
huber = keras.losses.Huber(delta=0.5)
for step in range(STEPS):
    inputs, targets = series(step)
    with tf.GradientTape() as tape:
        loss = huber(targets, model(inputs, training=True))
    weights = {layer.name: layer.trainable_weights for layer in model.layers}
    for name, grads in tape.gradient(loss, weights).items():
        grads, _ = tf.clip_by_global_norm(grads, 0.2)
        penalized = [grad + 0.02 * weight for grad, weight in zip(grads, weights[name], strict=True)]
        optimizers[name].apply_gradients(zip(penalized, weights[name], strict=True))
