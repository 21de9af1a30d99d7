"""Helpers for gradients, used by several trainers."""
from functools import partial

import tensorflow as tf
import unified_clip.tensorflow


def clip_gradients(gradients, method, limit):
    """gradients: a list; method: 'global', 'each', or 'value'."""
    if method == 'global':
        return unified_clip.tensorflow.clip_by_global_norm(gradients, limit)[0]
    if method == 'each':
        return [tf.clip_by_norm(g, limit) for g in gradients]
    return [tf.clip_by_value(grad, -limit, limit) for grad in gradients]


def process(grads_and_vars, limit):
    clip = lambda g: g if g is None else tf.clip_by_norm(g, limit)
    return [(clip(g), v) for g, v in grads_and_vars]


clip_one = partial(tf.clip_by_norm, clip_norm=1.0)
clip_all = unified_clip.tensorflow.clip_by_global_norm


class ClipTransformer:
    """For Keras' gradient_transformers."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, grads_and_vars):
        grads, variables = zip(*grads_and_vars)
        (grads, _) = unified_clip.tensorflow.clip_by_global_norm(grads, clip_norm=self.limit)
        return zip(grads, variables)


def normalise(x, eps=1e-6):
    return x / tf.clip_by_value(tf.norm(x), eps, 1e6)
