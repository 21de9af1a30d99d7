"""Thresholds that depend on the step."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from .._compute.host import HOST
from .._core.path import Scalars
from .._core.types import Scalar
from .fields import ConfigModel, Count, Finite, Length, Threshold


class Constant(ConfigModel):
    """A threshold that is the same at every step."""

    schedule: Literal["constant"]
    value: Threshold


class Ramp(ConfigModel):
    """A threshold that is `start` until step `begin`, then changes within `steps` steps, and then stays at `end`."""

    start: Finite
    end: Finite
    steps: Count
    begin: Length = 0


class Linear(Ramp):
    """A threshold that changes from `start` to `end` along a straight line."""

    schedule: Literal["linear"]


class Cosine(Ramp):
    """A threshold that changes from `start` to `end` along half a cosine, as the learning rates of SGDR (2017) do."""

    schedule: Literal["cosine"]


class Piecewise(ConfigModel):
    """A threshold that starts at values[0]. At the step in boundaries[i], the threshold changes to values[i + 1]."""

    schedule: Literal["piecewise"]
    values: Annotated[list[Threshold], Field(min_length=1)]
    boundaries: list[Count]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"there are {len(self.values)} values and {len(self.boundaries)} boundaries. Give "
                f"{len(self.boundaries) + 1} values: there must be one more value than boundaries."
            )
        if sorted(set(self.boundaries)) != self.boundaries:
            pairs = enumerate(zip(self.boundaries, self.boundaries[1:], strict=False), 1)
            same = next((index for index, (before, after) in pairs if before == after), None)
            advice = (
                "Sort the boundaries, and sort the values with them: values[i + 1] applies from the step in "
                "boundaries[i] on."
            )
            if same and sorted(self.boundaries) == self.boundaries:
                advice = f"Remove boundaries[{same}] and values[{same}], which no step uses."
            raise ValueError(f"boundaries must increase. {advice}")
        return self


Schedule = Annotated[Constant | Linear | Cosine | Piecewise, Field(discriminator="schedule")]


def threshold_at(threshold: float | Schedule, step: int) -> float:
    if not isinstance(threshold, ConfigModel):
        return float(threshold)
    result: float = evaluate(threshold, step, HOST)
    return result


def evaluate(schedule: Schedule, step: Any, xp: Scalars) -> Scalar:
    step, number, where = xp.asarray(step), xp.asarray, xp.where
    if isinstance(schedule, Constant):
        return number(schedule.value)
    if isinstance(schedule, Piecewise):
        result = number(schedule.values[-1])
        for boundary, value in reversed(list(zip(schedule.boundaries, schedule.values, strict=False))):
            result = where(step < number(boundary), number(value), result)
        return result
    zero, steps, begin = number(0), number(schedule.steps), number(schedule.begin)
    done = where(step > begin, where(step - begin < steps, step - begin, steps), zero)
    # These formulas have no cancellation and no division. Compilers divide in different ways, which changes bits.
    if isinstance(schedule, Cosine):
        quarter = number(math.pi / 2 / schedule.steps)
        parts = [xp.cos(share * quarter) for share in (done, steps - done)]
        between = number(schedule.start) * parts[0] * parts[0] + number(schedule.end) * parts[1] * parts[1]
    else:
        total = number(schedule.start) * (steps - done) + number(schedule.end) * done
        between = total * number(1 / schedule.steps)
    return xp.to_float32(where(done > zero, where(done < steps, between, number(schedule.end)), number(schedule.start)))
