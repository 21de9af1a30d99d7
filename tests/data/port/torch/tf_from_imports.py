import math

import tensorflow as tf
from tensorflow import GradientTape, clip_by_value as bound
from unified_clip.torch import clip_by_global_norm
from unified_clip.torch import global_norm as norm_of
from unified_clip.torch import clip_by_norm as v1_clip
import unified_clip.torch


def train(model, optimizer, batches, limit=1e0 / math.sqrt(2)):
    variables = model.trainable_variables
    for x, y in batches:
        with GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.mse(y, bound(model(x), 0., 1.)))
        optimizer.zero_grad()
        loss.backward()
        grads = [variable.grad for variable in variables]
        before = norm_of(grads)
        grads = [unified_clip.torch.clip_by_value(g, -10., 10.) for g in grads]
        grads = [v1_clip(g, 5 * limit) for g in grads]
        grads, _ = clip_by_global_norm(grads, limit)
        for grad, variable in zip(grads, variables):
            variable.grad = grad
        optimizer.step()
        yield float(loss), float(before)


def load():
    def inner():
        import tensorflow.compat.v2 as tf2
        return tf2.keras.Sequential([tf2.keras.layers.Dense(1)]), tf2.keras.optimizers.SGD(.1)
    return inner()


def main():
    model, optimizer = load()
    x = tf.random.normal([8, 3])
    model(x)
    for row in train(model, optimizer, [(x, tf.reduce_sum(x, 1, keepdims=True))] * 10):
        print(*row)


main()
