"""The tensors of two training steps: which belong together, how they are laid out, and how far they are apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..recording.pairing import Names, match_parameters
from ..recording.rounding import Distance
from ..recording.runs import Parameter
from ..tensors.arithmetic import FORMATS, Float64s
from .match_names import Parameters
from .normalize import Settled
from .run import Ran, at_step

ALIKE = 1e-3
"""How far, relatively, numbers may be from one multiple of each other: they were rounded."""

SINGLE = FORMATS["float32"].precision

STORED = 4
"""Units in the last place of a parameter by which updates differ where it is stored: both sides round, some twice."""

GREATEST = 2.0**127
"""The power of two from which on float32 has its greatest unit in the last place."""

Values = Mapping[str, Float64s]


class Far(NamedTuple):
    """The greatest distance between tensors, and whose it is."""

    distance: Distance
    name: str


class Two(NamedTuple):
    """A tensor of both, the new one with its axes in the order of the old one's."""

    name: str
    old: Float64s
    new: Float64s
    scale: float
    """The greatest number by which they were rounded."""

    coarse: float
    """How many units in the last place of float32 one of the parameter's is."""


class Beside:
    """What two functions gave."""

    def __init__(self, old: Ran, new: Ran, weights: Parameters, steps: int, names: Names) -> None:
        """`names`: from old to new, of those that have others."""
        self._runs, self._weights, self._steps = (old, new), weights, steps
        self._in_between = all(ran.yields for ran in self._runs)
        first = 1 if self._in_between else steps
        ours, theirs = (self._values(side, first) for side in (0, 1))
        self._shapes = [{name: each.shape for name, each in values.items()} for values in (ours, theirs)]
        self.names = match_parameters(_as_parameters(ours), _as_parameters(theirs), names)
        self.axes = {name: _axes(ours[name], theirs[other]) for name, other in self.names.items()}
        """The order of axes in which the new tensor is like the old one; None where its shape does not fit."""
        stored, others = (ran.given[0].parameters for ran in self._runs)
        self._coarse = {name: coarsest([stored[name].dtype, others[other].dtype]) for name, other in self.names.items()}
        self._begin = [self._initial(values) for values in (ours, theirs)]

    def gradients(self, step: int, settled: Sequence[Settled]) -> Iterator[Two]:
        """After clipping: what the functions gave, or else what the clip calls left."""
        sides, told = [], []
        for ran, each in zip(self._runs, settled, strict=True):
            given = at_step(ran, step, self._steps)
            held = given.gradients if given and step not in each.unclipped else None
            told.append(held is not None)
            held = each.clipped.get(step, {}) if held is None else held
            sides.append({name: dense.values() for name, dense in held.items()})
        if all(told):
            self._fill(sides)
        return self._together(sides, sides)

    def _fill(self, sides: Sequence[dict[str, Float64s]]) -> None:
        """A gradient that only one function gives is none in the other, which changes nothing: zeros."""
        both = [pair for pair in self.names.items() if pair[0] in sides[0] or pair[1] in sides[1]]
        for side, names, shapes in zip(sides, zip(*both, strict=True), self._shapes, strict=False):
            for name in names:
                side.setdefault(name, np.zeros(shapes[name]))

    def updates(self, step: int) -> Iterator[Two]:
        """What a step has added, or all together where not both tell it of each.

        To a parameter that is not among the weights: all that it is.
        """
        now = [self._values(side, step) for side in (0, 1)]
        begin = self._begin if step == 1 or not self._in_between else [self._values(side, step - 1) for side in (0, 1)]
        added = [
            {name: each - before.get(name, 0.0) for name, each in values.items()}
            for values, before in zip(now, begin, strict=True)
        ]
        return self._together(added, now)

    def left_over(self, step: int, settled: Sequence[Settled]) -> str | None:
        """The side whose gradients are those of the other and, added to them, its own of the step before."""
        now = list(self._of([each.before.get(step, {}) for each in settled]))
        for held in ("clipped", "before"):
            left = {two.name: two for two in self._of([getattr(each, held).get(step - 1, {}) for each in settled])}
            for side, other in (("old", "new"), ("new", "old")):
                sums = [
                    (getattr(two, side), getattr(two, other) + getattr(left[two.name], side))
                    for two in now
                    if two.name in left
                ]
                if sums and len(sums) == len(now) and all(map(_close, *zip(*sums, strict=True))):
                    return side
        return None

    def _of(self, sides: Sequence[Parameters]) -> Iterator[Two]:
        values = [{name: dense.values() for name, dense in side.items()} for side in sides]
        return self._together(values, values)

    def other_dtypes(self) -> tuple[str, str, str] | None:
        """A parameter that has another dtype in the new than in the old, and both; None where there is none."""
        old, new = (ran.given[0].parameters for ran in self._runs)
        pairs = ((name, old[name].dtype, new[other].dtype) for name, other in self.names.items())
        return next((found for found in pairs if found[1] != found[2]), None)

    def ratio(self, step: int) -> float | None:
        """The one number by which the old updates are multiplied to make the new ones, if there is one."""
        twos = list(self.updates(step))
        old, new = (np.concatenate([np.ravel(getattr(two, side)) for two in twos]) for side in ("old", "new"))
        if not np.any(old):
            return None
        ratio = float(old @ new / (old @ old))
        off = max(float(np.abs(two.new - ratio * two.old).max(initial=0.0)) for two in twos)
        return ratio if ratio and off <= ALIKE * float(np.abs(new).max()) else None

    def _values(self, side: int, step: int) -> dict[str, Float64s]:
        given = at_step(self._runs[side], step, self._steps)
        return {name: each.values() for name, each in given.parameters.items()} if given else {}

    def _initial(self, values: Values) -> dict[str, Float64s]:
        """The weights that the first step began with, laid out like those that it gave, as far as names tell."""
        others = {**self.names, **{theirs: ours for ours, theirs in self.names.items()}}
        found = {}
        for name, value in values.items():
            weight = self._weights.get(name) or self._weights.get(others.get(name, name))
            axes = _axes(value, weight.values()) if weight else None
            if weight and axes is not None:
                found[name] = weight.values().transpose(axes)
        return found

    def _together(self, sides: Sequence[Values], scales: Sequence[Values]) -> Iterator[Two]:
        for name, other in self.names.items():
            axes = self.axes[name]
            if name in sides[0] and other in sides[1] and axes is not None:
                scale = max(_greatest(scales[0][name]), _greatest(scales[1][other]))
                yield Two(name, sides[0][name], sides[1][other].transpose(axes), scale, self._coarse[name])


def _as_parameters(values: Values) -> dict[str, Parameter]:
    return {name: Parameter(shape=each.shape, norm=0.0) for name, each in values.items()}


def _axes(ours: Float64s, theirs: Float64s) -> tuple[int, ...] | None:
    """The order of axes in which the second tensor is most like the first; None where its shape does not fit."""
    orders = [axes for axes in itertools.permutations(range(theirs.ndim)) if theirs.transpose(axes).shape == ours.shape]
    return min(orders, key=lambda axes: float(np.abs(ours - theirs.transpose(axes)).sum()), default=None)


def _close(ours: Float64s, theirs: Float64s) -> bool:
    return bool(np.abs(ours - theirs).max(initial=0.0) <= ALIKE * _greatest(ours))


def furthest(twos: Iterable[Two]) -> Far | None:
    found = (Far(apart(*two[1:]), two.name) for two in twos)
    return max(found, key=lambda far: far.distance, default=None)


def apart(ours: Float64s, theirs: Float64s, scale: float, coarse: float = 1.0) -> Distance:
    """How far two tensors are from each other: the greatest difference of two numbers.

    In units in the last place of the number `scale`, in float32, and relative to the greatest number: what frameworks
    round differently are sums, whose error goes by their greatest term, and not by what is left of it. What no rounding
    makes, as of an update that is another, is in units of the greatest number: small updates are not the same by being
    small.
    """
    differ = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
    if not differ.any():
        return Distance(0.0, 0.0)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours[differ] - theirs[differ])
    if not np.isfinite(difference).all():
        return Distance(math.inf, math.inf)
    greatest = float(difference.max())
    own = max(_greatest(ours), _greatest(theirs))
    unit = _unit(scale)
    if greatest > STORED * unit * coarse and greatest > ALIKE * own:
        unit = min(unit, _unit(own))
    return Distance(greatest / unit, greatest / own)


def coarsest(dtypes: Iterable[str]) -> float:
    """How many units in the last place of float32 one of the narrowest of these dtypes is; integers are not rounded."""
    return max((2.0 ** max(0, SINGLE - FORMATS[dtype].precision) for dtype in dtypes if dtype in FORMATS), default=1.0)


def _unit(number: float) -> float:
    """In the last place, in float32."""
    return float(np.spacing(np.float32(min(number, GREATEST))))


def _greatest(values: Float64s) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
