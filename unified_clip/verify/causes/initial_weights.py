from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from ...causes.cause import Cause, names_text
from ...recording.causes.before_clips import untransposed
from ...recording.rounding import PRODUCT
from ...tensors.arithmetic import FORMATS, Float64s
from ...tensors.arrangement import Frameworks, axis_orders, may_be_channels_last
from ..cause_limits import MISFIT_FACTOR, RELATIVE_TOLERANCE, STORAGE_ULPS
from ..normalize import NormalizedRecording
from ..step_pairing import StepPairing


class FirstUpdate(NamedTuple):
    sizes: Float64s
    change: Float64s
    """The change of each element in the first step. A positive number is a move against the gradient."""

    error: float
    """The rounding error of the stored parameter."""

    to_zero: Float64s
    """The change that would set each element to 0."""


class Bounds:
    """Bounds for first updates.

    In SGD, Adam and similar optimizers, a larger gradient never causes a smaller update. A gradient that is twice as
    large causes at most twice the update.
    """

    def __init__(self, known: Collection[FirstUpdate]) -> None:
        sizes, low, high = (np.concatenate(parts) for parts in zip(*map(_ranges, known), strict=True))
        order = np.argsort(sizes[sizes > 0])
        sizes, low, high = (each[sizes > 0][order] for each in (sizes, low, high))
        with np.errstate(over="ignore"):
            low_ratio, high_ratio = low / sizes, high / sizes
        self._sizes = sizes
        self._low = np.maximum.accumulate([0.0, *low])
        self._high_ratio = np.minimum.accumulate([np.inf, *high_ratio])
        self._high = np.minimum.accumulate([np.inf, *high[::-1]])[::-1]
        self._low_ratio = np.maximum.accumulate([0.0, *low_ratio[::-1]])[::-1]
        largest = max((float(np.abs(each.change).max(initial=0.0)) for each in known), default=0.0)
        own = max(map(self.misfit, known), default=0.0)
        self.limit = max(MISFIT_FACTOR * own, PRODUCT * largest)
        """An update fits the bounds if its misfit is at most this limit."""

        self.is_sharp = own <= RELATIVE_TOLERANCE * largest

    def misfit(self, parameter: FirstUpdate) -> float:
        return float(np.abs(self.misfits(parameter)).max(initial=0.0))

    def misfits(self, parameter: FirstUpdate) -> Float64s:
        """Return how far each element is above the bounds (positive) or below the bounds (negative)."""
        sizes, low, high = _ranges(parameter)
        smaller, larger = (np.searchsorted(self._sizes, sizes, side) for side in ("right", "left"))
        least = np.maximum(self._low[smaller], sizes * self._low_ratio[larger])
        with np.errstate(invalid="ignore"):
            most = np.where(sizes > 0, np.minimum(self._high[larger], sizes * self._high_ratio[smaller]), 0.0)
        return np.maximum(low - most, 0.0) - np.maximum(least - high, 0.0)


def _is_decay(misfits: Float64s, parameter: FirstUpdate) -> bool:
    """Return whether weight decay explains all misfits. One or two misfits can be chance, so return False for them."""
    wrong = misfits != 0
    with np.errstate(divide="ignore"):
        parts = misfits[wrong] / parameter.to_zero[wrong]
    return len(parts) > 2 and bool(((parts > 0) & (parts < 0.5)).all())


def _ranges(parameter: FirstUpdate) -> tuple[Float64s, Float64s, Float64s]:
    return parameter.sizes, parameter.change - parameter.error, parameter.change + parameter.error


class InitialWeights:
    def __init__(self, pairing: StepPairing, recordings: Sequence[NormalizedRecording]) -> None:
        self._pairing = pairing
        gradients = {pair.name: pair for pair in pairing.gradients(1, recordings)} if pairing.yields_each_step else {}
        self._updates: dict[str, dict[str, FirstUpdate]] = {"old": {}, "new": {}}
        for update in pairing.updates(1):
            gradient, other = gradients.get(update.name), pairing.names[update.name]
            if gradient is None or update.name not in pairing.initial[0] or other not in pairing.initial[1]:
                continue
            precisions = [FORMATS[each].precision for each in pairing.dtypes[update.name] if each in FORMATS]
            error = STORAGE_ULPS * 2.0 ** (1 - min(precisions, default=0)) * update.scale
            for side, updates in self._updates.items():
                own, change = np.ravel(getattr(gradient, side)), np.ravel(getattr(update, side))
                if np.isfinite(own).all() and np.isfinite(change).all():
                    against = np.where(own == 0, np.sign(change), -np.sign(own))
                    weight = np.ravel(pairing.initial[0][update.name])
                    updates[update.name] = FirstUpdate(np.abs(own), against * change, error, -against * weight)

    def are_equal(self) -> bool:
        if not all(self._updates.values()):
            return False
        bounds = [Bounds(updates.values()) for updates in self._updates.values()]
        both = zip(bounds, reversed([*self._updates.values()]), strict=True)
        return all(own.is_sharp and own.misfit(each) <= own.limit for own, others in both for each in others.values())

    def cause(self, frameworks: Frameworks) -> Cause | None:
        orders = self._orders(frameworks)
        for side, other in (("new", "old"), ("old", "new")):
            names = self._different(side, other)
            if names and "reshaped" not in orders.values():
                verb = "differ" if len(names) > 1 else "differs"
                return Cause(
                    "other initial weights",
                    f"after step 1, {names_text(names)} of the {side} script {verb} from --weights by more than one "
                    f"optimizer step can change. Check that the {side} script loads each weight into the right "
                    "parameter, and does not change the weights before the first step",
                )
        return untransposed({name: self._pairing.shapes[0][name] for name in orders}, orders)

    def _different(self, side: str, other: str) -> list[str]:
        updates, reference = self._updates[side], self._updates[other]
        if not updates or not reference:
            return []
        bounds = Bounds(reference.values())
        suspects = [name for name, each in updates.items() if bounds.misfit(each) > bounds.limit]
        rest = [each for name, each in updates.items() if name not in suspects]
        own = Bounds(rest) if rest else None
        different = [name for name in suspects if own and own.misfit(updates[name]) > own.limit]
        is_decay = any(own and _is_decay(own.misfits(updates[name]), updates[name]) for name in different)
        return [] if is_decay else different

    def _orders(self, frameworks: Frameworks) -> dict[str, str]:
        """Return {old name: order}.

        - "same"
        - "transposed": the orders of axes differ as between PyTorch and Keras
        - "permuted": any other order
        - "reshaped": the shapes differ, and the flattened weights are the same
        """
        orders = {}
        for name, other in self._pairing.names.items():
            old, new = (
                run.outputs[0].parameters[own].values()
                for run, own in zip(self._pairing.runs, (name, other), strict=True)
            )
            axes = self._pairing.axes[name]
            if axes is None or len(axis_orders(old.shape)) < 2:
                continue
            nearest = new.transpose(axes)
            is_reshaped = old.shape != new.shape and 2 * _apart(old, new.reshape(old.shape)) < _apart(old, nearest)
            order = _order_of_axes(axes, old.shape, new.shape, may_be_channels_last(frameworks))
            orders[name] = "reshaped" if is_reshaped or (order == "same" and old.shape != new.shape) else order
        return orders


def _order_of_axes(axes: Sequence[int], old: Sequence[int], new: Sequence[int], can: tuple[bool, bool]) -> str:
    kept = [axis for axis, length in enumerate(new) if length != 1]
    order = tuple(kept.index(axis) for axis in axes if axis in kept)
    own, *others = axis_orders(new)
    if order == own:
        return "same"
    inverse = tuple(order.index(place) for place in own)
    is_known = (can[1] and order in others) or (can[0] and inverse in axis_orders(old)[1:])
    return "transposed" if is_known else "permuted"


def _apart(old: Float64s, new: Float64s) -> float:
    return float(np.abs(old - new).sum())
