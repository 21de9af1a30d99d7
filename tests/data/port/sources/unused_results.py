"""Clips whose results no code uses, next to clips whose results are used."""

import numpy as np
import optax
import paddle
import tensorflow as tf

paddle.nn.ClipGradByGlobalNorm(clip_norm=1.0)
_ = optax.clip_by_global_norm(1.0)
exported = optax.clip_by_global_norm(1.0)


def train(model, grads, fit):
    tf.clip_by_global_norm(grads, 1.0)
    clipped, norm = tf.clip_by_global_norm(grads, 1.0)
    print(norm)
    clip = paddle.nn.ClipGradByNorm(1.0)
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    for grad in grads:
        np.clip(grad, -1.0, 1.0)
        np.clip(grad, -1.0, 1.0, out=grad)
    state = fit(tx=optax.clip(1.0))
    return optimizer
