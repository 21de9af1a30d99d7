"""Match the parameters of two training steps: their names, and the order of their axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..recording.pairs.parameters import Names, match_parameters
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


def match_layout(old: Values, new: Values, names: Names) -> Layout:
    matched = match_parameters(old, new, names)
    return Layout(matched, {name: closest_axes(old[name], new[other]) for name, other in matched.items()})


def closest_axes(old: Float64s, new: Float64s) -> tuple[int, ...] | None:
    orders = [axes for axes in itertools.permutations(range(new.ndim)) if new.transpose(axes).shape == old.shape]
    return min(orders, key=lambda axes: float(np.abs(old - new.transpose(axes)).sum()), default=None)
