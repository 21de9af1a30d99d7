"""The schema of a clip configuration, version 1.

To write the JSON Schema, type `python -m unified_clip.config.schema > docs/clip_config.schema.json`.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ModelWrapValidatorHandler, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import GenerateJsonSchema, SkipJsonSchema
from typing_extensions import Self

from .._api.groups import Nonfinite
from .._core import rule as formula
from .._core.rule import ClipConvention, ClipRule
from .adaptive import Adaptive
from .check_rules import CheckRules
from .fields import Bound, ConfigModel, Finite, Name, NormType, Threshold, located_error
from .schedules import Constant, Piecewise, Schedule

VERSION = 1

Rule = Literal["none", "value", "norm", "global_norm"]
FamilyName = Literal["pytorch", "tensorflow", "paddle"]

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
    """A clip rule, with a threshold or bounds, a norm type and an eps."""

    rule: Rule = Field(
        description='the rule: "none" only measures the norm, "value" clips each element, "norm" clips each tensor by '
        'its own norm, and "global_norm" clips all tensors by their total norm'
    )
    threshold: Threshold | Schedule | None = Field(
        default=None,
        description='the largest allowed norm. For the rule "value", the largest allowed magnitude of an element. '
        "Give a number of 0 or more, or a table with a schedule",
    )
    min: Bound | None = Field(
        default=None,
        description='the lower bound of each element. With rule = "value", set min and max, or threshold',
    )
    max: Bound | None = Field(
        default=None,
        description='the upper bound of each element. With rule = "value", set min and max, or threshold',
    )
    norm_type: NormType | None = Field(
        default=None, description="the order p of the norm: a number above 0, or inf. The default is 2"
    )
    family: FamilyName | None = Field(
        default=None,
        description="the framework that defines the clipping formula. The eps of pytorch is 1e-6, and the eps of "
        "tensorflow and paddle is 0. If the global norm is infinite, tensorflow makes all gradients NaN. The default "
        "is pytorch",
    )
    eps: Finite | None = Field(
        default=None, description="the number that is added to the norm. The default is the eps of the family"
    )
    adaptive: Adaptive | None = Field(
        default=None,
        description="a table with a rule that computes the threshold. The rule agc uses the parameters, and all other "
        'rules use the norms of earlier steps. With the adaptive rule agc, the clip rule must be "norm". With all '
        'other adaptive rules, the clip rule must be "global_norm". You can also set the key threshold, as the '
        "maximum of the computed threshold",
    )

    @field_validator("threshold")
    @classmethod
    def _number(cls, threshold: Any) -> Any:
        return threshold.value if isinstance(threshold, Constant) else threshold

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if "rule" not in self.model_fields_set:  # a group before it inherits its rule
            return self
        keys = {name for name in self.model_fields_set if getattr(self, name) is not None}
        bounds = sorted({"min", "max"} & keys)
        norms = sorted({"norm_type", "family", "eps"} & keys)
        if self.rule in ("none", "value") and norms:
            raise ValueError(
                f"{norms[0]} applies only to the rules norm and global_norm, but rule is {self.rule!r}. Remove "
                f"{norms[0]}."
            )
        if self.rule == "none" and (bounds or "threshold" in keys):
            raise ValueError(f"{(bounds or ['threshold'])[0]} does not apply to rule = 'none'. Remove this key.")
        if self.rule != "value" and bounds:
            remedy = "Remove it." if {"threshold", "adaptive"} & keys else "Set threshold instead."
            raise ValueError(f"{bounds[0]} applies to rule = 'value' only. {remedy}")
        rule = "global_norm" if self.adaptive is None or self.adaptive.has_state else "norm"
        if self.adaptive is not None and self.rule != rule:
            raise ValueError(
                f"adaptive contains rule = {self.adaptive.rule!r}, which needs the clip rule {rule!r}. Set rule to "
                f"{rule!r}, or remove adaptive."
            )
        if rule == "norm" and self.norm_type not in (None, 2.0):
            own = f"adaptive.rule = {self.adaptive.rule!r}"  # type: ignore[union-attr]  # agc is adaptive
            raise ValueError(f"norm_type is {self.norm_type:g}, but {own} supports only 2. Set norm_type to 2.")
        if bounds and "threshold" in keys:
            raise ValueError("threshold cannot be combined with min and max. Give threshold, or min and max.")
        if len(bounds) == 1:
            other = "max" if bounds == ["min"] else "min"
            raise ValueError(
                f"{bounds[0]} needs {other}. Give both keys, or give threshold to clip to [-threshold, threshold]."
            )
        if self.bounds and self.bounds[0] > self.bounds[1]:
            raise ValueError(f"min ({self.min:g}) is above max ({self.max:g}). Swap them.")
        return self

    @property
    def has_own_eps(self) -> bool:
        family = FAMILIES.get((self.family or DEFAULT_FAMILY, self.rule))
        return self.eps is not None and family is not None and self.eps != family.eps

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.min is None or self.max is None else (self.min, self.max)

    def as_clip_rule(self, threshold: Any) -> ClipRule:
        if self.rule == "value":
            bounds = self.bounds or ((-threshold, threshold) if isinstance(threshold, float) else None)
            return ClipRule("value", bounds=bounds) if bounds else ClipRule("value", threshold=threshold)
        if self.rule == "none":
            return ClipRule("global_norm", formula.PADDLE)
        family = FAMILIES[self.family or DEFAULT_FAMILY, self.rule]
        if self.eps is not None:
            family = ClipConvention(self.eps, family.infinite_norm_gives_nan)
        return ClipRule(self.rule, family, threshold, p=self.norm_type or 2.0)


class Group(Clipping):
    """Parameters with their own rule. docs/config.md lists the keys that groups inherit from the configuration."""

    name: Name
    include: Patterns
    exclude: list[Name] = []
    rule: Annotated[
        Rule,
        WithJsonSchema(
            {"anyOf": [{"enum": list(get_args(Rule)), "type": "string"}, {"type": "null"}]}
            | {"description": "the rule for these parameters. The default is the rule of the configuration"}
        ),
    ] = None  # type: ignore[assignment]  # only until the group is part of a configuration, whose rule it then inherits


class Provenance(ConfigModel):
    """The origin of an imported configuration, with notes for the user."""

    format: Name
    version: str | None = None
    file: str | None = None
    notes: list[str] = []
    not_finite: SkipJsonSchema[str] = Field(default="", exclude=True)
    """Sentences about the trainer's action if the norm is inf or NaN, or '' if the trainer applies its clip rule."""
    acts_as: SkipJsonSchema[Nonfinite] = Field(default="family", exclude=True)
    """The value of `nonfinite` with the same action as the trainer, as in `Imported`."""


class Settings(Clipping):
    """The keys and values of a clip configuration."""

    version: Literal[1] = Field(default=1, description="the version of this schema")
    nonfinite: Nonfinite = Field(
        default="family",
        description='the action when the total norm is NaN or infinite: "family" applies the formula of the '
        'family, "raise" raises an error, "skip" skips the step, and "zero" sets all gradients to 0',
    )
    include: Patterns = Field(
        default=["*"],
        description="patterns of parameter names. Only matching parameters are clipped. Groups can contain only "
        "these parameters",
    )
    exclude: list[Name] = Field(
        default=[],
        description="patterns of parameter names. Matching parameters are not clipped, and are not part of any norm, "
        "even if a group includes them",
    )
    groups: list[Group] = Field(default=[], description="groups of parameters, each with its own rule")
    provenance: Provenance | None = None
    check: CheckRules | None = Field(
        default=None,
        description="settings of unified-clip config check, such as files that must have a clip, or findings to ignore",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _inherit(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Add the inherited keys to each group. These keys are not in `model_fields_set` of the group."""
        if not isinstance(data, dict) or not isinstance(data.get("groups"), list):
            return validate(data)
        groups = [group.data() if isinstance(group, Group) else group for group in data["groups"]]
        complete = [_inherited(group, data) if isinstance(group, dict) else group for group in groups]
        settings = validate({**data, "groups": complete})
        for group, own in zip(settings.groups, groups, strict=True):
            group.model_fields_set.intersection_update(key for key, value in own.items() if value is not None)
        return settings

    @model_validator(mode="after")
    def _complete(self) -> Self:
        parts: list[Clipping] = [self, *self.groups]
        for index, part in enumerate(parts):
            if part.rule != "none" and part.threshold is None and part.min is None and part.adaptive is None:
                place = f"group {part.name!r}: " if isinstance(part, Group) else ""
                keys: list[str | int] = ["groups", index - 1] if place else ["rule"]
                raise located_error(keys, f"{place}rule = {part.rule!r} needs a threshold. Set threshold, such as 1.0.")
        names = [group.name for group in self.groups]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise located_error(["groups", index, "name"], f"two groups are named {name!r}. Rename one.")
        return self

    @property
    def parts(self) -> list[Clipping]:
        """The groups, and then the configuration itself, whose rule is for parameters in no group."""
        return [*self.groups, self]

    @property
    def has_schedule(self) -> bool:
        return any(isinstance(part.threshold, ConfigModel) for part in self.parts)

    @property
    def is_adaptive(self) -> bool:
        return any(part.adaptive is not None and part.adaptive.has_state for part in self.parts)

    @property
    def needs_parameters(self) -> bool:
        return any(part.adaptive is not None and not part.adaptive.has_state for part in self.parts)

    @property
    def allows_one_list(self) -> bool:
        each_alone = any(
            part.rule == "norm" and (part.norm_type not in (None, 2.0) or self.nonfinite != "family")
            for part in self.parts
        )
        return not (each_alone or self.needs_parameters)

    @property
    def notes(self) -> list[str]:
        return self.provenance.notes if self.provenance else []

    @property
    def not_finite(self) -> str:
        return self.provenance.not_finite if self.provenance else ""

    @property
    def acts_as(self) -> Nonfinite:
        return self.provenance.acts_as if self.provenance else "family"

    @property
    def patterns(self) -> list[tuple[list[str], list[str]]]:
        return [*((group.include, group.exclude) for group in self.groups), (self.include, self.exclude)]

    @property
    def meaning(self) -> Any:
        """If two configurations have equal values here, they have the same effect."""
        parts = [
            ClipRule("global_norm", formula.PADDLE)
            if _is_off(part)
            else part.as_clip_rule(part.adaptive.meaning if part.adaptive else part.threshold)
            for part in self.parts
        ]
        limits = [(part.threshold, str(part.adaptive.meaning)) if part.adaptive else None for part in self.parts]
        if self.nonfinite != "family":  # then no rule applies to a norm that is not finite
            parts = [part._replace(convention=ClipConvention(part.convention.eps, False)) for part in parts]
        return self.nonfinite, self.patterns, limits, parts

    @property
    def uses_default_family(self) -> bool:
        return any(part.family is None and part.rule in ("norm", "global_norm") for part in self.parts)

    @property
    def uses_names(self) -> bool:
        return bool(self.groups) or self.exclude != [] or self.include != ["*"]


INHERITED = ("rule", "threshold", "adaptive", "min", "max", "norm_type", "family", "eps")


def _inherited(group: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a group, with the keys that the group inherits from the configuration."""
    own = {key: value for key, value in group.items() if value is not None}
    rule = own.get("rule", settings.get("rule"))
    names: tuple[str, ...] = INHERITED
    if rule != settings.get("rule"):
        of_norms = rule in ("norm", "global_norm") and settings.get("rule") in ("norm", "global_norm")
        names = ("family", "eps") if of_norms else ()
    elif {"threshold", "adaptive", "min", "max"} & own.keys():
        names = ("rule", "norm_type", "family", "eps")
    missing = [name for name in names if name in settings and not (name == "eps" and "family" in own)]
    return {name: settings[name] for name in missing} | own


def is_off(settings: Settings) -> bool:
    return all(map(_is_off, settings.parts))


def _is_off(part: Clipping) -> bool:
    """Return whether a clip rule never changes a gradient."""
    if part.rule == "none":
        return True
    thresholds = part.threshold.values if isinstance(part.threshold, Piecewise) else [part.threshold]
    is_infinite = all(threshold == math.inf for threshold in thresholds) or part.bounds == (-math.inf, math.inf)
    return is_infinite and part.adaptive is None


def json_schema() -> str:
    title = f"A clip configuration of unified_clip (format version {VERSION})"
    schema = {"$schema": GenerateJsonSchema.schema_dialect, "title": title, **Settings.model_json_schema()}
    schema["properties"]["$schema"] = {"type": "string"}
    return json.dumps({**schema, "title": title}, indent=2) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
