"""A regression by Keras' `fit`, whose optimizer clips each gradient by its own norm."""

from __future__ import annotations

import keras
import setting

model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(8, activation="tanh", name="hidden"), keras.layers.Dense(2, name="out")]
)
for layer in model.layers:
    kernel, bias = layer.weights
    shapes = {"weight": kernel.shape, "bias": bias.shape}
    layer.set_weights([setting.weight(f"{layer.name}.{which}", *shape) for which, shape in shapes.items()])
model.compile(keras.optimizers.SGD(0.2, momentum=0.9, clipnorm=0.5), "mse")
model.fit(setting.INPUTS, setting.TARGETS, batch_size=12, shuffle=False, verbose=0)
