"""One interface over three frameworks; whichever is installed."""
import importlib.util


def has(name):
    return importlib.util.find_spec(name) is not None


if has("torch"):
    import torch
    import unified_clip.torch

    def clip(parameters, limit):
        parameters = [p for p in parameters if p.grad is not None]
        return unified_clip.torch.clip_grad_norm_(parameters, limit)

elif has("paddle"):
    import paddle
    import unified_clip.paddle

    def clip(parameters, limit):
        return unified_clip.paddle.clip_grad_norm_(list(parameters), limit)

else:
    try:
        import tensorflow.compat.v2 as tf
        import unified_clip.tensorflow
    except ImportError:
        import tensorflow as tf
        import unified_clip.tensorflow

    def clip(gradients, limit):
        clipped, norm = unified_clip.tensorflow.clip_by_global_norm(list(gradients), limit)
        return clipped, norm


def describe():
    return f"clip is {clip.__module__}.{clip.__name__}: clip_grad_norm_ or tf.clip_by_global_norm"
