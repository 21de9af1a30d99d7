"""Clip gradients on JAX. Arrays are immutable, so in-place functions update the list or dict of gradients."""

from __future__ import annotations

import jax

from . import _api
from ._api import classes, settings, tensorflow_functions, torch_functions
from ._api.framework import Framework, to_backend
from ._backends.jax.backend import BACKEND

__all__ = _api.__all__

FRAMEWORK = Framework[float | jax.Array, jax.Array](__name__, to_backend(BACKEND))

clip_grad_norm_ = FRAMEWORK.bind(torch_functions.clip_grad_norm_)
clip_grad_value_ = FRAMEWORK.bind(torch_functions.clip_grad_value_)
get_total_norm = FRAMEWORK.bind(torch_functions.get_total_norm)
clip_grads_with_norm_ = FRAMEWORK.bind(torch_functions.clip_grads_with_norm_)
clip_by_global_norm = FRAMEWORK.bind(tensorflow_functions.clip_by_global_norm)
clip_by_norm = FRAMEWORK.bind(tensorflow_functions.clip_by_norm)
clip_by_value = FRAMEWORK.bind(tensorflow_functions.clip_by_value)
global_norm = FRAMEWORK.bind(tensorflow_functions.global_norm)
set_gradient_clip = FRAMEWORK.bind(settings.set_gradient_clip)
append_gradient_clip_ops = FRAMEWORK.bind(settings.append_gradient_clip_ops)


class GradientClipByValue(classes.GradientClipByValue, framework=FRAMEWORK): ...


class GradientClipByNorm(classes.GradientClipByNorm, framework=FRAMEWORK): ...


class GradientClipByGlobalNorm(classes.GradientClipByGlobalNorm, framework=FRAMEWORK): ...


class ErrorClipByValue(classes.ErrorClipByValue, framework=FRAMEWORK): ...


ClipGradByValue, ClipGradByNorm = GradientClipByValue, GradientClipByNorm
ClipGradByGlobalNorm = GradientClipByGlobalNorm


def __dir__() -> list[str]:
    return __all__
