"""The clip for `grad_clip=` of Paddle's optimizers that `ClipConfig.as_paddle()` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import paddle

from .._api.groups import IN_GRAPHS
from .._api.param_grads import ParamGrads
from .._backends.paddle.backend import BACKEND
from .._backends.paddle.classes import OptimizerClip
from .._backends.paddle.conditions import in_static_mode, in_to_static_mode
from .._core.types import Leaf
from ..config.clipper import Clipper, OutcomeProperties
from ..config.schema import Settings
from ..recording.clip_event import Namer
from .names import check_names

UNMATCHED = "These are Paddle's own names. Pass the model: clip.as_paddle(model)."


class GradClip(OutcomeProperties, OptimizerClip):
    """Clip in one optimizer of Paddle, which calls this once for each group of parameters. Each group has its norm."""

    def __init__(self, settings: Settings, names: Any = None) -> None:
        self._settings = settings
        self._clipper = Clipper(settings, _namer(names), unmatched=UNMATCHED if names is None else "")
        self._clipped: set[str] = set()  # names of parameters in this step

    def __repr__(self) -> str:
        return f"<{type(self._settings).__name__} {self._settings.rule}>"

    def __call__(self, params_grads: Iterable[Any]) -> ParamGrads:
        param_grads = list(params_grads)
        if in_static_mode() or in_to_static_mode():
            return self._in_graph(param_grads)
        names = {BACKEND.parameter_name(parameter) or "" for parameter, gradient in param_grads if gradient is not None}
        if not names:
            return param_grads
        is_next_group = bool(self._clipped) and self._clipped.isdisjoint(names)
        if is_next_group and self._settings.nonfinite in IN_GRAPHS:
            raise RuntimeError(
                f"nonfinite = {self._settings.nonfinite!r} requires an optimizer with one group of parameters: Paddle "
                "has already updated another group. Pass one list of parameters, or use 'zero' or 'family'. If "
                "parameters have gradients in turns, set step before every step."
            )
        self._clipped = self._clipped | names if is_next_group else names
        return self._clipper.pairs(param_grads, step=self.step - 1 if is_next_group else self.step)

    @property
    def step(self) -> int:
        """The step of the next clip, counted from 0. Set it when training resumes.

        A step begins when a parameter occurs again, so that all groups of an optimizer are one step, and when you set
        this. Set it before every step if parameters have gradients in turns.
        """
        return self._clipper.step

    @step.setter
    def step(self, step: int) -> None:
        self._clipper.step, self._clipped = step, set()

    def _in_graph(self, param_grads: ParamGrads) -> ParamGrads:
        """Add a clip to a static program, which applies it at every run. Adding it counts as no step."""
        nonfinite = self._settings.nonfinite
        if nonfinite in IN_GRAPHS:
            raise TypeError(
                f"nonfinite = {nonfinite!r} works in dynamic mode only: a static program is made before it has values. "
                "Use 'zero', which makes all gradients 0 there, or 'family'."
            )
        if self._settings.has_schedule:
            raise TypeError(
                "a threshold with a schedule works in dynamic mode only: a static program is made once, for all steps. "
                "Use a number, or make a program for each threshold."
            )
        step = self.step
        try:
            return self._clipper.pairs(param_grads, step=step)
        finally:
            self._clipper.step = step


paddle.jit.not_to_static(paddle.jit.marker.force_dynamic(GradClip.__call__))  # its source cannot be translated


def _namer(names: Any) -> Namer:
    """Return a function that returns a gradient's name by its parameter's own name, which static programs keep."""
    check_names(names, lambda parameter: BACKEND.parameter_name(parameter) is not None, "Paddle")
    if callable(getattr(names, "named_parameters", None)):
        names = dict(names.named_parameters())
    if not isinstance(names, Mapping | None):
        raise TypeError(f"names is a {type(names).__name__}. Pass a Layer, or a dict of name to parameter.")
    by_own_name = {BACKEND.parameter_name(parameter): name for name, parameter in (names or {}).items()}

    def name_of(leaf: Leaf) -> str | None:  # a function: Clipper takes other callables for models
        return by_own_name.get(leaf.name, leaf.name)

    return name_of
