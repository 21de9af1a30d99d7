"""A small U-Net as a functional model of Keras with `fit`: AdamW, a rate with stairs, and `global_clipnorm`."""

from __future__ import annotations

import keras
import numpy as np
import setting

IMAGES, STEPS, SIZE, CHANNELS = 4, 8, 8, 4

inputs = keras.Input((SIZE, SIZE, 1))
down = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh", name="down")(inputs)
pooled = keras.layers.AveragePooling2D(2)(down)
middle = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh", name="middle")(pooled)
up = keras.layers.Conv2DTranspose(CHANNELS, 2, strides=2, name="up")(middle)
joined = keras.layers.Concatenate()([down, up])
model = keras.Model(inputs, keras.layers.Conv2D(1, 1, name="out")(joined))
for layer in model.layers:
    layer.set_weights([setting.array(f"unet {each.path}", *each.shape, scale=0.3) for each in layer.weights])
rate = keras.optimizers.schedules.ExponentialDecay(0.02, decay_steps=2, decay_rate=0.5, staircase=True)
optimizer = keras.optimizers.AdamW(rate, weight_decay=0.5, epsilon=1e-10, global_clipnorm=0.1)
model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
images = setting.array("unet images", IMAGES * STEPS, SIZE, SIZE, 1)
masks = (images + setting.array("unet masks", *images.shape) > 0.5).astype(np.float32)
model.fit(images, masks, batch_size=IMAGES, shuffle=False, verbose=0)
