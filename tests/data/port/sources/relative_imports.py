"""The names are those of TensorFlow, the functions are the package's own."""
import numpy as np
import tensorflow as tf

from . import clip as nn_clip
from ..core import optimizer as tfopt
from .clipping import clip_by_global_norm, clip_by_norm
from .utils import *
from project.torch.nn.utils import clip_grad_norm_


class Projector:
    def __init__(self, radius):
        self.radius = radius

    def __call__(self, tape, loss, variables):
        grads = tape.gradient(loss, variables)
        grads, _ = clip_by_global_norm(grads, self.radius)
        grads = [clip_by_norm(g, self.radius) for g in grads]
        grads = nn_clip.clip_by_value(grads, -1, 1)
        clip_grad_norm_(grads, self.radius)
        return tfopt.clip_gradient_norms(grads, self.radius)


def step(model, opt, x, y, projector):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    grads = projector(tape, loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return np.clip(float(loss), 0, 100)
