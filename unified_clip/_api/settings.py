"""`set_gradient_clip` and `append_gradient_clip_ops` of Paddle 1.x."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from .._core import validation
from .._core.collect import ParamGrads
from .classes import GradientClip, clip_pairs
from .framework import Framework


class ClipSettings:
    def __init__(self) -> None:
        self.default: GradientClip | None = None
        self._own: dict[int, tuple[weakref.ref[Any], GradientClip]] = {}

    def set_own(self, parameter: Any, clip: GradientClip | None) -> None:
        key = id(parameter)
        if clip is None:
            self._own.pop(key, None)
            return
        self._own[key] = (weakref.ref(parameter, lambda _: self._own.pop(key, None)), clip)

    def clip_of(self, parameter: Any) -> GradientClip | None:
        if isinstance(parameter, str) and self._own:
            raise ValueError(
                f"the clip of {parameter!r} is unknown, because set_gradient_clip has set clips of single parameters "
                "(param_list). Pass the parameter in place of the name"
            )
        own = self._own.get(id(parameter))  # a freed parameter loses its clip, so a reused id finds nothing
        return self.default if own is None else own[1]


SETTINGS = ClipSettings()
"""All frameworks share these settings."""


def check_clip(clip: Any) -> None:
    if clip is not None and not isinstance(clip, GradientClip):
        raise TypeError(
            f"clip is {clip!r}. Pass GradientClipByValue, GradientClipByNorm or GradientClipByGlobalNorm of "
            "unified_clip, or None"
        )


def set_gradient_clip(
    framework: Framework[Any, Any],
    clip: GradientClip | None,
    param_list: Iterable[Any] | None = None,
    program: Any = None,
) -> None:
    """Set the clip that `append_gradient_clip_ops` applies.

    In static programs of Paddle, the clip belongs to one program. `minimize` and `apply_gradients` of optimizers
    without `grad_clip=` also apply it. Therefore, the first call in static mode replaces `append_regularization_ops` of
    Paddle's `Optimizer`, until the process ends. Source: `paddle.fluid.clip.set_gradient_clip`.

    Args:
        clip: A GradientClipByValue, GradientClipByNorm or GradientClipByGlobalNorm. None removes the clip.
        param_list: The parameters to which this clip applies. With None, the clip applies to all parameters without a
            clip of their own. In static mode, names of parameters are also allowed.
        program: For `unified_clip.paddle`, the static program in which to set the clip. None means the default main
            program in static mode, and no program in dynamic mode. Elsewhere, keep the default.

    Raises:
        TypeError: `clip` has an unsupported type. param_list is not a list of parameters. `program` is not a static
            program of Paddle. The call is in a function that Paddle's `to_static` compiles.
        ValueError: An entry of param_list is not a parameter of the program.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> uc.set_gradient_clip(uc.GradientClipByNorm(clip_norm=5.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", np.array([6.0, 8.0], np.float32))])
        >>> clipped
        array([3., 4.], dtype=float32)
        >>> uc.set_gradient_clip(None)
    """
    check_clip(clip)
    if program is not None:
        raise TypeError(
            "program= is for static programs of Paddle. Leave program= out, or call "
            "unified_clip.paddle.set_gradient_clip"
        )
    if param_list is None:
        SETTINGS.default = clip
        return
    backend, param_list = framework.resolve(param_list)
    for parameter in validation.parameter_list(backend, param_list):
        SETTINGS.set_own(parameter, clip)


def append_gradient_clip_ops(framework: Framework[Any, Any], params_grads: Iterable[Any]) -> ParamGrads:
    """Return (parameter, gradient) tuples, with each gradient clipped by the clip of its parameter.

    `set_gradient_clip` sets the clips. Parameters share one norm if their clips are GradientClipByGlobalNorm with the
    same `group_name` and threshold. Source: `paddle.fluid.clip.append_gradient_clip_ops`.

    Args:
        params_grads: (parameter, gradient) or (name of a parameter, gradient) tuples. A gradient can be None.

    Returns:
        The list of tuples, in the same order. A parameter without a clip keeps its gradient.

    Raises:
        TypeError: params_grads is not an iterable of (parameter, gradient) tuples. A gradient has an integer or boolean
            dtype. A GradientClipByValue applies to a complex gradient. The call is in a function that Paddle's
            `to_static` compiles.
        ValueError: `set_gradient_clip` has set clips for single parameters, and a tuple contains a name in place of a
            parameter. Or a parameter with a clip does not belong to Paddle's current static program.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> uc.set_gradient_clip(uc.GradientClipByValue(max=2.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", np.array([5.0, 1.0], np.float32))])
        >>> clipped
        array([2., 1.], dtype=float32)
        >>> uc.set_gradient_clip(None)
    """
    backend, params_grads = framework.resolve(params_grads)
    return clip_pairs(backend, params_grads, SETTINGS.clip_of)
