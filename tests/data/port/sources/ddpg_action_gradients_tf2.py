"""DDPG's loss clips the gradient of each action by its own norm. The parameters' gradients are clipped elsewhere."""

import tensorflow as tf


def dpg_loss(q_max, a_max, tape, max_norm):
    dqda = tape.gradient([q_max], [a_max])[0]
    dqda = tf.clip_by_norm(dqda, max_norm, axes=-1)
    target = tf.stop_gradient(dqda + a_max)
    return 0.5 * tf.reduce_sum(tf.square(target - a_max), axis=-1)


def step(model, optimizer, x):
    with tf.GradientTape() as tape:
        loss = model(x)
    weights = model.trainable_weights
    gradients = tape.gradient(loss, weights)
    gradients = [tf.clip_by_norm(gradient, 1.0, axes=[0]) for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, weights))
