"""unified_clip for MLX: in-place names assign new values to the gradients, as `gradient[...] = value` does.

Pass the gradients that `nn.value_and_grad` returns, or other nested dicts and lists of arrays. Do not pass
`model.parameters()`: MLX keeps no gradients there, and the weights themselves would be clipped.
"""

from ._api import api, classes
from ._backends.mlx import BACKEND

_names = api.Api.over(BACKEND)

clip_grad_norm_ = _names.clip_grad_norm_
clip_grad_value_ = _names.clip_grad_value_
get_total_norm = _names.get_total_norm
clip_grads_with_norm_ = _names.clip_grads_with_norm_

clip_by_global_norm = _names.clip_by_global_norm
clip_by_norm = _names.clip_by_norm
clip_by_value = _names.clip_by_value
global_norm = _names.global_norm

set_gradient_clip = _names.set_gradient_clip
append_gradient_clip_ops = _names.append_gradient_clip_ops


class GradientClipByValue(classes.GradientClipByValue):
    _names = _names


class GradientClipByNorm(classes.GradientClipByNorm):
    _names = _names


class GradientClipByGlobalNorm(classes.GradientClipByGlobalNorm):
    _names = _names


class ErrorClipByValue(classes.ErrorClipByValue):
    _names = _names


ClipGradByValue = GradientClipByValue
ClipGradByNorm = GradientClipByNorm
ClipGradByGlobalNorm = GradientClipByGlobalNorm
