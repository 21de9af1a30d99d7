"""Thresholds that change from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from .._core.exact import nearest
from .fields import ConfigModel, Count, Length, Limit


class Constant(ConfigModel):
    """The same threshold at every step."""

    schedule: Literal["constant"]
    value: Limit


class Between(ConfigModel):
    """From `start` at step `begin` to `end` so many `steps` later; before and after, those two."""

    start: Limit
    end: Limit
    steps: Count
    begin: Length = 0

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not math.isfinite(self.start) or not math.isfinite(self.end):
            raise ValueError("start and end must be finite; there is no way from or to inf")
        return self


class Linear(Between):
    """In a straight line."""

    schedule: Literal["linear"]


class Cosine(Between):
    """Along half a cosine (Loshchilov and Hutter, "SGDR", 2017, have it for learning rates)."""

    schedule: Literal["cosine"]


class Piecewise(ConfigModel):
    """values[0] before step boundaries[0], then values[1], and so on."""

    schedule: Literal["piecewise"]
    values: Annotated[list[Limit], Field(min_length=1)]
    boundaries: list[Count]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"there are {len(self.values)} values and {len(self.boundaries)} boundaries; give one value more than "
                "boundaries"
            )
        if sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError("boundaries must grow from one to the next")
        return self


Schedule = Annotated[Constant | Linear | Cosine | Piecewise, Field(discriminator="schedule")]

Where = Callable[[Any, Any, Any], Any]


def at(threshold: float | Schedule, step: int) -> float:
    """The threshold at a step, counted from 0. What a schedule computes is rounded to float32."""
    if not isinstance(threshold, ConfigModel):
        return float(threshold)
    found = evaluated(threshold, float(step), lambda condition, yes, no: yes if condition else no, math.cos)
    return nearest(found, "float32") if isinstance(threshold, Between) else found


def evaluated(schedule: Schedule, step: Any, where: Where, cosine: Callable[[Any], Any], number: Any = float) -> Any:
    """The same over whatever kind of numbers a step is of: `number` makes one, and the result is not rounded."""
    if isinstance(schedule, Constant):
        return number(schedule.value)
    if isinstance(schedule, Piecewise):
        found = number(schedule.values[-1])
        for boundary, value in reversed(list(zip(schedule.boundaries, schedule.values, strict=False))):
            found = where(step < number(boundary), number(value), found)
        return found
    zero, steps, begin = number(0), number(schedule.steps), number(schedule.begin)
    done = where(step > begin, where(step - begin < steps, step - begin, steps), zero)
    # Nothing here cancels, and nothing is divided: compilers divide in another way, and would find other bits.
    if isinstance(schedule, Cosine):
        quarter = number(math.pi / 2 / schedule.steps)
        parts = [cosine(share * quarter) for share in (done, steps - done)]
        between = number(schedule.start) * parts[0] * parts[0] + number(schedule.end) * parts[1] * parts[1]
    else:
        total = number(schedule.start) * (steps - done) + number(schedule.end) * done
        between = total * number(1 / schedule.steps)
    return where(done > zero, where(done < steps, between, number(schedule.end)), number(schedule.start))
