"""What the tables of a configuration consist of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError


class ConfigModel(BaseModel):
    """Keys that are not known are refused, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def data(self) -> dict[str, Any]:
        """What was given, as plain data; None says nothing."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


def wrong(keys: Sequence[str | int], message: str) -> PydanticCustomError:
    """An error about a whole model, with the place that it is about."""
    return PydanticCustomError("whole", "{message}", {"keys": list(keys), "message": message})


def _number(value: Any) -> float:
    """inf may be a string, since JSON has no other way to write it; NumPy's scalars are numbers too."""
    if isinstance(value, str) and value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        remedy = "write it without quotes" if _reads_as_number(value) else "give a number"
        raise ValueError(f"it is no number; {remedy}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("it is a number that is too large; give one that a float can hold, or inf") from None


def _reads_as_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _limit(value: Any) -> float:
    number = _number(value)
    if not number >= 0:
        raise ValueError("a threshold must be 0 or more, or inf, which clips nothing and only measures")
    return number


def _order(value: Any) -> float:
    number = _number(value)
    if not number > 0:
        raise ValueError("the order of a norm must be above 0, or inf")
    return number


def _small(value: Any) -> float:
    number = _number(value)
    if not 0 <= number < math.inf:
        raise ValueError("it must be 0 or more, and finite")
    return number


def _bound(value: Any) -> float:
    number = _number(value)
    if math.isnan(number):
        raise ValueError("a bound cannot be NaN")
    return number


def _like(test: Any, *strings: str, **schema: Any) -> Any:
    """A number that a test accepts, or inf in quotes."""
    forms = [{"type": "number", **schema}, *({"const": string} for string in ("inf", *strings))]
    return Annotated[float, BeforeValidator(test), WithJsonSchema({"anyOf": forms})]


Limit = _like(_limit, minimum=0)
Order = _like(_order, exclusiveMinimum=0)
Bound = _like(_bound, "-inf")
Epsilon = Annotated[float, BeforeValidator(_small), WithJsonSchema({"type": "number", "minimum": 0})]
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
