"""All public functions: those of PyTorch and TensorFlow, and the two of Paddle 1.x that set and apply a clip."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from .._core import validation
from .._core.entry import public
from .classes import GradientClip, clip_pairs
from .functions import Functions
from .param_grads import ParamGrads


class ClipSettings:
    """What `set_gradient_clip` has set: a default, and clips of single parameters, which are held weakly."""

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
        own = self._own.get(id(parameter))  # forgotten with the parameter, so the id is its own
        return self.default if own is None else own[1]


SETTINGS = ClipSettings()
"""Of the process, whatever the framework."""


def check_clip(clip: Any) -> None:
    if clip is not None and not isinstance(clip, GradientClip):
        raise TypeError(
            f"clip is {clip!r}; pass GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm or None"
        )


class Api(Functions):
    """Every public function: `Functions`, and Paddle 1.x's two."""

    @public
    def set_gradient_clip(
        self, clip: GradientClip | None, param_list: Iterable[Any] | None = None, program: Any = None
    ) -> None:
        """Set the clip that `append_gradient_clip_ops` applies. Source: `paddle.fluid.clip.set_gradient_clip`.

        With Paddle in static mode it belongs to one program and ends with it. The first such call wraps
        `append_regularization_ops` of Paddle's `Optimizer`, for as long as the process lives: that is where `minimize`
        and `apply_gradients` of a static optimizer without `grad_clip=` apply what was set.

        Args:
            clip: A GradientClipBy... instance; None removes what was set.
            param_list: The parameters whose own clip this is, held weakly; it wins over the default, whatever the
                order of the calls. None: the default of all parameters. With Paddle in static mode, a list may hold
                the names of parameters.
            program: For `unified_clip.paddle` alone: the static program whose default to set, or whose parameters
                param_list holds. None: in static mode, the default main program.

        Raises:
            TypeError: clip is no GradientClipBy... instance; param_list is no list of parameters; program is no static
                program, or was given to a framework that has none.
            ValueError: param_list holds what is no parameter of the static program.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.set_gradient_clip(uc.GradientClipByNorm(clip_norm=1.0))
            >>> uc.append_gradient_clip_ops([("weight", np.array([3.0, 4.0]))])
            [('weight', array([0.6, 0.8]))]
            >>> uc.set_gradient_clip(None)
        """
        check_clip(clip)
        if program is not None:
            raise TypeError("program is for static programs of Paddle; use unified_clip.paddle, or leave it out")
        if param_list is None:
            SETTINGS.default = clip
            return
        backend, param_list = self.resolve(param_list)
        for parameter in validation.parameter_list(backend, param_list):
            SETTINGS.set_own(parameter, clip)

    @public
    def append_gradient_clip_ops(self, params_grads: Iterable[Any]) -> ParamGrads:
        """Apply the clips that `set_gradient_clip` has set. Source: `paddle.fluid.clip.append_gradient_clip_ops`.

        Parameters whose clips are GradientClipByGlobalNorm with the same `group_name` and threshold share one norm.

        Args:
            params_grads: (parameter, gradient) pairs; a gradient may be None.

        Returns:
            The list of pairs with clipped gradients; those without a clip as they were given.

        Raises:
            TypeError: params_grads holds something else than pairs, or a gradient of integers or booleans.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.append_gradient_clip_ops([("weight", np.array([3.0, 4.0]))])
            [('weight', array([3., 4.]))]
        """
        backend, params_grads = self.resolve(params_grads)
        return clip_pairs(backend, params_grads, self._clip_of)

    def _clip_of(self, parameter: Any) -> GradientClip | None:
        """Return the clip that was set for a parameter."""
        return SETTINGS.clip_of(parameter)
