"""The thresholds of the rule AdaGC, one for each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._compute import processor
from .._compute.scalars import HOST
from .._core import observer, rule
from .._core.gradients import GradientList
from .._core.path import Path, Scalars
from .._core.rule import ClipConvention, ClipRule, OwnThresholds, Scale
from .._core.types import Scalar, Tensor
from . import state as states
from .number import Condition, Number, Real, minimum, where
from .rules import AdaGC


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
