"""The clip that `ClipConfig.as_paddle()` returns, for `grad_clip=` of Paddle's optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import paddle

from .._api.groups import IN_GRAPHS
from .._backends.paddle import releases
from .._backends.paddle.backend import BACKEND
from .._backends.paddle.classes import OptimizerClip
from .._backends.paddle.conditions import in_static_mode, in_to_static_mode
from .._core.collect import ParamGrads
from .._core.names import Namer, with_parameters
from .._core.types import Leaf, with_article
from ..config.clipper import Clipper
from ..config.optimizer_integrations import checked_names
from ..config.outcome import OutcomeProperties
from ..config.schema import Settings

UNMATCHED = "These are Paddle's own names. Pass the model: clip.as_paddle(model)."

SINGLE_GROUP = (
    "If the optimizer has a single group, this error means that this step and the last step clip different "
    "parameters. "
    "In this case, assign the result of as_paddle() to a variable `clip`, and set clip.step to the step number "
    "before each step."
)


class GradClip(OutcomeProperties, OptimizerClip):
    """A clip for `grad_clip=` of one Paddle optimizer. Each group of parameters is clipped by its own norm."""

    _clipper: Clipper

    def __init__(self, settings: Settings, names: Any = None) -> None:
        self._begin(settings, _names_by_own_name(names))

    def _begin(self, settings: Settings, by_own_name: dict[str, str] | None, all_names: Sequence[str] = ()) -> None:
        self._settings, self.by_own_name = settings, by_own_name
        namer = _namer(by_own_name, settings.uses_names)
        unmatched = UNMATCHED if by_own_name is None else ""
        self._clipper = Clipper(settings, namer, unmatched=unmatched, all_names=all_names)
        self._clipped: set[str] = set()  # the names of the parameters that this step has clipped

    def __getstate__(self) -> dict[str, Any]:
        names = (self.by_own_name, self._clipper.__getstate__()["arguments"]["all_names"])
        return {"settings": self._settings, "names": names, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["settings"], *state["names"])
        self.load_state_dict(state["state"])

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
        if is_next_group and self._settings.is_adaptive:
            raise RuntimeError(
                "an adaptive threshold needs an optimizer with a single group of parameters, because Paddle clips each "
                f"group by its own norm. Pass one list of parameters to the optimizer. {SINGLE_GROUP}"
            )
        if is_next_group and self._settings.nonfinite in IN_GRAPHS:
            raise RuntimeError(
                f"nonfinite = {self._settings.nonfinite!r} needs an optimizer with a single group of parameters, "
                "because Paddle updates each group before it clips the next group. Pass one list of parameters to the "
                f"optimizer, or set nonfinite to 'zero' or 'family'. {SINGLE_GROUP}"
            )
        self._clipped = self._clipped | names if is_next_group else names
        return self._clipper.pairs(param_grads, step=self.step - 1 if is_next_group else self.step)

    @property
    def step(self) -> int:
        """The step number of the next clip, counted from 0. Set `step` when training resumes.

        A new step begins when a parameter is clipped again, or when you set `step`. If some parameters have no
        gradients in some steps, set `step` before every step.
        """
        return self._clipper.step

    @step.setter
    def step(self, step: int) -> None:
        self._clipper.step, self._clipped = step, set()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`, which can come from another framework.

        Raises:
            ValueError: `state` is not from `state_dict`. The adaptive rules of `state` and the configuration differ.
        """
        super().load_state_dict(state)
        self._clipped = set()

    def _in_graph(self, param_grads: ParamGrads) -> ParamGrads:
        nonfinite = self._settings.nonfinite
        if nonfinite in IN_GRAPHS:
            raise TypeError(
                f"nonfinite = {nonfinite!r} works in dynamic mode only, because values are unknown while a static "
                "program is built. Set nonfinite to 'family'. Or, to set all gradients to 0 if a norm is not finite, "
                "set nonfinite to 'zero'."
            )
        if self._settings.has_schedule:
            raise TypeError(
                "a threshold with a schedule works in dynamic mode only: a static program is built once for all "
                "steps. Set the threshold to a number, or build a program for each threshold."
            )
        if self._settings.is_adaptive:
            raise TypeError(
                "an adaptive threshold works in dynamic mode only: a static program cannot keep its state. Use the "
                "functions of unified_clip.adaptive, which get and return the state: see docs/adaptive.md."
            )
        step = self.step
        try:
            return self._clipper.pairs(param_grads, step=step)
        finally:
            self._clipper.step = step


# Paddle cannot translate its source code for a static program
paddle.jit.not_to_static(releases.force_dynamic(GradClip.__call__))


def _names_by_own_name(names: Any) -> dict[str, str] | None:
    """Map the name that Paddle gave each parameter to its name in `names`.

    Parameters cannot be keys, because a static program creates new parameter objects.
    """
    is_parameter = lambda parameter: BACKEND.parameter_name(parameter) is not None  # noqa: E731
    names = with_parameters(checked_names(names, is_parameter, "Paddle"))
    if not isinstance(names, Mapping | None):
        raise TypeError(f"names is {with_article(type(names).__name__)}. Pass a Layer, or a dict of name to parameter.")
    return (
        None if names is None else {str(BACKEND.parameter_name(parameter)): name for name, parameter in names.items()}
    )


def _namer(by_own_name: dict[str, str] | None, needs_all: bool) -> Namer:
    names = by_own_name or {}
    known = {*names, *names.values()}  # the clipper also looks up the names that this function returned

    def name_of(leaf: Leaf) -> str | None:  # a plain function: Clipper treats other callables as models
        if needs_all and by_own_name is not None and leaf.name not in known:
            raise ValueError(
                f"The configuration selects parameters by name, but the parameter {leaf.name!r} of the optimizer is "
                "not in the model or dict that you passed to as_paddle. Pass the whole model: clip.as_paddle(model)."
            )
        return leaf.name and names.get(leaf.name, leaf.name)

    return name_of
