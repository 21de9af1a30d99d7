"""A GRU by Keras' `fit`, whose optimizer clips each gradient by its own norm. Its bias has two rows."""

from __future__ import annotations

import keras
import numpy as np
import setting

model = keras.Sequential([keras.Input((2, 4)), keras.layers.GRU(3), keras.layers.Dense(2, name="out")])
gru, out = model.layers
gru.set_weights([setting.weight(f"gru {number}", *each.shape) for number, each in enumerate(gru.weights)])
out.set_weights([setting.weight(f"out {number}", *each.shape) for number, each in enumerate(out.weights)])
model.compile(keras.optimizers.SGD(0.2, momentum=0.9, clipnorm=0.05), "mse")
model.fit(np.reshape(setting.INPUTS, (-1, 2, 4)), setting.TARGETS, batch_size=12, shuffle=False, verbose=0)
