"""A convolutional network by Keras' `fit`: batch normalization and the momentum of Nesterov."""

from __future__ import annotations

import keras
import setting

model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        keras.layers.Conv2D(3, 3, name="conv"),
        keras.layers.BatchNormalization(epsilon=1e-3, name="norm"),
        keras.layers.Activation("tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(setting.CLASSES, name="out"),
    ]
)
for name in ("conv", "out"):
    layer = model.get_layer(name)
    kernel, bias = layer.weights
    shapes = {"weight": kernel.shape, "bias": bias.shape}
    layer.set_weights([setting.array(f"{name}.{which}", *shape, scale=0.3) for which, shape in shapes.items()])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, global_clipnorm=0.8), loss)
model.fit(setting.IMAGES, setting.LABELS, batch_size=setting.ROWS, shuffle=False, verbose=0)
