"""What a clip configuration may say, and what it means: the schema, version 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from .._core import rule as formula
from .._core.plan import Part
from .._core.rule import Family
from .fields import Bound, ConfigModel, Epsilon, Limit, Name, Order, wrong
from .schedules import Constant, Schedule

VERSION = 1

Rule = Literal["none", "value", "norm", "global_norm"]
FamilyName = Literal["pytorch", "tensorflow", "paddle"]
Nonfinite = Literal["family", "raise", "skip", "zero"]

DEFAULT_FAMILY: FamilyName = "pytorch"

FAMILIES = {
    ("pytorch", "norm"): formula.PYTORCH,
    ("pytorch", "global_norm"): formula.PYTORCH,
    ("tensorflow", "norm"): formula.TENSORFLOW,
    ("tensorflow", "global_norm"): formula.TENSORFLOW_GLOBAL,
    ("paddle", "norm"): formula.PADDLE,
    ("paddle", "global_norm"): formula.PADDLE,
}

Patterns = Annotated[list[Name], Field(min_length=1)]


class Clipping(ConfigModel):
    """How gradients are clipped."""

    rule: Annotated[
        Rule,
        Field(
            description="none: only measure; value: each element; norm: each tensor by its own norm; global_norm: "
            "all by one norm"
        ),
    ]
    threshold: Annotated[
        Limit | Schedule | None,
        Field(
            description="the largest norm, or, for the rule value, the largest magnitude; a number, 0 or more, or a "
            "table with a schedule"
        ),
    ] = None
    min: Annotated[Bound | None, Field(description="for the rule value, in the place of a threshold")] = None
    max: Annotated[Bound | None, Field(description="for the rule value, in the place of a threshold")] = None
    norm_type: Annotated[Order | None, Field(description="the order of the norm, above 0, or inf; default: 2")] = None
    family: Annotated[
        FamilyName | None,
        Field(
            description="whose rule it is where they differ: eps (PyTorch's is 1e-6, the others' 0), and what "
            "becomes of gradients whose norm is infinite; default: pytorch"
        ),
    ] = None
    eps: Annotated[Epsilon | None, Field(description="added to the norm; default: the family's")] = None

    @field_validator("threshold")
    @classmethod
    def _number(cls, threshold: Any) -> Any:
        """A schedule that never changes is its number."""
        return threshold.value if isinstance(threshold, Constant) else threshold

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if "rule" not in self.model_fields_set:  # a group by itself, which a configuration checks
            return self
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        bounds = sorted({"min", "max"} & given)
        norms = sorted({"norm_type", "family", "eps"} & given)
        if self.rule in ("none", "value") and norms:
            raise ValueError(f"{norms[0]} is about norms, and rule = {self.rule!r} has none; leave it out")
        if self.rule == "none" and (bounds or "threshold" in given):
            raise ValueError(f"{(bounds or ['threshold'])[0]} has no meaning with rule = 'none'; leave it out")
        if self.rule != "value" and bounds:
            raise ValueError(f"{bounds[0]} is for rule = 'value'; with rule = {self.rule!r} give threshold")
        if bounds and "threshold" in given:
            raise ValueError("threshold and min and max say the same twice; give threshold, or min and max")
        if len(bounds) == 1:
            raise ValueError(
                f"{bounds[0]} stands alone; give both min and max, or threshold for -threshold to threshold"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min:g}) is above max ({self.max:g})")
        return self

    @property
    def has_own_eps(self) -> bool:
        """Whether it adds something else to the norm than its family does."""
        family = FAMILIES.get((self.family or DEFAULT_FAMILY, self.rule))
        return self.eps is not None and family is not None and self.eps != family.eps

    def part(self, limit: Any) -> Part:
        """The same for the core. `limit`: the threshold of this step."""
        if self.rule == "value":
            if self.min is not None and self.max is not None:
                return Part("value", formula.PADDLE, bounds=(self.min, self.max))
            if isinstance(limit, float):
                return Part("value", formula.PADDLE, bounds=(-limit, limit))
            return Part("value", formula.PADDLE, limit)
        if self.rule == "none":
            return Part("global_norm", formula.PADDLE)
        family = FAMILIES[self.family or DEFAULT_FAMILY, self.rule]
        if self.eps is not None:
            family = Family(self.eps, family.infinite_norm_gives_nan)
        return Part(self.rule, family, limit, p=self.norm_type or 2.0)


class Group(Clipping):
    """Parameters that are clipped on their own. What it leaves out, the configuration says."""

    name: Name
    include: Patterns
    exclude: list[Name] = []
    rule: Annotated[
        Rule,
        WithJsonSchema(
            {"anyOf": [{"enum": list(get_args(Rule)), "type": "string"}, {"type": "null"}]}
            | {"description": "as for the configuration; default: the configuration's"}
        ),
    ] = None  # type: ignore[assignment]  # until it is part of a configuration


class Provenance(ConfigModel):
    """Where a configuration was imported from."""

    format: Name
    version: str | None = None
    file: str | None = None
    notes: list[str] = []


class Settings(Clipping):
    """A clip configuration as data."""

    version: Annotated[Literal[1], Field(description="of this schema")] = 1
    nonfinite: Annotated[
        Nonfinite,
        Field(
            description="when the total norm is NaN or infinite: as the family has it; raise an error; skip the step; "
            "make all gradients zero"
        ),
    ] = "family"
    include: Annotated[Patterns, Field(description="patterns of the names of parameters that take part")] = ["*"]
    exclude: Annotated[list[Name], Field(description="patterns of those that are neither counted nor clipped")] = []
    groups: Annotated[list[Group], Field(description="parameters with a rule of their own")] = []
    provenance: Provenance | None = None

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        """Groups take what they leave out from the configuration, before they are checked."""
        if not isinstance(data, dict) or not isinstance(data.get("groups"), list):
            return data
        groups = [group.data() if isinstance(group, Group) else group for group in data["groups"]]
        return {**data, "groups": [_inherited(each, data) if isinstance(each, dict) else each for each in groups]}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for keys, place, each in self._all():
            if each.rule in ("norm", "global_norm", "value") and each.threshold is None and each.min is None:
                raise wrong(keys, f"{place}rule = {each.rule!r} needs a threshold")
        names = [group.name for group in self.groups]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wrong(["groups", index, "name"], f"two groups are named {name!r}; give each a name of its own")
        return self

    def _all(self) -> Iterator[tuple[list[str | int], str, Clipping]]:
        yield ["rule"], "", self
        for index, group in enumerate(self.groups):
            yield ["groups", index], f"group {group.name!r}: ", group

    @property
    def parts(self) -> list[Clipping]:
        """The groups, then all the rest."""
        return [*self.groups, self]

    @property
    def meaning(self) -> Any:
        """Equal for two configurations that do the same, however they say it."""
        parts = [
            Part("global_norm", formula.PADDLE) if is_off(part) else part.part(part.threshold) for part in self.parts
        ]
        chosen = [(group.include, group.exclude) for group in self.groups]
        return self.nonfinite, [*chosen, (self.include, self.exclude)], parts

    @property
    def uses_default_family(self) -> bool:
        """Whether a norm is clipped by the default family's rule because none is set."""
        return any(part.family is None and part.rule in ("norm", "global_norm") for part in self.parts)

    @property
    def uses_names(self) -> bool:
        return bool(self.groups) or self.exclude != [] or self.include != ["*"]


INHERITED = ("rule", "threshold", "min", "max", "norm_type", "family", "eps")


def _inherited(group: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A group's own rule takes nothing over that belongs to another rule, and its family no other's eps."""
    own = {key: value for key, value in group.items() if value is not None}
    rule = own.get("rule", settings.get("rule"))
    names: tuple[str, ...] = INHERITED
    if rule != settings.get("rule"):
        of_norms = rule in ("norm", "global_norm") and settings.get("rule") in ("norm", "global_norm")
        names = ("family", "eps") if of_norms else ()
    elif {"threshold", "min", "max"} & own.keys():
        names = ("rule", "norm_type", "family", "eps")
    left = [name for name in names if name in settings and not (name == "eps" and "family" in own)]
    return {name: settings[name] for name in left} | own


def is_off(settings: Clipping) -> bool:
    """Whether nothing is ever clipped."""
    return settings.rule == "none" or settings.threshold == math.inf
