"""The thresholds of the rule AGC, one for each unit (row or channel) of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core import rule
from .._core.gradients import GradientList
from .._core.path import Scalars
from .._core.rule import ClipRule, OwnThresholds, Scale
from .._core.types import Leaf, Scalar, Tensor
from .rules import AGC

REMEDY = (
    "Call clip(grads, parameters=parameters) or adaptive.clip_by_unit_norm(grads, parameters). `grads` and "
    "`parameters` need the same structure. Or pass (parameter, gradient) tuples to clip.pairs()"
)


class UnitThresholds(OwnThresholds):
    __slots__ = ("agc", "limit")

    def __init__(self, agc: AGC, limit: Any) -> None:
        self.agc, self.limit = agc, limit

    def measure(
        self, gradients: GradientList, group: range, clip_rule: ClipRule, inputs: Sequence[Tensor]
    ) -> list[Scale]:
        if gradients.shards is not None:
            raise ValueError(
                "the adaptive rule agc does not support distributed gradients, because a unit may be sharded. Use a "
                "fixed threshold, or an adaptive rule for the total norm, such as zclip"
            )
        norms = [_norm(self.agc, gradients, index, clip_rule, self.limit, inputs) for index in group]
        return sorted(norms, key=lambda norm: norm.path.on_host)


def _norm(
    agc: AGC, gradients: GradientList, index: int, clip_rule: ClipRule, limit: Any, inputs: Sequence[Tensor]
) -> Scale:
    group, parameter = range(index, index + 1), _parameter(gradients, index)
    units = clip_rule._replace(axes=_axes(agc, gradients, index), kind="norm")
    path = gradients.path(group, [*inputs, parameter])
    with path.scope():
        n = rule.norm_of(gradients, group, units, path)
        own = gradients.parameter_path(index, parameter, inputs)
        weight = own.norm(2) if units.axes is None else own.slice_norms(units.axes)
        n, threshold = _threshold(agc, path.xp, n, weight)
        threshold = rule.at_most(path.xp, threshold, limit)
        return Scale(group, path, n, threshold, rule.coefficient(path.xp, n, threshold, clip_rule.convention))


def _threshold(agc: AGC, xp: Scalars, n: Scalar, weight: Scalar) -> tuple[Scalar, Scalar]:
    """Return (norm, threshold) of each unit. `weight` is the norm of the unit's parameters."""
    eps, smallest = (xp.asarray(number) for number in agc.floors)
    threshold = xp.where(weight < eps, eps, weight) * xp.asarray(agc.clip_factor)
    return xp.where((n >= threshold) & (n < smallest), smallest, n), threshold


def _axes(agc: AGC, gradients: GradientList, index: int) -> list[int] | None:
    shape = gradients.backend.shape(gradients.values[index])
    if shape is None:
        raise ValueError(
            f"the adaptive rule agc needs the number of axes of the gradient at {gradients.leaves[index].place}. Set "
            "the shape of the gradient, or exclude its parameter from the clip"
        )
    try:
        axes = agc.axes(shape)
    except ValueError as error:
        raise ValueError(f"the gradient at {gradients.leaves[index].place}: {error}") from None
    return None if axes is None else list(axes)


def _parameter(gradients: GradientList, index: int) -> Tensor:
    leaf, backend = gradients.leaves[index], gradients.backend
    if not has_parameter(gradients, leaf):
        raise TypeError(
            f"the adaptive rule agc needs the parameters, but the gradient at {leaf.place} has none. {REMEDY}"
        )
    if gradients.is_sparse(index):
        raise TypeError(
            f"the gradient at {leaf.place} is sparse. The adaptive rule agc does not support sparse gradients. Exclude "
            "the parameter from the clip, or convert the gradient to a dense one"
        )
    parameter = backend.detached(leaf.parameter)
    shapes = [tuple(backend.shape(tensor) or ()) for tensor in (gradients.values[index], parameter)]
    if shapes[0] != shapes[1] and None not in shapes[0] + shapes[1]:
        raise ValueError(
            f"the gradient at {leaf.place} has the shape {shapes[0]}, but its parameter has {shapes[1]}. Pass the "
            "parameters in the order of the gradients"
        )
    return parameter


def has_parameter(gradients: GradientList, leaf: Leaf) -> bool:
    backend = gradients.backend
    is_tensor = backend.is_tensor(leaf.parameter) or (
        backend.variables is not None and backend.variables.is_variable(leaf.parameter)
    )
    return is_tensor and leaf.parameter is not leaf.tensor
