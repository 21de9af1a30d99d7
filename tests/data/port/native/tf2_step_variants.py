"""The same step, written in other ways."""
import tensorflow as tf
import torch


def comprehension(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    gradients = [variable.grad for variable in model.trainable_variables]
    for variable in model.trainable_variables:
        torch.nn.utils.clip_grad_norm_(variable, 1.0)
    for grad, variable in zip(gradients, model.trainable_variables):
        variable.grad = grad
    optimizer.step()
    return loss


def with_none(model, optimizer, x, y, limit=.5):
    variables = model.trainable_variables
    with tf.GradientTape() as t:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = t.gradient(loss, variables)
    clipped = [
        None if g is None else tf.clip_by_value(
            g, clip_value_min=-limit, clip_value_max=limit,
        )
        for g in grads
    ]
    optimizer.apply_gradients(zip(clipped, variables))
    return loss


def pairs(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    gvs = list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    capped = [(tf.clip_by_norm(grad, 5.), var) for grad, var in gvs]
    optimizer.apply_gradients(capped)
    return loss


def conditional(model, optimizer, x, y, args):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    norm = tf.linalg.global_norm(grads)
    if args.clip:
        grads, _ = tf.clip_by_global_norm(grads, args.clip, use_norm=norm)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss, norm


def inline(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.apply_gradients(zip(
        tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)[0],
        model.trainable_variables))
