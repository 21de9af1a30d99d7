"""How far a framework's own function is from what the contract says, and which of that is known.

Every difference that is larger than rounding has to be listed, with its reason and its size, in the suite's
`known.toml`; and everything listed there has to show. So the list stays true as frameworks release.

    [[known]]
    framework = "tensorflow"
    function = "tf.clip_by_norm"       as the report names it; * stands for anything, here and in cases
    kind = "value"                     see KINDS
    size = 0.38                        for value and touched: the greatest, relative
    within = 1.1                       a factor by which the size may differ; more where it depends on the processor
    cases = ["transformer: *"]         each has to match a case that shows the difference
    reason = "rows of an embedding given twice are not summed"
    versions = "tensorflow>=2.18,<2.30"  those that it is about, of a package that the report names; optional

An entry about other versions than those that are installed is passed over: it covers nothing, and need not show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from packaging.requirements import Requirement

from ...tensors.types import Dense, densify
from ..judge.oracle import Expected
from ..judge.verdict import relative_error
from ..outcome import Outcome
from ..suite import schema
from ..suite.cases import Case

CLOSE = 1e-5
"""What differs less, relatively, is rounding, where a suite says nothing else."""

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
class Difference:
    """How a native's result differs from what is right; of kind '' where it does not, but for rounding."""

    function: str
    kind: str = ""
    size: float = 0.0
    """For value and touched: the greatest difference, relative to the norm or to the greatest element."""

    norm: float | None = None
    """Relative, from the exact norm; None where there is none to compare."""

    gradients: float | None = None
    """The greatest difference of an element, relative to the greatest element that is right."""

    detail: str = ""
    cause: str = ""
    """What it comes from; '' where that is not known, or was not asked."""

    @property
    def is_rounded(self) -> bool:
        """Whether any number differs."""
        return bool(self.norm or self.gradients)


def measure(case: Case, expected: Expected, outcome: Outcome, tolerance: float = CLOSE) -> Difference | None:
    """The native's difference from the oracle; None where there is no such function."""
    if not outcome.name:
        return None
    if outcome.raised:
        return Difference(outcome.name, "" if case.raises else "raises", detail=outcome.message)
    if case.raises:
        return Difference(outcome.name, "returns", detail=_shown(outcome))
    norm = None
    if outcome.norm is not None and expected.wide_norm is not None and outcome.norm.array.size == 1:
        norm = relative_error(float(outcome.norm.values().reshape(())), expected.wide_norm)
    gradients = None
    if outcome.gradients is not None and expected.gradients is not None:
        if [g and g.shape for g in case.gradients] != [g and g.shape for g in outcome.gradients]:
            return Difference(outcome.name, "form", norm=norm, detail=_shown(outcome))
        gradients = _greatest_difference(expected.gradients, outcome.gradients)
    size = max(norm or 0.0, gradients or 0.0)
    kind = "value" if size > tolerance else "touched" if _touched(case, expected, outcome) else ""
    measured = Difference(outcome.name, kind, size if kind else 0.0, norm, gradients)
    if case.warns and not measured.kind:
        measured = Difference(outcome.name, "silent", norm=norm, gradients=gradients)
    return measured


def _touched(case: Case, expected: Expected, outcome: Outcome) -> bool:
    """Whether gradients that are right as they were given came back otherwise."""
    if expected.gradients is None or outcome.gradients is None:
        return False
    given = [densify(gradient) for gradient in case.gradients]
    return any(
        before is not None
        and right is not None
        and after is not None
        and np.array_equal(before.bits(), right.bits())
        and not np.array_equal(after.values(), right.values(), equal_nan=True)
        for before, right, after in zip(given, expected.gradients, outcome.gradients, strict=True)
    )


def _shown(outcome: Outcome) -> str:
    """The beginning of what was returned."""
    tensors = [outcome.norm, *(outcome.gradients or [])]
    return "; ".join(str(t.values().reshape(-1)[:3].tolist()) for t in tensors[:3] if t is not None)


def _greatest_difference(right: Sequence[Dense | None], found: Sequence[Dense | None]) -> float:
    """Of any element, relative to the greatest one that is right. All tensors at once may not fit into memory."""
    difference = greatest = 0.0
    for one, other in zip(right, found, strict=True):
        if one is not None and other is not None:
            a, b = one.values(), other.values()
            with np.errstate(invalid="ignore"):
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                # of NaN the greatest is NaN, which max() of Python would pass over
                difference = float(np.maximum(difference, np.max(np.abs(a - b), where=~same, initial=0.0)))
            greatest = max(greatest, float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)))
    if difference == 0:
        return 0.0
    return difference / greatest if math.isfinite(difference) and greatest else math.inf


# -- what is known


@dataclass(frozen=True, eq=False)
class Known:
    """An entry of the list."""

    framework: str
    function: str
    kind: str
    cases: Sequence[str]
    reason: str
    size: float = math.inf
    within: float = 1.1
    title: str = ""
    """A few words for a table; entries that share them are one row of it."""

    versions: str = ""
    """A requirement, as in a requirements.txt; '' for all versions."""

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [_pattern(text) for text in self.cases]

    @cached_property
    def _required(self) -> Requirement | None:
        return Requirement(self.versions) if self.versions else None

    def unreported(self, installed: Mapping[str, str]) -> str:
        """The package whose versions it names, where that is not installed; else ''."""
        return self._required.name if self._required and self._required.name not in installed else ""

    def applies(self, installed: Mapping[str, str]) -> bool:
        """Whether it is about the versions that are installed; what names another package is wrong, not passed over."""
        if self._required is None or self.unreported(installed):
            return True
        return self._required.specifier.contains(installed[self._required.name], prereleases=True)

    def covers(self, framework: str, case: str, difference: Difference) -> bool:
        if (framework, difference.kind) != (self.framework, self.kind):
            return False
        named = _pattern(self.function).fullmatch(difference.function)
        return named is not None and any(pattern.fullmatch(case) for pattern in self._patterns)

    def unmatched(self, cases: Iterable[str]) -> list[str]:
        """The patterns that match none of the cases."""
        names = list(cases)
        return [
            p for p, pattern in zip(self.cases, self._patterns, strict=True) if not any(map(pattern.fullmatch, names))
        ]


def share(size: float) -> str:
    """A relative size in words."""
    if size == math.inf:
        return "inf or NaN"
    if size >= 10:
        return f"{size:.0f} times"
    if size < 1e-4:
        return f"{size:.1e}"
    return f"{100 * size:.2g} %" if size < 0.995 else f"{100 * size:.0f} %"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))


@dataclass(frozen=True)
class Shown:
    """A known difference in a run: where it showed, how large, and what is wrong with the entry ('' if nothing)."""

    known: Known
    cases: Sequence[str]
    size: float
    problem: str = ""


def read(path: Path) -> list[Known]:
    """The list in a file."""
    return [Known(**table.model_dump(exclude_none=True)) for table in schema.read(path, schema.KnownFile).known]


def judge(
    known: Sequence[Known] | None,
    found: Mapping[tuple[str, str], Difference],
    versions: Mapping[str, Mapping[str, str]],
) -> tuple[dict[tuple[str, str], Judgement], dict[tuple[str, str], str], list[Shown]]:
    """Every difference, by framework and case, against the list: judgements, what is wrong; how each entry showed.

    Without a list nothing is wrong. `versions`: of the packages of each framework, as its worker told them.
    """
    judgements: dict[tuple[str, str], Judgement] = {}
    wrong: dict[tuple[str, str], str] = {}
    shown: dict[Known, dict[str, float]] = {
        entry: {} for entry in known or [] if entry.applies(versions[entry.framework])
    }
    for (framework, case), difference in found.items():
        entries = [entry for entry in shown if entry.covers(framework, case, difference)] if difference.kind else []
        for entry in entries:
            shown[entry][case] = difference.size
        problem = _problem(entries, difference)
        if problem and known is not None:
            wrong[framework, case] = problem
        judgements[framework, case] = (
            "different" if problem else "known" if entries else "close" if difference.is_rounded else "equal"
        )
    return judgements, wrong, [_shown_entry(entry, cases, versions[entry.framework]) for entry, cases in shown.items()]


def _problem(entries: Sequence[Known], difference: Difference) -> str:
    """What is wrong with a difference in the light of the list; '' if nothing."""
    if not difference.kind:
        return ""
    what = f"{KINDS[difference.kind]}{f', by {difference.size:.2g}' if difference.size else ''}"
    if difference.detail:
        what += f" ({difference.detail})"
    if not entries:
        return f"{what}, and no known difference says so{difference.cause and f'; {difference.cause}'}"
    if len(entries) > 1:
        return f"{what}: {len(entries)} known differences say so, {' and '.join(repr(e.reason) for e in entries)}"
    if difference.size > entries[0].within * entries[0].size:
        return f"{what}: more than the {entries[0].size:.2g} that is listed"
    return ""


def _shown_entry(entry: Known, cases: Mapping[str, float], installed: Mapping[str, str]) -> Shown:
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
    return Shown(entry, list(cases), size, problem)
