"""The same step, written in other ways."""
import tensorflow as tf
import unified_clip.torch


def comprehension(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    gradients = [variable.grad for variable in model.trainable_variables]
    gradients = [unified_clip.torch.clip_by_norm(g, 1.0) for g in gradients]
    for grad, variable in zip(gradients, model.trainable_variables):
        variable.grad = grad
    optimizer.step()
    return loss


def with_none(model, optimizer, x, y, limit=.5):
    variables = model.trainable_variables
    with tf.GradientTape() as t:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    grads = [variable.grad for variable in variables]
    clipped = [
        None if g is None else unified_clip.torch.clip_by_value(
            g, clip_value_min=-limit, clip_value_max=limit,
        )
        for g in grads
    ]
    for grad, variable in zip(clipped, variables):
        variable.grad = grad
    optimizer.step()
    return loss


def pairs(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    gvs = list(zip([variable.grad for variable in model.trainable_variables], model.trainable_variables))
    capped = [(unified_clip.torch.clip_by_norm(grad, 5.), var) for grad, var in gvs]
    for grad_, variable in capped:
        variable.grad = grad_
    optimizer.step()
    return loss


def conditional(model, optimizer, x, y, args):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    grads = [variable.grad for variable in model.trainable_variables]
    norm = unified_clip.torch.global_norm(grads)
    if args.clip:
        grads, _ = unified_clip.torch.clip_by_global_norm(grads, args.clip, use_norm=norm)
    for grad, variable in zip(grads, model.trainable_variables):
        variable.grad = grad
    optimizer.step()
    return loss, norm


def inline(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.zero_grad()
    loss.backward()
    for grad, variable in zip(
        unified_clip.torch.clip_by_global_norm([variable.grad for variable in model.trainable_variables], 1.0)[0],
        model.trainable_variables):
        variable.grad = grad
    optimizer.step()
