"""The entries of `known.toml`, a suite's list of known differences. `docs/parity.md` explains the keys."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from ..suite import schema
from ..suite.schema import Name

DifferenceKind = Literal["value", "touched", "raises", "error", "returns", "inputs", "silent", "form", "elements"]

NotFinite = Literal["", "norm", "gradients", "norm and gradients"]
"""The outputs in which inf and NaN are at other positions than in the exact result."""

KINDS: Mapping[str, str] = {
    "value": "numbers differ",
    "touched": "gradients that should be unchanged are changed",
    "raises": "it raises an error, but should return a result",
    "error": "it raises the wrong error",
    "returns": "it returns a result, but should raise an error",
    "inputs": "it changes its input gradients, but should not",
    "silent": "it issues no warning",
    "form": "shapes, dtypes or the number of gradients differ",
    "elements": "the number of elements differs, so the gradients are not compared",
}
"""In these texts, "it" is the function."""

SIZED = ("value", "touched")
"""The kinds of differences for which an entry needs a size or `not_finite`."""

WITH_NUMBERS = (*SIZED, "form", "elements")
ERRORS = ("raises", "error")
WITH_CAUSE = (*WITH_NUMBERS, *ERRORS)

ANY, UNKNOWN = "any", "unknown"

UNEXPLAINED = ", and the cause is unknown"

NO_REASON = "the cause is unknown, and `reason` does not explain the difference"

Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]

WITHIN = 1.1
LARGEST_WITHIN = 10.0


@dataclass(frozen=True)
class NativeDeviation:
    """The deviation of a framework's function from the exact result. `results.NativeResult` documents the fields."""

    function: str
    kind: DifferenceKind | Literal[""] = ""
    finite_size: float = 0.0
    """If the kind is "touched", rounding errors also count."""

    norm: float | None = None
    gradients: float | None = None
    not_finite: NotFinite = ""
    lacks_norm: bool = False
    detail: str = ""
    cause: str = ""
    cause_kind: str = ""
    contradiction: str = ""


class NativeDifference(Protocol):
    @property
    def function(self) -> str | None: ...

    @property
    def kind(self) -> str: ...

    @property
    def not_finite(self) -> str: ...

    @property
    def cause_kind(self) -> str: ...

    @property
    def detail(self) -> str: ...


class KnownDifference(schema.SuiteTable):
    framework: Name
    function: Name
    kind: DifferenceKind
    cases: Annotated[list[Name] | dict[Name, Size], Field(min_length=1)]
    """Names of cases, or a table {case name: size of the difference}. In a name, `*` matches any text."""

    reason: Name
    size: Size = 0.0
    """The largest relative difference from the exact result, without inf and NaN. Rounding counts as 0."""

    not_finite: NotFinite = ""
    cause: str | Annotated[list[Name], Field(min_length=1)] = ""
    """The causes that the entry covers. ANY covers every cause, and UNKNOWN covers an unknown cause.

    An entry from an earlier version has no key `cause`. Such an entry covers every cause, and is reported as
    incomplete.
    """

    within: Annotated[float, Field(ge=1, allow_inf_nan=False)] = WITHIN
    title: str = ""
    """Entries with the same title share a row in the report's table of known differences."""

    versions: str = ""
    """The package and the versions that have the difference, such as "torch>=2.8,<2.13". An empty text means all
    versions."""

    @field_validator("versions")
    @classmethod
    def _of_a_package(cls, versions: str) -> str:
        try:
            required = Requirement(versions)
        except InvalidRequirement:
            raise ValueError("give a package and its versions, as in torch>=2.8,<2.13") from None
        if not required.specifier:
            raise ValueError(f"add the versions, as in {required.name}>=2.8,<2.13")
        if required.extras or required.marker:
            raise ValueError(f"write {required.name}{required.specifier}, without extras and markers")
        return versions

    @field_validator("within")
    @classmethod
    def _bounded(cls, within: float) -> float:
        if within > LARGEST_WITHIN:
            effect = f"the entry would accept differences up to {within:g} times its `size`"
            remedy = f"Give {LARGEST_WITHIN:g} or less, and run unified-clip parity with --accept to update the sizes"
            raise ValueError(f"it is {within:g}, so {effect}. {remedy}")
        return within

    @model_validator(mode="after")
    def _sized(self) -> Self:
        has_sizes = isinstance(self.cases, dict)
        names = [name for name in ("size", "not_finite") if getattr(self, name)]
        if has_sizes and self.size:
            raise ValueError("`cases` already contains sizes. Remove `size`")
        names += ["the sizes of `cases`"] if has_sizes else []
        if names and self.kind not in WITH_NUMBERS:
            raise ValueError(f"kind = {self.kind!r} does not allow {' or '.join(names)}. Remove {' and '.join(names)}")
        if not names and self.kind in SIZED:
            remedy = "Add the largest relative difference, such as size = 0.01. For inf or NaN, add not_finite = 'norm'"
            raise ValueError(f"kind = {self.kind!r} needs size or not_finite. {remedy}, for example")
        return self

    @property
    def lacks_cause(self) -> bool:
        return not self.cause and self.kind in WITH_CAUSE

    @property
    def lacks_reason(self) -> bool:
        return UNKNOWN in self.causes and self.reason.endswith(UNEXPLAINED)

    @property
    def causes(self) -> list[str]:
        return [self.cause] if isinstance(self.cause, str) and self.cause else list(self.cause)

    @property
    def _required(self) -> Requirement | None:
        return Requirement(self.versions) if self.versions else None

    def unreported(self, installed: Mapping[str, str]) -> str:
        required = self._required
        return required.name if required and required.name not in installed else ""

    def applies(self, installed: Mapping[str, str]) -> bool:
        required = self._required
        if required is None or self.unreported(installed):
            return True
        return required.specifier.contains(installed[required.name], prereleases=True)

    def is_of(self, framework: str, difference: NativeDifference) -> bool:
        named = _pattern(self.function).fullmatch(difference.function or "")
        return framework == self.framework and named is not None

    def is_for(self, framework: str, case: str, difference: NativeDifference) -> bool:
        same = difference.kind == self.kind and self.is_of(framework, difference)
        return same and is_match(case, self.cases)

    def covers(self, framework: str, case: str, difference: NativeDifference) -> bool:
        """Return whether the entry covers a difference of this kind and cause. The size is ignored."""
        accepted = not self.causes or bool({ANY, recorded_cause(difference)} & {*self.causes})
        same = accepted and difference.not_finite == self.not_finite
        return same and self.is_for(framework, case, difference)

    @property
    def listed_sizes(self) -> Collection[float]:
        return set(self.cases.values()) if isinstance(self.cases, dict) else [self.size]

    def listed_size(self, case: str) -> float:
        if not isinstance(self.cases, dict):
            return self.size
        return max(size for pattern, size in self.cases.items() if is_match(case, [pattern]))

    def smaller_sizes(self, sizes: Mapping[str, float]) -> tuple[float, float] | None:
        """Find the first listed size that is much larger than the differences of this run.

        Return (largest difference of this run, listed size).

        sizes: {case: size of the difference in this run}.
        """
        for listed in self.listed_sizes:
            same = [size for case, size in sizes.items() if self.listed_size(case) == listed]
            if same and max(same) < listed / self.within:
                return max(same), listed
        return None

    def bounds(self, case: str, size: float) -> bool:
        return size <= self.within * self.listed_size(case)

    def unmatched_patterns(self, names: Collection[str]) -> list[str]:
        return [text for text in self.cases if not any(map(_pattern(text).fullmatch, names))]


class KnownFile(schema.SuiteTable):
    known: list[KnownDifference] = Field(default=[])


def read(path: Path) -> list[KnownDifference]:
    return schema.read(path, KnownFile).known


def is_match(case: str, patterns: Iterable[str]) -> bool:
    return any(_pattern(text).fullmatch(case) for text in patterns)


def recorded_cause(difference: NativeDifference) -> str:
    """Return the value for the key `cause` in known.toml."""
    if difference.kind in ERRORS:
        return difference.detail.partition(":")[0]
    return (difference.cause_kind or UNKNOWN) if difference.kind in WITH_CAUSE else ""


def cause_value(differences: Iterable[NativeDifference]) -> str | list[str]:
    causes = sorted({recorded_cause(difference) for difference in differences})
    return causes[0] if len(causes) == 1 else causes


def size_in_words(size: float) -> str:
    """Return a relative size as text, such as "12 times", "25 %" or "1.2e-05".

    >>> size_in_words(0.25)
    '25 %'
    """
    if size == math.inf:
        return "inf or NaN"
    if size >= 10:
        return f"{size:.0f} times" if size < 1e6 else f"{size:.1e} times"
    if size < 1e-4:
        return f"{size:.1e}"
    return f"{100 * size:.2g} %" if size < 0.995 else f"{100 * size:.0f} %"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))
