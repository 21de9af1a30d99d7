"""The models of parity.json, the report of `unified-clip parity`.

If a key is removed or gets another meaning, SCHEMA needs a new number. To update the schema in the documentation:

    python -m unified_clip.parity.results > docs/parity.schema.json
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, Literal, cast

from pydantic import Field, InstanceOf, computed_field, create_model

from .._kit.display import safe
from .._kit.report_model import Real, ReportModel, json_schema
from ..causes.cause import distinct_texts
from ..tensors.types import Stage
from .judge.verdict import AGREEING, STAGES, NativeVerdict, VerdictKind
from .known.entries import DifferenceKind, KnownDifference, NotFinite
from .modes import UNIFIED_CLIP_MODES

SCHEMA: Final = 4


Side = Literal["ours", "native"]

SIDES: Mapping[Side, str] = {"ours": "unified_clip", "native": "framework"}

WIDTH = 13
"""The width of the first column in a text report."""


class Number(ReportModel):
    """An element of the exact result, of unified_clip's result, or of the framework's result."""

    value: Real
    ulps: Real
    """The distance from the exact number, in ULP."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hex(self) -> str:
        """The value as a hexadecimal float, in the format of Python's `float.hex`."""
        return self.value.hex()


class WorstElement(ReportModel):
    """The element with the largest distance from the exact result."""

    stage: Stage
    """The first stage of the call at which the result differs from the exact result."""

    gradient: int | None
    """The index of the gradient, from 0. For the norm, the index is null."""

    name: str
    element: list[int]
    """The index of the element in the gradient. In a complex gradient, a last index follows: 0 for the real part, and 1
    for the imaginary part."""

    dtype: str
    """Distances from the exact result are in ULP of this dtype."""

    exact: Number
    """The exact number, rounded as docs/contract.md specifies."""

    ours: Number | None
    native: Number | None
    apart: int
    """The number of elements that differ from the exact result at this stage."""

    compared: int
    """The number of elements that were compared at this stage."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def nearer(self) -> Side | None:
        """The side whose number is closer to `exact`. The value is null if both numbers are equally close, or if one
        side has no number."""
        if self.ours is None or self.native is None or self.ours.ulps == self.native.ulps:
            return None
        return "ours" if self.ours.ulps < self.native.ulps else "native"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def place(self) -> str:
        """A description of the gradient and the element, or "the norm"."""
        if self.gradient is None:
            return "the norm"
        prefix = "the coefficient of " if self.stage == "coefficient" else ""
        called = f" ({self.name})" if self.name and self.name != f"gradient {self.gradient}" else ""
        index = f", element {self.element}" if self.element else ""
        return f"{prefix}gradient {self.gradient}{called}{index}"

    @property
    def example(self) -> str:
        """Return a text such as "the norm is 16 instead of 20"."""
        number = self.native or self.ours
        if number is None:
            return ""
        return f"{self.place} is {' instead of '.join(distinct_texts([number.value], [self.exact.value]))}"

    def __str__(self) -> str:
        where = self.place if self.gradient is None else f"the {self.stage}: {self.place}"
        lines = [f"first differs at {where}; {self.apart} of {self.compared} numbers differ"]
        lines.append(f"{'exact':{WIDTH}} {self.exact.value!r:24} {self.exact.hex}  {self.dtype}")
        for name, number in zip(SIDES.values(), (self.ours, self.native), strict=True):
            if number:
                lines.append(f"{name:{WIDTH}} {number.value!r:24} {number.hex}  {number.ulps:.3g} ULP")
        return "\n".join([*lines, f"{'nearer':{WIDTH}} {SIDES[self.nearer]}"] if self.nearer else lines)


class Result(ReportModel):
    """The verdict on one case, on one framework and in one mode."""

    verdict: VerdictKind | NativeVerdict
    detail: str
    """A description of the difference or the failure. For a result of unified_clip, the text contains the cause."""

    details: WorstElement | None
    """The element with the largest distance from the exact result, or null if no numbers differ."""

    reproduce: str | None
    """The command that runs the case again, or null if the result is correct or the framework is missing."""

    seconds: float = Field(default=0.0, exclude=True)
    """The duration of the call. parity.json does not contain durations, so that equal results give equal files."""

    @property
    def is_failure(self) -> bool:
        """Whether there is no result to compare, for example because the worker crashed or timed out."""
        return self.verdict not in (*AGREEING, "no norm", "different", "known")


class UnifiedClipResult(Result):
    """The verdict on unified_clip in one mode."""

    ulps: Real
    """The largest distance of a number from the exact number, in ULP."""

    cause: str
    """What kind of cause the difference has. The text is empty if no cause was found."""

    stages: dict[Stage, Real]
    """The distance at each stage, in ULP. For the stage "coefficient", the number is the relative error."""

    sha256: dict[Stage, str] | None
    """The SHA-256 of the tensors at each stage, or null if there is no result."""


class NativeResult(Result):
    """The verdict on a framework's function."""

    function: str | None
    """The name of the framework's function, or FILE.py:FUNCTION for a function of the user. The name is null if the
    framework's function gave no result, for example after a crash."""

    kind: DifferenceKind | Literal[""]
    """The kind of the difference, or an empty string if the results are equal up to rounding."""

    norm: Real | None
    """The relative distance from the exact norm."""

    gradients: Real | None
    """The largest difference in any gradient, relative to the largest element of the exact gradient."""

    finite_size: Real = 0.0
    """The largest relative difference from the exact result, without inf and NaN. Rounding counts as 0."""

    not_finite: NotFinite = ""
    """The parts of the result in which inf or NaN are at other positions than in the exact result."""

    cause: str
    """The cause of the difference. The text is empty if no cause was found."""

    contradiction: str = ""
    """A sentence about a rejected cause. The cause would explain this case, but another case disproves the cause."""

    lacks_norm: bool = False
    """Whether the function returned no norm, although unified_clip's function of the same name returns a norm."""

    cause_kind: str = ""
    """The kind of the cause, such as "another threshold". If `cause` is empty, the kind is also empty."""

    sha256: dict[Stage, str] | None = None
    """The SHA-256 of the tensors at each stage, or null if there is no result."""

    problem: str
    """The reason why the difference fails the run. For an allowed difference, the text is empty."""

    @property
    def is_users(self) -> bool:
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


class CaseResult(ReportModel):
    """The exact result of one case, and the results of every framework."""

    name: str
    call: str
    gradients: str
    """The name of the list of gradients."""

    elements: int
    """The number of elements of all gradients."""

    sha256: dict[Stage, str]
    """The SHA-256 of the exact result at each stage."""

    differing_stages: list[Stage]
    """The stages at which unified_clip's host path returned different bits on different frameworks."""

    frameworks: dict[str, FrameworkResult]

    @property
    def natives(self) -> dict[str, NativeResult]:
        return {name: result.native for name, result in self.frameworks.items() if result.native}


def differing_stages(frameworks: dict[str, FrameworkResult]) -> list[Stage]:
    digests = [result.host.sha256 for result in frameworks.values() if result.host and result.host.sha256 is not None]
    return [stage for stage in STAGES if len({each.get(stage) for each in digests}) > 1]


class KnownDifferenceResult(ReportModel):
    """An entry of the list of known differences, with the cases in which the run found the difference."""

    framework: str
    function: str
    kind: DifferenceKind
    listed_size: Real | None
    """The largest size that the entry lists. For a difference with inf or NaN, the value is inf. The value is null if
    the entry has no size, or if no result matches the entry."""

    size: Real | None
    """The largest size in this run, or inf for a difference with inf or NaN."""

    reason: str
    problem: str
    """The reason why the entry fails the run. For an entry without a problem, the text is empty."""

    cases: list[str]
    entry: InstanceOf[KnownDifference] | None = Field(default=None, exclude=True)
    """The entry of known.toml, or None if the report was read from parity.json."""


class Problem(ReportModel):
    """A problem that fails the run."""

    what: str
    """What failed, such as "torch, host path, different": the framework, the mode and the verdict."""

    detail: str
    framework: str | None = None
    """The framework that has the problem. The value is null for a problem that does not belong to one framework."""

    mode: str | None = None
    function: str | None = None
    """The name of the framework's function, or FILE.py:FUNCTION for a function of the user. The value is null for a
    problem in unified_clip."""

    cases: list[str] = Field(default=[])
    """The cases that have the problem."""

    file: str | None = None
    """The list of known differences, if the problem is about an entry."""

    line: int | None = None
    """The line of the entry."""


Counts = dict[str, dict[str, int]]
"""How often each verdict occurs, by framework."""


class _CaseCounts(ReportModel):
    cases: int
    cases_where_frameworks_agree: int


class Summary(_with_modes(_CaseCounts, (Counts, ...))):  # type: ignore[misc]
    """The number of cases, and how often each verdict occurs for each mode and framework."""

    natives: Counts


class ParityReport(ReportModel):
    """The report of `unified-clip parity`."""

    schema_: Literal[4] = Field(alias="schema")
    verdict: str
    """A sentence about the result of the run."""

    exit_code: Literal[0, 1, 3]
    """The exit status: 0 if the run passes, and 1 if a difference fails the run. 3 means that a result is missing, or
    that nothing is tested."""

    suite: str
    """The path of the suite, as the user typed it."""

    processor: str = ""
    """The processor of the run, and the number of its cores."""

    versions: dict[str, str]
    frameworks: list[str]
    summary: Summary
    notes: list[str]
    """Additional lines to print, for example about modes that were left out. Notes do not change a verdict."""

    problems: list[Problem]
    known: list[KnownDifferenceResult]
    cases: list[CaseResult]
    untested: list[str] = Field(default=[])
    """Everything in the suite that no case tests: "unified_clip", lists of gradients, or functions. If this list
    is not empty, the run fails."""

    may_be_missing: list[str] = Field(default=[], exclude=True)

    chosen_frameworks: list[str] = Field(default=[], exclude=True)
    """The frameworks of the option `--frameworks`."""

    chosen_cases: bool = Field(default=False, exclude=True)
    """Whether the run has the option `--case`."""

    started: datetime = Field(default=datetime(1970, 1, 1, tzinfo=timezone.utc), exclude=True)

    def safe(self) -> ParityReport:
        """Return a copy that is safe to print. Fields that are not in parity.json get default values."""
        return ParityReport.model_validate(safe(self.as_json()))

    def results(self) -> list[tuple[str, UnifiedClipResult]]:
        return [
            (name, each)
            for case in self.cases
            for name, result in case.frameworks.items()
            for each in result.by_mode.values()
        ]

    def natives(self) -> list[tuple[str, NativeResult]]:
        return [each for case in self.cases for each in case.natives.items()]

    def result_of(self, problem: Problem) -> UnifiedClipResult | NativeResult | None:
        """Return the result of the problem's first case."""
        if not problem.framework or not problem.mode:
            return None
        case = next(case for case in self.cases if case.name == problem.cases[0])
        return case.frameworks[problem.framework].get(problem.mode)

    @property
    def unavailable(self) -> list[str]:
        """The frameworks of which nothing ran, because their old releases have nothing that the suite tests."""
        verdicts: dict[str, set[str]] = {}
        for name, result in [*self.results(), *self.natives()]:
            verdicts.setdefault(name, set()).add(result.verdict)
        return [name for name, each in verdicts.items() if each == {"not available"}]

    @property
    def absent(self) -> list[str]:
        """The missing frameworks whose absence the suite allows."""
        results = [*self.results(), *self.natives()]
        present = {name for name, result in results if result.verdict != "missing"}
        return [name for name in self.frameworks if name in self.may_be_missing and name not in present]


if __name__ == "__main__":
    print(json_schema(ParityReport, "unified_clip parity report"), end="")
