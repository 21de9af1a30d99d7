"""A suite's list of known differences, `known.toml`: read it, and match the frameworks' functions against it.

The list must name every difference that is larger than rounding, with its reason and its size. Every entry must show in
a run. So the list stays correct as frameworks release.

    [[known]]
    framework = "tensorflow"
    function = "tf.clip_by_norm"       as the report names it; * stands for any text, here and in cases
    kind = "value"                     see KINDS
    size = 0.38                        for value and touched: the largest difference, relative
    within = 1.1                       factor by which the size may vary; larger if it depends on the processor
    cases = ["transformer: *"]         each must match a case that shows the difference
    reason = "rows of an embedding given twice are not summed"
    versions = "tensorflow>=2.18,<2.30"  versions of a package in the report that the entry is about; optional

An entry about versions that are not installed is skipped: it covers nothing, and need not show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from ..suite import schema

DifferenceKind = Literal["value", "touched", "raises", "returns", "silent", "form"]

KINDS: Mapping[str, str] = {
    "value": "numbers differ",
    "touched": "gradients that should be left bit for bit are changed",
    "raises": "it raises where there is a result",
    "returns": "it returns where an error is due",
    "silent": "it gives no warning",
    "form": "other shapes, or another number of gradients",
}

Judgement = Literal["equal", "close", "known", "different"]


@dataclass(frozen=True)
class NativeDeviation:
    """How the result of a framework's function deviates from the exact one. Its kind is '' for mere rounding."""

    function: str
    kind: DifferenceKind | Literal[""] = ""
    size: float = 0.0
    """For value and touched: the largest difference, relative to the norm or to the largest element."""

    norm: float | None = None
    """Relative to the exact norm. None if there is no norm to compare."""

    gradients: float | None = None
    """The largest difference of an element, relative to the largest element of the exact result."""

    detail: str = ""
    cause: str = ""
    """'' if the cause is not known, or was not looked for."""

    @property
    def is_rounded(self) -> bool:
        """Whether any number differs."""
        return bool(self.norm or self.gradients)


@dataclass(frozen=True, eq=False)
class KnownDifference:
    """An entry of the list."""

    framework: str
    function: str
    kind: DifferenceKind
    cases: Sequence[str]
    reason: str
    size: float = math.inf
    within: float = 1.1
    title: str = ""
    """A few words for a table. Entries with the same title share a row."""

    versions: str = ""
    """A requirement, as in requirements.txt. '' for all versions."""

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [_pattern(text) for text in self.cases]

    @cached_property
    def _required(self) -> Requirement | None:
        return Requirement(self.versions) if self.versions else None

    def unreported(self, installed: Mapping[str, str]) -> str:
        """Return the package of `versions` if it is not installed, else ''."""
        return self._required.name if self._required and self._required.name not in installed else ""

    def applies(self, installed: Mapping[str, str]) -> bool:
        """Return whether the entry is about the installed versions. An unreported package is an error, not a reason
        to skip the entry."""
        if self._required is None or self.unreported(installed):
            return True
        return self._required.specifier.contains(installed[self._required.name], prereleases=True)

    def covers(self, framework: str, case: str, function: str, kind: str) -> bool:
        """Return whether the entry is about this difference of a function, of whatever size."""
        if (framework, kind) != (self.framework, self.kind):
            return False
        named = _pattern(self.function).fullmatch(function)
        return named is not None and any(pattern.fullmatch(case) for pattern in self._patterns)

    def unmatched(self, cases: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the cases."""
        names = list(cases)
        return [
            text
            for text, pattern in zip(self.cases, self._patterns, strict=True)
            if not any(map(pattern.fullmatch, names))
        ]


def read(path: Path) -> list[KnownDifference]:
    """Read the list in a file. SuiteError: the file is invalid."""
    tables = schema.read(path, schema.KnownFile).known
    return [KnownDifference(**table.model_dump(exclude_none=True)) for table in tables]


def size_in_words(size: float) -> str:
    """Return a relative size as text.

    >>> size_in_words(0.25)
    '25 %'
    """
    if size == math.inf:
        return "inf or NaN"
    if size >= 10:
        return f"{size:.0f} times"
    if size < 1e-4:
        return f"{size:.1e}"
    return f"{100 * size:.2g} %" if size < 0.995 else f"{100 * size:.0f} %"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))
