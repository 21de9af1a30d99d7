"""Match the parameters of two training steps: their names, and the order of their axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..compare.parameter_names import Names
from ..recorder.samples import axis_orders
from ..tensors.arithmetic import Float64s

Values = Mapping[str, Float64s]


class Layout(NamedTuple):
    names: Names
    """{old name: new name}"""

    axes: Mapping[str, tuple[int, ...] | None]
    """{old name: order of axes in the new tensor}. The order is None if no order gives the shape of the old tensor."""

    def to_new(self, old: Values) -> dict[str, Float64s]:
        matched = ((self.names[name], old[name], self.axes[name]) for name in self.names)
        return {other: value.transpose(np.argsort(axes)) for other, value, axes in matched if axes is not None}


def sorted_shape(shape: Sequence[int | None]) -> tuple[str, ...]:
    """A weight and its transpose have the same sorted shape."""
    return tuple(sorted(map(str, shape)))


def match_parameters(a: Values, b: Values, names: Names) -> Names:
    """Pair the parameters that `names` maps to each other, then parameters of the same name. If no names are equal,
    pair parameters of equal shape in their order."""
    matched = {name: other for name, other in names.items() if name in a and other in b}
    taken = {*names, *names.values()}
    common = {name: name for name in a if name in b and name not in taken and not name.isdecimal()}
    if common:  # positions do not count as names: frameworks list parameters in different orders
        return common | matched
    by_shape: dict[tuple[str, ...], list[str]] = {}
    for name, parameter in b.items():
        if name not in names.values():
            by_shape.setdefault(sorted_shape(parameter.shape), []).append(name)
    rest = {name: sorted_shape(parameter.shape) for name, parameter in a.items() if name not in names}
    return matched | {name: by_shape[shape].pop(0) for name, shape in rest.items() if by_shape.get(shape)}


def match_layout(old: Values, new: Values, names: Names) -> Layout:
    matched = match_parameters(old, new, names)
    return Layout(matched, {name: closest_axes(old[name], new[other]) for name, other in matched.items()})


def closest_axes(old: Float64s, new: Float64s) -> tuple[int, ...] | None:
    orders = [axes for axes in itertools.permutations(range(new.ndim)) if new.transpose(axes).shape == old.shape]
    return min(orders, key=lambda axes: float(np.abs(old - new.transpose(axes)).sum()), default=None)


def order_of_axes(axes: Sequence[int], old: Sequence[int], new: Sequence[int]) -> str:
    """axes: The order of the axes of the new weight that gives the shape of the old one."""
    kept = [axis for axis, length in enumerate(new) if length != 1]
    order = tuple(kept.index(axis) for axis in axes if axis in kept)
    own, *others = axis_orders(new)
    if order == own:
        return "same" if list(old) == list(new) else "reshaped"
    inverse = tuple(order.index(place) for place in own)
    return "transposed" if order in others or inverse in axis_orders(old)[1:] else "permuted"
