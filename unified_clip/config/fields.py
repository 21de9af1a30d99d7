"""The types of the values in a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..errors import ConfigError


class ConfigModel(BaseModel):
    """The base class of a configuration and of its tables.

    Numbers can be the strings "inf" and "-inf", because JSON has no infinities.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def data(self) -> dict[str, Any]:
        """Return the keys that the user set, except keys with the value None."""
        return self.model_dump(exclude_unset=True, exclude_none=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise self._unchangeable(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            raise self._unchangeable(name)
        super().__delattr__(name)

    def _unchangeable(self, name: str) -> ConfigError:
        remedy = f"Copy the configuration with other values, as in clip.model_copy(update={{{name!r}: ...}})."
        if name == "step":
            remedy = "Only a clipper has a step that you can set: clipper = clip.clipper(), then clipper.step = 10."
        elif name not in type(self).model_fields:
            remedy = f"There is no such setting. The settings are {', '.join(type(self).model_fields)}."
        elif "groups" not in type(self).model_fields:  # a table inside a configuration, such as a group
            remedy = "Make a new configuration by ClipConfig(...), and pass the new value there."
        return ConfigError(f"{type(self).__name__}: {name} cannot be changed. {remedy}")


def located_error(keys: Sequence[str | int], message: str) -> PydanticCustomError:
    """Return an error about a nested key, such as `["groups", 0, "min"]`."""
    return PydanticCustomError("whole", "{message}", {"keys": list(keys), "message": message})


def _number(value: Any) -> float:
    if isinstance(value, str) and value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError("write it as a number, without quotes" if _reads_as_number(value) else "give a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("give a smaller number: a float cannot be that large") from None


def _reads_as_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _as_json(number: Any) -> Any:
    """Return an infinity as text, because pydantic would write null."""
    return str(number) if isinstance(number, float) and math.isinf(number) else number


def _number_field(
    accepts: Callable[[float], bool], remedy: str, strings: Sequence[str] = ("inf",), **schema: Any
) -> Any:
    """Return a pydantic type for valid numbers. `strings` and `schema` change only the JSON Schema."""

    def checked(value: Any) -> float:
        number = _number(value)
        if not accepts(number):
            raise ValueError(remedy)
        return number

    forms = [{"type": "number", **schema}, *({"const": string} for string in strings)]
    schema = {"anyOf": forms} if strings else forms[0]
    return Annotated[
        float, BeforeValidator(checked), PlainSerializer(_as_json, when_used="json"), WithJsonSchema(schema)
    ]


Threshold = _number_field(lambda number: number >= 0, "give 0 or more, or inf to clip nothing", minimum=0)
NormType = _number_field(lambda number: number > 0, "give a number above 0, or inf", exclusiveMinimum=0)
Bound = _number_field(lambda number: not math.isnan(number), "give a number other than NaN", ("inf", "-inf"))
Finite = _number_field(lambda number: 0 <= number < math.inf, "give a finite number of 0 or more", (), minimum=0)
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
