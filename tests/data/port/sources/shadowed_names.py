"""Everything here has the name of something else."""
import math

import numpy as np

import torch


def clip_grad_norm_(parameters, max_norm):
    # ours: works on numpy arrays, and returns the factor
    total = math.sqrt(sum(float((p ** 2).sum()) for p in parameters))
    factor = min(1.0, max_norm / (total + 1e-6))
    for p in parameters:
        p *= factor
    return factor


def clip_by_value(x, low, high):
    return np.minimum(np.maximum(x, low), high)


class Frames:
    """Transfer functions of a camera; called tf by everybody here."""

    def clip_by_norm(self, t, clip_norm):
        return t * min(1, clip_norm / np.linalg.norm(t))

    clip_by_value = staticmethod(clip_by_value)


def run(tf, frames, paddle=None):
    tf = tf or Frames()
    # tf is the argument, and no module
    shown = [tf.clip_by_value(f, 0, 255) for f in frames]
    moved = tf.clip_by_norm(np.array([3.0, 4.0]), 1.0)
    if paddle is not None:
        paddle.nn.utils.clip_grad_norm_([moved], 1.0)  # the bat of the game
    return shown, moved


def fit(weights, grads, lr=0.1):
    factor = clip_grad_norm_(grads, 5.0)
    weights = [w - lr * g for w, g in zip(weights, grads)]
    return weights, factor


if __name__ == '__main__':
    rng = np.random.default_rng(0)
    ws = [rng.normal(size=(3, 2)), rng.normal(size=2)]
    print(fit(ws, [w * 100 for w in ws])[1])
    print(torch.tensor(run(None, ws)[1]))
