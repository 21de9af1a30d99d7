"""The entries of `known.toml`, a suite's list of known differences. `docs/parity.md` explains its keys."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field, field_validator, model_validator

from ..suite import schema
from ..suite.schema import Name

DifferenceKind = Literal["value", "touched", "raises", "error", "returns", "inputs", "silent", "form", "elements"]

NotFinite = Literal["", "norm", "gradients", "norm and gradients"]
"""Where a result has inf or NaN and the exact result has another number, or the other way round. '' for nowhere."""

KINDS: Mapping[str, str] = {
    "value": "numbers differ",
    "touched": "gradients that should be unchanged are changed",
    "raises": "it raises an error, but should return a result",
    "error": "it raises another error than it should",
    "returns": "it returns a result, but should raise an error",
    "inputs": "it changes its input gradients, but should not",
    "silent": "it issues no warning",
    "form": "shapes, dtypes or the number of gradients differ",
    "elements": "the number of elements differs, so the gradients are not compared",
}

SIZED = ("value", "touched")
"""The kinds of differences in which only numbers differ. Their entries need a size or `not_finite`."""

WITH_NUMBERS = (*SIZED, "form", "elements")
"""The kinds of differences whose numbers are compared. Their entries may have a size and `not_finite`."""

ERRORS = ("raises", "error")
"""The kinds of differences in which a function raises an error. The class of the error is the cause."""

WITH_CAUSE = (*WITH_NUMBERS, *ERRORS)
"""The kinds of differences for which a cause is recorded."""

ANY, UNKNOWN = "any", "unknown"
"""Values of `cause` for any cause, and for a difference without a known cause."""

UNEXPLAINED = ", and the cause is unknown"
"""The end of the `reason` that `--accept` writes for numbers that differ by an unknown cause."""

NO_REASON = "the cause is unknown, and `reason` does not explain the difference"
"""With --strict: the start of the problem of an entry whose `reason` ends with UNEXPLAINED."""

WITHIN = 1.1
LARGEST_WITHIN = 10.0
"""The largest factor `within`. A larger factor would accept sizes of another order of magnitude."""


@dataclass(frozen=True)
class NativeDeviation:
    """The difference of a framework's function from the exact result. `results.NativeResult` has these fields, too."""

    function: str
    kind: DifferenceKind | Literal[""] = ""
    """A key of `KINDS`. '' if nothing differs, or only by rounding."""

    finite_size: float = 0.0
    """The largest relative difference of finite numbers. 0 if it is only rounding, except for the kind "touched"."""

    norm: float | None = None
    """The relative difference from the exact norm. None if there is no norm to compare. inf if one norm is inf or
    NaN, and the norms differ."""

    gradients: float | None = None
    """The largest difference of an element, relative to the largest exact element of its gradient. inf if an element is
    inf or NaN in one of the two results, and the elements differ. None if the gradients were not compared."""

    not_finite: NotFinite = ""

    lacks_norm: bool = False
    """Whether the function returned no norm, although the public name returns one."""

    detail: str = ""
    cause: str = ""
    """The cause as a sentence. '' if no cause was found, or if the list already has the difference."""

    cause_kind: str = ""
    """The cause in a word or two, such as "another eps". '' if `cause` is ''."""

    contradiction: str = ""
    """Why no cause is named, although a cause fits this case: another case contradicts that cause. '' otherwise."""


class Difference(Protocol):
    """A difference of a framework's function: a `NativeDeviation`, or a result of a report."""

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


class KnownDifference(schema.Table):
    """An entry of `known.toml`: a difference of a framework's function that the suite accepts."""

    framework: Name
    function: Name
    kind: DifferenceKind
    cases: Annotated[list[Name], Field(min_length=1)]
    """Names of cases, or patterns of names with `*`."""

    reason: Name
    size: Annotated[float, Field(gt=0)] = 0.0
    """The largest relative difference of finite numbers. 0: finite numbers differ by no more than rounding."""

    not_finite: NotFinite = ""
    """Where results have inf or NaN and the exact results do not, or the other way round. The entry covers only cases
    that differ in this way."""

    cause: str | Annotated[list[Name], Field(min_length=1)] = ""
    """The `recorded_cause` of the differences, or a list of such causes. The entry covers no difference with another
    cause. ANY stands for any cause, and UNKNOWN for a difference whose cause is unknown. An entry of an earlier version
    may have no cause: '' covers any cause, too, and the run reports the entry as incomplete."""

    within: Annotated[float, Field(ge=1, allow_inf_nan=False)] = WITHIN
    title: str = ""
    """A few words for the table of known differences. Entries with the same title share a row of it."""

    versions: str = ""
    """The versions of a package that show the difference, such as "torch>=2.8,<2.13". '' for all versions."""

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
            raise ValueError(f"remove the extras and markers: {required.name}{required.specifier}")
        return versions

    @field_validator("within")
    @classmethod
    def _bounded(cls, within: float) -> float:
        if within > LARGEST_WITHIN:
            problem = f"{within:g} is above {LARGEST_WITHIN:g}, so the entry would accept another order of magnitude"
            remedy = "Lower it, and run the command with --accept to list each order of magnitude in its own entry"
            raise ValueError(f"{problem}. {remedy}")
        return within

    @model_validator(mode="after")
    def _sized(self) -> Self:
        names = [name for name in ("size", "not_finite") if getattr(self, name)]
        if names and self.kind not in WITH_NUMBERS:
            raise ValueError(f"kind = {self.kind!r} allows no {' or '.join(names)}. Remove {' and '.join(names)}")
        if not names and self.kind in SIZED:
            added = "Add the largest relative difference, such as size = 0.01. If results have inf or NaN, add where"
            raise ValueError(f"kind = {self.kind!r} needs size or not_finite. {added}, such as not_finite = 'norm'")
        if self.size == math.inf and self.not_finite:
            raise ValueError("size is inf, but not_finite covers inf and NaN. Remove size")
        return self

    @property
    def lacks_cause(self) -> bool:
        """Return whether the entry has no `cause`, although causes of its kind are recorded."""
        return not self.cause and self.kind in WITH_CAUSE

    @property
    def lacks_reason(self) -> bool:
        """Return whether the cause is unknown, and the reason is the one that `--accept` wrote."""
        return UNKNOWN in self.causes and self.reason.endswith(UNEXPLAINED)

    @property
    def causes(self) -> list[str]:
        """The causes that the entry covers. Empty if it has no `cause`."""
        return [self.cause] if isinstance(self.cause, str) and self.cause else list(self.cause)

    @property
    def is_unbounded(self) -> bool:
        """Return whether the entry is from an earlier version and has `size = inf`, which bounds no number."""
        return self.size == math.inf

    @property
    def _required(self) -> Requirement | None:
        return Requirement(self.versions) if self.versions else None

    def unreported(self, installed: Mapping[str, str]) -> str:
        """Return the name of the package in `versions` if `installed` lacks this package.

        Return '' if `installed` has the package, or if `versions` is empty.

        installed: The version of each package, by package name.
        """
        required = self._required
        return required.name if required and required.name not in installed else ""

    def applies(self, installed: Mapping[str, str]) -> bool:
        """Return whether the entry applies to the installed version of its package.

        Return True if that version is unknown, or if `versions` is empty.
        """
        required = self._required
        if required is None or self.unreported(installed):
            return True
        return required.specifier.contains(installed[required.name], prereleases=True)

    def is_for(self, framework: str, case: str, difference: Difference) -> bool:
        """Return whether the entry is for this framework, case, function and kind, whatever the numbers are."""
        if (framework, difference.kind) != (self.framework, self.kind):
            return False
        named = _pattern(self.function).fullmatch(difference.function or "")
        return named is not None and is_match(case, self.cases)

    def covers(self, framework: str, case: str, difference: Difference) -> bool:
        """Return whether the entry is for this difference, with inf or NaN in the same places, and with one of its
        causes. Sizes are not compared.

        An entry with `size = inf` covers any numbers, so that `--accept` can replace it.
        """
        same = self.is_unbounded or difference.not_finite == self.not_finite
        accepted = not self.causes or bool({ANY, recorded_cause(difference)} & {*self.causes})
        return same and accepted and self.is_for(framework, case, difference)

    def bounds(self, size: float) -> bool:
        """Return whether a difference of finite numbers is at most the listed size times `within`."""
        return size <= self.within * self.size

    def unmatched_patterns(self, names: Collection[str]) -> list[str]:
        """Return the patterns in `cases` that match none of these case names."""
        return [text for text in self.cases if not any(map(_pattern(text).fullmatch, names))]


class KnownFile(schema.Table):
    """The content of `known.toml`."""

    known: list[KnownDifference] = Field(default=[])


def read(path: Path, *, accepting: bool = False) -> list[KnownDifference]:
    """Return the entries of a `known.toml`.

    accepting: Whether entries of earlier versions with `size = inf` are allowed, because `--accept` replaces them.

    SuiteError: the file does not exist, or is invalid.
    """
    known = schema.read(path, KnownFile).known
    if not accepting and (unbounded := [entry for entry in known if entry.is_unbounded]):
        first = unbounded[0]
        raise schema.SuiteError(
            f"{path}: size = inf would accept any number, but {len(unbounded)} of {len(known)} entries have it. The "
            f"first is the entry of {first.function!r} with the reason {first.reason!r}. Run the command with --accept "
            "once: it writes not_finite and the size of finite numbers in place of inf. Titles and reasons stay",
            "UC303",
        )
    return known


def is_match(case: str, patterns: Iterable[str]) -> bool:
    """Return whether a case name matches one of the patterns of an entry."""
    return any(_pattern(text).fullmatch(case) for text in patterns)


def recorded_cause(difference: Difference) -> str:
    """Return the text for `cause` in an entry: the kind of the cause, or the class of an error.

    Return UNKNOWN if the cause is unknown, and '' if no cause is recorded for this kind of difference.
    """
    if difference.kind in ERRORS:
        return difference.detail.partition(":")[0]
    return (difference.cause_kind or UNKNOWN) if difference.kind in WITH_CAUSE else ""


def cause_value(differences: Iterable[Difference]) -> str | list[str]:
    """Return the value of `cause` for an entry that covers some differences: their cause, or a list of their causes."""
    causes = sorted({recorded_cause(difference) for difference in differences})
    return causes[0] if len(causes) == 1 else causes


def size_in_words(size: float) -> str:
    """Return a relative size as text: in percent, or as a factor such as "12 times" or "1.5e+08 times" if it is 10 or
    more.

    A size below 0.01 % is written like 1.2e-05. An infinite size is "inf or NaN".

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
