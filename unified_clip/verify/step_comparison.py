"""The result of comparing two training steps at one step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..recording.rounding import ROUNDING, Distance
from ..recording.runs import RecordedCall
from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.types import Stage
from .step_pairing import STORAGE_ULPS, ParameterDistance, TensorPair, greatest_of


class TensorComparison(NamedTuple):
    """The distances of all tensors of both runs at one step, the largest first.

    `tensors` and `update` are empty if there is nothing to compare.
    """

    tensors: Sequence[ParameterDistance] = ()
    """The distances of the clipped gradients."""

    update: Sequence[ParameterDistance] = ()
    """The distances of the updates, which are the changes of the parameters by the step."""

    noise: Collection[str] = ()
    """The parameters that were not compared: their gradients are only rounding noise (see `StepPairing.noise`)."""

    is_rounding: bool = False
    """Whether rounding at the size of the total norm explains all distances of the clipped gradients."""

    update_is_rounding: bool = False
    """Whether the differences of the clipped gradients, up to this step, explain all distances of the updates."""


class Sensitivity:
    """The relative differences of the clipped gradients up to a step, and the differences of updates that they explain.

    The update of Adam or a similar optimizer is a mean of an element's gradients, divided by a mean of their sizes.
    Suppose that the gradients of an element differ by a fraction r of their size. Then the numerator and the
    denominator of the update differ by up to r, in units of the largest update. For a tiny gradient, r is large: the
    rounding of the terms of its sum is a large part of its size.
    """

    def __init__(self) -> None:
        self._differences: dict[str, Float64s] = {}
        self._squares: dict[str, Float64s] = {}
        self._steps = 0

    def add(self, gradients: Iterable[TensorPair]) -> None:
        """Add the clipped gradients of the next step."""
        self._steps += 1
        for pair in gradients:
            squares = np.minimum(pair.old**2, pair.new**2)
            self._squares[pair.name] = self._squares.get(pair.name, 0.0) + squares
            difference = np.abs(pair.old - pair.new)
            self._differences[pair.name] = np.maximum(self._differences.get(pair.name, 0.0), difference)

    def explains(self, update: TensorPair) -> bool:
        """Return whether differences of gradients, or rounding of the parameter, explain how an update differs."""
        if update.name not in self._differences:
            return False
        sizes, differences = np.sqrt(self._squares[update.name] / self._steps), self._differences[update.name]
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(differences == 0, 0.0, np.minimum(differences / sizes, 1.0))
        largest = max(map(greatest_of, (update.old, update.new)))
        rounding = 2.0 ** -FORMATS["float32"].precision * update.ulp_scale
        allowed = 2 * STORAGE_ULPS * rounding * update.scale + (ROUNDING * rounding + 2 * relative) * largest
        return bool((np.abs(update.old - update.new) <= allowed).all())


@dataclass(frozen=True)
class StepComparison:
    """The comparison of both runs at one step: their clip calls, and the distance of their results at each stage.

    The stages are the norm, the coefficient, the clipped gradients (tensors), and the update.
    """

    step: int
    old: Sequence[RecordedCall]
    new: Sequence[RecordedCall]
    """`old` and `new` are the recorded clip calls of the old and of the new training step."""

    norm: Distance | None
    """The largest distance of two norms by which both clip. Here and below, None means that nothing can be compared."""

    coefficient: Distance | None
    parameters: TensorComparison
    clips_alike: bool
    """Whether both steps clip by the same rules, norm types and thresholds, in the same number of calls. A threshold
    that is unknown on one side counts as the same."""

    norm_is_rounding: bool = False
    """Whether rounding at the size of the total norm explains all differences of the norms."""

    losses: tuple[float | None, float | None] = (None, None)
    """The losses that the old and the new training step yield. None if a training step yields no loss at this step."""

    @property
    def has_clip(self) -> bool:
        """Return whether the old or the new function called a clip at this step."""
        return bool(self.old or self.new)

    def distances(self) -> dict[Stage, Distance | ParameterDistance | None]:
        """Return the largest distance at each stage, or None if there is nothing to compare."""
        tensors, update = (next(iter(each), None) for each in (self.parameters.tensors, self.parameters.update))
        return {"norm": self.norm, "coefficient": self.coefficient, "tensors": tensors, "update": update}

    def greatest(self) -> float:
        """Return the largest distance of all stages, in ULP. Return 0 if no stage was compared."""
        return max((distance.ulps for distance in self.distances().values() if distance), default=0.0)

    def differing(self, max_ulp: float) -> list[str]:
        """Return the stages whose distance is more than `max_ulp`. Add "clip" if the clip calls differ."""
        distances = self.distances().items()
        stages = [stage for stage, distance in distances if distance and distance.ulps > max_ulp]
        return [*([] if self.clips_alike else ["clip"]), *stages]

    def beyond_rounding(self, max_ulp: float) -> list[str]:
        """Return the stages of `differing` that rounding does not explain.

        Rounding of any norm or gradient may be as large as rounding of the total norm. The optimizer may
        amplify rounding (see `Sensitivity`).
        """
        rounded = {"norm"} if self.norm_is_rounding else set()
        rounded |= {"tensors"} if self.parameters.is_rounding else set()
        rounded |= {"update"} if self.parameters.update_is_rounding else set()
        return [stage for stage in self.differing(max_ulp) if stage not in rounded]
