"""A configuration as the `grad_clip=` of Paddle's optimizers: `ClipConfig.as_paddle()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import paddle

from .._core import classes
from .._core.containers import Leaf
from .._core.plan import IN_GRAPHS
from .._ops.paddle_classes import OptimizerClip
from .._ops.paddle_ops import OPS, in_static_mode, in_to_static_mode
from ..config.clipper import Clipper, OutcomeProperties
from ..config.schema import Settings
from .names import check_names

UNMATCHED = "These are Paddle's own names. Pass the model: clip.as_paddle(model)."


def grad_clip(settings: Settings, names: Any = None) -> GradClip:
    """What optimizers of Paddle take as `grad_clip=`, in dynamic mode, `to_static` and static programs.

    `LBFGS` takes every `grad_clip` and calls none: nothing is clipped there.

    Args:
        settings: How gradients are clipped.
        names: What to call the parameters, for patterns: a Layer, or a dict of name to parameter. None: Paddle's own
            names, such as "linear_0.b_0".

    Raises:
        ValueError: When used: names is None, and a pattern matches none of Paddle's own names.
        TypeError: names is neither, or has parameters of another framework. When used in a static program or
            `to_static`: the threshold has a schedule, or nonfinite is "raise" or "skip".
        RuntimeError: When used: nonfinite is "raise" or "skip", and the optimizer has groups, of which Paddle updates
            one before it shows the next.

    Example:
        >>> import paddle
        >>> from unified_clip import ClipConfig
        >>> clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle").as_paddle()
        >>> weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
        >>> optimizer = paddle.optimizer.SGD(1.0, [weight], grad_clip=clip)
        >>> (weight * paddle.to_tensor([3.0, 4.0])).sum().backward()
        >>> optimizer.step()
        >>> (-weight).tolist()
        [0.6000000238418579, 0.800000011920929]
        >>> clip.last.norm, clip.last.clipped
        (5.0, True)
    """
    return GradClip(settings, names)


class GradClip(OutcomeProperties, OptimizerClip):
    """A configuration at work in one optimizer, which calls it once for each group of parameters: a group, a norm."""

    def __init__(self, settings: Settings, names: Any) -> None:
        self._settings = settings
        self._clipper = Clipper(settings, _names(names), unmatched=UNMATCHED if names is None else "")
        self._seen: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self._settings).__name__} {self._settings.rule}>"

    def __call__(self, params_grads: Iterable[Any]) -> classes.Pairs:
        pairs = list(params_grads)
        if in_static_mode() or in_to_static_mode():
            return self._in_graph(pairs)
        present = {OPS.parameter_name(parameter) or "" for parameter, gradient in pairs if gradient is not None}
        if not present:  # a group of which nothing has a gradient
            return pairs
        same = bool(self._seen) and self._seen.isdisjoint(present)  # the optimizer's next group
        if same:
            self._check_for_groups()
        self._seen = self._seen | present if same else present
        return self._clipper.pairs(pairs, step=self.step - 1 if same else self.step)

    @property
    def step(self) -> int:
        """How many steps of the optimizer were clipped, which is the step of the next one; to be set on resuming.

        A step begins when a parameter comes again, so that the groups of an optimizer make one step together, and when
        this is set: set it before every step where now some parameters have gradients and now others.
        """
        return self._clipper.step

    @step.setter
    def step(self, step: int) -> None:
        self._clipper.step, self._seen = step, set()

    def _in_graph(self, pairs: classes.Pairs) -> classes.Pairs:
        """What a program does at every step; making it is none."""
        self._check_for_graph()
        made = self.step
        try:
            return self._clipper.pairs(pairs, step=made)
        finally:
            self._clipper.step = made

    def _check_for_groups(self) -> None:
        nonfinite = self._settings.nonfinite
        if nonfinite in IN_GRAPHS:
            raise RuntimeError(
                f"nonfinite = {nonfinite!r} is for optimizers with one group of parameters: Paddle has updated another "
                "group already, which could not be taken back; pass one list of parameters, or use 'zero' or 'family'. "
                "(Where there is one group, of which now some parameters have gradients and now others, set step "
                "before every step.)"
            )

    def _check_for_graph(self) -> None:
        nonfinite = self._settings.nonfinite
        if nonfinite in IN_GRAPHS:
            raise TypeError(
                f"nonfinite = {nonfinite!r} works in dynamic mode only: a static program has no values yet when it is "
                "made; use 'zero', which makes all gradients 0 there, or 'family'"
            )
        for part in self._settings.parts:
            if not isinstance(part.threshold, float | None):
                raise TypeError(
                    "a threshold with a schedule works in dynamic mode only: a static program is made once, for all "
                    "steps; use a number, or make a program for each"
                )


paddle.jit.not_to_static(paddle.jit.marker.force_dynamic(GradClip.__call__))  # its source cannot be translated


def _names(names: Any) -> Any:
    """By the parameters' own names: what a static program has is another object at every look."""
    check_names(names, lambda parameter: OPS.parameter_name(parameter) is not None, "Paddle")
    if callable(getattr(names, "named_parameters", None)):
        names = dict(names.named_parameters())
    if not isinstance(names, Mapping | None):
        raise TypeError(f"names is a {type(names).__name__}; pass a Layer, or a dict of name to parameter")
    known = {OPS.parameter_name(parameter): name for name, parameter in (names or {}).items()}

    def name_of(leaf: Leaf) -> str | None:
        return known.get(leaf.name, leaf.name)

    return name_of
