"""`set_gradient_clip` and `append_gradient_clip_ops` of Paddle 1.x."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from .._core import validation
from .._core.backend import Backend
from .classes import GradientClip, clip_pairs
from .functions import Resolver
from .param_grads import ParamGrads


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
    backend: Backend | Resolver, clip: GradientClip | None, param_list: Iterable[Any] | None = None, program: Any = None
) -> None:
    check_clip(clip)
    if program is not None:
        raise TypeError(
            "program= is for static programs of Paddle. Leave program= out, or call "
            "unified_clip.paddle.set_gradient_clip"
        )
    if param_list is None:
        SETTINGS.default = clip
        return
    if isinstance(backend, Resolver):
        backend, param_list = backend.resolve(param_list)
    for parameter in validation.parameter_list(backend, param_list):
        SETTINGS.set_own(parameter, clip)


def append_gradient_clip_ops(backend: Backend | Resolver, params_grads: Iterable[Any]) -> ParamGrads:
    if isinstance(backend, Resolver):
        backend, params_grads = backend.resolve(params_grads)
    return clip_pairs(backend, params_grads, SETTINGS.clip_of)
