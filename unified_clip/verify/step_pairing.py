"""Find pairs of tensors from two training steps, and measure the distance of each pair."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..recording.pairs.parameters import Names
from ..recording.rounding import ROUNDING, Distance
from ..tensors.arithmetic import FORMATS, Float64s
from .cause_limits import RELATIVE_TOLERANCE, STORAGE_ULPS
from .launch.outputs import ScriptRun
from .layouts import Values, closest_axes, match_layout
from .name_gradients import Parameters
from .normalize import NormalizedRecording

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
        self.runs, self._weights, self._steps, self._mapped = (old, new), weights, steps, names
        self.yields_each_step = all(run.yields for run in self.runs)
        first = 1 if self.yields_each_step else steps
        old_values, new_values = (self._values(side, first) for side in (0, 1))
        self.shapes = [{name: value.shape for name, value in values.items()} for values in (old_values, new_values)]
        self.names, self.axes = match_layout(old_values, new_values, names)
        first_old, first_new = (run.outputs[0].parameters for run in self.runs)
        self.dtypes = {name: (first_old[name].dtype, first_new[other].dtype) for name, other in self.names.items()}
        self.initial = [self._initial_values(values) for values in (old_values, new_values)]

    def with_new(self, new: ScriptRun) -> StepPairing:
        return StepPairing(self.runs[0], new, self._weights, self._steps, self._mapped)

    def weight_name(self, name: str) -> str | None:
        return next((each for each in (name, self.names[name]) if each in self._weights), None)

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

    def differ_by_rounding(self, gradients: Sequence[TensorPair]) -> bool:
        norms = [(np.linalg.norm(pair.old), np.linalg.norm(pair.new)) for pair in gradients]
        total = max((math.hypot(*side) for side in zip(*norms, strict=True)), default=0.0)
        for pair in gradients:
            dtypes = [FORMATS[dtype].precision for dtype in self.dtypes[pair.name] if dtype in FORMATS]
            difference = float(np.abs(pair.old - pair.new).max(initial=0.0))
            limit = min(ROUNDING * 2.0 ** -min(dtypes, default=math.inf) * total, RELATIVE_TOLERANCE * pair.scale)
            if not difference <= limit:  # NaN is no rounding
                return False
        return True

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

    def weights_before(self, step: int) -> Iterator[TensorPair]:
        before = self._before(step)
        return self._pair(before, before)

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
        return [self._values(side, step - 1, at_the_next=True) for side in (0, 1)]

    def uncleared_side(self, step: int, recordings: Sequence[NormalizedRecording]) -> str | None:
        now = self.gradients_before(step, recordings)
        for earlier in ([side.clipped for side in recordings], [side.before for side in recordings]):
            pairs = self._pair_gradients([gradients.get(step - 1, {}) for gradients in earlier])
            previous = {pair.name: pair for pair in pairs}
            for side, other in (("old", "new"), ("new", "old")):
                sums = [
                    (getattr(pair, side), getattr(pair, other) + getattr(previous[pair.name], side))
                    for pair in now
                    if pair.name in previous
                ]
                if sums and len(sums) == len(now) and all(map(_close, *zip(*sums, strict=True))):
                    return side
        return None

    def gradients_before(self, step: int, recordings: Sequence[NormalizedRecording]) -> list[TensorPair]:
        return self._pair_gradients([recording.before.get(step, {}) for recording in recordings])

    def unclipped(self, step: int, recordings: Sequence[NormalizedRecording]) -> list[TensorPair]:
        """Return the gradients that the clips get: as recorded, or else as yielded."""
        sides = []
        for recording in recordings:
            output = recording.run.output_at(step, self._steps)
            yielded = (output.unclipped or output.gradients or {}) if output else {}
            sides.append(recording.before.get(step) or yielded)
        return self._pair_gradients(sides)

    def _pair_gradients(self, sides: Sequence[Parameters]) -> list[TensorPair]:
        values = list(map(_values, sides))
        return list(self._pair(values, values))

    def ratio(self, step: int) -> float | None:
        pairs = list(self.updates(step))
        old, new = (np.concatenate([np.ravel(getattr(pair, side)) for pair in pairs]) for side in ("old", "new"))
        if not np.any(old):
            return None
        ratio = float(old @ new / (old @ old))
        off = max(float(np.abs(pair.new - ratio * pair.old).max(initial=0.0)) for pair in pairs)
        return ratio if ratio and off <= RELATIVE_TOLERANCE * float(np.abs(new).max()) else None

    def _values(self, side: int, step: int, *, at_the_next: bool = False) -> dict[str, Float64s]:
        output = self.runs[side].output_at(step, self._steps)
        if output is None:
            return {}
        return _values(output.next_parameters if at_the_next else output.parameters)

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


def _close(old: Float64s, new: Float64s) -> bool:
    return bool(np.abs(old - new).max(initial=0.0) <= RELATIVE_TOLERANCE * greatest_of(old))


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
