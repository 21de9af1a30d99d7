"""A suite's list of known differences, `known.toml`: read it, and match the frameworks' own functions against it.

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

KINDS = {
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
    """How the result of a framework's own function deviates from the exact one. Its kind is '' for mere rounding."""

    function: str
    kind: str = ""
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
    kind: str
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

    def covers(self, framework: str, case: str, deviation: NativeDeviation) -> bool:
        """Return whether the entry is about this deviation, of whatever size."""
        if (framework, deviation.kind) != (self.framework, self.kind):
            return False
        named = _pattern(self.function).fullmatch(deviation.function)
        return named is not None and any(pattern.fullmatch(case) for pattern in self._patterns)

    def unmatched(self, cases: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the cases."""
        names = list(cases)
        return [
            text
            for text, pattern in zip(self.cases, self._patterns, strict=True)
            if not any(map(pattern.fullmatch, names))
        ]


@dataclass(frozen=True)
class KnownDifferenceStatus:
    """An entry of the list in a run: the cases that showed it, its size there, and what is wrong with it ('' if
    nothing)."""

    known: KnownDifference
    cases: Sequence[str]
    size: float
    problem: str = ""


def read(path: Path) -> list[KnownDifference]:
    """Read the list in a file. SuiteError: the file is invalid."""
    tables = schema.read(path, schema.KnownFile).known
    return [KnownDifference(**table.model_dump(exclude_none=True)) for table in tables]


def judge(
    known: Sequence[KnownDifference] | None,
    deviations: Mapping[tuple[str, str], NativeDeviation],
    versions: Mapping[str, Mapping[str, str]],
) -> tuple[dict[tuple[str, str], Judgement], dict[tuple[str, str], str], list[KnownDifferenceStatus]]:
    """Match deviations, by framework and case, against the list.

    Args:
        known: The list. None: the suite has no list, and no deviation is a problem.
        deviations: By framework and case.
        versions: By framework, the versions of its packages, as its worker reported them.

    Returns:
        Judgements and problems by framework and case, and the status of each entry.
    """
    judgements: dict[tuple[str, str], Judgement] = {}
    problems: dict[tuple[str, str], str] = {}
    sizes: dict[KnownDifference, dict[str, float]] = {
        entry: {} for entry in known or [] if entry.applies(versions[entry.framework])
    }
    for (framework, case), deviation in deviations.items():
        entries = [entry for entry in sizes if entry.covers(framework, case, deviation)] if deviation.kind else []
        for entry in entries:
            sizes[entry][case] = deviation.size
        problem = _problem(entries, deviation)
        if problem and known is not None:
            problems[framework, case] = problem
        judgements[framework, case] = (
            "different" if problem else "known" if entries else "close" if deviation.is_rounded else "equal"
        )
    statuses = [_status(entry, cases, versions[entry.framework]) for entry, cases in sizes.items()]
    return judgements, problems, statuses


def _problem(entries: Sequence[KnownDifference], deviation: NativeDeviation) -> str:
    """Return what is wrong with a deviation that these entries cover; '' if nothing."""
    if not deviation.kind:
        return ""
    what = f"{KINDS[deviation.kind]}{f', by {deviation.size:.2g}' if deviation.size else ''}"
    if deviation.detail:
        what += f" ({deviation.detail})"
    if not entries:
        return f"{what}, and no known difference says so{deviation.cause and f'; {deviation.cause}'}"
    if len(entries) > 1:
        reasons = " and ".join(repr(entry.reason) for entry in entries)
        return f"{what}: {len(entries)} known differences say so, {reasons}"
    if deviation.size > entries[0].within * entries[0].size:
        return f"{what}: more than the {entries[0].size:.2g} that is listed"
    return ""


def _status(entry: KnownDifference, cases: Mapping[str, float], installed: Mapping[str, str]) -> KnownDifferenceStatus:
    size = max(cases.values(), default=0.0)
    problem = ""
    if package := entry.unreported(installed):
        problem = f"it is about versions of {package}, which the worker of {entry.framework} does not report"
    elif not cases:
        problem = "it shows nowhere"
    elif unmatched := entry.unmatched(cases):
        problem = f"it shows in no case like {', '.join(map(repr, unmatched))}"
    elif entry.kind in ("value", "touched") and size < entry.size / entry.within:
        problem = f"its size is {size:.2g}, less than the {entry.size:.2g} that is listed"
    return KnownDifferenceStatus(entry, list(cases), size, problem)


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
