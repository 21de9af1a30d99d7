"""The thresholds of the rule AdaGC, one for each tensor, and of the rule AGC, one for each unit of a gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._compute import processor
from .._compute.host import HOST
from .._core import observer, rule
from .._core.gradients import GradientList
from .._core.path import Path, Scalars
from .._core.rule import ClipConvention, ClipRule, OwnThresholds, Scale
from .._core.types import Leaf, Scalar, Tensor
from . import state as states
from .number import Condition, Number, Real, minimum, where
from .rules import AGC, AdaGC


def resize(state: states.State, count: int) -> states.State:
    known = len(state["norms"]) if isinstance(state, dict) else state.shape[0] - 1
    if isinstance(state, dict) and not known:
        return {**state, "norms": np.zeros(count)}
    if known != count:
        raise ValueError(
            f"the state of the adaptive rule adagc has the norms of {known} tensors, but the call has {count} tensors. "
            "Pass the same parameters in each step, including parameters without a gradient. A state that you "
            "load must belong to the same parameters"
        )
    return state


class TensorThresholds(OwnThresholds):
    """The thresholds of AdaGC for one step. `count` includes tensors without a gradient."""

    __slots__ = ("adagc", "count", "limit", "state")

    def __init__(self, adagc: AdaGC, state: states.State, count: int, limit: Any) -> None:
        self.adagc, self.state, self.count, self.limit = adagc, state, count, limit

    def describe(self) -> str:
        return f"adaptive {self.adagc}"

    def measure(
        self, gradients: GradientList, group: range, clip_rule: ClipRule, inputs: Sequence[Tensor]
    ) -> list[Scale]:
        current, convention = resize(self.state, self.count), clip_rule.convention
        slots = [gradients.leaves[index].position for index in group]
        path = _path_together(gradients, group, current, inputs)
        if path is not None:
            with path.scope():
                # The `Scale` has no thresholds, which only recordings need, and no total norm.
                norms, total = path.norm(2.0), gradients.norm(gradients.path(group), group, 2.0)
                vector = np.zeros(self.count)
                vector[slots] = norms
                coefs, new = self._coefficients(current, convention, HOST, total, vector, slots)
                if isinstance(coefs, np.ndarray):
                    coefs = coefs[slots]
                return [Scale(group, path, norms, coef=coefs, state=new)]
        plain = clip_rule._replace(threshold=math.inf)
        total = rule.measure_one(gradients, group, plain._replace(kind="global_norm"), inputs)
        gradients.tensor_norms(2.0)  # a collective, in which ranks without a gradient take part
        if not total.path.on_host:
            if isinstance(current, dict):
                with total.path.scope():
                    current = states.pack(self.adagc, total.path.xp, current)  # raises an error on MLX
            inputs = [*inputs, total.n]  # so that all paths are on the device
        norms = [rule.measure_one(gradients, range(index, index + 1), plain, inputs) for index in group]
        with processor.ieee_arithmetic() if total.path.on_host else total.path.scope():  # NumPy warns of inf * 0
            return self._decided(current, convention, total, norms, slots) if norms else []

    def _decided(
        self,
        state: states.State,
        convention: ClipConvention,
        total: Scale,
        norms: Sequence[Scale],
        slots: list[int],
    ) -> list[Scale]:
        xp = total.path.xp
        unchanged, infinite = xp.asarray(1.0), xp.asarray(math.inf)
        tensor_norms, vector = [xp.asarray(norm.n) for norm in norms], [xp.asarray(0.0)] * self.count
        for slot, n in zip(slots, tensor_norms, strict=True):
            vector[slot] = n
        coefs, new = self._coefficients(state, convention, xp, total.n, _stacked(xp, vector), slots)
        by_slot = _parts(xp, coefs, self.count)
        decided = []
        for norm, n, slot in zip(norms, tensor_norms, slots, strict=True):
            coef = by_slot[slot]
            threshold = xp.where(coef < unchanged, n * coef, infinite)
            decided.append(norm._replace(threshold=threshold, coef=coef, total=total.total, state=new))
        return decided

    def _coefficients(
        self,
        state: states.State,
        convention: ClipConvention,
        xp: Scalars,
        total: Scalar,
        vector: Scalar,
        slots: list[int],
    ) -> tuple[Scalar, states.State]:
        """Return (the vector of coefficients, the new state). If the total norm is NaN or infinite, keep the old state.

        `vector` has a norm for each number in the state. Only the indices `slots` are norms of gradients. The other
        norms are 0, and change no average.
        """
        adagc, limit, largest_norm = self.adagc, self.limit, xp.asarray(states.LARGEST_NORM)
        is_finite = total <= largest_norm
        numbers = state if isinstance(state, dict) else states.unpack(adagc, xp, state)
        step, mean = numbers[states.STEPS], numbers["norms"]
        is_warm = step - adagc.warmup_steps >= 0.0
        scale = 1.0 if is_warm is True else rule.coefficient(xp, total, adagc.warmup_threshold, convention)
        limits, averages = _advance(adagc, mean, _real(xp, vector), _real(xp, scale), is_warm)
        coefs = _repeated(mean, scale)
        if is_warm is not False:
            # each norm is finite if the total norm is
            thresholds = _scalar(limits)
            if is_finite is not True:
                thresholds = xp.where(vector <= largest_norm, thresholds, xp.asarray(0.0))
            own = rule.coefficient(xp, vector, thresholds, convention)
            coefs = own if is_warm is True else xp.where(is_warm, own, coefs)
        if not isinstance(limit, float) or limit < math.inf:
            largest = rule.at_most(xp, xp.asarray(math.inf), limit)
            fixed = rule.coefficient(xp, vector, _repeated(mean, largest), convention)
            coefs = xp.where(fixed < coefs, fixed, coefs)
        if len(slots) < self.count:
            changes = set(slots)
            has_gradient = xp.vector([float(slot in changes) for slot in range(self.count)]) > xp.asarray(0.0)
            averages = where(has_gradient, averages, mean)
        if isinstance(state, dict):
            return coefs, {states.STEPS: step + 1.0, "norms": averages} if is_finite else state
        return coefs, xp.stop_gradient(xp.where(is_finite, xp.pack([(step + 1.0).value, averages.value]), state))


def _path_together(gradients: GradientList, group: range, state: states.State, inputs: Sequence[Tensor]) -> Path | None:
    if inputs or not isinstance(state, dict) or gradients.collected is None or observer.active is not None:
        return None
    path = gradients.per_tensor_path(group)
    return path if path is not None and path.on_host else None


def _advance(adagc: AdaGC, mean: Real, norms: Real, scale: Real, is_warm: Condition) -> tuple[Real, Real]:
    """Return (the threshold of each tensor, the new averages). Before the first norm above 0, the threshold is inf."""
    has_begun = mean > 0.0
    limits = where(has_begun, mean * adagc.ratio, math.inf)
    average = where(has_begun, mean * adagc.alpha + minimum(norms, limits) * (1 - adagc.alpha), norms)
    if is_warm is True:
        return limits, average
    first = norms * scale if adagc.warmup_norms == "clipped" else norms
    smallest = where(has_begun, where(first > 0.0, minimum(mean, first), mean), first)
    return where(is_warm, limits, math.inf), where(is_warm, average, smallest)


def _real(xp: Scalars, value: Scalar) -> Real:
    return value if xp is HOST else Number(xp, value)


def _scalar(number: Real) -> Scalar:
    return number.value if isinstance(number, Number) else number


def _repeated(vector: Real, scalar: Scalar) -> Scalar:
    return _scalar(vector * 0.0) + scalar


def _stacked(xp: Scalars, scalars: Sequence[Scalar]) -> Scalar:
    return np.array(scalars) if xp is HOST else xp.unpack(xp.pack(scalars), [len(scalars)])[0]


def _parts(xp: Scalars, vector: Scalar, length: int) -> list[Scalar]:
    if xp is HOST:
        return list(np.broadcast_to(vector, length).tolist())
    # pinned: Inductor reads a number that is only a view of a vector as the vector's first number
    return list(map(xp.pinned, xp.unpack(xp.pack([vector]), [None] * length)))


# -- units (rows or channels)


REMEDY = (
    "Call clip(grads, parameters=parameters) or adaptive.clip_by_unit_norm(grads, parameters). `grads` and "
    "`parameters` need the same structure. Or pass (parameter, gradient) tuples to clip.pairs()"
)


class UnitThresholds(OwnThresholds):
    """The thresholds of AGC, one for each unit of a gradient."""

    __slots__ = ("agc", "limit")

    def __init__(self, agc: AGC, limit: Any) -> None:
        self.agc, self.limit = agc, limit

    def describe(self) -> str:
        return f"adaptive {self.agc}"

    def measure(
        self, gradients: GradientList, group: range, clip_rule: ClipRule, inputs: Sequence[Tensor]
    ) -> list[Scale]:
        if gradients.shards is not None:
            raise ValueError(
                "the adaptive rule agc does not support distributed gradients, because a unit may be sharded. Use the "
                "adaptive rule adagc, or a fixed threshold"
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
