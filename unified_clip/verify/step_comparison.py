"""Distances between the results of two training steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..recording.recorded_run import RecordedCall
from ..recording.rounding import GROWTH, ROUNDING, Distance
from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.types import Stage
from .step_pairing import STORAGE_ULPS, ParameterDistance, TensorPair, greatest_of


class Number(NamedTuple):
    """The difference of a norm, or of a coefficient."""

    stage: str
    ulps: float
    relative: float
    ulps_at_its_size: float
    """In ULP of the total norm. For a coefficient, what the difference of the norms does not explain."""

    def exceeds(self, max_ulp: float) -> bool:
        return self.ulps_at_its_size > max_ulp or self.ulps > GROWTH * max_ulp


class TensorComparison(NamedTuple):
    tensors: Sequence[ParameterDistance] = ()
    """The largest distance comes first."""

    update: Sequence[ParameterDistance] = ()
    """The largest distance comes first. An update is the change of a parameter by one step."""

    noise: Collection[str] = ()
    """The parameters whose gradients are only rounding errors. They are not compared."""

    is_rounding: bool = False
    """Whether rounding explains all differences of the clipped gradients."""

    allowed: float = ROUNDING
    """How many ULP of the total norm rounding can change at this step."""

    update_is_rounding: bool = False
    """Whether the differences of the clipped gradients explain all differences of the updates."""


class Sensitivity:
    """Decides whether differences of the clipped gradients explain the differences of the updates.

    Adam and similar optimizers divide each element of a gradient by its typical absolute value. If the relative
    difference between the old and the new element is r, the updates differ by up to 2 * r times the largest update.
    If an element is tiny, rounding makes r large.
    """

    def __init__(self) -> None:
        self._differences: dict[str, Float64s] = {}
        self._squares: dict[str, Float64s] = {}
        self._steps = 0

    def add(self, gradients: Iterable[TensorPair]) -> None:
        self._steps += 1
        for pair in gradients:
            squares = np.minimum(pair.old**2, pair.new**2)
            self._squares[pair.name] = self._squares.get(pair.name, 0.0) + squares
            difference = np.abs(pair.old - pair.new)
            self._differences[pair.name] = np.maximum(self._differences.get(pair.name, 0.0), difference)

    def explains(self, update: TensorPair) -> bool:
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
    step: int
    old: Sequence[RecordedCall]
    new: Sequence[RecordedCall]
    numbers: Sequence[Number]
    parameters: TensorComparison
    losses: tuple[float | None, float | None] = (None, None)
    """(old loss, new loss). A loss is None if the training step yields no loss."""

    @property
    def has_clip(self) -> bool:
        return bool(self.old or self.new)

    def distances(self) -> dict[Stage, Distance | ParameterDistance | None]:
        tensors, update = (next(iter(each), None) for each in (self.parameters.tensors, self.parameters.update))
        norm, coefficient = self._largest("norm"), self._largest("coefficient")
        return {"norm": norm, "coefficient": coefficient, "tensors": tensors, "update": update}

    def _largest(self, stage: Stage) -> Distance | None:
        distances = (Distance(each.ulps, each.relative) for each in self.numbers if each.stage == stage)
        return max(distances, default=None)

    def greatest(self) -> float:
        return max((distance.ulps for distance in self.distances().values() if distance), default=0.0)

    def differing(self, max_ulp: float) -> list[str]:
        beyond = {each.stage for each in self.numbers if each.exceeds(max_ulp)}
        stages: list[str] = [stage for stage in ("norm", "coefficient") if stage in beyond]
        tensors = {"tensors": self.parameters.tensors, "update": self.parameters.update}
        stages += [stage for stage, distances in tensors.items() if distances and distances[0].ulps > max_ulp]
        return stages

    def beyond_rounding(self, max_ulp: float) -> list[str]:
        most = {"norm": 0.0, "coefficient": 0.0}
        for each in self.numbers:
            most[each.stage] = max(most[each.stage], each.ulps_at_its_size)
        rounded = {stage for stage, ulps in most.items() if ulps <= self.parameters.allowed}
        rounded |= {"tensors"} if self.parameters.is_rounding else set()
        rounded |= {"update"} if self.parameters.update_is_rounding else set()
        return [stage for stage in self.differing(max_ulp) if stage not in rounded]
