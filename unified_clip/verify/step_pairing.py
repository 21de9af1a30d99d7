"""Find pairs of tensors from two training steps, and measure the distance of each pair."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..compare.parameter_names import Names
from ..recorder.samples import axis_orders
from ..recording.rounding import ROUNDING, Distance
from ..tensors.arithmetic import FORMATS, Float64s
from .cause_limits import RELATIVE_TOLERANCE, STORAGE_ULPS
from .launch.outputs import ScriptRun
from .layouts import Values, closest_axes, match_layout, order_of_axes
from .name_gradients import Parameters
from .named_recording import NormalizedRecording

GREATEST = 2.0**127
"""Differences between numbers above 2**127 are in ULP of 2**127."""


class ParameterDistance(NamedTuple):
    ulps: float
    relative: float
    parameter: str


class TensorPair(NamedTuple):
    """The axes of `old` and `new` have the same order."""

    name: str
    old: Float64s
    new: Float64s
    scale: float
    """The largest absolute value in both gradients. For updates, the largest absolute value in both parameters."""

    ulp_scale: float
    """One ULP of the parameter's dtype, divided by one ULP of float32."""


class StepPairing:
    def __init__(self, old: ScriptRun, new: ScriptRun, weights: Parameters, steps: int, names: Names) -> None:
        self.runs, self._weights, self._steps = (old, new), weights, steps
        self.yields_each_step = all(run.yields for run in self.runs)
        first = 1 if self.yields_each_step else steps
        old_values, new_values = (self._values(side, first) for side in (0, 1))
        self.shapes = [{name: value.shape for name, value in values.items()} for values in (old_values, new_values)]
        self.names, self.axes = match_layout(old_values, new_values, names)
        first_old, first_new = (run.outputs[0].parameters for run in self.runs)
        self.dtypes = {name: (first_old[name].dtype, first_new[other].dtype) for name, other in self.names.items()}
        self.initial = [self._initial_values(values) for values in (old_values, new_values)]

    def gradients(self, step: int, recordings: Sequence[NormalizedRecording]) -> Iterator[TensorPair]:
        """Yield the clipped gradients. If a step does not yield them, use the results of its clip calls.

        If both steps yield clipped gradients, a missing gradient is treated as 0.
        """
        sides, yielded = [], []
        for recording in recordings:
            output = recording.run.output_at(step, self._steps)
            gradients = output.gradients if output and step not in recording.unclipped else None
            yielded.append(gradients is not None)
            sides.append(_values(recording.clipped.get(step, {}) if gradients is None else gradients))
        if all(yielded):
            self._add_zeros(sides)
        return self._pair(sides, sides)

    def noise(self, step: int, recordings: Sequence[NormalizedRecording], known: Collection[str]) -> set[str]:
        """Return the parameters whose clipped gradients are at most ROUNDING ULP of the total norm.

        In exact arithmetic, these gradients are probably 0. `known` contains the result for the previous step.
        """
        pairs = list(self.gradients(step, recordings))
        norms = [[float(np.linalg.norm(side)) for side in (pair.old, pair.new)] for pair in pairs]
        totals = [math.hypot(*side) for side in zip(*norms, strict=True)] if norms else []
        names = set()
        for pair, own in zip(pairs, norms, strict=True):
            ulps = [2.0 ** -FORMATS[dtype].precision if dtype in FORMATS else 0.0 for dtype in self.dtypes[pair.name]]
            is_small = all(norm <= ROUNDING * ulp * total for norm, ulp, total in zip(own, ulps, totals, strict=True))
            if is_small and any(own) and (pair.name in known or _distance(pair).ulps > ROUNDING):
                names.add(pair.name)
        return names

    def distance(self, gradients: Sequence[TensorPair], sizes: Mapping[str, float]) -> float:
        """Return the largest difference of the clipped gradients, in ULP of the total norm times the coefficient.

        The result is infinite if some gradient differs by more than rounding can change it.

        sizes: {name: the total norm before the clip, multiplied by the coefficient of this gradient}. For a clip per
            tensor, this is more than the total norm after the clip.
        """
        norms = [(np.linalg.norm(pair.old), np.linalg.norm(pair.new)) for pair in gradients]
        total = max((math.hypot(*side) for side in zip(*norms, strict=True)), default=0.0)
        most = 0.0
        for pair in gradients:
            dtypes = [FORMATS[dtype].precision for dtype in self.dtypes[pair.name] if dtype in FORMATS]
            ulp = 2.0 ** -min(dtypes, default=math.inf) * max(total, sizes.get(pair.name, 0.0))
            difference = float(np.abs(pair.old - pair.new).max(initial=0.0))
            if not difference <= RELATIVE_TOLERANCE * pair.scale:  # NaN is no rounding
                return math.inf
            most = max(most, difference / ulp if difference else 0.0)
        return most

    def without_gradient(self, recordings: Sequence[NormalizedRecording]) -> set[str]:
        """Return the parameters that have a gradient in neither run, such as moving averages."""
        with_gradient = []
        for recording, shapes in zip(recordings, self.shapes, strict=True):
            tables = [output.gradients or {} for output in recording.run.outputs]
            names = set().union(*tables, *recording.before.values(), *recording.clipped.values())
            if not names or not names <= shapes.keys():
                return set()
            with_gradient.append(names)
        old, new = with_gradient
        return {name for name, other in self.names.items() if name not in old and other not in new}

    def _add_zeros(self, sides: Sequence[dict[str, Float64s]]) -> None:
        both = [pair for pair in self.names.items() if pair[0] in sides[0] or pair[1] in sides[1]]
        for side, names, shapes in zip(sides, zip(*both, strict=True), self.shapes, strict=False):
            for name in names:
                side.setdefault(name, np.zeros(shapes[name]))

    def updates(self, step: int) -> Iterator[TensorPair]:
        """Yield the change of each parameter by one step, or by all steps if a function returns only once."""
        now, before = [self._values(side, step) for side in (0, 1)], self._before(step)
        changes = [
            {name: value - old.get(name, 0.0) for name, value in values.items()}
            for values, old in zip(now, before, strict=True)
        ]
        return self._pair(changes, before, now)

    def _before(self, step: int) -> Sequence[Values]:
        if step == 1 or not self.yields_each_step:
            return self.initial
        return [self._values(side, step - 1) for side in (0, 1)]

    def orders(self) -> dict[str, str]:
        """Compare the axes of each weight after the first step.

        Return {old name: "same", "transposed", as between PyTorch and Keras, "permuted" or "reshaped"}. "reshaped"
        means that the shapes differ, and the flattened weights are the same.
        """
        orders = {}
        for name, other in self.names.items():
            both = zip(self.runs, (name, other), strict=True)
            old, new = (run.outputs[0].parameters[own].values() for run, own in both)
            axes = self.axes[name]
            if axes is None or len(axis_orders(old.shape)) < 2:
                continue
            nearest = new.transpose(axes)
            is_reshaped = old.shape != new.shape and 2 * _apart(old, new.reshape(old.shape)) < _apart(old, nearest)
            orders[name] = "reshaped" if is_reshaped else order_of_axes(axes, old.shape, new.shape)
        return orders

    def gradients_of(
        self,
        side: int,
        step: int,
        unclipped: Collection[int],
        clipped: Mapping[int, Parameters],
        before: Mapping[int, Parameters],
    ) -> dict[str, Float64s]:
        """Return the gradients that the optimizer gets: as yielded, or else the results of the clip calls."""
        output = self.runs[side].output_at(step, self._steps)
        yielded = output.gradients if output and step not in unclipped else None
        return _values(clipped.get(step) or before.get(step) or {} if yielded is None else yielded)

    def weights_of(self, side: int, step: int) -> tuple[Values, Values]:
        """Return the weights before and after a step, in the layout of the side."""
        if not self.yields_each_step and self._steps > 1:
            return {}, {}
        return self._before(step)[side], self._values(side, step)

    def _values(self, side: int, step: int) -> dict[str, Float64s]:
        output = self.runs[side].output_at(step, self._steps)
        return {} if output is None else _values(output.parameters)

    def _initial_values(self, values: Values) -> dict[str, Float64s]:
        others = {**self.names, **{new: old for old, new in self.names.items()}}
        initial = {}
        for name, value in values.items():
            weight = self._weights.get(name) or self._weights.get(others.get(name, name))
            axes = closest_axes(value, weight.values()) if weight else None
            if weight and axes is not None:
                initial[name] = weight.values().transpose(axes)
        return initial

    def _pair(self, sides: Sequence[Values], *references: Sequence[Values]) -> Iterator[TensorPair]:
        for name, other in self.names.items():
            axes = self.axes[name]
            if name in sides[0] and other in sides[1] and axes is not None:
                both = [(values, own) for pair in references for values, own in zip(pair, (name, other), strict=True)]
                scale = max(greatest_of(values[own]) for values, own in both if own in values)
                new = sides[1][other].transpose(axes)
                if new.shape == sides[0][name].shape:  # a clip call may get only the stored rows of a sparse gradient
                    yield TensorPair(name, sides[0][name], new, scale, coarsest_ulp(self.dtypes[name]))


def _values(tensors: Parameters) -> dict[str, Float64s]:
    return {name: dense.values() for name, dense in tensors.items()}


def _apart(old: Float64s, new: Float64s) -> float:
    return float(np.abs(old - new).sum())


def sorted_distances(pairs: Iterable[TensorPair]) -> list[ParameterDistance]:
    return sorted(map(_distance, pairs), key=lambda distance: distance[:2], reverse=True)


def _distance(pair: TensorPair) -> ParameterDistance:
    return ParameterDistance(*tensor_distance(*pair[1:]), pair.name)


def without_noise(updates: Sequence[TensorPair], noise: Collection[str]) -> Iterator[TensorPair]:
    """Leave out the updates of the parameters in `noise`.

    Adam divides each element of a gradient by its typical absolute value. So a gradient that is only a rounding error
    gives an update of normal size. But an update is kept if it is more than twice as large as the largest update
    outside `noise`.
    """
    sizes = {pair.name: max(map(greatest_of, (pair.old, pair.new))) for pair in updates}
    most = max((size for name, size in sizes.items() if name not in noise), default=0.0)
    yield from (pair for pair in updates if pair.name not in noise or sizes[pair.name] > 2 * most)


def tensor_distance(old: Float64s, new: Float64s, scale: float, ulp_scale: float = 1.0) -> Distance:
    """Return the largest difference, in ULP and divided by the largest absolute value in both tensors.

    scale: Differences are in ULP of this number. If the tensors differ by more than rounding, and their
        largest absolute value is below `scale`, differences are in ULP of this absolute value.
    ulp_scale: One ULP of the parameter's dtype, divided by one ULP of float32.
    """
    differ = (old != new) & ~(np.isnan(old) & np.isnan(new))
    if not differ.any():
        return Distance(0.0, 0.0)
    with np.errstate(invalid="ignore"):
        difference = np.abs(old[differ] - new[differ])
    if not np.isfinite(difference).all():
        return Distance(math.inf, math.inf)
    greatest = float(difference.max())
    own = max(greatest_of(old), greatest_of(new))
    storage_unit = _unit(scale) * ulp_scale
    unit = min(_unit(scale), storage_unit)
    if greatest > STORAGE_ULPS * storage_unit and greatest > RELATIVE_TOLERANCE * own:
        unit = min(unit, _unit(own))
    return Distance(greatest / unit, greatest / own)


def coarsest_ulp(dtypes: Iterable[str]) -> float:
    """Return one ULP of the least precise dtype, divided by one ULP of float32."""
    single = FORMATS["float32"].precision
    return max((2.0 ** (single - FORMATS[dtype].precision) for dtype in dtypes if dtype in FORMATS), default=1.0)


def _unit(number: float) -> float:
    return float(np.spacing(np.float32(min(number, GREATEST))))


def greatest_of(values: Float64s) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
