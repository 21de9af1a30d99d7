"""The models of the report of `unified-clip parity`, whose JSON file is parity.json.

A new key needs a default, because `--baseline` reads the reports of earlier releases. If a key is removed or changes
its meaning, SCHEMA needs a new number. To update the schema in the documentation:

    python -m unified_clip.parity.results > docs/parity.schema.json
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from pydantic import Field, InstanceOf, create_model

from .._display import safe
from .._report_model import Real, ReportModel, json_schema
from ..tensors.types import Stage
from .elements import WorstElement
from .judge.verdict import AGREEING, STAGES, NativeVerdict, VerdictKind
from .known.entries import DifferenceKind, KnownDifference, NotFinite
from .modes import UNIFIED_CLIP_MODES

SCHEMA: Final = 2


class Result(ReportModel):
    """The verdict on one case, on one framework and in one mode."""

    verdict: VerdictKind | NativeVerdict
    detail: str
    """The difference or the failure in words. Empty if there is none. For unified_clip, the text includes the cause."""

    details: WorstElement | None
    """The element with the largest distance from the exact result. null if nothing differs, or no numbers can be
    compared.
    """

    reproduce: str | None
    """The command that runs the case again. null if the result is equal or close, or the framework is missing."""

    seconds: float = Field(default=0.0, exclude=True)
    """Duration of the call. parity.json has no durations, so that equal results give equal files."""

    @property
    def is_failure(self) -> bool:
        """Whether there is no result to compare, for example because the worker crashed or timed out."""
        return self.verdict not in (*AGREEING, "no norm", "different", "known")


class UnifiedClipResult(Result):
    """The verdict on unified_clip in one mode."""

    ulps: Real
    """The largest distance of a number from the exact number, in ULP."""

    cause: str
    """The cause of a difference in a word or two. Empty if the cause is unknown."""

    stages: dict[Stage, Real]
    """The distance at each stage, in ULP. The stage "coefficient" has a relative distance."""

    sha256: dict[Stage, str] | None
    """The SHA-256 of the tensors at each stage. null if there is no result."""


class NativeResult(Result):
    """The verdict on a framework's function."""

    function: str | None
    """The name of the framework's function, or FILE.py:FUNCTION for a function of the user. null if the framework's
    function gave no result, for example because of a crash.
    """

    kind: DifferenceKind | Literal[""]
    """The kind of the difference. Empty if the results are equal up to rounding."""

    norm: Real | None
    """The relative distance from the exact norm."""

    gradients: Real | None
    """The largest difference of an element, relative to the largest exact element of its gradient."""

    finite_size: Real = 0.0
    """The largest relative difference of finite numbers. 0 if finite numbers differ only by rounding."""

    not_finite: NotFinite = ""
    """Where only one of the two results has inf or NaN."""

    cause: str
    """The cause of the difference. Empty if no cause was found, or if a known difference covers any cause."""

    contradiction: str = ""
    """The reason why a cause that fits this case was rejected: another case contradicts the cause. Otherwise empty."""

    lacks_norm: bool = False
    """Whether the function returned no norm, although the public name returns a norm."""

    cause_kind: str = ""
    """The cause in a word or two, such as "another eps". Empty if `cause` is empty."""

    sha256: dict[Stage, str] | None = None
    """The SHA-256 of the tensors at each stage. null if there is no result."""

    second_call: Literal["", "equal", "different", "failed"] = ""
    """The result of a second call, compared with the first call. A second call follows if the bits differ from the
    baseline, or if the failure of a user's function has no known cause. Empty without a second call.
    """

    problem: str
    """Why the difference fails the run, with the cause. Empty if the difference does not fail the run."""

    @property
    def is_users(self) -> bool:
        """Whether the function is a function of the user."""
        return ".py:" in (self.function or "")

    @property
    def size(self) -> float:
        return max(self.norm or 0.0, self.gradients or 0.0)


def _with_modes(base: type[ReportModel], field: Any) -> Any:
    return create_model("Modes", __base__=base, **dict.fromkeys(UNIFIED_CLIP_MODES, field))


class FrameworkResult(_with_modes(ReportModel, (UnifiedClipResult | None, None))):  # type: ignore[misc]
    """The results of one case on one framework, by mode. A mode that did not run has no result."""

    native: NativeResult | None = None

    @property
    def by_mode(self) -> dict[str, UnifiedClipResult]:
        return {mode: result for mode in UNIFIED_CLIP_MODES if (result := getattr(self, mode))}

    def get(self, mode: str) -> UnifiedClipResult | NativeResult | None:
        return cast(UnifiedClipResult | NativeResult | None, getattr(self, mode))


class OwnPair(ReportModel):
    """The comparison of two functions of the user with each other, in one case."""

    left: str
    right: str
    """`left` and `right` are the frameworks of the two functions."""

    verdict: Literal["equal", "close", "known", "different"]
    """The verdict on the difference. "known": the list of known differences has the difference of one function."""

    size: Real | None
    """The largest relative difference of the norms and of the gradients. null if the numbers cannot be compared."""

    detail: str


class CaseResult(ReportModel):
    """The exact result of one case, and the results of every framework."""

    name: str
    call: str
    gradients: str
    """The name of the list of gradients."""

    rule: str | None
    """The clip in words, such as "total norm, threshold 1". null if other frameworks cannot clip in this way."""

    elements: int
    """The number of elements of all gradients."""

    sha256: dict[Stage, str]
    """The SHA-256 of the exact result at each stage."""

    stages_apart: list[Stage]
    """The stages at which unified_clip's bits on the host path differ between frameworks."""

    frameworks: dict[str, FrameworkResult]
    own_pairs: list[OwnPair] = Field(default=[])
    """The comparisons of the user's functions with each other, one for each pair of frameworks."""

    @property
    def natives(self) -> dict[str, NativeResult]:
        return {name: result.native for name, result in self.frameworks.items() if result.native}


def differing_stages(frameworks: dict[str, FrameworkResult]) -> list[Stage]:
    """Return the stages at which unified_clip's bits on the host path differ between frameworks."""
    digests = [result.host.sha256 for result in frameworks.values() if result.host and result.host.sha256 is not None]
    return [stage for stage in STAGES if len({each.get(stage) for each in digests}) > 1]


class KnownDifferenceResult(ReportModel):
    """An entry of the list of known differences, and the cases in which the run showed the difference."""

    framework: str
    function: str
    kind: DifferenceKind
    listed_size: Real | None
    """The size in the list, or inf for a difference with inf or NaN. null if the entry lists no numbers."""

    size: Real | None
    """The largest size in this run, or inf for a difference with inf or NaN."""

    finite_size: Real = 0.0
    """The largest relative difference of finite numbers in this run."""

    not_finite: NotFinite = ""
    """Where only one of the two results has inf or NaN."""

    cause: str = ""
    """The causes that the entry covers, separated by commas. Empty if the entry has no cause."""

    incomplete: str = ""
    """The line to add to an entry that has no key `cause`. Empty if the entry is complete."""

    reason: str
    versions: str
    """The versions that the entry is for, such as "torch>=2.8,<2.13". Empty for all versions."""

    title: str
    problem: str
    """Why the entry fails the run. Empty if the entry does not fail the run."""

    cases: list[str]
    entry: InstanceOf[KnownDifference] | None = Field(default=None, exclude=True)
    """The entry of known.toml. None in a report that was read from parity.json."""


class Problem(ReportModel):
    """A failure of the run, or a failure that the baseline excuses."""

    what: str
    """The result that failed, such as "torch, host path, different"."""

    detail: str
    framework: str | None
    """The framework that has the problem. null if several frameworks or the list of known differences have the
    problem.
    """

    mode: str | None
    function: str | None = None
    """The framework's function, or FILE.py:FUNCTION, that has the problem or a stale entry. null for unified_clip."""

    excused: bool = False
    """Whether the baseline already had this failure, so that the failure does not fail the run."""

    cases: list[str]
    """The cases that have the problem."""


class Change(ReportModel):
    """A result, known difference or version that has changed since the baseline."""

    kind: Literal["new", "gone", "verdict", "size", "numbers", "version"]
    framework: str
    """The framework, or the package for the kind "version". Empty if the change is about all frameworks."""

    what: str
    """The subject of the change: a mode, the framework's function, or a known difference."""

    case: str
    before: str
    after: str
    worse: bool
    """Whether the change fails the run. A failure fails the run if it is new or larger than in the baseline, or if
    its verdict or cause has changed. A comparison that only the baseline has also fails the run.
    """

    why: str = ""
    """Why the change fails the run, as a sentence. Empty if the result itself shows the failure."""


Counts = dict[str, dict[str, int]]
"""How often each verdict occurs, by framework."""


class _CaseCounts(ReportModel):
    cases: int
    cases_where_frameworks_agree: int


class Summary(_with_modes(_CaseCounts, (Counts, ...))):  # type: ignore[misc]
    """Counts of cases, and of verdicts by mode and framework."""

    natives: Counts


class ParityReport(ReportModel):
    """The report of `unified-clip parity`."""

    schema_: Literal[2] = Field(alias="schema")
    verdict: str
    """The result in a sentence."""

    exit_code: Literal[0, 1, 3]
    """0: the run passes. 1: a difference, or a new or larger difference than in the baseline. 3: a result is
    missing, or nothing is tested.
    """

    suite: str
    """The path of the suite, as the user typed it."""

    baseline: list[Change] | None
    """The changes since the baseline. null without a baseline."""

    processor: str = ""
    """The processor of the run, and the number of its cores. Empty in reports of earlier versions."""

    versions: dict[str, str]
    frameworks: list[str]
    titles: dict[str, str]
    """The title of the column with each framework's own functions, such as "PyTorch"."""

    summary: Summary
    notes: list[str]
    """Further lines to print, such as the modes that were left out. Notes change no verdict."""

    problems: list[Problem]
    known: list[KnownDifferenceResult]
    cases: list[CaseResult]
    strict: bool = False
    """Whether the run has the option `--strict`, so that the baseline excuses no failure."""

    untested: list[str] = Field(default=[])
    """What the cases cannot test, because each exact result equals its input: "unified_clip", gradients, or
    functions. An item in this list fails the run.
    """

    may_be_missing: list[str] = Field(default=[], exclude=True)
    """Frameworks whose absence does not fail the run."""

    chosen_cases: bool = Field(default=False, exclude=True)
    """Whether the run has `--case`. A function that raises an error in the chosen cases can return a result in other
    cases.
    """

    started: datetime = Field(default=datetime(1970, 1, 1, tzinfo=UTC), exclude=True)

    def safe(self) -> ParityReport:
        """Return a copy that is safe to print. Fields that parity.json lacks have their defaults."""
        return ParityReport.model_validate(safe(self.as_json()))

    def results(self) -> list[tuple[str, UnifiedClipResult]]:
        """Return (framework, result) for every result of unified_clip."""
        return [
            (name, each)
            for case in self.cases
            for name, result in case.frameworks.items()
            for each in result.by_mode.values()
        ]

    def natives(self) -> list[tuple[str, NativeResult]]:
        """Return (framework, result) for every result of a framework's function."""
        return [each for case in self.cases for each in case.natives.items()]

    @property
    def absent(self) -> list[str]:
        """The frameworks that are missing, and that the suite allows to be missing."""
        results = [*self.results(), *self.natives()]
        present = {name for name, result in results if result.verdict != "missing"}
        return [name for name in self.frameworks if name in self.may_be_missing and name not in present]

    def is_wrong(self, framework: str, result: Result) -> bool:
        """Return whether a result fails the run for a reason other than the list of known differences."""
        if result.verdict == "missing":
            return framework not in self.may_be_missing
        return result.is_failure or (isinstance(result, UnifiedClipResult) and result.verdict == "different")

    @property
    def ours_differ(self) -> bool:
        differ = any(result.verdict == "different" for _, result in self.results())
        return differ or any(case.stages_apart for case in self.cases)

    @property
    def differs(self) -> bool:
        """Whether there are unexpected differences. Differences that the baseline excuses count, too."""
        natives = any(result.problem for _, result in self.natives())
        return self.ours_differ or natives or any(entry.problem for entry in self.known)

    @property
    def always_raising(self) -> list[str]:
        """The functions of the user that raised an error in each case that should return a result."""
        returning = {f"{each.function} ({name})" for name, each in self.natives() if each.sha256}
        raising = [f"{r.function} ({name})" for name, r in self.natives() if r.is_users and r.kind == "raises"]
        return [] if self.chosen_cases else [name for name in dict.fromkeys(raising) if name not in returning]

    @property
    def is_incomplete(self) -> bool:
        results: list[tuple[str, Result]] = [*self.results(), *self.natives()]
        if self.untested or self.always_raising or all(result.is_failure for _, result in results):
            return True
        return any(result.is_failure and self.is_wrong(name, result) for name, result in results)


if __name__ == "__main__":
    print(json_schema(ParityReport, "unified_clip parity report"), end="")
