"""Find pairs of tensors from two training steps, and measure the distance of each pair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..compare.parameter_names import Names
from ..recipes.pairs import pair_parameters
from ..recipes.run import Run
from ..recorder.samples import sample
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedRun
from ..recording.rounding import ROUNDING, Distance
from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.types import Dense
from .named_recording import NormalizedRecording, Values, values

Parameters = Mapping[str, Dense]

RELATIVE_TOLERANCE = 1e-3

STORAGE_ULPS = 4
"""Rounding of a stored parameter can change its update by up to this number of ULP of the parameter."""

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
    def __init__(self, old: NormalizedRecording, new: NormalizedRecording, weights: Parameters, names: Names) -> None:
        """names: {old name: new name} from --map."""
        self.sides, self._steps = (old, new), old.steps
        self.yields_each_step = all(side.run.yields for side in self.sides)
        first = 1 if self.yields_each_step else self._steps
        first_values = [side.parameters(first) for side in self.sides]
        self.shapes = [{name: value.shape for name, value in each.items()} for each in first_values]
        common = {*self.shapes[0]} & {*self.shapes[1]} - {*names, *names.values()}
        equal = {name: name for name in common if not name.isdecimal()}  # also of other shapes, which is an error
        found = pair_parameters(Run(_yields_alone(old, first)), Run(_yields_alone(new, first)), {**equal, **names})
        self.names = {pair.old[0]: pair.new[0] for pair in found if pair.is_single}
        self.axes = {
            name: closest_axes(first_values[0][name], first_values[1][other]) for name, other in self.names.items()
        }
        outputs = [side.run.outputs[0].parameters for side in self.sides]
        self.dtypes = {name: (outputs[0][name].dtype, outputs[1][other].dtype) for name, other in self.names.items()}
        others = {**self.names, **{new: old for old, new in self.names.items()}}
        for side, each in zip(self.sides, first_values, strict=True):
            side.initial = dict(_initial(each, weights, others))

    def gradients(self, step: int) -> Iterator[TensorPair]:
        """Yield the clipped gradients. If a step does not yield them, use the results of its clip calls.

        If both steps yield clipped gradients, a missing gradient is treated as 0.
        """
        yielded = [side.yielded(step) for side in self.sides]
        found = [
            values(side.clipped.get(step, {})) if own is None else own
            for side, own in zip(self.sides, yielded, strict=True)
        ]
        if None not in yielded:
            self._add_zeros(found)
        return self._pair(found, found)

    def noise(self, step: int, known: Collection[str]) -> set[str]:
        """Return the parameters whose clipped gradients are at most ROUNDING ULP of the total norm.

        In exact arithmetic, these gradients are probably 0. `known` contains the result for the previous step.
        """
        pairs = list(self.gradients(step))
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

    def without_gradient(self) -> set[str]:
        """Return the parameters that have a gradient in neither run, such as moving averages."""
        old, new = (side.trained() for side in self.sides)
        if not (old and new and old <= self.shapes[0].keys() and new <= self.shapes[1].keys()):
            return set()
        return {name for name, other in self.names.items() if name not in old and other not in new}

    def _add_zeros(self, sides: Sequence[dict[str, Float64s]]) -> None:
        both = [pair for pair in self.names.items() if pair[0] in sides[0] or pair[1] in sides[1]]
        for side, names, shapes in zip(sides, zip(*both, strict=True), self.shapes, strict=False):
            for name in names:
                side.setdefault(name, np.zeros(shapes[name]))

    def updates(self, step: int) -> Iterator[TensorPair]:
        """Yield the change of each parameter by one step, or by all steps if a function returns only once."""
        now = [side.parameters(step) for side in self.sides]
        before = [side.weights_before(step) if self.yields_each_step else side.initial for side in self.sides]
        changes = [
            {name: value - old.get(name, 0.0) for name, value in each.items()}
            for each, old in zip(now, before, strict=True)
        ]
        return self._pair(changes, before, now)

    def _pair(self, sides: Sequence[Values], *references: Sequence[Values]) -> Iterator[TensorPair]:
        for name, other in self.names.items():
            axes = self.axes[name]
            if name in sides[0] and other in sides[1] and axes is not None:
                both = [(each, own) for pair in references for each, own in zip(pair, (name, other), strict=True)]
                scale = max(greatest_of(each[own]) for each, own in both if own in each)
                new = sides[1][other].transpose(axes)
                if new.shape == sides[0][name].shape:  # a clip call may get only the stored rows of a sparse gradient
                    yield TensorPair(name, sides[0][name], new, scale, coarsest_ulp(self.dtypes[name]))


def _yields_alone(side: NormalizedRecording, step: int) -> RecordedRun:
    """Return the yielded tensors of a step as a recorded step of an optimizer."""
    output = side.run.output_at(step, side.steps)
    gradients = values((output.gradients if output else None) or {})
    tensors = {
        name: parameter_of(weight.shape, gradients.get(name), weight) for name, weight in side.parameters(step).items()
    }
    alone = OptimizerStep(step=1, optimizer="", settings={}, parameters=tuple(tensors), tensors=tensors)
    return side.recorded.model_copy(update={"lines": [], "optimizer_steps": (alone,)})


def parameter_of(
    shape: Sequence[int], gradient: Float64s | None, weight: Float64s | None, later: Float64s | None = None
) -> Parameter:
    """later: The weight after the step."""
    fields: dict[str, Any] = {"shape": shape, "norm": math.nan}
    if gradient is not None:
        fields |= {"norm": norm_of(gradient), "sample": sample(gradient)}
    if weight is not None and weight.shape == tuple(shape):
        fields |= {"weight": norm_of(weight), "weight_sample": sample(weight)}
        if later is not None and later.shape == weight.shape:
            fields["update_sample"] = sample(later - weight)
    return Parameter(**fields)


def norm_of(array: Float64s) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(array.reshape(-1)))


def closest_axes(old: Float64s, new: Float64s) -> tuple[int, ...] | None:
    """Return the order of the axes of `new` that gives about `old`, or None if no order gives its shape."""
    orders = [axes for axes in itertools.permutations(range(new.ndim)) if new.transpose(axes).shape == old.shape]
    return min(orders, key=lambda axes: float(np.abs(old - new.transpose(axes)).sum()), default=None)


def _initial(first: Values, weights: Parameters, others: Mapping[str, str]) -> Iterator[tuple[str, Float64s]]:
    """Yield the tensors of --weights in the layout in which a step began with them, as its first output shows."""
    for name, value in first.items():
        given = weights.get(name) or weights.get(others.get(name, name))
        axes = closest_axes(value, given.values()) if given else None
        if given and axes is not None:
            weight = given.values()
            layouts = [weight.transpose(axes), weight.reshape(value.shape)]
            yield name, min(layouts, key=lambda each: float(np.abs(value - each).sum()))


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
